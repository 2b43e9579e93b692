//! A store that fails (TS-16, TS-17).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::error::ControllerError;
use taskrun_journal::message::Labels;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::StoreError;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{check_journal, count, following};
use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Op, World, answer, call_of, in_time, request, value,
};

/// An agent that calls a tool before it answers, with a finalizer.
fn works(world: &mut World) {
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(|input, _| async move {
        match input.resume {
            None => call_of(&[("c1", "t/f", "{}")]),
            Some(_) => answer("done"),
        }
    });
    world.agent(
        "a",
        planner.finalizer(|_, _| async {
            Ok(Ok(Labels::from([("cleaned".to_owned(), "yes".to_owned())])))
        }),
    );
}

/// Upstream's second save is the transition to `running`; ours that transition is the claim, and
/// one that fails changes nothing: see the test after the next ones. Here the first record of the
/// work can never be kept.
#[tokio::test]
async fn ts_16_a_run_whose_work_can_never_be_recorded_fails_with_the_stores_error() {
    let mut world = World::new();
    works(&mut world);
    let host = world.start().await;
    world.store.refuse(Op::Append, 1);
    world.store.hold(Op::Append);
    let id = host.spawn(&request("a", "x")).await;
    in_time(world.store.somebody_waits()).await;
    let client = host.client();
    let wait = client.wait(&id, None);
    tokio::pin!(wait);
    assert!(futures::poll!(&mut wait).is_pending());
    world.store.release();
    let run = in_time(wait).await.expect("there").run;
    assert_eq!(run.status(), Status::Failed);
    let view = host.view(&id).await;
    assert_eq!(view.stop_reason, Some(StopReason::PersistFailed));
    assert_eq!(view.error.as_deref(), Some("the store failing cannot keep this: too big"));
    assert_eq!(view.metadata.get("cleaned").map(String::as_str), Some("yes"));
    let kinds = host.kinds(&id).await;
    let not_begun = !kinds.contains(&"tool_call_scheduled");
    assert!(not_begun, "no call begins that is not on record: {kinds:?}");
}

/// Where our rule differs: upstream a run fails whose record fails. A store that is full or locked
/// for a while would end most of the runs under way, where a host that died in that moment ends
/// none.
#[tokio::test]
async fn ts_16_work_that_cannot_be_recorded_now_waits_and_nothing_of_it_begins_meanwhile() {
    let mut world = World::new();
    works(&mut world);
    let host = world.start().await;
    world.store.fail_all(Some(Op::Append));
    let id = host.spawn(&request("a", "x")).await;
    for pause in [200, 400, 800, 1_600, 2_000, 2_000].map(Duration::from_millis) {
        assert_eq!(world.next(pause).await, pause);
    }
    in_time(world.clock.wait_for_sleepers(1)).await;
    assert_eq!(host.kinds(&id).await, ["queued", "started"]);
    world.store.fail_all(None);
    world.next(Duration::from_secs(2)).await;
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed);
    let kinds = host.kinds(&id).await;
    let count = |kind: &str| kinds.iter().filter(|one| **one == kind).count();
    assert_eq!((count("tool_call_scheduled"), count("tool_result"), count("lost")), (1, 1, 0));
    assert_eq!(run.state.ran_ms, 0, "its time stood still");
}

/// Each append of a run in turn is kept without anybody being told so.
#[tokio::test]
async fn ts_16_what_was_kept_without_an_answer_is_not_kept_twice_and_no_call_begins_twice() {
    let mut lost = 0;
    loop {
        let mut world = World::new();
        let called = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&called);
        let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { value("1") }
        });
        world.tool("t", InterruptionPolicy::Fail, tool);
        world.agent("a", following(vec![vec![("c", "t/f", "{}")]]));
        let host = world.start().await;
        lost += 1;
        world.store.lose_answer(Op::Append, lost);
        let id = host.spawn(&request("a", "x")).await;
        let client = host.client();
        let wait = client.wait(&id, Some(Duration::MAX));
        // The first pause, and no second one.
        let (waited, _) = world.run_until(Duration::from_millis(200), wait).await;
        let run = waited.expect("there").run;
        assert_eq!(run.status(), Status::Completed, "append {lost}");
        assert_eq!(called.load(Ordering::SeqCst), 1, "append {lost}");
        let journal = host.journal(&id).await;
        check_journal(&journal);
        assert_eq!(count(&journal, "tool_result"), 1);
        assert_eq!(count(&journal, "assistant_message"), 2);
        if world.store.tries(Op::Append) < lost {
            break;
        }
    }
    assert!(lost > 3, "{lost}");
}

