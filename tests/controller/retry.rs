//! Plan steps that fail in a way that may pass (M-47).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun_journal::event::Event;
use taskrun_journal::hold::Hold;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::{Clock, millis};

use crate::native::{
    ClosurePlanner, Native, PAUSE_OVER, Planned, World, answer, failed, in_time, request,
};

/// A world with an agent whose first steps fail.
fn fails_first(times: u32, fail: impl Fn() -> Planned + Send + Sync + 'static) -> World {
    let mut world = World::new();
    let steps = AtomicU32::new(0);
    let planner = ClosurePlanner::new(move |_, scope| {
        let step = steps.fetch_add(1, Ordering::SeqCst);
        assert_eq!(scope.context().turn, 1, "an attempt is no turn");
        assert_eq!(scope.context().attempt, step + 1);
        let outcome = if step < times { fail() } else { answer("done") };
        async move { outcome }
    });
    world.agent("a", planner);
    world
}

/// The failures on record: attempt, text, pause.
async fn failures(host: &Native, id: &str) -> Vec<(u32, String, u64)> {
    let mut failures = Vec::new();
    for recorded in host.journal(id).await {
        if let Event::StepFailed { turn, attempt, error, retry_after_ms } = recorded.event {
            assert_eq!(turn, 1);
            failures.push((attempt, error, retry_after_ms));
        }
    }
    failures
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn m_47_a_step_is_tried_again_after_a_pause_that_doubles() {
    for code in ["transient", "rate-limited", "unavailable"] {
        let mut world = fails_first(2, move || failed(Some(code), "not just now"));
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        let first = world.next(SECOND).await;
        assert!((SECOND * 3 / 4..=SECOND).contains(&first), "{first:?}");
        let second = world.next(SECOND * 2).await;
        assert!((SECOND * 3 / 2..=SECOND * 2).contains(&second), "{second:?}");
        let run = host.end(&id).await;
        assert_eq!(run.status(), Status::Completed, "{code}");
        assert_eq!(run.state.turns, 1, "attempts do not count as turns");
        let expected = [
            (1, "not just now".to_owned(), millis(first)),
            (2, "not just now".to_owned(), millis(second)),
        ];
        assert_eq!(failures(&host, &id).await, expected, "the record says how long the pause is");
    }
}

/// The failure of a step that wants this pause.
fn wants(pause_ms: u64) -> Planned {
    Ok(Err(PlannerError {
        code: Some("rate-limited".to_owned()),
        message: "not just now".to_owned(),
        causes: Vec::new(),
        retry_after_ms: Some(pause_ms),
    }))
}

#[tokio::test]
async fn l_006_a_pause_of_more_than_a_minute_is_waited_for_without_a_slot_whatever_host_dies() {
    for (wanted, waits) in [(600_000, 600), (u64::MAX, 3_600)] {
        let mut world = fails_first(1, move || wants(wanted));
        world.settings.slots = 1;
        let first = world.start().await;
        let begun = world.clock.now();
        let id = first.spawn(&request("a", "x")).await;
        let run = first.until(&id, "waits", |run| run.status() == Status::Blocked).await;
        let Hold::Wanted { not_before, .. } = run.state.hold else {
            panic!("{:?}", run.state.hold)
        };
        assert_eq!(not_before.since(begun), SECOND * waits, "not shortened");
        assert_eq!(run.state.ran_ms, 0, "its clocks stand still");
        assert_eq!(failures(&first, &id).await.len(), 1);
        world.kill(first).await;
        let second = world.take_over().await;
        let age = world.clock.now().since(begun);
        world.clock.advance(SECOND * waits - age - SECOND);
        second.settle().await;
        assert_eq!(second.get(&id).await.status(), Status::Blocked, "nobody comes too early");
        world.clock.advance(SECOND);
        assert_eq!(second.end(&id).await.status(), Status::Completed);
    }
}

#[tokio::test]
async fn m_47_an_agent_may_want_a_longer_pause() {
    for (wanted, waits) in [(30_000, 30), (60_000, 60), (1, 1)] {
        let mut world = fails_first(1, move || wants(wanted));
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        let longest = SECOND * waits;
        let waited = world.next(longest).await;
        assert!((longest * 3 / 4..=longest).contains(&waited), "{wanted}: {waited:?}");
        assert!(wanted < 1_000 || waited == longest, "{wanted}: {waited:?}");
        assert_eq!(host.end(&id).await.status(), Status::Completed);
    }
}

#[tokio::test]
async fn m_47_a_failure_of_the_host_is_tried_again_too() {
    let mut world = fails_first(1, || Err(CallAbort::Internal));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    world.next(SECOND).await;
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert_eq!(failures(&host, &id).await.len(), 1);
}

#[tokio::test]
async fn m_47_after_the_last_attempt_the_run_fails_and_says_how_often() {
    let mut world = fails_first(3, || failed(Some("unavailable"), "no model"));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    world.next(SECOND).await;
    world.next(SECOND * 2).await;
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Failed);
    let view = host.view(&id).await;
    assert_eq!(view.stop_reason, Some(StopReason::RetryAborted));
    assert_eq!(view.error.as_deref(), Some("gave up after 3 attempts: no model"));
    assert_eq!(view.turns, 0);
    assert_eq!(failures(&host, &id).await.len(), 2, "there is no pause after the last");
}

