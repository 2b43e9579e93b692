//! The cost of damage: the runs that a store made anew does not have.

use taskrun::clock::SeededRandom;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::random_u64;
use taskrun_store::{Repair, SqliteStore};

use super::common::*;
use super::damaged::*;
use super::filled::filled;
use super::{RUNS, is_in_order, repair, runs};

const SEED: u64 = 7;
/// Flips at random; each is a repair of a store of 40 runs.
const FLIPS: u64 = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_index_costs_nothing() {
    let whole = filled().await;
    let truth = {
        let dir = store_of(&whole);
        runs(&open(&dir)).await
    };
    for index in
        ["runs_by_tenant", "runs_queued", "sqlite_autoindex_runs_1", "sqlite_autoindex_events_1"]
    {
        for page in pages_of(&whole, index, "leaf") {
            let dir = flipped(&whole, page * PAGE - SUM - 1, true);
            let Repair { left_out, lost, .. } = repair(&dir);
            assert_eq!((left_out, lost), (Vec::new(), Vec::new()), "{index}, page {page}");
            let store = open(&dir);
            assert!(runs(&store).await == truth, "{index}, page {page}");
            is_in_order(&store).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_event_costs_its_run_alone() {
    let whole = filled().await;
    let text = b"long long long";
    let mut places =
        (0..whole.len() - text.len()).filter(|place| whole[*place..].starts_with(text));
    let place = places.next_back().expect("an event has it");
    let dir = flipped(&whole, place + 2, true);
    let Repair { runs: kept, left_out, lost, .. } = repair(&dir);
    assert_eq!(kept, RUNS as u64 - 1, "{left_out:?}");
    let [left_out] = left_out.as_slice() else { panic!("one run: {left_out:?}") };
    assert!(left_out.starts_with("run run-") && left_out.contains("is missing"), "{left_out}");
    assert_eq!(lost, ["1 events cannot be read"]);
    is_in_order(&open(&dir)).await;
}

/// The pages, from 0, of the tree that says where tables are, beginning with this one.
fn schema_pages(whole: &[u8], page: usize) -> Vec<usize> {
    const INTERIOR: u8 = 5;
    const FILE_HEADER: usize = 100;
    let bytes = &whole[page * PAGE..][..PAGE];
    let header = if page == 0 { FILE_HEADER } else { 0 };
    let number = |at: usize, size: usize| {
        bytes[at..at + size].iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    let mut pages = vec![page];
    if bytes[header] == INTERIOR {
        let cells = (0..number(header + 3, 2)).map(|cell| number(header + 12 + 2 * cell, 2));
        for child in cells.map(|cell| number(cell, 4)).chain([number(header + 8, 4)]) {
            pages.extend(schema_pages(whole, child - 1));
        }
    }
    pages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_damaged_store_every_run_is_as_it_was_or_said_to_be_left_out() {
    let whole = filled().await;
    let truth = {
        let dir = store_of(&whole);
        runs(&open(&dir)).await
    };
    assert_eq!(truth.len(), RUNS);
    println!("seed {SEED}");
    let random = SeededRandom::new(SEED);
    let (mut unharmed, mut refused) = (0, 0);
    let schema = schema_pages(&whole, 0);
    for n in 0..FLIPS {
        let place = usize::try_from(random_u64(&random) % (whole.len() as u64)).expect("small");
        let dir = flipped(&whole, place, true);
        let name = format!("flip {n} of byte {place}");
        let repair = match SqliteStore::repair(dir.path(), JournalFormat::CURRENT) {
            Ok(repair) => repair,
            // Without the header, or what tells where tables are, nothing can be read.
            Err(error @ (StoreError::Corrupt { .. } | StoreError::Version { .. })) => {
                refused += 1;
                assert!(schema.contains(&(place / PAGE)), "{name} is refused: {error}");
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let store = open(&dir);
        is_in_order(&store).await;
        let kept = runs(&store).await;
        let left_out = truth.keys().filter(|id| !kept.contains_key(*id));
        for id in left_out.clone() {
            let said = |line: &String| {
                line.starts_with(&format!("run {id}: "))
                    || line.starts_with(&format!("run {id:?}: "))
            };
            assert!(repair.left_out.iter().any(said), "{name}: {id} is gone and nobody says so");
        }
        unharmed += usize::from(left_out.count() == 0);
        for (id, run) in &kept {
            assert!(truth[id] == *run, "{name}: {id} is another");
        }
    }
    println!("{unharmed} of {FLIPS} cost no run, {refused} are refused");
    assert!(unharmed > 0);
}
