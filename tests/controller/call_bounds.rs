//! Bounds of tool calls: what they may have written to the journals of other runs, and the rest of the
//! budget that they are told.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::ports::planner::PlanInput;
use taskrun::ports::tool::ToolCall;
use taskrun::scope::{CallScope, RunsQuestion};
use taskrun_journal::question::AnswerRefusal;
use taskrun_journal::runs::RunsError;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{count, following, named, spawning, words_so_far};
use crate::native::{ClosurePlanner, ClosureTool, Gate, Native, World, answer, call_of, value};

/// The bound on the journal of the run that is paused.
const JOURNAL_BYTES: u64 = 1 << 20;
/// The bytes of a large result.
const LARGE: usize = 40_000;

/// A tool that pauses and resumes the run of its arguments, with texts of so many bytes, until that is
/// refused; it says how often it did, and the refusal.
fn flipper(text_bytes: usize) -> ClosureTool {
    ClosureTool::new("f", ToolHints::default(), move |call: ToolCall, scope| async move {
        let (id, text) = (id_in(&call), "x".repeat(text_bytes));
        let mut changes = 0_u32;
        loop {
            let words = Some(text.clone());
            let asked = match changes.is_multiple_of(2) {
                true => scope.ask(RunsQuestion::pause(id.clone(), words, None)).await,
                false => scope.ask(RunsQuestion::resume(id.clone(), words)).await,
            };
            match asked {
                Ok(_) => changes += 1,
                Err(RunsError::Limit { kind, cap }) => {
                    return value(&json!([changes, kind, cap]).to_string());
                }
                Err(error) => panic!("another refusal: {error}"),
            }
        }
    })
}

/// Has a run call this tool, with the id of a run that it started beneath it, which has this agent;
/// gives what the tool said.
async fn called(child: ClosurePlanner, journal_bytes: u64, tool: ClosureTool) -> (Value, Native) {
    let mut world = World::new();
    world.agent_with("child", child, |agent| agent.limits.journal_bytes = journal_bytes);
    world.tool("t", InterruptionPolicy::Fail, tool);
    let large = ClosureTool::new("f", ToolHints::default(), |_, _| async {
        value(&json!("x".repeat(LARGE)).to_string())
    });
    world.tool("large", InterruptionPolicy::Fail, large);
    let parent = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        match &input.resume {
            None => {
                let child = scope.ask(spawning("child", "x")).await.expect("it is started");
                call_of(&[("c", "t/f", &json!(child.id).to_string())])
            }
            Some(_) => answer(&words_so_far(&input)),
        }
    });
    world.agent("parent", parent);
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let said = host.end("1").await.state.reply.result().unwrap_or_default();
    (serde_json::from_str(&said).expect("the words of the tool"), host)
}

/// The run that a tool is called with.
fn id_in(call: &ToolCall) -> String {
    serde_json::from_str(&call.payload).expect("arguments are an id")
}

/// Has a tool pause and resume a run beneath its own; gives what it said of that, and the bytes of the
/// journal of that run.
async fn flipped(text_bytes: usize) -> (Value, u64) {
    let child = Gate::new().answering("done");
    let (said, host) = called(child, JOURNAL_BYTES, flipper(text_bytes)).await;
    let beneath = host.client().tree("1").await.expect("there").descendants;
    let [child] = &beneath[..] else { panic!("{beneath:?}") };
    let bytes = bytes_of(&host, child.id().as_str()).await;
    (said, bytes)
}

async fn bytes_of(host: &Native, id: &str) -> u64 {
    host.journal(id).await.iter().map(|recorded| recorded.event.journal_bytes()).sum()
}

