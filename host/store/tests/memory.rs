//! Promises of the store in memory alone.

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use common::*;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Append, Claim, Sessions, Store};
use taskrun_store::MemoryStore;

#[tokio::test]
async fn a_waiter_sleeps_while_other_runs_move_and_is_forgotten_when_it_gives_up() {
    let store = MemoryStore::new();
    let run = create(&store, spec("r")).await;
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut watch = store.watch(run.id());
        let mut waiting = pin!(watch.moved(1));
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(store.watched(), 1);
        create(&store, spec("other")).await;
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        store.append(next(&run, 50, 2_000, vec![cancel()])).await.expect("appends");
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(()));
    }
    assert_eq!(store.watched(), 0);
    {
        let mut watch = store.watch(run.id());
        let mut waiting = pin!(watch.moved(2));
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
    }
    assert_eq!(store.watched(), 0);
}

#[tokio::test]
async fn a_waiter_for_the_end_sleeps_through_the_way_there() {
    let store = MemoryStore::new();
    let run = create(&store, spec("r")).await;
    let mut context = Context::from_waker(Waker::noop());
    let mut watch = store.watch(run.id());
    let mut waiting = watch.ended();
    assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
    let canceling = next(&run, 50, 2_000, vec![cancel()]);
    store.append(canceling.clone()).await.expect("appends");
    assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
    let ended = append(&store, next(&canceling.run, 60, 2_000, end())).await;
    assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(Some(ended)));
}

#[tokio::test]
async fn a_waiter_for_a_session_sleeps_while_others_move() {
    let store = MemoryStore::new();
    create(&store, spec("r")).await;
    let key = session_key();
    let events = store.read_session(&key, 0, 9).await.expect("reads").events;
    let place = events.last().expect("one event").place;
    let other = RunSpec { parent_session_id: "s-2".to_owned(), ..spec("other") };
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut waiting = pin!(store.session_changed(&key, place));
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        create(&store, other).await;
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        // A claim is told to those who wait for the run and for its session.
        assert_eq!(store.claim(wish("h", 1, 2_000)).await.expect("claims").len(), 1);
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(()));
    }
    assert_eq!(store.watched(), 0);
}

#[tokio::test]
async fn whoever_waits_for_work_hears_what_makes_a_run_claimable() {
    let store = MemoryStore::new();
    for id in ["a", "b", "serial", "serial-2"] {
        let serial = id.starts_with("serial");
        create(&store, RunSpec { serial, ..spec(id) }).await;
    }
    create(&store, child("under-a", &spec("a"))).await;
    let claim = Claim { tree_slots: 1, ..wish("h", 9, 2_000) };
    let runs = store.claim(claim.clone()).await.expect("claims");
    assert_eq!(ids(&runs), ["a", "b", "serial"]);
    let waits = next(&runs[1], 50, 2_000, vec![for_runs(&["a"], WaitMode::All)]);
    append(&store, waits).await;
    let mut context = Context::from_waker(Waker::noop());
    // The end of one lets two go on; that of the other a third one.
    for (run, expected) in [(&runs[0], vec!["b", "under-a"]), (&runs[2], vec!["serial-2"])] {
        assert_eq!(store.claim(claim.clone()).await.expect("claims"), []);
        let mut idle = pin!(store.work());
        assert_eq!(idle.as_mut().poll(&mut context), Poll::Pending);
        append(&store, next(run, 60, 3_000, end())).await;
        assert_eq!(idle.as_mut().poll(&mut context), Poll::Ready(()));
        assert_eq!(ids(&store.claim(claim.clone()).await.expect("claims")), expected);
    }
}

#[tokio::test]
async fn work_is_waited_for_only_after_a_claim_found_none() {
    let store = MemoryStore::new();
    let mut context = Context::from_waker(Waker::noop());
    let mut before_any_claim = pin!(store.work());
    assert_eq!(before_any_claim.as_mut().poll(&mut context), Poll::Ready(()));
    assert_eq!(store.claim(wish("h", 1, 2_000)).await.expect("claims"), []);
    let mut idle = pin!(store.work());
    assert_eq!(idle.as_mut().poll(&mut context), Poll::Pending);
    create(&store, spec("r")).await;
    assert_eq!(idle.as_mut().poll(&mut context), Poll::Ready(()));
    // Queued between a claim and the wait: not missed.
    let mut late = pin!(store.work());
    assert_eq!(late.as_mut().poll(&mut context), Poll::Ready(()));
    assert_eq!(store.claim(wish("h", 2, 2_000)).await.expect("claims").len(), 1);
    let mut idle = pin!(store.work());
    assert_eq!(idle.as_mut().poll(&mut context), Poll::Pending);
}

#[tokio::test]
async fn for_a_run_that_is_taken_as_it_is_kept_nobody_has_to_look() {
    let store = MemoryStore::new();
    assert_eq!(store.claim(wish("h", 1, 2_000)).await.expect("claims"), []);
    only_a_run_that_was_left_wakes(&store).await;
}

#[tokio::test]
async fn events_that_do_not_lead_to_the_record_are_a_bug_of_the_caller() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let run = create(&*store, spec("r")).await;
    let good = next(&run, 50, 2_000, vec![cancel()]);
    let bad = Append { expected_head: 0, ..good };
    let theirs = std::sync::Arc::clone(&store);
    let told = tokio::spawn(async move { theirs.append(bad).await });
    assert!(told.await.expect_err("it panics").is_panic());
    assert_eq!(store.get(run.id()).await.expect("gets"), Some(run));
}
