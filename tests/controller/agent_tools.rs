//! Agents that are called as tools (L-047, M-59): their runs, what they give, and how they end.

use std::sync::Arc;
use std::time::Duration;

use taskrun::agents::{Agent, Callee};
use taskrun::ports::planner::{Decision, PlanInput};
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::{Bounds, Message, ToolError, Usage};
use taskrun_journal::plan::FinalToolResult;
use taskrun_journal::run::Run;
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::tool::{ToolFailure, ToolHints, ToolOutcome, ToolOutput};
use taskrun_policy::{CallTimeouts, InterruptionPolicy};

use super::common::{Gates, beneath, check_journal, count, named, words_of, words_so_far};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, World, answer, call_of, change_code, decided, failed,
    value,
};

pub(super) const PLAY: &str = r#"{"request":"play"}"#;

/// Lets an agent call these others as tools.
pub(super) fn calling(names: &'static [&str]) -> impl FnOnce(&mut Agent) {
    move |agent| {
        let callee = |name: &&str| Callee { name: (*name).to_owned(), description: None };
        let callees: Vec<_> = names.iter().map(callee).collect();
        let limits = agent.limits.clone();
        change_code(agent, |code| {
            code.tools = code
                .tools
                .with_agents(&callees, (&limits, &CallTimeouts::default()))
                .expect("tools that fit");
        });
    }
}

/// An agent that makes these calls and answers with what they said.
pub(super) fn caller(
    calls: &'static [(&'static str, &'static str, &'static str)],
) -> ClosurePlanner {
    ClosurePlanner::new(move |input: PlanInput, _| async move {
        match input.resume {
            None => call_of(calls),
            Some(_) => answer(&words_so_far(&input)),
        }
    })
}

/// A world in which `parent` calls `agent/child` once, with `child` deciding so.
fn one_call(child: ClosurePlanner) -> World {
    let mut world = World::new();
    world.agent("child", child);
    world.agent_with("parent", caller(&[("c1", "agent/child", PLAY)]), calling(&["child"]));
    world
}

async fn outputs(host: &Native, id: &str) -> Vec<(ToolOutput, Option<Refusal>)> {
    let journal = host.journal(id).await.into_iter();
    let results = journal.filter_map(|recorded| {
        let Event::ToolResult { output, refused, .. } = recorded.event else { return None };
        Some((*output, refused))
    });
    results.collect()
}

pub(super) async fn children(host: &Native, id: &str) -> Vec<Run> {
    host.client().tree(id).await.expect("there").descendants
}

/// Runs `parent` to its end and gives the one output of its call, and the one child.
async fn played(world: &mut World) -> (Native, ToolOutput, Run) {
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    assert_eq!(host.end("1").await.status(), Status::Completed);
    let mut outputs = outputs(&host, "1").await;
    let mut children = children(&host, "1").await;
    assert_eq!((outputs.len(), children.len()), (1, 1));
    (host, outputs.remove(0).0, children.remove(0))
}

