//! Events on whole leaves to which nothing leads any more.

use std::collections::BTreeSet;

use taskrun_journal::store::Store;
use taskrun_store::Repair;

use super::common::*;
use super::damaged::*;
use super::filled::filled;
use super::large::{ended, large};
use super::rows::bytes_of;
use super::{is_in_order, repair, runs};

/// The page that says which of those after it are free.
const MAP: usize = 2;
/// Pages from one map to the next.
const MAP_STEP: usize = (PAGE - SUM) / 5 + 1;
/// Offset in a page of the lower byte of the number of its cells.
const CELLS: usize = 4;

/// The bytes of a store in which pages, by number, are zeros.
fn zeroed(bytes: &[u8], pages: &[usize]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for page in pages {
        bytes[(page - 1) * PAGE..page * PAGE].fill(0);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_inner_page_of_events_costs_nothing() {
    // One with a root above its leaves, and one with pages in between.
    for (whole, least) in [(filled().await, 1), (large().await, 3)] {
        let truth = runs(&open(&store_of(&whole))).await;
        let inner = pages_of(&whole, "events", "internal");
        assert!(inner.len() >= least, "{inner:?}");
        for page in inner {
            let zeros = store_of(&zeroed(&whole, &[page]));
            // One that leads to a leaf less, or to none of its own, looks as good as any.
            let count = flipped(&whole, (page - 1) * PAGE + CELLS, true);
            for (harm, dir) in [("zeros", zeros), ("count", count)] {
                let Repair { left_out, lost, .. } = repair(&dir);
                assert_eq!((left_out, lost), (Vec::new(), Vec::new()), "{harm} in page {page}");
                let store = open(&dir);
                is_in_order(&store).await;
                assert!(runs(&store).await == truth, "{harm} in page {page}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_events_on_a_leaf_that_is_lost_it_is_said_that_they_cannot_be_read() {
    let whole = filled().await;
    let leaf = *pages_of(&whole, "events", "leaf").first().expect("it has events");
    let dir = store_of(&zeroed(&whole, &[leaf]));
    let Repair { left_out, lost, .. } = repair(&dir);
    let is_said = |line: &String| line.contains("missing or cannot be read");
    assert!(!left_out.is_empty() && left_out.iter().all(is_said), "{left_out:?}");
    assert!(lost.iter().any(|line| line.ends_with("events cannot be read")), "{lost:?}");
    is_in_order(&open(&dir)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_were_removed_do_not_come_back_from_free_pages() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    for n in 0..2 {
        ended(&store, &format!("kept-{n}"), 9_000).await;
    }
    for n in 0..8 {
        ended(&store, &format!("gone-{n}"), 4_000).await;
    }
    // More pages than one removal gives back.
    assert_eq!(store.remove(all_before(5_000)).await.expect("removes").runs, 8);
    drop(store);
    let whole = bytes_of(&dir);
    let truth = runs(&open(&store_of(&whole))).await;
    assert_eq!(truth.keys().collect::<Vec<_>>(), ["kept-0", "kept-1"]);
    let root = *pages_of(&whole, "events", "internal").first().expect("it has a root");
    let dir = store_of(&zeroed(&whole, &[root]));
    let Repair { left_out, lost, .. } = repair(&dir);
    assert_eq!((left_out, lost), (Vec::new(), Vec::new()));
    let store = open(&dir);
    is_in_order(&store).await;
    assert!(runs(&store).await == truth, "others are there");
    // Where nothing tells which pages are free, the list of runs does which were removed.
    let dir = store_of(&zeroed(&whole, &[root, MAP]));
    let Repair { left_out, .. } = repair(&dir);
    let is_said =
        |line: &String| line.starts_with("run gone-") && line.contains("it may have been removed");
    assert!(!left_out.is_empty() && left_out.iter().all(is_said), "{left_out:?}");
    let store = open(&dir);
    is_in_order(&store).await;
    assert!(runs(&store).await == truth, "others are there, without a map");
}

/// The runs whose first event stands beneath the first inner page of the second level, and those
/// with events elsewhere.
fn beneath_first(whole: &[u8]) -> [BTreeSet<String>; 2] {
    let dir = store_of(whole);
    drop(open(&dir));
    let db = stranger(&dir);
    let count = "SELECT sum(ncell) FROM dbstat
                 WHERE name = 'events' AND pagetype = 'leaf' AND path LIKE '/000/%'";
    let count: i64 = db.query_row(count, [], |row| row.get(0)).expect("counts");
    let ids = |events: &str| {
        let sql = format!("SELECT r.id FROM ({events}) e JOIN runs r ON r.no = e.run");
        let mut sql = db.prepare(&sql).expect("it can be asked");
        let ids = sql.query_map([count], |row| row.get::<_, String>(0)).expect("selects");
        ids.collect::<Result<BTreeSet<_>, _>>().expect("ids")
    };
    [
        ids("SELECT run FROM (SELECT run, seq FROM events ORDER BY pos LIMIT ?1) WHERE seq = 1"),
        ids("SELECT run FROM events ORDER BY pos LIMIT -1 OFFSET ?1"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_which_any_event_stands_in_the_tree_was_not_removed() {
    let whole = large().await;
    let truth = runs(&open(&store_of(&whole))).await;
    let [hidden, shown] = beneath_first(&whole);
    assert!(hidden.intersection(&shown).next().is_some(), "{hidden:?}, {shown:?}");
    // Nothing tells which pages are free, or which runs there are.
    let mut pages: Vec<usize> = (MAP..=whole.len() / PAGE).step_by(MAP_STEP).collect();
    pages.extend(pages_of(&whole, "runs", "leaf"));
    pages.push(pages_of(&whole, "events", "internal")[1]);
    let dir = store_of(&zeroed(&whole, &pages));
    let Repair { left_out, .. } = repair(&dir);
    let store = open(&dir);
    is_in_order(&store).await;
    let found = runs(&store).await;
    for id in &shown {
        assert!(found.contains_key(id), "{id}: {left_out:?}");
        let (found, truth) = (&found[id].1, &truth[id].1);
        assert!(found == truth, "{id} has another journal");
    }
    assert!(left_out.iter().all(|line| line.contains("it may have been removed")), "{left_out:?}");
}
