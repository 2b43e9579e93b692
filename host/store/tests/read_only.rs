//! A store that could only be read for a while.

mod common;

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::*;
use taskrun_journal::store::{Store, StoreError};
use taskrun_store::{FILE_NAMES, SqliteStore};

const ONCE: &str = "TASKRUN_TEST_READ_ONLY_ONCE";
/// Nobody.
const USER: u32 = 65_534;

/// Opens the store of its own while the database, and while the index of its log, may not be written.
async fn opens_again(dir: &Path) {
    let [file, log, index] = FILE_NAMES.map(|name| dir.join(name));
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    };
    let beside = || [log.exists(), index.exists()];
    let before = beside();
    set(&file, 0o400);
    let refused = SqliteStore::open(dir, options()).err();
    let named = file.display().to_string();
    assert!(matches!(&refused, Some(StoreError::ReadOnly { path, .. }) if *path == named));
    assert_eq!(beside(), before, "it leaves nothing behind");
    set(&file, 0o600);
    // As an earlier program left it.
    std::fs::write(&index, "").expect("written");
    set(&index, 0o400);
    let store = SqliteStore::open(dir, options()).expect("opens again");
    let run = create(&store, spec("after")).await;
    assert!(store.get(run.id()).await.expect("gets").is_some());
    println!("it is written again");
}

/// Root may write everything, so the store is opened by a process of somebody else.
#[tokio::test]
async fn a_store_that_could_only_be_read_for_a_while_is_written_again() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let told = std::env::var_os(ONCE);
    if let Some(dir) = told {
        return opens_again(Path::new(&dir)).await;
    }
    let dir = tempfile::tempdir().expect("a folder");
    drop(open(&dir));
    let is_root = rustix::process::geteuid().is_root();
    for entry in std::fs::read_dir(dir.path()).expect("a folder").filter(|_| is_root) {
        chown(entry.expect("an entry").path(), Some(USER), Some(USER)).expect("given away");
    }
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    let name = "a_store_that_could_only_be_read_for_a_while_is_written_again";
    child.args(["--exact", name, "--nocapture"]).env(ONCE, dir.path());
    if is_root {
        chown(dir.path(), Some(USER), Some(USER)).expect("given away");
        child.uid(USER).gid(USER);
    }
    let output = child.output().expect("the child runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("it is written again"), "{output:?}");
}