#[tokio::test]
async fn l_047_the_answer_of_an_agent_is_the_result_of_the_call_and_its_run_is_linked() {
    let child = ClosurePlanner::new(|input: PlanInput, scope| async move {
        let usage =
            Usage { prompt_tokens: 7, completion_tokens: 2, total_tokens: 9, ..Usage::default() };
        scope.add_usage(usage);
        let said: Vec<_> = input.messages.iter().map(Message::joined_text).collect();
        assert_eq!(input.run.parent_tool_call_id.as_deref(), Some("c1"));
        answer(&said.join(" | "))
    });
    let mut world = World::new();
    world.agent("child", child);
    let calls = &[("c1", "agent/child", r#"{"task":"play","context":"it rains"}"#)];
    world.agent_with("parent", caller(calls), calling(&["child"]));
    // A parent that kept its slot while it waits would wait for ever.
    world.settings.slots = 1;
    let (host, output, child) = played(&mut world).await;
    let text = "\"Context of the task:\\nit rains | play\"";
    assert_eq!(output.outcome, ToolOutcome::Value(text.to_owned()));
    assert_eq!(output.run_link.as_deref(), Some(child.id().as_str()));
    assert_eq!(output.children_count, 1);
    let telemetry = output.telemetry.expect("what it cost");
    assert_eq!(telemetry.usage.map(|usage| usage.total_tokens), Some(9));
    assert!(telemetry.duration_ms.is_some());
    assert_eq!(child.spec.parent_tool_call_id.as_deref(), Some("c1"));
    assert!(child.spec.attached && child.spec.depth == 1);
    let journal = host.journal("1").await;
    check_journal(&journal);
    let linked = journal.iter().find_map(|recorded| {
        let Event::ChildRunLinked { tool_call_id, run_id, agent_name } = &recorded.event else {
            return None;
        };
        Some((tool_call_id.as_str(), run_id.clone(), agent_name.as_str()))
    });
    assert_eq!(linked, Some(("c1", child.id().clone(), "child")));
    assert_eq!(count(&journal, "blocked"), 1);
    assert_eq!(host.get("1").await.state.progress.total_tokens, 0, "its own count is its own");
}

pub(super) fn own_result(outcome: ToolOutcome, bounds: Option<Bounds>) -> Decision {
    let server_data = Some("{\"kept\":true}".to_owned());
    Decision::FinalToolResult(Box::new(FinalToolResult {
        outcome,
        server_data,
        bounds,
        telemetry: None,
    }))
}

#[tokio::test]
async fn l_009_a_result_that_the_agent_gives_itself_is_the_calls_as_it_is() {
    let child = ClosurePlanner::new(|_, _| async {
        decided(own_result(ToolOutcome::Value("{\"score\":3}".to_owned()), None))
    });
    let (host, output, child) = played(&mut one_call(child)).await;
    assert_eq!(output.outcome, ToolOutcome::Value("{\"score\":3}".to_owned()));
    assert_eq!(output.server_data.as_deref(), Some("{\"kept\":true}"));
    assert_eq!(count(&host.journal(child.id().as_str()).await, "final_tool_result"), 1);
}

#[tokio::test]
async fn l_009_a_failure_that_the_agent_gives_itself_is_the_calls_as_it_is() {
    let child = ClosurePlanner::new(|_, _| async {
        let error = ToolError::coded("no-score", "nobody played");
        decided(own_result(ToolOutcome::Failure(ToolFailure { error, retry_hint: None }), None))
    });
    let (_, output, child) = played(&mut one_call(child)).await;
    assert_eq!(words_of(&output.outcome), "no-score: nobody played");
    assert_eq!(child.status(), Status::Failed);
}

#[tokio::test]
async fn l_078_truncated_bounds_of_an_agent_that_do_not_say_how_to_go_on_are_refused() {
    let child = ClosurePlanner::new(|_, _| async {
        let bounds = Bounds {
            returned: 1,
            total: Some(9),
            truncated: true,
            continuation: None,
            refinement: None,
        };
        decided(own_result(ToolOutcome::Value("1".to_owned()), Some(bounds)))
    });
    let (_, output, _) = played(&mut one_call(child)).await;
    let said = words_of(&output.outcome);
    assert!(said.starts_with("contract: ") && said.contains("truncated"), "{said}");
}

#[tokio::test]
async fn a_run_that_is_no_tool_call_keeps_no_result_for_one() {
    let mut world = World::new();
    let outcome = || ToolOutcome::Value("1".to_owned());
    world.agent(
        "a",
        ClosurePlanner::new(move |_, _| async move { decided(own_result(outcome(), None)) }),
    );
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(host.end("1").await.status(), Status::Completed);
    assert_eq!(count(&host.journal("1").await, "final_tool_result"), 0);
}

#[tokio::test]
async fn an_agent_that_fails_makes_the_call_a_failure_that_says_why() {
    let child = ClosurePlanner::new(|_, _| async { failed(None, "out of cards") });
    let (_, output, child) = played(&mut one_call(child)).await;
    assert_eq!(words_of(&output.outcome), "agent-failed: agent/child: agent_error: out of cards");
    assert_eq!(child.status(), Status::Failed);
}

#[tokio::test]
async fn l_043_an_agent_that_did_nothing_and_said_nothing_is_a_failed_call() {
    let child = ClosurePlanner::new(|_, _| async { answer("") });
    let (host, output, _) = played(&mut one_call(child)).await;
    assert_eq!(words_of(&output.outcome), "agent-failed: agent/child: agent_error: empty output");
    assert!(host.get("1").await.state.failures.are_too_many(Some(1)), "it counts as one");
}

#[tokio::test]
async fn c_063_a_result_that_a_limit_cut_short_says_so() {
    let (mut world, child) = (
        World::new(),
        ClosurePlanner::new(|input: PlanInput, _| async move {
            match input.resume.and_then(|resume| resume.finalize) {
                Some(_) => answer("half of it"),
                None => call_of(&[("1", "gone/f", "{}")]),
            }
        }),
    );
    world.agent_with("child", child, |agent| {
        agent.budget.turns = Some(2);
        agent.budget.reserve.turns = 1;
    });
    world.agent_with("parent", caller(&[("c1", "agent/child", PLAY)]), calling(&["child"]));
    let (_, output, child) = played(&mut world).await;
    assert!(child.ending().expect("it ended").partial);
    let text = "\"[partial result: max_turns]\\nhalf of it\"";
    assert_eq!(output.outcome, ToolOutcome::Value(text.to_owned()));
}

#[tokio::test]
async fn a_canceled_agent_is_a_failed_call_and_the_parent_goes_on() {
    let gates = Gates::new();
    let mut world = one_call(gates.planner());
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let child = gates.have_come(1).await.remove(0);
    let blocked = host.reach("1", Status::Blocked).await;
    assert_eq!(host.view("1").await.blocked_on, Some(BlockedOn::Children), "{blocked:?}");
    host.client().cancel(&child, None).await.expect("can be canceled");
    assert_eq!(host.end("1").await.status(), Status::Completed);
    let said = words_of(&outputs(&host, "1").await[0].0.outcome);
    assert_eq!(said, "canceled: agent/child: canceled_by_owner");
}

#[tokio::test]
async fn canceling_the_parent_cancels_the_agent_that_it_called() {
    let gates = Gates::new();
    let mut world = one_call(gates.planner());
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let child = gates.have_come(1).await.remove(0);
    host.reach("1", Status::Blocked).await;
    // Without what is beneath it: the child goes with it all the same.
    host.client().cancel_alone("1", None).await.expect("can be canceled");
    assert_eq!(host.end("1").await.status(), Status::Canceled);
    let ended = host.end(&child).await;
    assert_eq!(ended.ending().map(|e| e.stop_reason), Some(StopReason::CanceledByParent));
}

#[tokio::test]
async fn ls_23_the_end_of_an_agent_that_is_called_comes_before_its_callers() {
    let gates = Gates::new();
    let mut world = one_call(gates.planner());
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let child = gates.have_come(1).await.remove(0);
    let blocked = host.reach("1", Status::Blocked).await;
    world.clock.advance(Duration::from_secs(1));
    gates.open(&child);
    let (of_child, of_parent) = (host.end(&child).await, host.end("1").await);
    assert!(of_child.state.updated_at > blocked.state.updated_at);
    assert!(of_child.state.updated_at <= of_parent.state.updated_at);
    let journal = host.journal("1").await;
    let at = |kind: &str| journal.iter().position(|one| one.event.kind() == kind);
    assert!(at("blocked") < at("resumed") && at("resumed") < at("tool_result"));
    assert!(at("tool_result") < at("finished"));
}

/// A tool that returns when its gate is opened.
fn gated(world: &mut World, gates: &Arc<Gates>) {
    let gates = Arc::clone(gates);
    let tool = ClosureTool::new("f", ToolHints::default(), move |call, _| {
        let gates = Arc::clone(&gates);
        async move {
            let name = call.payload.trim_matches('"').to_owned();
            gates.pass(&name).await;
            value(&call.payload)
        }
    });
    world.tool("gate", InterruptionPolicy::Fail, tool);
}

#[tokio::test]
async fn ls_05_results_of_tools_and_agents_stand_as_requested_and_their_events_as_they_came() {
    let (mut world, gates) = (World::new(), Gates::new());
    let now = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("\"inline\"") });
    world.tool("now", InterruptionPolicy::Fail, now);
    gated(&mut world, &gates);
    let inner = Arc::clone(&gates);
    let child = ClosurePlanner::new(move |_, _| {
        let gates = Arc::clone(&inner);
        async move {
            gates.pass("child").await;
            answer("child")
        }
    });
    world.agent("child", child);
    let calls = &[
        ("inline", "now/f", "{}"),
        ("a1", "gate/f", "\"a1\""),
        ("a2", "gate/f", "\"a2\""),
        ("agent", "agent/child", PLAY),
    ];
    world.agent_with("parent", caller(calls), calling(&["child"]));
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    gates.have_come(3).await;
    for (opened, results) in [("a2", 2), ("a1", 3), ("child", 4)] {
        gates.open(opened);
        let has = move |run: &Run| run.state.progress.tool_result_count >= results;
        host.until("1", "has a result more", has).await;
    }
    let run = host.end("1").await;
    let order: Vec<_> =
        outputs(&host, "1").await.into_iter().map(|(output, _)| output.tool_call_id).collect();
    assert_eq!(order, ["inline", "a2", "a1", "agent"]);
    let said = run.state.reply.result().expect("an answer");
    assert_eq!(said, "\"inline\"; \"a1\"; \"a2\"; \"child\"");
}

