//! Caps on failed calls and on time, and the last word after them (M-44, M-45).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskrun::agents::Agent;
use taskrun::ports::tool::ToolCall;
use taskrun::scope::CallScope;
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::ToolError;
use taskrun_journal::plan::TerminationReason;
use taskrun_journal::run::{MISTAKES_IN_A_ROW_MAX, Run};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::{ToolFailure, ToolHints};
use taskrun_policy::{Budget, InterruptionPolicy};

use super::common::Gates;
use crate::native::{
    ClosurePlanner, ClosureTool, Native, World, answer, call_of, decided, request, value,
};
use taskrun::ports::planner::Decision;

/// The times that the tool was called.
type Calls = Arc<AtomicU32>;

/// An agent that calls one tool again and again, and has nothing to say at the end.
fn calls_for_ever(
    name: &'static str,
    payload: &'static str,
    last_word: Option<&'static str>,
    change: impl FnOnce(&mut Agent),
) -> (World, Calls) {
    let (mut world, calls) = (World::new(), Calls::default());
    let counted = Arc::clone(&calls);
    let boom = ClosureTool::new("boom", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            let error = ToolError::coded("boom", "boom");
            Ok(Err(ToolFailure { error, retry_hint: None }))
        }
    });
    world.tool("tool", InterruptionPolicy::Fail, boom);
    let planner = ClosurePlanner::new(move |input, scope| {
        let turn = scope.context().turn.to_string();
        let finalize = input.resume.and_then(|resume| resume.finalize);
        async move {
            match (finalize, last_word) {
                (Some(_), Some(text)) => answer(text),
                _ => call_of(&[(&turn, name, payload)]),
            }
        }
    });
    world.agent_with("a", planner, change);
    (world, calls)
}

#[tokio::test]
async fn l_022_a_planner_sees_how_often_calls_may_still_fail() {
    let mut world = World::new();
    let tool = ClosureTool::new("f", ToolHints::default(), |call: ToolCall, _| async move {
        let error = ToolError::coded("boom", "boom");
        let failed = Ok(Err(ToolFailure { error, retry_hint: None }));
        if call.payload == "1" { value("1") } else { failed }
    });
    world.tool("tool", InterruptionPolicy::Fail, tool);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    let planner = ClosurePlanner::new(move |_, scope: Arc<CallScope>| {
        let sees = Arc::clone(&sees);
        async move {
            let left = scope.remaining().await.tool_failures;
            sees.lock().expect("no panic").push(left);
            match scope.context().turn {
                turn @ (1 | 2) => call_of(&[(&turn.to_string(), "tool/f", "0")]),
                3 => call_of(&[("3", "tool/f", "1")]),
                _ => answer("done"),
            }
        }
    });
    world.agent_with("a", planner, |agent| agent.limits.tool_failures = 3);
    let (_, run) = ended(&mut world).await;
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(*seen.lock().expect("no panic"), [Some(3), Some(2), Some(1), Some(3)]);
}

async fn ended(world: &mut World) -> (Native, Run) {
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let run = host.end(&id).await;
    (host, run)
}

async fn refusals(host: &Native, run: &Run) -> Vec<Option<Refusal>> {
    let results = host.journal(run.id().as_str()).await.into_iter().filter_map(|recorded| {
        let Event::ToolResult { refused, .. } = recorded.event else { return None };
        Some(refused)
    });
    results.collect()
}

fn error_of(run: &Run) -> &str {
    run.ending().and_then(|ending| ending.error.as_deref()).unwrap_or_default()
}

#[tokio::test]
async fn ls_01_a_tool_that_fails_once_too_often_ends_the_run() {
    let (mut world, calls) =
        calls_for_ever("tool/boom", "{}", None, |agent| agent.limits.tool_failures = 1);
    let (host, run) = ended(&mut world).await;
    assert_eq!((run.status(), calls.load(Ordering::SeqCst)), (Status::Failed, 1));
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::FailureCap));
    let text = error_of(&run);
    assert!(text.contains("consecutive failed tool call cap exceeded"), "{text}");
    assert_eq!(refusals(&host, &run).await, [None, Some(Refusal::Finalized)]);
}

#[tokio::test]
async fn m_45_the_last_word_after_too_many_failures_makes_the_result_a_partial_one() {
    let (mut world, calls) =
        calls_for_ever("tool/boom", "{}", Some("sorry"), |agent| agent.limits.tool_failures = 3);
    let (host, run) = ended(&mut world).await;
    assert_eq!((run.status(), calls.load(Ordering::SeqCst)), (Status::Completed, 3));
    let ending = run.ending().expect("it ended");
    assert_eq!((ending.stop_reason, ending.partial), (StopReason::FailureCap, true));
    let asked = host.journal(run.id().as_str()).await.into_iter().find_map(|recorded| {
        let Event::FinalizeRequested { reason, .. } = recorded.event else { return None };
        Some(reason)
    });
    assert_eq!(asked, Some(TerminationReason::FailureCap));
}

