//! Processes that are killed while they write.

mod common;

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use common::*;
use taskrun_journal::machine;
use taskrun_journal::store::{Hosts, Store};
use taskrun_store::SqliteStore;

const DIR: &str = "TASKRUN_TEST_DEATH";

/// The process that dies: says what was acknowledged, for ever.
async fn write_until_death(dir: &Path) {
    let store = SqliteStore::open(dir, options()).expect("opens");
    store.register(host_of(&host_id("doomed"), PIN)).await.expect("registers");
    let mut out = std::io::stdout().lock();
    for n in 0.. {
        let id = format!("r-{n}");
        create(&store, spec(&id)).await;
        let run = store.claim(wish("doomed", 1, 2_000)).await.expect("claims").remove(0);
        let append = next(&run, 50, 3_000, vec![note("a"), note("b")]);
        store.append(append).await.expect("appends");
        writeln!(out, "ack {id}").expect("says");
    }
}

#[tokio::test]
async fn after_kill_9_all_that_was_acknowledged_is_there_and_the_host_is_known_to_be_dead() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let told = std::env::var_os(DIR);
    if let Some(dir) = told {
        write_until_death(Path::new(&dir)).await;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let name = "after_kill_9_all_that_was_acknowledged_is_there_and_the_host_is_known_to_be_dead";
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name, "--nocapture"])
        .env(DIR, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child runs");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut acknowledged = Vec::new();
    let mut killed = false;
    for line in lines.map_while(Result::ok) {
        if let Some((_, id)) = line.split_once("ack ") {
            acknowledged.push(run_id(id));
        }
        if acknowledged.len() >= 40 && !killed {
            let living = store.hosts().await.expect("lists");
            assert_eq!(living.first().map(|host| host.id.as_str()), Some("doomed"));
            child.kill().expect("kills");
            killed = true;
        }
    }
    child.wait().expect("it is gone");
    assert!(killed, "it wrote until it was killed");
    assert_eq!(store.hosts().await.expect("lists"), []);
    for id in &acknowledged {
        let run = store.get(id).await.expect("gets").expect("it was acknowledged");
        assert!(run.state.head >= 4);
        let events = store.read(id, 0, 100).await.expect("reads");
        assert_eq!(machine::fold(&events), Ok(run));
    }
    let orphans = store.orphans(10_000).await.expect("answers");
    assert!(orphans.len() >= acknowledged.len());
}

const FULL: &str = "TASKRUN_TEST_FULL";

/// The process whose disk refuses: says what was acknowledged, then what the store said.
async fn write_until_refused(dir: &Path) {
    let store = SqliteStore::open(dir, options()).expect("opens");
    let mut out = std::io::stdout().lock();
    let mut refused = 0;
    for n in 0.. {
        let id = format!("r-{n}");
        match store.create(new_run(spec(&id))).await {
            Ok(_) => writeln!(out, "ack {id}").expect("says"),
            Err(error) => {
                writeln!(out, "refused {}", error.code()).expect("says");
                refused += 1;
            }
        }
        if refused == 5 {
            break;
        }
    }
    let read = store.get(&run_id("r-0")).await.expect("reads go on");
    assert_eq!(read.map(|run| run.state.head), Some(1));
    writeln!(out, "read").expect("says");
}

#[tokio::test]
async fn a_disk_that_refuses_to_write_gives_typed_errors_and_loses_nothing_acknowledged() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let told = std::env::var_os(FULL);
    if let Some(dir) = told {
        write_until_refused(Path::new(&dir)).await;
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    drop(open(&dir));
    let name = "a_disk_that_refuses_to_write_gives_typed_errors_and_loses_nothing_acknowledged";
    // Files beyond two MiB are refused by the kernel, as they would be by a quota.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4000; exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().expect("this test"))
        .arg(name)
        .env(FULL, dir.path())
        .output()
        .expect("the child runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("\nread\n"), "{said}");
    let mut acknowledged = 0;
    let store = open(&dir);
    for line in said.lines() {
        if let Some((_, id)) = line.split_once("ack ") {
            acknowledged += 1;
            let run = store.get(&run_id(id)).await.expect("gets").expect("it was acknowledged");
            let events = store.read(run.id(), 0, 9).await.expect("reads");
            assert_eq!(machine::fold(&events), Ok(run));
        } else if let Some((_, code)) = line.split_once("refused ") {
            let codes = ["store-full", "store-unavailable", "store-unknown"];
            assert!(codes.contains(&code), "{code}");
        }
    }
    assert!(acknowledged > 20, "{acknowledged}");
    create(&store, spec("after")).await;
}
