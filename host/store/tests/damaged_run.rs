//! One damaged run among others, which go on.

mod common;
mod damaged;

use common::*;
use damaged::{PAGE, file, flipped, pages_of};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Hosts, Removal, Store};
use tempfile::TempDir;

/// Bytes of a task that has pages of its own.
const LONG: usize = 60_000;

fn long(mut spec: RunSpec) -> RunSpec {
    spec.task = "x".repeat(LONG);
    spec
}

/// The file of a store of these runs, of which a host takes so many.
async fn bytes_of(specs: Vec<RunSpec>, taken: usize) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    for spec in specs {
        create(&store, spec).await;
    }
    let claimed = store.claim(wish("h", taken, 2_000)).await.expect("claims");
    assert_eq!(claimed.len(), taken);
    drop(store);
    std::fs::read(file(dir.path())).expect("reads")
}

/// The same with one bit of the long task flipped: as a disk does it, and as another program, whose
/// pages have no checksum.
async fn damaged(specs: Vec<RunSpec>, taken: usize) -> [TempDir; 2] {
    let bytes = bytes_of(specs, taken).await;
    let page = pages_of(&bytes, "events", "overflow")[3];
    [true, false].map(|with_sum| flipped(&bytes, (page - 1) * PAGE + PAGE / 2, with_sum))
}

#[tokio::test]
async fn a_damaged_run_keeps_no_other_one_from_being_taken() {
    let specs = vec![long(spec("damaged")), spec("first"), spec("second")];
    for dir in damaged(specs, 0).await {
        let claimed = open(&dir).claim(wish("h", 8, 2_000)).await.expect("claims");
        assert_eq!(ids(&claimed), ["first", "second"]);
    }
}

#[tokio::test]
async fn a_damaged_run_does_not_hold_up_those_behind_it_in_its_tree() {
    let root = spec("root");
    let children = ["second", "third"].map(|id| child(id, &root));
    let mut specs = vec![root.clone(), long(child("damaged", &root))];
    specs.extend(children);
    for dir in damaged(specs, 1).await {
        let store = open(&dir);
        let one = store.claim(wish("h", 1, 2_000)).await.expect("claims");
        assert_eq!(ids(&one), ["second"]);
        let all = store.claim(wish("h", 8, 2_000)).await.expect("claims");
        assert_eq!(ids(&all), ["third"]);
    }
}

#[tokio::test]
async fn a_damaged_run_keeps_no_other_one_from_being_freed_as_its_host_is_dead() {
    let specs = vec![long(spec("damaged")), spec("first"), spec("second")];
    for dir in damaged(specs, 3).await {
        let orphans = open(&dir).orphans(8).await.expect("reads");
        assert_eq!(ids(&orphans), ["first", "second"]);
    }
}

#[tokio::test]
async fn a_damaged_run_keeps_no_other_one_from_being_removed() {
    let specs = vec![long(spec("damaged")), spec("first"), spec("second")];
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    for spec in specs {
        create(&store, spec).await;
        let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
        let words = if run.id().as_str() == "damaged" { LONG } else { 1 };
        let run = append(&store, next(&run, 50, 2_500, vec![note(&"y".repeat(words))])).await;
        append(&store, next(&run, 60, 3_000, end())).await;
    }
    drop(store);
    let bytes = std::fs::read(file(dir.path())).expect("reads");
    // Of its first event, and of a later one.
    for page in [3, LONG / PAGE + 5] {
        let page = pages_of(&bytes, "events", "overflow")[page];
        let dir = flipped(&bytes, (page - 1) * PAGE + PAGE / 2, true);
        let store = open(&dir);
        let removed = store.remove(Removal { limit: 8, ..all_before(9_000) }).await;
        assert_eq!(removed.expect("removes").runs, 2);
    }
}