#[tokio::test]
async fn an_agent_that_ends_while_a_tool_is_under_way_has_its_result_at_once() {
    let (mut world, gates) = (World::new(), Gates::new());
    gated(&mut world, &gates);
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("quick") }));
    let calls = &[("slow", "gate/f", "\"slow\""), ("agent", "agent/child", PLAY)];
    world.agent_with("parent", caller(calls), calling(&["child"]));
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    gates.have_come(1).await;
    host.until("1", "has the agent's", |run| run.state.progress.tool_result_count == 1).await;
    gates.open("slow");
    host.end("1").await;
    let order: Vec<_> =
        outputs(&host, "1").await.into_iter().map(|(output, _)| output.tool_call_id).collect();
    assert_eq!(order, ["agent", "slow"]);
    assert_eq!(count(&host.journal("1").await, "blocked"), 0, "there was nothing to wait for");
}

#[tokio::test]
async fn several_agents_work_at_once_and_each_result_is_recorded_as_it_comes() {
    let gates = Gates::new();
    let mut world = World::new();
    world.agent("child", gates.planner());
    let calls = &[("c1", "agent/child", PLAY), ("c2", "agent/child", r#"{"task":"sing"}"#)];
    world.agent_with("parent", caller(calls), calling(&["child"]));
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    gates.have_come(2).await;
    let singer = children(&host, "1").await.into_iter().find(|run| run.spec.task == "sing");
    let singer = singer.expect("it sings").id().to_string();
    gates.open(&singer);
    host.until("1", "has a result", |run| run.state.progress.tool_result_count == 1).await;
    for child in children(&host, "1").await {
        gates.open(child.id().as_str());
    }
    host.end("1").await;
    let order: Vec<_> =
        outputs(&host, "1").await.into_iter().map(|(output, _)| output.tool_call_id).collect();
    assert_eq!(order, ["c2", "c1"]);
}

#[tokio::test]
async fn m_13_an_agent_that_calls_itself_is_bounded_by_the_depth_of_the_tree() {
    let mut world = World::new();
    world.settings.depth_max = 2;
    world.agent_with("parent", caller(&[("c1", "agent/parent", PLAY)]), calling(&["parent"]));
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let said = host.end("1").await.state.reply.result().expect("an answer");
    assert!(said.contains("limit: agent/parent: limit met: depth (2)"), "{said}");
    assert_eq!(children(&host, "1").await.len(), 2);
}

#[tokio::test]
async fn m_12_an_agent_that_is_no_member_is_not_called() {
    let mut world = World::new();
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("played") }));
    let parent = caller(&[("c1", "agent/child", PLAY)]);
    world.agent_with("parent", parent, |agent| {
        agent.members.clear();
        calling(&["child"])(agent);
    });
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let said = host.end("1").await.state.reply.result().expect("an answer");
    assert!(said.starts_with("denied: agent/child: agent child is not among"), "{said}");
    assert!(children(&host, "1").await.is_empty());
}