/// Where the work is at its end there is something to lose, so the end is recorded as soon as the
/// store takes it.
#[tokio::test]
async fn ts_16_an_answer_that_cannot_be_recorded_at_once_is_not_lost() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    world.store.fail(Op::Append, 1);
    world.store.fail(Op::Append, 2);
    let id = host.spawn(&request("a", "x")).await;
    let pause = Duration::from_millis(200);
    assert_eq!(world.next(pause).await, pause);
    assert_eq!(host.get(&id).await.status(), Status::Running);
    assert_eq!(world.next(pause * 2).await, pause * 2);
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(run.state.reply.result().as_deref(), Some("done"));
}

/// Where our rule differs: upstream a run that cannot be recorded as `running` fails. Ours it
/// stays `queued`, and whoever has a slot tries again. Nothing was executed, so nothing is lost,
/// and a disk that was full for a moment costs a second and not a run.
#[tokio::test]
async fn ts_16_a_claim_that_fails_changes_nothing_and_is_tried_again() {
    let mut world = World::new();
    works(&mut world);
    world.store.fail(Op::Claim, 1);
    world.store.hold(Op::Claim);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    in_time(world.store.somebody_waits()).await;
    world.store.release();
    in_time(world.clock.wait_for_sleepers(1)).await;
    assert_eq!(host.get(&id).await.status(), Status::Queued);
    assert_eq!(host.kinds(&id).await, ["queued"]);
    assert_eq!(world.next(Duration::from_secs(1)).await, Duration::from_secs(1));
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert_eq!(host.view(&id).await.stop_reason, Some(StopReason::FinalResponse));
}

/// A host that is told late of a claim that was made has the run nonetheless, and executes it: it does
/// not take it for one that nobody executes.
#[tokio::test]
async fn ts_16_a_claim_that_is_told_late_is_not_taken_for_a_lost_one() {
    let mut world = World::new();
    world.settings.lease = Duration::from_millis(400);
    works(&mut world);
    // Accepted before there is a host that claims, so that its first claim is the one that takes it.
    let slots = std::mem::replace(&mut world.settings.slots, 0);
    let id = world.start().await.spawn(&request("a", "x")).await;
    world.settings.slots = slots;
    world.store.hold_answers(Op::Claim);
    let host = world.start().await;
    in_time(world.hearts.holds(2)).await;
    host.settle().await;
    assert_eq!(host.kinds(&id).await, ["queued", "started"]);
    world.store.release();
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert_eq!(count(&host.journal(&id).await, "lost"), 0);
}

fn is_full(error: &ControllerError) -> bool {
    matches!(error, ControllerError::Storage(StoreError::Full { .. }))
}

/// M-09: upstream the run is `canceled` in memory although the record failed; ours nothing is
/// seen that is not durable.
#[tokio::test]
async fn ts_17_a_cancellation_that_cannot_be_recorded_changes_nothing() {
    let mut world = World::new();
    // Nobody executes anything: the run stays in the queue.
    world.settings.slots = 0;
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let client = host.client();
    let wait = client.wait(&id, None);
    tokio::pin!(wait);
    assert!(futures::poll!(&mut wait).is_pending());
    world.store.fail(Op::Append, 1);
    let error = host.client().cancel(&id, None).await.expect_err("the store fails");
    assert!(is_full(&error), "{error:?}");
    assert_eq!(host.get(&id).await.status(), Status::Queued);
    assert_eq!(host.kinds(&id).await, ["queued"]);
    assert!(futures::poll!(&mut wait).is_pending());

    let canceled = host.client().cancel(&id, None).await.expect("there");
    assert!(canceled.changed);
    assert_eq!(canceled.run.status(), Status::Canceled);
    assert_eq!(in_time(wait).await.expect("there").run.status(), Status::Canceled);
}

#[tokio::test]
async fn ts_17_a_running_guest_is_not_stopped_by_a_cancellation_that_was_not_recorded() {
    let (mut world, gate) = (World::new(), Gate::new());
    let own = gate.clone();
    world.agent(
        "a",
        ClosurePlanner::new(move |_, scope| {
            let gate = own.clone();
            async move {
                gate.pass().await;
                assert!(!scope.stop().is_asked());
                answer("done")
            }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    world.store.fail(Op::Append, 1);
    let error = host.client().cancel(&id, None).await.expect_err("the store fails");
    assert!(is_full(&error), "{error:?}");
    assert_eq!(host.get(&id).await.status(), Status::Running);
    gate.open();
    assert_eq!(host.end(&id).await.status(), Status::Completed);
}