#[tokio::test]
async fn m_47_other_errors_end_the_run_at_once() {
    for code in [None, Some("canceled"), Some("bad-request")] {
        let mut world = fails_first(1, move || failed(code, "child failed"));
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        let run = host.end(&id).await;
        assert_eq!(run.status(), Status::Failed);
        let view = host.view(&id).await;
        assert_eq!(view.stop_reason, Some(StopReason::AgentError), "{code:?}");
        assert_eq!(view.error.as_deref(), Some("child failed"));
        assert_eq!(failures(&host, &id).await, []);
    }
}

#[tokio::test]
async fn m_47_a_policy_of_one_attempt_tries_nothing_again() {
    let mut world = World::new();
    world.agent_with(
        "a",
        ClosurePlanner::new(|_, _| async { failed(Some("transient"), "not just now") }),
        |agent| agent.retry.attempts = 1,
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    assert_eq!(host.end(&id).await.status(), Status::Failed);
    assert_eq!(host.view(&id).await.stop_reason, Some(StopReason::AgentError));
    assert_eq!(failures(&host, &id).await, []);
}

#[tokio::test]
async fn m_47_a_cancellation_ends_the_pause() {
    let mut world = fails_first(u32::MAX, || failed(Some("transient"), "not just now"));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.until(&id, "fails", |run| run.state.failed_attempts == 1).await;
    in_time(world.clock.wait_for_sleepers(1)).await;
    host.client().cancel(&id, None).await.expect("there");
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Canceled);
    assert_eq!(failures(&host, &id).await.len(), 1, "there was no second attempt");
}

#[tokio::test]
async fn m_47_attempts_are_counted_over_a_change_of_hosts() {
    let mut world = fails_first(u32::MAX, || failed(Some("transient"), "not just now"));
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    first.until(&id, "fails", |run| run.state.failed_attempts == 1).await;
    world.kill(first).await;
    let second = world.start().await;
    world.clock.advance(SECOND);
    second.until(&id, "fails again", |run| run.state.failed_attempts == 2).await;
    world.next(SECOND * 2).await;
    let run = second.end(&id).await;
    assert_eq!(run.status(), Status::Failed);
    let error = second.view(&id).await.error;
    assert_eq!(error.as_deref(), Some("gave up after 3 attempts: not just now"));
}

#[tokio::test]
async fn m_47_what_is_left_of_a_pause_is_waited_for_after_the_death_of_the_host() {
    let mut world = World::new();
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let planner = ClosurePlanner::new(move |_, _| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move { if first { failed(Some("unavailable"), "no model") } else { answer("done") } }
    });
    // Longer than the pause after the death of a host.
    let longest = PAUSE_OVER * 5;
    world.agent_with("a", planner, |agent| agent.retry.pause = longest);
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    first.until(&id, "fails", |run| run.state.failed_attempts == 1).await;
    world.kill(first).await;
    let second = world.take_over().await;
    second.until(&id, "is taken up", |run| run.state.epoch == 3).await;
    let [(_, _, pause_ms)] = failures(&second, &id).await[..] else { panic!("one has failed") };
    let left = world.next(longest).await;
    assert_eq!(left, Duration::from_millis(pause_ms) - PAUSE_OVER, "the pause is not begun anew");
    assert_eq!(second.end(&id).await.status(), Status::Completed);
    assert_eq!(steps.load(Ordering::SeqCst), 2);
}
