//! SQLite's own locks, which every connection of this process holds on the files of the store.
//!
//! The kernel drops all locks of a process on a file when the process closes any handle of that
//! file, also one on which it never locked anything. From then on a program that closes the store
//! takes itself for the last one, and removes the log under those who write to it. So each test
//! asks, after a way to open the store, what such a program would ask: another process wants to
//! write-lock the file, and must not get it.

mod common;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::*;
use rustix::fs::{FlockOperation, fcntl_lock};
use taskrun_journal::store::{Host, Hosts, Stay, Store};
use taskrun_store::SqliteStore;
use tempfile::TempDir;

/// Tells the asking process which file it asks about.
const FILE: &str = "TASKRUN_TEST_LOCKS";

/// A connection holds its locks on 510 bytes from 2^30 + 2 of the file, and on some from 120 of
/// the log's index; the range that is asked for here is all of the file.
fn would_be_locked(file: &Path) -> bool {
    let opened = OpenOptions::new().read(true).write(true).open(file).expect("opens");
    match fcntl_lock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => true,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => false,
        Err(error) => panic!("{}: {error}", file.display()),
    }
}

/// True if another process gets a write lock on a file now.
fn is_lockable(file: &Path) -> bool {
    let asks = "a_process_that_asks_gets_what_nobody_has_and_nothing_else";
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", asks, "--nocapture"])
        .env(FILE, file)
        .output()
        .expect("the child runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    match (said.contains("\ngot it\n"), said.contains("\nrefused\n")) {
        (true, false) => true,
        (false, true) => false,
        _ => panic!("{said}"),
    }
}

#[test]
fn a_process_that_asks_gets_what_nobody_has_and_nothing_else() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let told = std::env::var_os(FILE);
    if let Some(file) = told {
        let got = would_be_locked(Path::new(&file));
        println!("\n{}", if got { "got it" } else { "refused" });
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("a file");
    std::fs::write(&file, b"").expect("writes");
    assert!(is_lockable(&file), "nobody has it");
    let ours = OpenOptions::new().write(true).open(&file).expect("opens");
    fcntl_lock(&ours, FlockOperation::NonBlockingLockExclusive).expect("locks");
    assert!(!is_lockable(&file), "this process has it");
    // The trap that this module avoids: another handle is closed, and the lock is gone.
    drop(std::fs::File::open(&file).expect("opens"));
    assert!(is_lockable(&file), "a handle was closed");
}

/// The files on which connections hold locks for as long as they are open.
fn files(dir: &TempDir) -> [PathBuf; 2] {
    ["taskrun.db", "taskrun.db-shm"].map(|name| dir.path().join(name))
}

fn assert_held(dir: &TempDir, after: &str) {
    for file in files(dir) {
        assert!(!is_lockable(&file), "{} is not held after {after}", file.display());
    }
}

async fn read(store: &SqliteStore) {
    store.get(&run_id("r")).await.expect("reads");
}

#[tokio::test]
async fn who_makes_the_store_holds_its_locks() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    assert_held(&dir, "making it");
    store.close();
    let [file, _] = files(&dir);
    assert!(is_lockable(&file), "it is closed");
}

#[tokio::test]
async fn who_opens_reads_and_beats_holds_its_locks() {
    let dir = tempfile::tempdir().expect("a folder");
    open(&dir).close();
    let store = open(&dir);
    assert_held(&dir, "opening it");
    create(&store, spec("r")).await;
    read(&store).await;
    assert_held(&dir, "reading");
    let host = host_id("h");
    let lease = Duration::from_millis(300);
    let entered = Host { lease, ..host_of(&host, PIN) };
    store.register(entered).await.expect("registers");
    store.hosts().await.expect("lists");
    store.orphans(1).await.expect("lists");
    let beaten = async {
        while store.stats().heartbeats == 0 {
            tokio::task::yield_now().await;
        }
    };
    within(beaten).await;
    assert_held(&dir, "a heartbeat");
    store.retire(&host, Stay::default()).await.expect("retires");
    assert_held(&dir, "the end of a host");
}

#[tokio::test]
async fn a_second_store_of_the_process_takes_no_locks_with_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = open(&dir);
    create(&first, spec("r")).await;
    let second = open(&dir);
    read(&second).await;
    assert_held(&dir, "opening a second one");
    second.close();
    assert_held(&dir, "closing the second one");
    // A folder has one name too many.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).expect("links");
    let third = SqliteStore::open(&link, options()).expect("opens");
    read(&third).await;
    drop(third);
    assert_held(&dir, "closing one that was opened by another name");
    read(&first).await;
}

/// Its maker died before it wrote.
#[tokio::test]
async fn who_finds_an_empty_file_holds_its_locks() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("taskrun.db"), b"").expect("writes");
    let store = open(&dir);
    assert_held(&dir, "filling it");
    drop(store);
}
