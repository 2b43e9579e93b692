//! Rights that the policy takes away from runs under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::agents::{Agent, AgentNow};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::pin::pin;
use taskrun_journal::question::Answer;
use taskrun_journal::status::Status;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{
    AgentRules, AskRule, AskRules, Capability, InterruptionPolicy, Location, Pattern, Use,
};

use super::common::{Gates, follow, following};
use super::deployments::{Shelf, result, world};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer, grants, request, value};

/// Says between one gate and the next whether it may write.
fn writes(gates: &Arc<Gates>) -> ClosurePlanner {
    let gates = Arc::clone(gates);
    ClosurePlanner::new(move |input, scope| {
        let (gates, task) = (Arc::clone(&gates), input.messages[0].joined_text());
        async move {
            let may_write = || {
                let used = Use::Path(Capability::WorkspaceWrite, "a");
                if scope.rules().allows(&used) { "yes" } else { "no" }
            };
            let mut said = vec![may_write()];
            for gate in ["x", "y", "z"] {
                drop(gates.pass(&format!("{task} {gate}")).await);
                said.push(may_write());
            }
            answer(&said.join(" "))
        }
    })
}

/// An agent of this version with these rules.
fn ruled(world: &mut World, gates: &Arc<Gates>, (name, number): (&str, u32), rules: &str) {
    let grants = grants(rules);
    world.agent_with(name, writes(gates), |agent| {
        agent.pin = pin(name, &number.to_string());
        agent.members = vec!["a".to_owned()];
        agent.rules = Arc::new(AgentRules { grants, ..(*agent.rules).clone() });
    });
}

const WRITING: &str = "allow = [\"workspace-write: **\"]";
const READING: &str = "allow = [\"workspace-read: **\"]";

/// Has a host take up the policy as it is now.
pub(super) async fn take_up(world: &World, shelf: &Shelf, host: &Native) {
    shelf.switch(world);
    while shelf.is_pending() {
        host.settle().await;
    }
    host.settle().await;
}

fn rules_changed(journal: &[EventRecord]) -> Vec<String> {
    let pins = journal.iter().filter_map(|recorded| {
        let Event::RulesChanged { pins } = &recorded.event else { return None };
        Some(pins.join(" "))
    });
    pins.collect()
}

#[tokio::test]
async fn a_right_that_is_taken_away_is_gone_within_the_step_that_used_it() {
    let (mut world, shelf, gates) = world();
    ruled(&mut world, &gates, ("a", 1), WRITING);
    let host = world.start().await;
    let id = host.spawn(&request("a", "t")).await;
    gates.have_come(1).await;
    shelf.keep(&world.agents_now().by_name["a"]);
    ruled(&mut world, &gates, ("a", 2), READING);
    take_up(&world, &shelf, &host).await;
    gates.open("t x");
    gates.have_come(2).await;
    let before = world.agents_now();
    world.forget_agent("a");
    take_up(&world, &shelf, &host).await;
    gates.open("t y");
    gates.have_come(3).await;
    world.loaded(&before.by_name["a"]);
    ruled(&mut world, &gates, ("a", 1), WRITING);
    take_up(&world, &shelf, &host).await;
    gates.open("t z");
    assert_eq!(result(&host, &id).await, "yes no no yes");
    let journal = host.journal(&id).await;
    assert_eq!(rules_changed(&journal), ["a@2", "a", "a@1"], "it is on record each time");
    assert!(!host.kinds(&id).await.contains(&"resumed"), "the step was not cut off");
}

