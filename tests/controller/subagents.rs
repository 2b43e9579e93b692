//! Subagents (C-061 to C-064, C-072): agents that are called as tools, their depth, who may be asked,
//! and what they cost.

use std::path::Path;
use std::time::Duration;

use taskrun::agents::Agent;
use taskrun::ports::planner::PlanInput;
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::Usage;
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::status::{BlockedOn, Status};
use taskrun_journal::tool::ToolOutput;
use taskrun_policy::{AskRule, AskRules, Location, Pattern};

use super::agent_tools::{PLAY, caller, calling, children};
use super::common::{check_journal, named, words_of};
use crate::native::{ClosurePlanner, Native, World, answer};

async fn results(host: &Native, id: &str) -> Vec<(ToolOutput, Option<Refusal>)> {
    let journal = host.journal(id).await;
    check_journal(&journal);
    let results = journal.into_iter().filter_map(|recorded| {
        let Event::ToolResult { output, refused, .. } = recorded.event else { return None };
        Some((*output, refused))
    });
    results.collect()
}

/// Agents that each call the next one, and the last of which answers.
fn chain(world: &mut World, depth: Option<u32>) {
    let bounded = move |callees| {
        let call = calling(callees);
        move |agent: &mut Agent| {
            call(agent);
            agent.tree = TreeBounds { depth, ..TreeBounds::default() };
        }
    };
    world.agent("c", ClosurePlanner::new(|_, _| async { answer("deep") }));
    world.agent_with("b", caller(&[("to-c", "agent/c", PLAY)]), calling(&["c"]));
    world.agent_with("a", caller(&[("to-b", "agent/b", PLAY)]), bounded(&["b"]));
}

async fn said(host: &Native, id: &str) -> String {
    let run = host.end(id).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    run.state.reply.result().expect("an answer")
}

#[tokio::test]
async fn c_061_beyond_the_depth_a_call_fails_in_words_and_its_caller_goes_on() {
    for (depth, is_deep) in [(None, true), (Some(2), true), (Some(1), false)] {
        let mut world = World::new();
        chain(&mut world, depth);
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        let said = said(&host, "1").await;
        let child = children(&host, "1").await.remove(0);
        assert_eq!(said.contains("deep"), is_deep, "{said}");
        assert_eq!(children(&host, child.id().as_str()).await.len(), usize::from(is_deep));
        let failed = words_of(&results(&host, child.id().as_str()).await[0].0.outcome);
        assert_eq!(failed.contains("depth (1)"), !is_deep, "{failed}");
    }
}

/// Consent is wanted for calls of one of the agents.
fn asking(agent: &mut Agent) {
    calling(&["left", "right"])(agent);
    let location = Location { file: Path::new("test").into(), line: 1, column: 1 };
    let functions = Pattern::parse("agent/left");
    let rule = AskRule { functions, text: "agent/left".to_owned(), location };
    agent.ask = AskRules { rules: vec![rule], timeout: Duration::from_secs(3_600) };
}

#[tokio::test]
async fn c_062_one_agent_of_several_is_gated_by_its_name_and_a_call_that_is_declined_is_a_result() {
    let mut world = World::new();
    for name in ["left", "right"] {
        world.agent(name, ClosurePlanner::new(move |_, _| async move { answer(name) }));
    }
    let calls = &[("l", "agent/left", PLAY), ("r", "agent/right", PLAY)];
    world.agent_with("parent", caller(calls), asking);
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let asks = |run: &Run| {
        let is_asked = run.state.awaits.iter().any(|one| one.on == BlockedOn::Confirmation);
        is_asked && run.status() == Status::Blocked
    };
    let run = host.until("1", "asks", asks).await;
    let asked: Vec<_> = run.state.awaits.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(asked, ["confirm:1:l"], "the other one needs no consent");
    host.client().named("mia").answer("1", None, Answer::Confirmed(false)).await.expect("taken");
    assert_eq!(host.end("1").await.status(), Status::Completed);
    let results = results(&host, "1").await;
    let of = |id: &str| {
        let found = results.iter().find(|(output, _)| output.tool_call_id == id);
        found.map(|(output, refused)| (words_of(&output.outcome), *refused)).expect("is there")
    };
    assert!(of("l").0.starts_with("denied: "), "{:?}", of("l"));
    assert_eq!(of("r"), ("\"right\"".to_owned(), None));
    assert_eq!(children(&host, "1").await.len(), 1, "no run was made of the one that was declined");
}

#[tokio::test]
async fn c_064_calls_at_once_are_runs_of_their_own_and_the_usage_of_each_is_counted_once() {
    let usage = |tokens| Usage { total_tokens: tokens, prompt_tokens: tokens, ..Usage::default() };
    let mut world = World::new();
    let child = ClosurePlanner::new(move |input: PlanInput, scope| async move {
        scope.add_usage(usage(7));
        let told: Vec<_> = input.messages.iter().map(|message| message.joined_text()).collect();
        assert_eq!(told, ["play"], "neither is told of the other, nor of what was said above");
        answer("played")
    });
    world.agent("child", child);
    let calls = &[("one", "agent/child", PLAY), ("two", "agent/child", PLAY)];
    world.agent_with("parent", caller(calls), calling(&["child"]));
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    assert_eq!(host.end("1").await.status(), Status::Completed);
    let children = children(&host, "1").await;
    let sessions: std::collections::BTreeSet<_> =
        children.iter().filter_map(|run| Some(run.execution()?.child_session_id.clone())).collect();
    assert_eq!((children.len(), sessions.len()), (2, 2), "each has a session of its own");
    let of_calls: Vec<_> = results(&host, "1").await;
    let counted = |output: &ToolOutput| Some(output.telemetry.as_ref()?.usage?.total_tokens);
    let counted: Vec<_> = of_calls.iter().map(|(output, _)| counted(output)).collect();
    assert_eq!(counted, [Some(7), Some(7)]);
    assert_eq!(host.client().tree("1").await.expect("there").usage.total_tokens, 14);
}

#[tokio::test]
async fn c_072_a_subagent_that_is_not_there_is_refused_as_a_result_and_has_no_run() {
    let mut world = World::new();
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("played") }));
    let calls = &[("gone", "agent/nobody", PLAY), ("here", "agent/child", PLAY)];
    world.agent_with("parent", caller(calls), calling(&["child"]));
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let said = said(&host, "1").await;
    assert!(said.contains("played"), "{said}");
    let results = results(&host, "1").await;
    let gone = results.iter().find(|(output, _)| output.tool_call_id == "gone").expect("is there");
    assert_eq!(gone.1, Some(Refusal::Unavailable), "{gone:?}");
    assert_eq!(children(&host, "1").await.len(), 1);
}