#[tokio::test]
async fn l_045_when_the_time_is_up_calls_and_agents_are_stopped_and_the_last_word_follows() {
    let (mut world, gates) = (World::new(), Gates::new());
    gated(&mut world, &gates);
    world.agent("child", gates.planner());
    let parent = ClosurePlanner::new(|input: PlanInput, _| async move {
        match &input.resume {
            None => call_of(&[
                ("done", "gate/f", "\"done\""),
                ("slow", "gate/f", "\"slow\""),
                ("agent", "agent/child", PLAY),
            ]),
            Some(resume) => {
                let finalize = resume.finalize.is_some();
                answer(&format!("{finalize}: {}", words_so_far(&input)))
            }
        }
    });
    world.agent_with("parent", parent, |agent| {
        agent.budget.wall = Some(Duration::from_secs(30));
        calling(&["child"])(agent);
    });
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    gates.have_come(3).await;
    gates.open("done");
    host.until("1", "has a result", |run| run.state.progress.tool_result_count == 1).await;
    world.clock.advance(Duration::from_secs(30));
    let run = host.end("1").await;
    let ending = run.ending().expect("it ended");
    assert_eq!((ending.stop_reason, ending.partial), (StopReason::Wallclock, true));
    let late = "time-budget: canceled: time budget reached";
    let said = run.state.reply.result().expect("an answer");
    assert_eq!(said, format!("true: \"done\"; {late}; {late}"));
    let refused: Vec<_> =
        outputs(&host, "1").await.into_iter().map(|(_, refused)| refused).collect();
    assert_eq!(refused, [None, Some(Refusal::Finalized), Some(Refusal::Finalized)]);
    let child = children(&host, "1").await.remove(0);
    assert_eq!(child.status(), Status::Canceled, "it ended before its parent did");
    check_journal(&host.journal("1").await);
}

