//! Canceling a run, closing its host, and giving up a wait for it (TS-05, TS-07, TS-19).

use std::time::Duration;

use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};

use crate::native::{ClosurePlanner, Gate, World, in_time, request};

/// An agent that stays at the gate, whether it is asked to stop or not.
fn ignores_cancel(gate: &Gate) -> ClosurePlanner {
    gate.answering("late").hearing()
}

#[tokio::test]
async fn ts_05_a_canceled_run_is_canceling_until_its_guest_is_gone() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", ignores_cancel(&gate));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let client = host.client();
    let wait = client.wait(&id, None);
    tokio::pin!(wait);
    assert!(futures::poll!(&mut wait).is_pending());

    let canceled = host.client().cancel(&id, None).await.expect("there");
    assert!(canceled.changed);
    assert_eq!(canceled.run.status(), Status::Canceling);
    let view = host.view(&id).await;
    assert_eq!((view.status, view.finished_at), (Status::Canceling, None));
    assert!(futures::poll!(&mut wait).is_pending(), "nobody is woken before the guest is gone");

    gate.open();
    let view = RunView::from(&in_time(wait).await.expect("there").run);
    assert_eq!((view.status, view.error), (Status::Canceled, None));
    assert_eq!(view.stop_reason, Some(StopReason::CanceledByOwner));
    assert!(view.finished_at.is_some());
}

#[tokio::test]
async fn ts_07_closing_the_host_cancels_what_it_executes() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("never"));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let closed = host.controller.close(Duration::from_secs(10)).await;
    assert_eq!(closed.stragglers, []);
    let view = host.view(&id).await;
    assert_eq!((view.status, view.error), (Status::Canceled, None));
    assert_eq!(view.summary.as_deref(), Some("canceled"));
    assert_eq!(view.stop_reason, Some(StopReason::HostShutdown));
    let refused = host.client().spawn(&request("a", "x")).await;
    assert_eq!(refused.map_err(|error| error.code()).err(), Some("closed"));
    assert_eq!(host.controller.close(Duration::ZERO).await.stragglers, [], "twice is once");
}

#[tokio::test]
async fn ts_19_whoever_gives_up_waiting_leaves_the_run_as_it_is() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", ignores_cancel(&gate));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let (controller, scope, waited) = (host.controller.clone(), host.scope.clone(), id.clone());
    let waiting = tokio::spawn(async move { controller.at(&scope).wait(&waited, None).await });
    // The waiter sleeps until its time is up, so it has begun.
    in_time(world.clock.wait_for_sleepers(1)).await;
    waiting.abort();
    let gone = in_time(waiting).await.expect_err("it was aborted");
    assert!(gone.is_cancelled());
    assert_eq!(host.get(&id).await.status(), Status::Running);

    // The same with a time that is up.
    let timeout = Duration::from_millis(10);
    let client = host.client();
    let (waited, passed) = world.run_until(timeout, client.wait(&id, Some(timeout))).await;
    assert!(waited.expect("there").timed_out);
    assert_eq!(passed, timeout);
    assert_eq!(host.get(&id).await.status(), Status::Running);
    gate.open();
    assert_eq!(host.end(&id).await.status(), Status::Completed);
}
