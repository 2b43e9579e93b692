//! Files that end before they say that they do.

use std::collections::BTreeSet;

use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;
use taskrun_store::{Repair, SqliteStore};

use super::common::*;
use super::damaged::*;
use super::filled::filled;
use super::large::large;
use super::{is_in_order, repair, runs};

const LOG: &str = "taskrun.db-wal";

/// The runs with an event on a page after so many.
fn runs_after(whole: &[u8], pages: i64) -> BTreeSet<String> {
    let dir = store_of(whole);
    drop(open(&dir));
    let db = stranger(&dir);
    let ids = "SELECT r.id FROM events e JOIN runs r ON r.no = e.run ORDER BY e.pos";
    let mut ids = db.prepare(ids).expect("it can be asked");
    let mut ids = ids.query_map([], |row| row.get::<_, String>(0)).expect("selects");
    let leaves = "SELECT ncell, pageno FROM dbstat
                  WHERE name = 'events' AND pagetype = 'leaf' ORDER BY path";
    let mut leaves = db.prepare(leaves).expect("it can be asked");
    let leaves = leaves.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
    let mut after = BTreeSet::new();
    for leaf in leaves.expect("selects") {
        let (rows, page) = leaf.expect("a leaf");
        for _ in 0..rows {
            let id = ids.next().expect("as many as on all leaves").expect("an id");
            if page > pages {
                after.insert(id);
            }
        }
    }
    assert!(ids.next().is_none(), "there are no others");
    after
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_cut_off_has_all_runs_whose_events_stand_before_the_cut() {
    let whole = large().await;
    let truth = runs(&open(&store_of(&whole))).await;
    for length in [whole.len() - PAGE, whole.len() - 2 * PAGE - 100, whole.len() / 2] {
        let left = &whole[..length];
        let dir = store_of(left);
        let Repair { left_out, lost, kept, .. } = repair(&dir);
        assert!(std::fs::read(kept).expect("reads") == left, "{length}: it is kept as it was");
        let store = open(&dir);
        is_in_order(&store).await;
        let found = runs(&store).await;
        let after = runs_after(&whole, i64::try_from(length / PAGE).expect("small"));
        for (id, run) in &truth {
            match found.get(id) {
                Some(found) => assert!(found == run, "{length}: {id} is another"),
                None => assert!(after.contains(id), "{length}: {id} is left out: {left_out:?}"),
            }
        }
        assert!(!found.is_empty(), "{length}: {left_out:?}");
        assert!(found.len() == truth.len() || !lost.is_empty(), "{length}: nothing is said");
    }
}

/// The bytes of a file and of its log, in which alone is the run `logged`.
async fn logged() -> (Vec<u8>, Vec<u8>) {
    let dir = store_of(&large().await);
    let store = open(&dir);
    create(&store, spec("logged")).await;
    // Its log first: what is copied into the file meanwhile stands in both then.
    let log = std::fs::read(dir.path().join(LOG)).expect("reads");
    let whole = std::fs::read(file(dir.path())).expect("reads");
    assert!(!log.is_empty(), "nobody has copied it into the file");
    drop(store);
    (whole, log)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_cut_off_beside_its_log_has_what_stands_in_the_log() {
    let (whole, log) = logged().await;
    let died = store_of(&whole[..whole.len() - 2 * PAGE]);
    std::fs::write(died.path().join(LOG), log).expect("writes");
    let Repair { left_out, .. } = repair(&died);
    let store = open(&died);
    is_in_order(&store).await;
    assert!(runs(&store).await.contains_key("logged"), "{left_out:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lacks_more_than_its_log_may_have_is_refused_and_left_as_it_is() {
    let (whole, log) = logged().await;
    let left = &whole[..whole.len() / 2];
    let died = store_of(left);
    std::fs::write(died.path().join(LOG), &log).expect("writes");
    let refused = SqliteStore::repair(died.path(), JournalFormat::CURRENT);
    let refused = refused.expect_err("its log cannot be copied");
    let said = "its log cannot be copied into it";
    assert!(
        matches!(&refused, StoreError::Corrupt { detail, .. } if detail.starts_with(said)),
        "{refused}"
    );
    assert!(std::fs::read(file(died.path())).expect("reads") == left, "it is another");
    assert!(std::fs::read(died.path().join(LOG)).expect("reads") == log, "the log is another");
    assert!(!died.path().join("taskrun.db.damaged-1").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_that_fails_at_its_end_leaves_a_store_that_was_cut_off_as_it_is() {
    let whole = large().await;
    let left = &whole[..whole.len() - 2 * PAGE - 100];
    let dir = store_of(left);
    // No name is left for the damaged file.
    for n in 1..=100 {
        std::fs::write(dir.path().join(format!("taskrun.db.damaged-{n}")), "").expect("writes");
    }
    let refused = SqliteStore::repair(dir.path(), JournalFormat::CURRENT);
    let refused = refused.expect_err("it cannot be kept");
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused}");
    assert!(std::fs::read(file(dir.path())).expect("reads") == left, "it is another");
}

#[tokio::test]
async fn a_store_that_was_cut_off_before_its_tables_is_refused_and_left_as_it_is() {
    let whole = filled().await;
    let left = &whole[..3 * PAGE];
    let dir = store_of(left);
    let refused = SqliteStore::repair(dir.path(), JournalFormat::CURRENT);
    let refused = refused.expect_err("nothing tells where its tables are");
    assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused}");
    assert!(std::fs::read(file(dir.path())).expect("reads") == left, "it is another");
    assert!(!dir.path().join("taskrun.db.damaged-1").exists());
}