#[tokio::test]
async fn a_run_whose_journal_is_full_is_paused_by_no_other_run() {
    let (said, bytes) = flipped(4 << 10).await;
    assert_eq!((&said[1], &said[2]), (&json!("journal"), &json!(JOURNAL_BYTES)), "{said}");
    assert!((JOURNAL_BYTES..2 * JOURNAL_BYTES).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn a_run_that_is_paused_stays_so_though_its_journal_is_full() {
    let pauses = ClosureTool::new("f", ToolHints::default(), |call: ToolCall, scope| async move {
        let id = id_in(&call);
        loop {
            let reason = Some("x".repeat(4 << 10));
            let first = scope.ask(RunsQuestion::pause(id.clone(), reason, None)).await;
            let first = match first {
                Ok(first) => first,
                Err(error) => return value(&json!(error.to_string()).to_string()),
            };
            let again = scope.ask(RunsQuestion::pause(id.clone(), None, None)).await;
            let again = again.map(|again| again.changed);
            if !first.changed || again != Ok(false) {
                return value(&json!(format!("{}, {again:?}", first.changed)).to_string());
            }
            let resumed = scope.ask(RunsQuestion::resume(id.clone(), None)).await;
            resumed.expect("that writes next to nothing");
        }
    });
    let child = Gate::new().answering("done");
    let (said, _) = called(child, JOURNAL_BYTES, pauses).await;
    assert_eq!(said, "limit met: journal (1048576)");
}

#[tokio::test]
async fn of_a_run_that_ended_with_a_full_journal_a_call_is_told_that_it_has_ended() {
    let pauses = ClosureTool::new("f", ToolHints::default(), |call: ToolCall, scope| async move {
        let id = id_in(&call);
        let waited = scope.ask(RunsQuestion::wait(id.clone(), None)).await.expect("it ends");
        let refused = scope.ask(RunsQuestion::pause(id, None, None)).await.err();
        value(&json!([waited.run.status, format!("{refused:?}")]).to_string())
    });
    let child = ClosurePlanner::new(|_, _| async { call_of(&[("c", "large/f", "{}")]) });
    let refused = RunsError::NotAwaitable { why: AnswerRefusal::Ended };
    let expected = json!(["failed", format!("{:?}", Some(refused))]);
    let (said, _) = called(child, LARGE as u64 / 2, pauses).await;
    assert_eq!(said, expected);
}

#[tokio::test]
async fn a_call_writes_to_other_runs_a_bounded_number_of_times() {
    let (said, bytes) = flipped(1).await;
    assert_eq!(said, json!([1_000, "changes of runs in a call", 1_000]));
    assert!(bytes < JOURNAL_BYTES, "{bytes} bytes");
}

#[tokio::test]
async fn a_tool_is_told_the_rest_of_the_budget_of_its_run() {
    let mut world = World::new();
    let tells = ClosureTool::new("f", ToolHints::default(), |_, scope| async move {
        let left = scope.remaining().await;
        let told = json!([left.turns, left.tool_calls, left.tokens, left.cost_microusd]);
        value(&told.to_string())
    });
    world.tool("t", InterruptionPolicy::Fail, tells);
    let planner = ClosurePlanner::new(|input: PlanInput, _| async move {
        match input.resume {
            None => call_of(&[("c", "t/f", "{}")]),
            Some(_) => answer(&words_so_far(&input)),
        }
    });
    world.agent_with("a", planner, |agent| {
        agent.budget.turns = Some(5);
        agent.budget.tokens = Some(1_000);
        agent.limits.tool_calls = Some(3);
    });
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let said = host.end("1").await.state.reply.result();
    assert_eq!(said.as_deref(), Some("[4,2,1000,null]"));
}

#[tokio::test]
async fn the_tree_is_read_for_a_call_that_asks_for_its_budget_and_for_no_other() {
    let mut world = World::new();
    let store = Arc::clone(&world.store);
    let tells = ClosureTool::new("f", ToolHints::default(), move |call: ToolCall, scope| {
        let store = Arc::clone(&store);
        async move {
            let (reads, mut tokens) = (store.tree_reads(), None);
            if call.payload == "1" {
                store.fail_tree_reads(1);
                tokens = scope.remaining().await.tokens;
            }
            value(&json!([reads, tokens]).to_string())
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tells);
    let turns = vec![vec![("c1", "t/f", "0")], vec![("c2", "t/f", "1")]];
    world.agent_with("a", following(turns), |agent| agent.budget.tokens = Some(1_000));
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    // The store is asked again, and the call goes on.
    let pause = Duration::from_millis(200);
    assert_eq!(world.next(pause).await, pause);
    let run = host.end("1").await;
    // Before each step and its calls it is read once.
    assert_eq!(run.state.reply.result().as_deref(), Some("[2,null]; [4,1000]"));
    let journal = host.journal("1").await;
    let calls = (count(&journal, "tool_call_scheduled"), count(&journal, "tool_result"));
    assert_eq!((calls, count(&journal, "lost")), ((2, 2), 0));
}
