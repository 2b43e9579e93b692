//! Writing on a full disk: a small one in memory, where the system lets a process have one.

mod common;

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::*;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::machine;
use taskrun_journal::status::StopReason;
use taskrun_journal::store::{Host, Hosts, Policies, PolicyText, Store, StoreError};
use taskrun_journal::time::Timestamp;
use taskrun_store::SqliteStore;

/// Tells a child where its small disk is.
const DIR: &str = "TASKRUN_TEST_FULL_DISK";
/// The words of the shell once there is a small disk, and those of a child at its end.
const MOUNTED: &str = "it is mounted";
const DONE: &str = "it is done";
/// Transactions in the log before the disk is full; each has a page in it.
const LOGGED: u64 = 300;

/// The small disk of this process, if it is a child.
fn small_disk() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let told = std::env::var_os(DIR);
    told.map(PathBuf::from)
}

/// Runs the test of this name again, in a child with a small disk.
fn on_small_disk(name: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let script = format!(
        "mount -t tmpfs -o size=8m none \"${DIR}\" && echo {MOUNTED} &&
         exec \"$0\" --exact \"$1\" --nocapture"
    );
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &script])
        .arg(std::env::current_exe().expect("this test"))
        .arg(name)
        .env(DIR, dir.path())
        .env("LC_ALL", "C")
        .output()
        .expect("a shell runs");
    let said = String::from_utf8_lossy(&output.stdout);
    if !said.contains(MOUNTED) {
        return assert_mounts_are_refused(&output);
    }
    assert!(output.status.success() && said.contains(DONE), "{output:?}");
}

/// Takes every page that the disk still has. What is left of the log's last page is less than a
/// page of the database with what stands before it.
fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("fill");
    let mut file = File::create(&path).expect("creates");
    let refused = loop {
        if let Err(error) = file.write_all(&[0; 4096]) {
            break error;
        }
    };
    assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
    path
}

/// Writes a page that the database has.
async fn overwrite(store: &SqliteStore, n: u64) -> Result<(), StoreError> {
    let policy = PolicyText {
        path: "/policy".to_owned(),
        digest: format!("digest {n}"),
        text: "text".to_owned(),
        read_at: Timestamp(n),
    };
    let applied = store.apply_policy(policy).await?;
    assert_eq!(applied.number, n);
    Ok(())
}

/// Asserts that so many runs are there and nothing is damaged.
async fn assert_whole(store: &SqliteStore, runs: usize) {
    let all = store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 100).await;
    assert_eq!(all.expect("lists").runs.len(), runs);
    assert_eq!(store.check().await.expect("looks"), Vec::<String>::new());
}

async fn write_where_the_log_can_be_copied(dir: &Path) {
    let store = SqliteStore::open(dir, options()).expect("opens");
    let old = create(&store, spec("old")).await;
    let canceled = machine::decide::cancel(&old, StopReason::CanceledByOwner, None);
    append(&store, next(&old, 50, 2_000, canceled)).await;
    create(&store, spec("other")).await;
    // All pages are in the database then.
    drop(store);
    let store = SqliteStore::open(dir, options()).expect("opens");
    for n in 1..=LOGGED {
        overwrite(&store, n).await.expect("the disk has room");
    }
    fill(dir);
    let before = store.stats();
    for n in LOGGED + 1..=LOGGED + 5 {
        overwrite(&store, n).await.expect("the log has room");
    }
    let removed = store.remove(all_before(3_000)).await.expect("the log has room");
    assert_eq!(removed.runs, 1);
    let stats = store.stats();
    let counts = (stats.commits - before.commits, stats.transactions - before.transactions);
    assert_eq!(counts, (6, 6), "each is answered once");
    assert_whole(&store, 1).await;
    drop(store);
    assert_whole(&SqliteStore::open(dir, options()).expect("opens"), 1).await;
}

#[tokio::test]
async fn on_a_full_disk_the_room_of_a_log_that_can_be_copied_is_used_again() {
    match small_disk() {
        None => on_small_disk("on_a_full_disk_the_room_of_a_log_that_can_be_copied_is_used_again"),
        Some(dir) => {
            write_where_the_log_can_be_copied(&dir).await;
            println!("\n{DONE}");
        }
    }
}

async fn write_where_the_database_cannot_grow(dir: &Path) {
    let store = SqliteStore::open(dir, options()).expect("opens");
    let long = |n: usize| {
        let mut spec = spec(&format!("r-{n}"));
        spec.task = "x".repeat(20_000);
        spec
    };
    for n in 0..20 {
        create(&store, long(n)).await;
    }
    let fill = fill(dir);
    for _ in 0..3 {
        let refused = store.create(new_run(long(20))).await;
        assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    }
    assert_whole(&store, 20).await;
    std::fs::remove_file(fill).expect("removes");
    create(&store, long(20)).await;
    assert_whole(&store, 21).await;
    drop(store);
    assert_whole(&SqliteStore::open(dir, options()).expect("opens"), 21).await;
}

#[tokio::test]
async fn a_log_that_cannot_be_copied_on_a_full_disk_keeps_everything_until_there_is_room() {
    match small_disk() {
        None => on_small_disk(
            "a_log_that_cannot_be_copied_on_a_full_disk_keeps_everything_until_there_is_room",
        ),
        Some(dir) => {
            write_where_the_database_cannot_grow(&dir).await;
            println!("\n{DONE}");
        }
    }
}

async fn beat_where_the_log_can_be_copied(dir: &Path) {
    let store = SqliteStore::open(dir, options()).expect("opens");
    let lease = Duration::from_millis(60);
    store.register(Host { lease, ..host_of(&host_id("h"), PIN) }).await.expect("registers");
    spin_until_async(|| store.stats().heartbeats >= 10).await;
    fill(dir);
    let before = store.stats().heartbeats;
    // Nothing but the heart writes.
    spin_until_async(|| store.stats().heartbeats >= before + 3).await;
}

#[tokio::test]
async fn on_a_full_disk_a_heart_beats_on_in_a_log_that_can_be_copied() {
    match small_disk() {
        None => on_small_disk("on_a_full_disk_a_heart_beats_on_in_a_log_that_can_be_copied"),
        Some(dir) => {
            beat_where_the_log_can_be_copied(&dir).await;
            println!("\n{DONE}");
        }
    }
}
