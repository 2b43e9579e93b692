//! Calls that have not begun when the policy changes: the engines of now decide about them, too.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::agents::{Agent, AgentNow};
use taskrun::controller::ResumeRequest;
use taskrun::ports::policy_engine::{PolicyEngine, PolicyFailure, PolicyInput};
use taskrun_journal::event::{Event, EventRecord, Refusal};
use taskrun_journal::pin::pin;
use taskrun_journal::question::Answer;
use taskrun_journal::ruling::Phase;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{
    AskRule, AskRules, Capability, InterruptionPolicy, Location, Pattern, PolicyDecision,
    ToolLists, Use,
};

use super::common::{Call, Gates, count, follow};
use super::deployments::{Shelf, result, world};
use super::revocation::take_up;
use crate::native::{ClosurePlanner, ClosureTool, Native, World, change_code, request, value};

/// The tools `t` and `u`, and how often both were called.
fn counted_tools(world: &mut World) -> Arc<AtomicU32> {
    let calls = Arc::new(AtomicU32::new(0));
    for name in ["t", "u"] {
        let counted = Arc::clone(&calls);
        let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { value("\"done\"") }
        });
        world.tool(name, InterruptionPolicy::Fail, tool);
    }
    calls
}

/// Makes these calls in its first turn, once it has passed its gate, and answers with their results.
fn calling(gates: &Arc<Gates>, calls: &[Call]) -> ClosurePlanner {
    let (gates, turns) = (Arc::clone(gates), vec![calls.to_vec()]);
    ClosurePlanner::new(move |input, scope| {
        let (gates, turns) = (Arc::clone(&gates), turns.clone());
        async move {
            if input.run.turn == 1 {
                drop(gates.pass("deciding").await);
            }
            // It notices within the step that the rules are others.
            let _noticed = scope.rules().allows(&Use::Path(Capability::WorkspaceRead, "a"));
            follow(&turns, &input)
        }
    })
}

/// Asks a person about calls of every function.
fn asking(agent: &mut Agent) {
    let file = Path::new("test").into();
    let (functions, location) = (Pattern::any(), Location { file, line: 1, column: 1 });
    let rule = AskRule { functions, text: "the rule".to_owned(), location };
    agent.ask = AskRules { rules: vec![rule], timeout: Duration::from_secs(3_600) };
}

/// An engine that leaves all but this function.
fn blocking(function: &str) -> Arc<ToolLists> {
    let block = vec![Pattern::parse(function)];
    Arc::new(ToolLists { name: "lists".to_owned(), block, ..ToolLists::default() })
}

/// Puts a second version of the agent into force, whose engine blocks this function, and keeps the
/// one of then within it.
async fn block(world: &mut World, (shelf, host): (&Shelf, &Native), function: &str) {
    let mut then = Agent::clone(&world.agents_now().by_name["a"]);
    let mut now = then.clone();
    now.pin = pin("a", "2");
    change_code(&mut now, |code| code.guard.engines = vec![blocking(function)]);
    then.now = Some(AgentNow { pin: now.pin.clone(), rules: Arc::clone(&now.rules) });
    change_code(&mut then, |code| code.guard.engines = vec![blocking(function)]);
    world.loaded(&Arc::new(now));
    shelf.keep(&then);
    take_up(world, shelf, host).await;
}

fn version_1(agent: &mut Agent) {
    agent.pin = pin("a", "1");
}

async fn accept(host: &Native, id: &str, call: &str) {
    let item = format!("confirm:1:{call}");
    let answered = host.client().answer(id, Some(&item), Answer::Confirmed(true)).await;
    answered.expect("it waits for consent");
}

/// The decisions about calls, in a line each.
fn decisions(journal: &[EventRecord]) -> Vec<String> {
    let lines = journal.iter().filter_map(|recorded| {
        let Event::PolicyDecision { subject, rule, decided, .. } = &recorded.event else {
            return None;
        };
        let decided = decided.as_deref().filter(|decided| decided.before == Phase::Calls)?;
        Some(format!("{subject}: {decided} ({rule})"))
    });
    lines.collect()
}

fn refusals(journal: &[EventRecord]) -> Vec<(String, Refusal)> {
    let refused = journal.iter().filter_map(|recorded| {
        let Event::ToolResult { output, refused: Some(refusal), .. } = &recorded.event else {
            return None;
        };
        Some((output.tool_call_id.clone(), *refusal))
    });
    refused.collect()
}

#[tokio::test]
async fn a_call_that_waits_for_consent_is_put_to_the_engine_of_now() {
    for is_adopted in [false, true] {
        for (function, called) in [("t/f", 0), ("u/f", 1)] {
            let (mut world, shelf, gates) = world();
            gates.open("deciding");
            let calls = counted_tools(&mut world);
            world.agent_with("a", calling(&gates, &[("c", "t/f", "{}")]), |agent| {
                version_1(agent);
                asking(agent);
            });
            let host = world.start().await;
            let id = host.spawn(&request("a", "x")).await;
            host.reach(&id, Status::Blocked).await;
            block(&mut world, (&shelf, &host), function).await;
            if is_adopted {
                host.client().named("ann").adopt(&id).await.expect("it waits");
            }
            accept(&host, &id, "c").await;
            host.end(&id).await;
            let journal = host.journal(&id).await;
            let what = format!("{function} blocked, adopted: {is_adopted}: {journal:#?}");
            assert_eq!(calls.load(Ordering::SeqCst), called, "{what}");
            // Consent that was given stays given, and nobody is asked twice.
            assert_eq!(count(&journal, "asked"), 1, "{what}");
            let (decided, refused) = match called {
                0 => (vec!["turn 1: only u/f (lists)"], vec![("c".to_owned(), Refusal::Denied)]),
                _ => (Vec::new(), Vec::new()),
            };
            assert_eq!(
                (decisions(&journal), refusals(&journal)),
                (decided.into_iter().map(str::to_owned).collect(), refused),
                "{what}"
            );
        }
    }
}

