//! The running time of one round, whose end is given to the failure policy (C-021).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::agents::Agent;
use taskrun::ports::planner::PlanInput;
use taskrun::ports::retry::{RetryDecision, RetryPolicy, StepFailure, StepFault};
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::time::Clock;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{InterruptionPolicy, RetryOn};

use super::common::check_journal;
use super::rounds::Turn::{self, Call, Say};
use super::rounds::{autonomous, planned, report};
use crate::native::{ClosurePlanner, ClosureTool, World, in_time, value};

const SECOND: Duration = Duration::from_secs(1);

/// A world with an agent whose rounds may take a second: each step takes so many milliseconds and does
/// this, another attempt like the first one.
fn world(steps: Vec<(u64, Turn)>, change: impl FnOnce(&mut Agent)) -> World {
    let (mut world, next) = (World::new(), AtomicU32::new(0));
    let clock = Arc::clone(&world.clock);
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(move |_: PlanInput, _| {
        let nth = next.fetch_add(1, Ordering::SeqCst) as usize;
        let (takes, turn) = steps.get(nth).unwrap_or_else(|| panic!("step {nth}")).clone();
        let clock = Arc::clone(&clock);
        async move {
            if takes > 0 {
                clock.sleep(Duration::from_millis(takes)).await;
            }
            planned(&turn)
        }
    });
    world.agent_with("a", planner, |agent| {
        agent.budget.round = Some(SECOND);
        agent.retry.pause = Duration::ZERO;
        change(agent);
    });
    world
}

/// Runs it to its end; gives how far the clock was moved each time, in milliseconds, and the end.
async fn paced(mut world: World, moves: usize) -> (Vec<u128>, RunView) {
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    let mut moved = Vec::new();
    for _ in 0..moves {
        // The step, and the end of the time of its round.
        in_time(world.clock.wait_for_sleepers(2)).await;
        moved.push(world.next(10 * SECOND).await.as_millis());
    }
    host.end("1").await;
    check_journal(&host.journal("1").await);
    (moved, host.view("1").await)
}

fn work() -> Turn {
    Call(vec![("w", "t/f", serde_json::json!({}))])
}

fn ending(run: &RunView) -> (Status, Option<StopReason>, Option<u32>) {
    (run.status, run.stop_reason, run.rounds)
}

const DONE: (Status, Option<StopReason>) = (Status::Completed, Some(StopReason::Done));
const GIVEN_UP: (Status, Option<StopReason>) = (Status::Failed, Some(StopReason::RetryAborted));

#[tokio::test]
async fn c_021_a_round_that_takes_too_long_has_failed_and_the_run_is_given_up() {
    let steps = vec![(600, Say("one")), (600, work()), (600, Say("never"))];
    let (moved, run) = paced(world(steps, |_| {}), 3).await;
    assert_eq!(moved, [600, 600, 400], "each round has its own time, and all turns of it one");
    assert_eq!(ending(&run), (GIVEN_UP.0, GIVEN_UP.1, Some(2)));
    let said = "deadline exceeded: a round of agent a may take 1000 ms";
    assert_eq!(run.error.as_deref(), Some(said), "not that of a step");
}

#[tokio::test]
async fn c_021_another_attempt_at_a_round_has_its_whole_time_again() {
    let steps = vec![(600, work()), (600, Say("cut")), (900, report("it")), (0, Say("end"))];
    let retried = world(steps, |agent| agent.retry_on = RetryOn::new(["deadline"]));
    let (moved, run) = paced(retried, 3).await;
    assert_eq!(moved, [600, 400, 900]);
    assert_eq!(ending(&run), (DONE.0, DONE.1, Some(1)));
    // Not more often than the policy says.
    let steps = vec![(2_000, Say("cut")), (2_000, Say("cut")), (2_000, Say("cut"))];
    let retried = world(steps, |agent| agent.retry_on = RetryOn::new(["deadline"]));
    let (moved, run) = paced(retried, 3).await;
    assert_eq!((moved, ending(&run).1), (vec![1_000; 3], GIVEN_UP.1));
    let said = "gave up after 3 attempts: stopped: deadline of 1000 ms for a round exceeded";
    assert_eq!(run.error.as_deref(), Some(said));
}

/// Skips, and holds the failure to be that of a deadline.
struct Skips;

impl RetryPolicy for Skips {
    fn decide(&self, failure: &StepFailure<'_>, attempt: u32) -> RetryDecision {
        let is_of_round = matches!(failure.fault, StepFault::RoundOver { limit_ms: 1_000 });
        assert!(is_of_round, "{:?}", failure.fault);
        assert_eq!((failure.fault.word(), attempt), ("deadline", 1));
        RetryDecision::Skip
    }
}

#[tokio::test]
async fn c_021_a_policy_may_skip_a_round_whose_time_is_over() {
    let steps = vec![(2_000, Say("cut")), (900, report("it")), (0, Say("end"))];
    let mut skipping = world(steps, |_| {});
    skipping.retry_policy = Some(Arc::new(Skips));
    let (moved, run) = paced(skipping, 2).await;
    assert_eq!(moved, [1_000, 900]);
    assert_eq!(ending(&run), (DONE.0, DONE.1, Some(2)));
}

#[tokio::test]
async fn a_step_does_not_begin_when_the_time_of_its_round_went_by_in_calls() {
    let mut slow = World::new();
    let time = Arc::clone(&slow.clock);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        let time = Arc::clone(&time);
        async move {
            time.sleep(2 * SECOND).await;
            value("1")
        }
    });
    slow.tool("t", InterruptionPolicy::Fail, tool);
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let planner = ClosurePlanner::new(move |_: PlanInput, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let planned = planned(&work());
        async move { planned }
    });
    slow.agent_with("a", planner, |agent| agent.budget.round = Some(SECOND));
    let host = slow.start().await;
    host.spawn(&autonomous("1")).await;
    assert_eq!(slow.next(10 * SECOND).await, 2 * SECOND, "the call comes to its end");
    host.end("1").await;
    let run = host.view("1").await;
    assert_eq!(ending(&run).1, GIVEN_UP.1, "{run:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
