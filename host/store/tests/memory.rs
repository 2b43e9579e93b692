//! What only the store in memory promises.

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use common::*;
use taskrun::ports::store::{Append, Store};
use taskrun_store::MemoryStore;

#[tokio::test]
async fn a_waiter_sleeps_while_other_runs_move_and_is_forgotten_when_it_gives_up() {
    let store = MemoryStore::new();
    let run = create(&store, spec("r")).await;
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut waiting = pin!(store.changed(run.id(), 1));
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(store.watched(), 1);
        create(&store, spec("other")).await;
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        store.append(next(&run, 50, 2_000, vec![cancel()])).await.expect("appends");
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(()));
    }
    assert_eq!(store.watched(), 0);
    {
        let mut waiting = pin!(store.changed(run.id(), 2));
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
    }
    assert_eq!(store.watched(), 0);
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
