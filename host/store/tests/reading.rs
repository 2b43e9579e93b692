//! Reading where nothing can be written.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::*;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::store::{Store, StoreError};
use taskrun_store::SqliteStore;

/// Tell a child what it does, and where.
const ROLE: &str = "TASKRUN_TEST_READING_ROLE";
const DIR: &str = "TASKRUN_TEST_READING_DIR";

#[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Does what this process was told, if it is a child.
async fn act_as_told() -> bool {
    let (Some(role), Some(dir)) = (told(ROLE), told(DIR)) else { return false };
    let dir = Path::new(&dir);
    match role.as_str() {
        "make" => {
            let store = SqliteStore::open(dir, options()).expect("opens");
            create(&store, spec("r")).await;
            // Log and index are left behind.
            std::process::abort();
        }
        "look" => match look(dir).await {
            Ok(count) => println!("\nfound {count}"),
            Err(error) => println!("\nrefused {}: {error}", error.code()),
        },
        role => panic!("{role}"),
    }
    true
}

async fn look(dir: &Path) -> Result<usize, StoreError> {
    let store = SqliteStore::open(dir, options())?;
    assert!(store.get(&run_id("r")).await?.is_some());
    let all = store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 10).await?;
    Ok(all.runs.len())
}

/// Lets a shell do something around children that run the test of this name.
fn shell(program: &[&str], script: &str, name: &str, dir: &Path) -> Output {
    let child =
        "child() { env TASKRUN_TEST_READING_ROLE=\"$1\" \"$0\" --exact \"$name\" --nocapture; }";
    let this = std::env::current_exe().expect("this test");
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).args(["sh", "-c", &format!("{child}\n{script}")]).arg(this);
    command.env(DIR, dir).env("name", name).env("dir", dir).env("LC_ALL", "C");
    command.output().expect("a shell runs")
}

fn said(output: &Output) -> Vec<String> {
    let all = String::from_utf8_lossy(&output.stdout);
    let lines = all.lines().filter(|line| line.starts_with("found") || line.starts_with("refused"));
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_process_that_can_write_no_byte_reads_while_another_one_has_the_store_open() {
    if act_as_told().await {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("r")).await;
    let name = "a_process_that_can_write_no_byte_reads_while_another_one_has_the_store_open";
    let script = "trap '' XFSZ; ulimit -f 0; child look";
    let output = shell(&["env"], script, name, dir.path());
    assert_eq!(said(&output), ["found 1"], "{output:?}");
}

/// On a small disk in memory, where the system lets this process have one.
#[tokio::test]
async fn a_full_disk_is_read_where_the_logs_index_is_or_fits_and_otherwise_says_what_is_missing() {
    if act_as_told().await {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let mount = ["unshare", "--map-root-user", "--mount"];
    let possible = shell(&mount, "mount -t tmpfs -o size=4m none \"$dir\"", "", dir.path());
    if !possible.status.success() {
        return assert_mounts_are_refused(&possible);
    }
    let name =
        "a_full_disk_is_read_where_the_logs_index_is_or_fits_and_otherwise_says_what_is_missing";
    let script = "
        mount -t tmpfs -o size=4m none \"$dir\"
        fill() { head -c 8m /dev/zero >> \"$dir/fill\" 2>/dev/null; }
        child make 2>/dev/null
        fill; child look
        rm -f \"$dir\"/taskrun.db-shm; fill; child look
        rm \"$dir/fill\"; child look";
    let output = shell(&mount, script, name, dir.path());
    let said = said(&output);
    let [full, without, after] = said.as_slice() else { panic!("{output:?}") };
    assert_eq!((full.as_str(), after.as_str()), ("found 1", "found 1"), "{output:?}");
    assert!(without.starts_with("refused store-full: no space is left to read"), "{output:?}");
    assert!(without.ends_with("bytes are missing on its disk"), "{output:?}");
}
