//! The place of a store, and the log beside it, where it is made anew.

use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;
use taskrun_store::{Repair, SqliteStore};

use super::common::*;
use super::damaged::*;
use super::filled::filled;
use super::{is_in_order, repair, runs};

/// Damaged files that are kept beside a store.
const KEPT_MAX: u32 = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_place_cannot_be_taken_is_what_it_was() {
    let whole = filled().await;
    let truth = runs(&open(&store_of(&whole))).await;
    let dir = store_of(&whole);
    let kept = |number: u32| dir.path().join(format!("taskrun.db.damaged-{number}"));
    for number in 1..=KEPT_MAX {
        std::fs::write(kept(number), "one before").expect("writes");
    }
    let refused = SqliteStore::repair(dir.path(), JournalFormat::CURRENT);
    let refused = refused.expect_err("it has no name to be kept under");
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused}");
    assert!(std::fs::read(file(dir.path())).expect("reads") == whole, "a page is another");
    let store = open(&dir);
    is_in_order(&store).await;
    assert!(runs(&store).await == truth);
    drop(store);
    std::fs::remove_file(kept(7)).expect("removes");
    let Repair { left_out, lost, kept: place, .. } = repair(&dir);
    assert_eq!((left_out, lost), (Vec::new(), Vec::new()));
    assert_eq!(place.file_name(), kept(7).file_name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_the_store_before_is_none_of_the_one_in_its_place() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("logged")).await;
    // Its log first: what is copied into the file meanwhile stands in both then.
    let log = std::fs::read(dir.path().join("taskrun.db-wal")).expect("reads");
    let died = store_of(&std::fs::read(file(dir.path())).expect("reads"));
    assert!(!log.is_empty(), "nobody has copied it into the file");
    std::fs::write(died.path().join("taskrun.db-wal"), log).expect("writes");
    drop(store);
    let Repair { runs: made, left_out, lost, .. } = repair(&died);
    assert_eq!((made, left_out, lost), (1, Vec::new(), Vec::new()));
    assert!(!died.path().join("taskrun.db-wal").exists(), "it is in the file that is kept");
    let store = open(&died);
    is_in_order(&store).await;
    assert_eq!(runs(&store).await.keys().collect::<Vec<_>>(), ["logged"]);
}