#[tokio::test]
async fn a_right_that_a_run_above_loses_is_gone_for_those_beneath() {
    let (mut world, shelf, gates) = world();
    ruled(&mut world, &gates, ("a", 1), WRITING);
    ruled(&mut world, &gates, ("lead", 1), WRITING);
    let host = world.start().await;
    let lead = host.spawn(&request("lead", "lead")).await;
    let child = SpawnRequest { parent_run_id: Some(lead.clone()), ..request("a", "child") };
    let child = host.spawn(&child).await;
    gates.have_come(2).await;
    shelf.keep(&world.agents_now().by_name["lead"]);
    ruled(&mut world, &gates, ("lead", 2), READING);
    take_up(&world, &shelf, &host).await;
    for gate in ["x", "y", "z"] {
        gates.open(&format!("child {gate}"));
        gates.open(&format!("lead {gate}"));
    }
    assert_eq!(result(&host, &child).await, "yes no no no");
    assert_eq!(result(&host, &lead).await, "yes no no no");
    assert_eq!(rules_changed(&host.journal(&child).await), ["a@1 lead@2"]);
}

#[tokio::test]
async fn a_step_whose_rules_changed_under_it_goes_on_after_the_death_of_its_host() {
    let (mut world, shelf, gates) = world();
    ruled(&mut world, &gates, ("a", 1), WRITING);
    let first = world.start().await;
    let id = first.spawn(&request("a", "t")).await;
    gates.have_come(1).await;
    let mut then = Agent::clone(&world.agents_now().by_name["a"]);
    ruled(&mut world, &gates, ("a", 2), READING);
    let now = Arc::clone(&world.agents_now().by_name["a"]);
    then.now = Some(AgentNow { pin: now.pin.clone(), rules: Arc::clone(&now.rules) });
    shelf.keep(&then);
    take_up(&world, &shelf, &first).await;
    gates.open("t x");
    gates.have_come(2).await;
    world.kill(first).await;
    let second = world.start().await;
    world.clock.advance(Duration::from_secs(60));
    gates.open("t y");
    gates.open("t z");
    assert_eq!(result(&second, &id).await, "no no no no", "the rules of now from the beginning");
    assert_eq!(second.get(&id).await.status(), Status::Completed);
}

