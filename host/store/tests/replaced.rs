//! A store whose files are taken away while it is open.

mod common;

use std::path::Path;
use std::time::Duration;

use common::*;
use taskrun_journal::store::{Host, Hosts, Store, StoreError};
use taskrun_store::{FILE_NAMES, SqliteOptions, SqliteStore, StoreThreads};
use tempfile::TempDir;

fn is_replaced<T>(answer: Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Replaced { .. }))
}

/// Moves files out of the way.
fn move_away(dir: &Path, names: &[&str]) {
    let aside = dir.join("aside");
    std::fs::create_dir_all(&aside).expect("made");
    for name in names {
        std::fs::rename(dir.join(name), aside.join(name)).expect("moved");
    }
}

fn contents(dir: &TempDir) -> Vec<Option<Vec<u8>>> {
    FILE_NAMES.iter().map(|name| std::fs::read(dir.path().join(name)).ok()).collect()
}

const BOTH: [StoreThreads; 2] = [StoreThreads::Own, StoreThreads::Callers];

fn open_with(dir: &TempDir, threads: StoreThreads) -> SqliteStore {
    SqliteStore::open(dir.path(), SqliteOptions { threads, ..options() }).expect("opens")
}

#[tokio::test]
async fn nothing_is_acknowledged_or_read_once_the_files_are_others() {
    for threads in BOTH {
        are_others(threads).await;
    }
}

async fn are_others(threads: StoreThreads) {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open_with(&dir, threads);
    create(&store, spec("r")).await;
    move_away(dir.path(), &FILE_NAMES);
    // Somebody makes another store there, and dies.
    drop(open(&dir));
    let other = contents(&dir);
    assert!(is_replaced(store.create(new_run(spec("s"))).await));
    assert!(is_replaced(store.get(&run_id("r")).await));
    assert!(is_replaced(store.claim(wish("h", 1, 2_000)).await));
    assert!(is_replaced(store.register(host_of(&host_id("h"), PIN)).await));
    // Also when the former files are back: what was written in between is in neither.
    for name in FILE_NAMES {
        std::fs::remove_file(dir.path().join(name)).ok();
        std::fs::rename(dir.path().join("aside").join(name), dir.path().join(name)).expect("moved");
    }
    assert!(is_replaced(store.create(new_run(spec("s"))).await));
    move_away(dir.path(), &FILE_NAMES);
    drop(open(&dir));
    store.close();
    let (names, left) = (FILE_NAMES, contents(&dir));
    assert_eq!(left.len(), other.len());
    assert!(left[0].is_some(), "{names:?}: closing one store touched the other");
}

#[tokio::test]
async fn a_log_that_was_removed_is_noticed_and_closing_touches_nothing() {
    for threads in BOTH {
        let dir = tempfile::tempdir().expect("a folder");
        let store = open_with(&dir, threads);
        create(&store, spec("r")).await;
        move_away(dir.path(), &FILE_NAMES[1..]);
        assert!(is_replaced(store.create(new_run(spec("s"))).await));
        let before = contents(&dir);
        store.close();
        assert_eq!(contents(&dir), before, "the log that nobody else has was not copied");
    }
}

/// Another process would make an index of its own, and the two would write over each other's
/// transactions.
#[tokio::test]
async fn an_index_that_was_removed_is_noticed_and_what_was_acknowledged_stays() {
    for threads in BOTH {
        let dir = tempfile::tempdir().expect("a folder");
        let store = open_with(&dir, threads);
        create(&store, spec("r")).await;
        std::fs::remove_file(dir.path().join(FILE_NAMES[2])).expect("removed");
        assert!(is_replaced(store.create(new_run(spec("t"))).await));
        assert!(is_replaced(store.register(host_of(&host_id("h"), PIN)).await));
        store.close();
        let again = open(&dir);
        assert!(again.get(&run_id("r")).await.expect("reads").is_some(), "{threads:?}");
    }
}

/// The writer has looked, and waits for a lock; meanwhile the files are replaced.
#[tokio::test]
async fn a_group_that_was_committed_to_files_which_are_gone_is_not_acknowledged() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let blocker = stranger(&dir);
    blocker.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let (one, two) = (store.create(new_run(spec("r"))), store.create(new_run(spec("s"))));
    let both = async { tokio::join!(one, two) };
    tokio::pin!(both);
    // The writer does not say that it waits: it does so at once, and for five seconds.
    let waited = tokio::time::timeout(Duration::from_millis(300), &mut both).await;
    assert!(waited.is_err(), "the store is locked");
    move_away(dir.path(), &FILE_NAMES);
    blocker.execute_batch("COMMIT").expect("frees");
    let (one, two) = within(both).await;
    assert!(is_replaced(one) && is_replaced(two));
}

#[tokio::test]
async fn a_heart_that_beats_into_files_which_are_gone_is_silent() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions { busy_timeout: Duration::from_millis(50), ..options() };
    let store = SqliteStore::open(dir.path(), options).expect("opens");
    let (host, lease) = (host_id("h"), Duration::from_millis(300));
    store.register(Host { lease, ..host_of(&host, PIN) }).await.expect("registers");
    move_away(dir.path(), &FILE_NAMES);
    drop(open(&dir));
    let silent = async {
        while store.silence(&host).is_some_and(|silence| silence < lease * 2) {
            tokio::task::yield_now().await;
        }
    };
    within(silent).await;
}
