//! Stores whose events fill many pages.

use taskrun_journal::store::Store;
use taskrun_store::SqliteStore;

use super::common::*;
use super::rows::bytes_of;

/// Notes of a run, each of which fills a leaf.
const NOTES: usize = 60;
/// Runs of a store with so many leaves that its root leads to them by pages in between.
const RUNS: usize = 12;

/// Keeps a run that ended at a time, with many events.
pub(super) async fn ended(store: &SqliteStore, id: &str, at: u64) {
    create(store, spec(id)).await;
    let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    let text = "long ".repeat(700);
    let notes = (0..NOTES).map(|n| note(&format!("{id} {n} {text}"))).collect();
    let run = append(store, next(&run, 50, 3_000, notes)).await;
    append(store, next(&run, 500, at, end())).await;
}

/// The bytes of a store of runs that ended.
pub(super) async fn large() -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    for n in 0..RUNS {
        ended(&store, &format!("long-{n:02}"), 4_000).await;
    }
    drop(store);
    bytes_of(&dir)
}
