//! Caps on failed calls and on time, and the last word after them (M-44, M-45).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::agents::{Agent, Interrupted};
use taskrun::event::{Event, Refusal};
use taskrun::message::ToolError;
use taskrun::ports::planner::TerminationReason;
use taskrun::ports::tool::{ToolFailure, ToolHints};
use taskrun::run::{MISTAKES_IN_A_ROW_MAX, Run};
use taskrun::status::{Status, StopReason};

use crate::native::{
    ClosurePlanner, ClosureTool, Native, World, answer, call_of, decided, request, value,
};
use taskrun::ports::planner::Decision;

/// How often the tool was called.
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
    world.tool("tool", Interrupted::Fail, boom);
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
    world.tool("tool", Interrupted::Fail, tool);
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
    world.tool("progress", Interrupted::Fail, report);
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