#[tokio::test]
async fn the_decision_of_the_engine_of_now_about_the_calls_of_a_turn_is_on_record_once() {
    let (mut world, shelf, gates) = world();
    gates.open("deciding");
    let calls = counted_tools(&mut world);
    let wanted = [("c", "t/f", "{}"), ("d", "t/f", "{}"), ("e", "u/f", "{}")];
    world.agent_with("a", calling(&gates, &wanted), |agent| {
        version_1(agent);
        asking(agent);
    });
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.reach(&id, Status::Blocked).await;
    block(&mut world, (&shelf, &host), "t/f").await;
    for call in ["c", "d"] {
        accept(&host, &id, call).await;
        let has_refused = |run: &taskrun_journal::run::Run| run.status() == Status::Blocked;
        host.until(&id, "goes on waiting", has_refused).await;
        host.settle().await;
    }
    // Nor after the death of a host.
    world.kill(host).await;
    let host = world.take_over().await;
    accept(&host, &id, "e").await;
    host.end(&id).await;
    let journal = host.journal(&id).await;
    let denied = |id: &str| (id.to_owned(), Refusal::Denied);
    assert_eq!(refusals(&journal), [denied("c"), denied("d")]);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "what the engine leaves begins");
    assert_eq!(decisions(&journal), ["turn 1: only u/f (lists)"]);
}

#[tokio::test]
async fn a_call_that_a_pause_held_back_is_put_to_the_engine_of_now() {
    let (mut world, shelf, gates) = world();
    let calls = counted_tools(&mut world);
    let planner = calling(&gates, &[("c", "t/f", "{}"), ("d", "u/f", "{}")]);
    world.agent_with("a", planner, version_1);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gates.have_come(1).await;
    super::pause::pause(&host, &id).await.expect("it listens");
    gates.open("deciding");
    host.reach(&id, Status::Blocked).await;
    block(&mut world, (&shelf, &host), "t/f").await;
    host.client().resume(&id, &ResumeRequest::default()).await.expect("it is paused");
    let said = result(&host, &id).await;
    let journal = host.journal(&id).await;
    assert_eq!(said, "denied: denied: policy: t/f may not be called in this turn; \"done\"");
    assert_eq!(refusals(&journal), [("c".to_owned(), Refusal::Denied)]);
    assert_eq!(decisions(&journal), ["turn 1: only u/f (lists)"]);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_call_of_a_step_that_was_handed_over_is_put_to_the_engine_of_now() {
    for dies in [false, true] {
        let (mut world, shelf, gates) = world();
        let calls = counted_tools(&mut world);
        let planner = calling(&gates, &[("c", "t/f", "{}"), ("d", "u/f", "{}")]);
        world.agent_with("a", planner, version_1);
        let mut host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        gates.have_come(1).await;
        block(&mut world, (&shelf, &host), "t/f").await;
        if dies {
            // The step is done again, under the rules of now, and says the same.
            world.kill(host).await;
            host = world.take_over().await;
        }
        gates.open("deciding");
        host.end(&id).await;
        let journal = host.journal(&id).await;
        assert_eq!(host.get(&id).await.status(), Status::Completed, "{journal:#?}");
        assert_eq!(refusals(&journal), [("c".to_owned(), Refusal::Denied)], "{journal:#?}");
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{journal:#?}");
        assert!(decisions(&journal).len() <= 1, "{journal:#?}");
        assert_eq!(count(&journal, "replay_diverged"), 0, "{journal:#?}");
    }
}

/// Leaves one call of a run, and remembers that in a label.
struct Once;

#[async_trait]
impl PolicyEngine for Once {
    fn name(&self) -> &str {
        "once"
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn decide(&self, input: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        let mut decision = PolicyDecision::default();
        match (input.labels.contains_key("left"), input.phase) {
            (true, _) => decision.disable_tools = true,
            (false, Phase::Plan) => {}
            (false, Phase::Calls) => {
                decision.tool_calls = Some(1);
                decision.labels.insert("left".to_owned(), "one".to_owned());
            }
        }
        Ok(decision)
    }
}

#[tokio::test]
async fn an_engine_is_not_shown_the_label_of_its_own_decision_about_the_same_call() {
    let (mut world, shelf, gates) = world();
    gates.open("deciding");
    let calls = counted_tools(&mut world);
    world.agent_with("a", calling(&gates, &[("c", "t/f", "{}")]), |agent| {
        version_1(agent);
        asking(agent);
        change_code(agent, |code| code.guard.engines = vec![Arc::new(Once)]);
    });
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.reach(&id, Status::Blocked).await;
    let mut then = Agent::clone(&world.agents_now().by_name["a"]);
    let mut now = then.clone();
    now.pin = pin("a", "2");
    then.now = Some(AgentNow { pin: now.pin.clone(), rules: Arc::clone(&now.rules) });
    world.loaded(&Arc::new(now));
    shelf.keep(&then);
    take_up(&world, &shelf, &host).await;
    accept(&host, &id, "c").await;
    host.end(&id).await;
    let journal = host.journal(&id).await;
    assert_eq!(refusals(&journal), [], "{journal:#?}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(decisions(&journal).len(), 1, "{journal:#?}");
}