#[tokio::test]
async fn a_right_that_is_taken_away_is_gone_within_a_tool_call() {
    let (mut world, shelf, gates) = world();
    let inside = Arc::clone(&gates);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, scope| {
        let gates = Arc::clone(&inside);
        async move {
            let used = Use::Path(Capability::WorkspaceWrite, "a");
            let before = scope.rules().allows(&used);
            drop(gates.pass("in the call").await);
            value(&format!("\"{before} {}\"", scope.rules().allows(&used)))
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let calling = |world: &mut World, number: u32, rules: &str| {
        let grants = grants(rules);
        world.agent_with("a", following(vec![vec![("c", "t/f", "{}")]]), |agent| {
            agent.pin = pin("a", &number.to_string());
            agent.rules = Arc::new(AgentRules { grants, ..(*agent.rules).clone() });
        });
    };
    calling(&mut world, 1, WRITING);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gates.have_come(1).await;
    shelf.keep(&world.agents_now().by_name["a"]);
    calling(&mut world, 2, READING);
    take_up(&world, &shelf, &host).await;
    gates.open("in the call");
    let said = result(&host, &id).await;
    assert!(said.contains("true false"), "{said}");
}

#[tokio::test]
async fn a_run_starts_only_agents_that_are_members_then_and_now() {
    let (mut world, shelf, gates) = world();
    for name in ["a", "b"] {
        ruled(&mut world, &gates, (name, 1), WRITING);
    }
    ruled(&mut world, &gates, ("lead", 1), WRITING);
    let host = world.start().await;
    let lead = host.spawn(&request("lead", "lead")).await;
    gates.have_come(1).await;
    shelf.keep(&world.agents_now().by_name["lead"]);
    let lead_of = |world: &mut World, number: u32, members: &[&str]| {
        world.agent_with("lead", writes(&gates), |agent| {
            agent.pin = pin("lead", &number.to_string());
            agent.members = members.iter().map(|name| (*name).to_owned()).collect();
        });
    };
    let start = async |agent: &str, id: &str| {
        let beneath = SpawnRequest {
            id: Some(id.to_owned()),
            parent_run_id: Some(lead.clone()),
            ..request(agent, id)
        };
        host.client().spawn(&beneath).await.map(drop).map_err(|error| error.code())
    };
    for (number, members, allowed) in [
        (2, &["a", "b"][..], [true, false]),
        (3, &["b"], [false, false]),
        (4, &["a"], [true, false]),
    ] {
        lead_of(&mut world, number, members);
        take_up(&world, &shelf, &host).await;
        for (agent, is_allowed) in ["a", "b"].into_iter().zip(allowed) {
            let started = start(agent, &format!("{agent}{number}")).await;
            assert_eq!(started.is_ok(), is_allowed, "{agent} under {members:?}: {started:?}");
        }
    }
}

/// A tool of a run, and the runs that it was called in.
fn counted_tool(world: &mut World) -> Arc<AtomicU32> {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        async move { value(&number.to_string()) }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    calls
}

#[tokio::test]
async fn calls_that_a_step_decides_on_while_the_policy_changes_begin_under_that_of_now() {
    let (mut world, shelf, gates) = world();
    let calls = counted_tool(&mut world);
    let inside = Arc::clone(&gates);
    let planner = ClosurePlanner::new(move |input, _| {
        let gates = Arc::clone(&inside);
        async move {
            if input.run.turn == 1 {
                drop(gates.pass("deciding").await);
            }
            follow(&[vec![("c", "t/f", "{}")]], &input)
        }
    });
    world.agent_with("a", planner, |agent| agent.pin = pin("a", "1"));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gates.have_come(1).await;
    // A person is asked about these calls now.
    let mut then = Agent::clone(&world.agents_now().by_name["a"]);
    world.agent_with("a", following(Vec::new()), |agent| agent.pin = pin("a", "2"));
    let now = Arc::clone(&world.agents_now().by_name["a"]);
    then.now = Some(AgentNow { pin: now.pin.clone(), rules: Arc::clone(&now.rules) });
    let file = std::path::Path::new("test").into();
    let (functions, location) = (Pattern::all_of("t"), Location { file, line: 1, column: 1 });
    let rule = AskRule { functions, text: "the rule".to_owned(), location };
    then.ask = AskRules { rules: vec![rule], timeout: Duration::from_secs(3_600) };
    shelf.keep(&then);
    take_up(&world, &shelf, &host).await;
    gates.open("deciding");
    host.reach(&id, Status::Blocked).await;
    assert_eq!(calls.load(Ordering::SeqCst), 0, "nobody consented");
    host.client().answer(&id, None, Answer::Confirmed(true)).await.expect("answered");
    host.end(&id).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_step_that_is_stopped_for_a_right_that_is_gone_begins_anew_without_it() {
    let (mut world, shelf, gates) = world();
    let planner = || {
        let inside = Arc::clone(&gates);
        ClosurePlanner::new(move |_, scope| {
            let gates = Arc::clone(&inside);
            async move {
                let used = Use::Path(Capability::WorkspaceWrite, "a");
                let before = scope.rules().allows(&used);
                drop(gates.pass("x").await);
                // As the engine does with what is open.
                match before && !scope.rules().allows(&used) {
                    true => Err(CallAbort::Stopped { cause: StopCause::Denied }),
                    false => answer(&before.to_string()),
                }
            }
        })
    };
    let rights = |rules: &'static str, number: u32| {
        move |agent: &mut Agent| {
            agent.pin = pin("a", &number.to_string());
            agent.rules = Arc::new(AgentRules { grants: grants(rules), ..(*agent.rules).clone() });
        }
    };
    world.agent_with("a", planner(), rights(WRITING, 1));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gates.have_come(1).await;
    let mut then = Agent::clone(&world.agents_now().by_name["a"]);
    world.agent_with("a", planner(), rights(READING, 2));
    let now = Arc::clone(&world.agents_now().by_name["a"]);
    then.now = Some(AgentNow { pin: now.pin.clone(), rules: Arc::clone(&now.rules) });
    shelf.keep(&then);
    take_up(&world, &shelf, &host).await;
    gates.open("x");
    assert_eq!(result(&host, &id).await, "false");
    assert!(host.kinds(&id).await.contains(&"resumed"), "it began anew");
}