#[tokio::test]
async fn ls_13_an_agent_that_is_called_tells_of_the_calls_beneath_it_as_their_number_grows() {
    let mut world = World::new();
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(|input: PlanInput, _| async move {
        match input.run.turn {
            1 => call_of(&[("1", "t/f", "{}"), ("2", "t/f", "{}")]),
            2 => call_of(&[("2", "t/f", "{}")]),
            3 => call_of(&[("3", "t/f", "{}")]),
            _ => answer("done"),
        }
    });
    world.agent("child", planner);
    world.agent("top", Gates::new().planner());
    let host = world.start().await;
    host.spawn(&named("top", "top")).await;
    let mut child = beneath("top", "kid", "child");
    child.parent_tool_call_id = Some("parent-123".to_owned());
    host.spawn(&child).await;
    host.end("kid").await;
    let journal = host.journal("kid").await;
    let told = journal.iter().filter_map(|recorded| {
        let Event::ToolCallUpdated { tool_call_id, expected_children_total } = &recorded.event
        else {
            return None;
        };
        Some((tool_call_id.as_str(), *expected_children_total))
    });
    assert_eq!(told.collect::<Vec<_>>(), [("parent-123", 2), ("parent-123", 3)]);
}

#[tokio::test]
async fn a_link_to_a_call_needs_the_run_whose_call_it_is() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("x") }));
    let host = world.start().await;
    let mut request = named("1", "a");
    request.parent_tool_call_id = Some("c1".to_owned());
    let refused = host.client().spawn(&request).await.expect_err("refused");
    assert_eq!(refused.code(), "invalid");
}