#[tokio::test]
async fn m_44_an_agent_that_asks_for_tools_that_are_not_there_is_stopped_too() {
    let (mut world, calls) =
        calls_for_ever("tool/gone", "{}", None, |agent| agent.limits.tool_failures = 1);
    let (host, run) = ended(&mut world).await;
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::FailureCap));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let refused = refusals(&host, &run).await;
    let unavailable = refused.iter().filter(|one| **one == Some(Refusal::Unavailable)).count();
    assert_eq!(unavailable as u32, MISTAKES_IN_A_ROW_MAX);
}

#[tokio::test]
async fn ls_02_a_call_that_is_planned_when_the_time_is_up_is_not_made() {
    let (mut world, calls) = (World::new(), Calls::default());
    let counted = Arc::clone(&calls);
    let tool = ClosureTool::new("run", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { value("1") }
    });
    world.tool("tool", InterruptionPolicy::Fail, tool);
    let clock = Arc::clone(&world.clock);
    let planner = ClosurePlanner::new(move |_, _| {
        // Deciding takes longer than the whole run may.
        clock.advance(Duration::from_secs(2));
        async { call_of(&[("1", "tool/run", "{}")]) }
    });
    world.agent_with("a", planner, |agent| {
        agent.budget.wall = Some(Duration::from_secs(1));
        agent.limits.tool_calls = Some(1);
        agent.limits.tool_failures = 1;
    });
    let (host, run) = ended(&mut world).await;
    assert_eq!((run.status(), calls.load(Ordering::SeqCst)), (Status::Failed, 0));
    let text = error_of(&run);
    assert!(text.contains("time budget exceeded"), "{text}");
    assert_eq!(refusals(&host, &run).await, [Some(Refusal::Finalized); 2]);
}

#[tokio::test]
async fn ls_07_a_terminal_tool_ends_the_run_without_another_step() {
    let mut world = World::new();
    let hints = ToolHints { terminal: true, ..ToolHints::default() };
    let report = ClosureTool::new("final_report", hints, |_, _| async { value("\"all done\"") });
    world.tool("progress", InterruptionPolicy::Fail, report);
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let planner = ClosurePlanner::new(move |_, _| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            match first {
                true => call_of(&[("1", "progress/final_report", "{}")]),
                false => decided(Decision::ToolCalls(Vec::new())),
            }
        }
    });
    world.agent("a", planner);
    let (_host, run) = ended(&mut world).await;
    assert_eq!((run.status(), steps.load(Ordering::SeqCst)), (Status::Completed, 1));
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::TerminalTool));
    assert_eq!(run.state.reply.result().as_deref(), Some("\"all done\""));
}

/// A tool that hears that it is asked to stop, says so, and goes on all the same.
fn stubborn(gates: &Arc<Gates>) -> ClosureTool {
    let gates = Arc::clone(gates);
    let call = move |_, scope: Arc<CallScope>| {
        let gates = Arc::clone(&gates);
        async move {
            gates.open("begun");
            drop(gates.pass("begun").await);
            scope.stop().asked().await;
            gates.open("asked");
            drop(gates.pass("asked").await);
            // Until it is forced.
            std::future::pending().await
        }
    };
    ClosureTool::new("f", ToolHints::default(), call).hearing()
}

/// L-026 with our own bounds: the work of a run ends with its budget of time, what is under way
/// then has the grace, and the last word the time of a step; no budget is our own default.
#[tokio::test]
async fn ls_25_a_run_is_over_a_grace_and_a_step_after_its_budget_of_time() {
    assert_eq!(Budget::default().wall, Some(Duration::from_secs(20 * 60)));
    let (mut world, gates) = (World::new(), Gates::new());
    world.tool("slow", InterruptionPolicy::Fail, stubborn(&gates));
    let planner = ClosurePlanner::new(|input, scope: Arc<CallScope>| async move {
        match input.resume.and_then(|resume| resume.finalize) {
            None => call_of(&[("1", "slow/f", "{}")]),
            Some(_) => answer(&format!("{:?}", scope.deadline())),
        }
    });
    world.agent_with("a", planner, |agent| {
        agent.budget = Budget::default();
        agent.limits.grace = Duration::from_secs(10);
        agent.limits.step = Duration::from_secs(20);
    });
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gates.have_come(1).await;
    world.clock.advance(Duration::from_secs(20 * 60 - 1));
    host.settle().await;
    assert_eq!(gates.came(), ["begun"], "nobody is asked before the time is up");
    world.clock.advance(Duration::from_secs(1));
    gates.have_come(2).await;
    // The grace is counted from when the driver comes to it, not from when the tool hears.
    host.settle().await;
    world.clock.advance(Duration::from_secs(9));
    host.settle().await;
    assert_eq!(host.get(&id).await.status(), Status::Running, "it has its grace");
    world.clock.advance(Duration::from_secs(1));
    let run = host.end(&id).await;
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::Wallclock));
    assert_eq!(run.state.reply.result().as_deref(), Some("20s"), "the last word has a step's time");
    assert_eq!(refusals(&host, &run).await, [Some(Refusal::Finalized)]);
    let view = host.view(&id).await;
    assert_eq!(view.duration_ms, Some((20 * 60 + 10) * 1_000));
    let took = host.journal(&id).await.into_iter().find_map(|recorded| {
        let Event::ToolResult { duration_ms, .. } = recorded.event else { return None };
        Some(duration_ms)
    });
    assert_eq!(took, view.duration_ms, "the call was under way all the time");
}
