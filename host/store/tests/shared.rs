//! A file that several processes share: each finds what another one wrote.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use taskrun::clock::SystemClock;
use taskrun_journal::hold::Wait;
use taskrun_journal::machine;
use taskrun_journal::run::Run;
use taskrun_journal::store::{Claim, Store};
use taskrun_journal::time::Clock;
use taskrun_store::SqliteStore;

#[tokio::test]
async fn a_write_of_another_process_wakes_whoever_waits_for_that_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    let run = create(&theirs, spec("r")).await;
    let reader = Arc::clone(&mine);
    let id = run.id().clone();
    let waiter = tokio::spawn(async move {
        let (mut seen, mut watch) = (1, reader.watch(&id));
        while seen < 4 {
            watch.moved(seen).await;
            seen += reader.read(&id, seen, 100).await.expect("reads").len() as u64;
        }
    });
    spin_until_async(|| mine.stats().watched == 1).await;
    let run = theirs.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    let run = next(&run, 50, 2_000, vec![note("a")]);
    theirs.append(run.clone()).await.expect("appends");
    theirs.append(next(&run.run, 60, 2_000, vec![note("b")])).await.expect("appends");
    within(waiter).await.expect("no panic");
    assert_eq!(mine.stats().watched, 0);
}

#[tokio::test]
async fn whoever_follows_a_run_of_this_process_is_given_its_events_without_a_look() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("r")).await;
    let mut run = store.claim(wish("h", 1, 1_500)).await.expect("claims").remove(0);
    let mut watch = store.watch(run.id());
    watch.follow();
    let (mut given, mut told) = (0, Vec::new());
    for number in 0..20 {
        let head = run.state.head;
        let (events, appended) = within(async {
            let write = next(&run, 50 + number, 2_000, vec![note("a")]);
            tokio::join!(watch.events(head, 9), append(&store, write))
        })
        .await;
        run = appended;
        given += usize::from(!events.is_empty());
        // The thread that looks after what others write has it look for itself when it begins.
        told.extend(match events.is_empty() {
            true => store.read(run.id(), head, 9).await.expect("reads"),
            false => events,
        });
    }
    assert_eq!(told, store.read(run.id(), 2, 100).await.expect("reads"));
    assert!(given > 10, "{given} of 20");
}

#[tokio::test]
async fn whoever_waits_for_an_end_hears_of_it_from_another_process() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    let run = create(&theirs, spec("r")).await;
    // In the second wait nobody is told to look for himself, as in the first one of a process.
    let (reader, id, looks) = (Arc::clone(&mine), run.id().clone(), Arc::new(AtomicUsize::new(0)));
    let looked = Arc::clone(&looks);
    let waiter = tokio::spawn(async move {
        let mut watch = reader.watch(&id);
        loop {
            let run = reader.get(&id).await.expect("gets").expect("it is there");
            looked.fetch_add(1, Ordering::SeqCst);
            if run.status().is_terminal() || watch.ended().await.is_some() {
                return;
            }
        }
    });
    spin_until_async(|| looks.load(Ordering::SeqCst) == 2).await;
    let mut events = vec![cancel()];
    events.extend(end());
    append(&theirs, next(&run, 50, 1_500, events)).await;
    within(waiter).await.expect("no panic");
}

#[tokio::test]
async fn work_that_another_process_queued_is_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    let host = Arc::clone(&mine);
    let host = tokio::spawn(async move {
        loop {
            let runs = host.claim(wish("h", 1, 2_000)).await.expect("claims");
            if !runs.is_empty() {
                return runs;
            }
            host.work().await;
        }
    });
    create(&theirs, spec("r")).await;
    assert_eq!(ids(&within(host).await.expect("no panic")), ["r"]);
}

/// A host of another process that waits until it has claimed a run, with one slot for each tree.
fn claimer(store: &Arc<SqliteStore>) -> tokio::task::JoinHandle<Vec<Run>> {
    let store = Arc::clone(store);
    tokio::spawn(async move {
        let clock = SystemClock::new();
        loop {
            let now = clock.now().0;
            let claim = Claim { tree_slots: 1, ..wish("h", 1, now) };
            let runs = store.claim(claim).await.expect("claims");
            if !runs.is_empty() {
                return runs;
            }
            store.work().await;
        }
    })
}

#[tokio::test]
async fn a_run_whose_time_comes_is_found_by_another_process() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    create(&theirs, spec("r")).await;
    let now = SystemClock::new().now();
    let run = theirs.claim(wish("gone", 1, now.0)).await.expect("claims").remove(0);
    // Half a second from now.
    let lost = machine::decide::lose(&run, now, None);
    theirs.append(next(&run, 50, now.0, lost)).await.expect("appends");
    assert_eq!(ids(&theirs.claim(wish("h", 1, now.0)).await.expect("claims")), [""; 0]);
    let found = within(claimer(&mine)).await.expect("no panic");
    assert_eq!(ids(&found), ["r"]);
}

#[tokio::test]
async fn a_slot_that_another_process_frees_is_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (Arc::new(open(&dir)), open(&dir));
    let root = spec("root");
    create(&theirs, root.clone()).await;
    let run = theirs.claim(wish("other", 1, 2_000)).await.expect("claims").remove(0);
    create(&theirs, child("child", &root)).await;
    let waiting = claimer(&mine);
    theirs.append(next(&run, 50, 3_000, vec![blocked(Wait::Word)])).await.expect("appends");
    assert_eq!(ids(&within(waiting).await.expect("no panic")), ["child"]);
}
