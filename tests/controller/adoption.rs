//! Runs that are given their agent as it is now: which, when, and what follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::agents::{Agent, AgentNow};
use taskrun::controller::AdoptOutcome;
use taskrun::error::ControllerError;
use taskrun::ports::planner::Decision;
use taskrun_journal::event::Event;
use taskrun_journal::pin::pin;
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{AgentRules, InterruptionPolicy, Upgrade};

use super::common::{Gates, beneath};
use super::deployments::{Counted, question, result, world};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, World, answer, call_of, clarification, decided, grants,
    request, value,
};

async fn adopt(host: &Native, id: &str) -> Result<AdoptOutcome, ControllerError> {
    host.client().named("ann").adopt(id).await
}

async fn told(host: &Native, id: &str) {
    let asks = |run: &Run| run.status() == Status::Blocked && !run.state.awaits.is_empty();
    host.until(id, "asks", asks).await;
    let answered = host.client().named("ann").answer(id, None, Answer::Text("yes".into())).await;
    answered.expect("it asks");
}

/// Asks a person, then its model, and says its own words and whether it was let.
fn asks(text: &'static str) -> ClosurePlanner {
    ClosurePlanner::new(move |input, scope| async move {
        if input.resume.is_none() {
            return decided(Decision::Await(vec![clarification("q").into()]));
        }
        let said = scope.ask(question()).await;
        answer(&format!("{text} {}", if said.is_ok() { "let" } else { "denied" }))
    })
}

/// A version of an agent with these rules about its model, in force.
fn version(world: &mut World, number: u32, rules: &str, planner: ClosurePlanner) -> Agent {
    let grants = grants(rules);
    world.agent_asking("a", planner, Some(Arc::new(Counted::default())), |agent| {
        agent.pin = pin("a", &number.to_string());
        agent.rules = Arc::new(AgentRules { grants, ..(*agent.rules).clone() });
    });
    Agent::clone(&world.agents_now().by_name["a"])
}

const LET: &str = "model = \"own\"\nallow = [\"model: *\"]";
const DENIED: &str = "deny = [\"model: *\"]";

/// The same agent within the rules of a later version of it.
fn within(then: &Agent, now: &Agent) -> Agent {
    let now = AgentNow { pin: now.pin.clone(), rules: Arc::clone(&now.rules) };
    Agent { now: Some(now), ..then.clone() }
}

#[tokio::test]
async fn an_adopted_run_has_the_components_and_the_rules_of_now_and_no_others() {
    for (then_rules, now_rules) in [(LET, LET), (DENIED, LET), (LET, DENIED), (DENIED, DENIED)] {
        for is_adopted in [false, true] {
            let (mut world, shelf, _) = world();
            let then = version(&mut world, 1, then_rules, asks("then"));
            let host = world.start().await;
            let id = host.spawn(&request("a", "x")).await;
            host.reach(&id, Status::Blocked).await;
            world.kill(host).await;
            let now = version(&mut world, 2, now_rules, asks("now"));
            shelf.keep(&within(&then, &now));
            let host = world.start().await;
            if is_adopted {
                let adopted = adopt(&host, &id).await.expect("it waits");
                assert_eq!(adopted.from.as_deref(), Some("a@1"));
                assert_eq!((adopted.run.pin(), adopted.run.status()), ("a@2", Status::Blocked));
                assert!(adopt(&host, &id).await.expect("it waits").from.is_none(), "it has that");
            }
            told(&host, &id).await;
            let expected = match (is_adopted, then_rules == LET, now_rules == LET) {
                (true, _, true) => "now let",
                (true, _, false) => "now denied",
                (false, true, true) => "then let",
                (false, _, _) => "then denied",
            };
            assert_eq!(result(&host, &id).await, expected, "{then_rules} {now_rules}");
            let events = host.journal(&id).await;
            let said = events.iter().filter_map(|recorded| {
                if let Event::Adopted { from, to, by } = &recorded.event {
                    return Some(format!("{from} {to} {by}"));
                }
                let Event::RulesChanged { pins } = &recorded.event else { return None };
                Some(pins.join(" "))
            });
            let said: Vec<_> = said.collect();
            let expected = if is_adopted { "a@1 a@2 ann" } else { "a@2" };
            assert_eq!(said, [expected], "nothing else is said about its rules");
        }
    }
}

#[tokio::test]
async fn a_run_that_waits_for_a_form_that_is_not_kept_goes_on_when_it_is_adopted() {
    let (mut world, _shelf, _) = world();
    version(&mut world, 1, LET, asks("then"));
    let door = world.door().await;
    let id = door.spawn(&request("a", "x")).await;
    version(&mut world, 2, LET, asks("now"));
    let host = world.start().await;
    host.settle().await;
    assert_eq!(host.get(&id).await.status(), Status::Queued);
    adopt(&host, &id).await.expect("nobody has it");
    host.reach(&id, Status::Blocked).await;
    told(&host, &id).await;
    assert_eq!(result(&host, &id).await, "now let");
}

#[tokio::test]
async fn a_run_that_is_under_way_or_has_ended_is_not_adopted() {
    let (mut world, shelf, _) = world();
    let gates = Gates::new();
    let passes = Arc::clone(&gates);
    let planner = ClosurePlanner::new(move |_, _| {
        let gates = Arc::clone(&passes);
        async move {
            drop(gates.pass("x").await);
            answer("then")
        }
    });
    let then = version(&mut world, 1, LET, planner);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gates.have_come(1).await;
    let refused = adopt(&host, &id).await.expect_err("a step is under way");
    assert_eq!(refused.code(), "under-way");
    // Its host dies in the step: nobody knows that none is under way until it is paused.
    world.kill(host).await;
    let now = version(&mut world, 2, LET, asks("now"));
    shelf.keep(&within(&then, &now));
    let door = world.door().await;
    assert_eq!(adopt(&door, &id).await.expect_err("it was under way").code(), "under-way");
    super::pause::pause(&door, &id).await.expect("it listens");
    adopt(&door, &id).await.expect("it is paused, and nobody has it");
    door.client().named("ann").resume(&id, &Default::default()).await.expect("it listens");
    let host = world.start().await;
    world.clock.advance(Duration::from_secs(60));
    host.reach(&id, Status::Blocked).await;
    told(&host, &id).await;
    assert_eq!(result(&host, &id).await, "now let");
    assert_eq!(adopt(&host, &id).await.expect_err("it has ended").code(), "run-ended");
    assert_eq!(adopt(&host, "nobody").await.expect_err("there is none").code(), "not-found");
}

#[tokio::test]
async fn a_call_that_other_code_began_is_not_repeated() {
    let (mut world, shelf, _) = world();
    let (gates, calls) = (Gates::new(), Arc::new(AtomicU32::new(0)));
    let (passes, counted) = (Arc::clone(&gates), Arc::clone(&calls));
    let hints = ToolHints { idempotent: true, ..ToolHints::default() };
    let tool = ClosureTool::new("f", hints, move |_, _| {
        let gates = Arc::clone(&passes);
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            drop(gates.pass("x").await);
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let calls_then_answers = || {
        ClosurePlanner::new(|input, _| async move {
            match input.resume {
                None => call_of(&[("c1", "t/f", "{}")]),
                Some(_) => answer(&input.messages.last().expect("some").joined_text()),
            }
        })
    };
    let then = version(&mut world, 1, LET, calls_then_answers());
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gates.have_come(1).await;
    world.kill(host).await;
    let now = version(&mut world, 2, LET, calls_then_answers());
    shelf.keep(&within(&then, &now));
    let door = world.door().await;
    super::pause::pause(&door, &id).await.expect("it listens");
    adopt(&door, &id).await.expect("it is paused, and nobody has it");
    door.client().named("ann").resume(&id, &Default::default()).await.expect("it listens");
    let host = world.start().await;
    world.clock.advance(Duration::from_secs(60));
    host.end(&id).await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let events = host.journal(&id).await;
    let result = events.iter().find_map(|recorded| {
        let Event::ToolResult { output, .. } = &recorded.event else { return None };
        Some(format!("{:?}", output.outcome))
    });
    assert!(result.expect("a result").contains("interrupted"));
}

#[tokio::test]
async fn an_adopted_run_stays_within_the_rules_of_those_above_it() {
    let (mut world, _shelf, _) = world();
    version(&mut world, 1, LET, asks("then"));
    let above = ClosurePlanner::new(|_, _| async {
        decided(Decision::Await(vec![clarification("up").into()]))
    });
    let denied = grants(DENIED);
    world.agent_with("boss", above, |agent| {
        agent.members = vec!["a".to_owned()];
        agent.rules = Arc::new(AgentRules { grants: denied, ..(*agent.rules).clone() });
    });
    let host = world.start().await;
    let boss = host.spawn(&request("boss", "x")).await;
    host.reach(&boss, Status::Blocked).await;
    let id = host.spawn(&beneath(&boss, "child", "a")).await;
    host.reach(&id, Status::Blocked).await;
    world.kill(host).await;
    version(&mut world, 2, LET, asks("now"));
    let host = world.start().await;
    adopt(&host, &id).await.expect("it waits");
    told(&host, &id).await;
    assert_eq!(result(&host, &id).await, "now denied");
}

/// Asks a person; asks its model, passes a gate and asks a person again; and says its own words.
fn stays(gates: &Arc<Gates>, text: &'static str) -> ClosurePlanner {
    let gates = Arc::clone(gates);
    ClosurePlanner::new(move |input, scope| {
        let gates = Arc::clone(&gates);
        async move {
            let told = input.messages.iter().filter(|one| one.joined_text().contains("yes"));
            match told.count() {
                0 => decided(Decision::Await(vec![clarification("q").into()])),
                1 => {
                    let said = scope.ask(question()).await;
                    assert!(said.is_ok(), "{said:?}");
                    drop(gates.pass("x").await);
                    decided(Decision::Await(vec![clarification("r").into()]))
                }
                _ => answer(text),
            }
        }
    })
}

#[tokio::test]
async fn a_policy_that_says_so_has_its_runs_adopted_where_they_are_taken_up_between_two_steps() {
    for upgrade in [Upgrade::Pinned, Upgrade::Adopt] {
        let (mut world, shelf, gates) = world();
        let then = version(&mut world, 1, LET, stays(&gates, "then"));
        let host = world.start().await;
        let waits = host.spawn(&request("a", "x")).await;
        let steps = host.spawn(&request("a", "x")).await;
        told(&host, &steps).await;
        gates.have_come(1).await;
        host.reach(&waits, Status::Blocked).await;
        world.kill(host).await;
        gates.open("x");
        let mut now = version(&mut world, 2, LET, stays(&gates, "now"));
        now.upgrade = upgrade;
        world.loaded(&Arc::new(now.clone()));
        shelf.keep(&within(&then, &now));
        let host = world.start().await;
        world.clock.advance(Duration::from_secs(60));
        // In the middle of a step it is executed as it was, and adopted before the next one.
        let asks_again = |run: &Run| run.state.turns == 2 && run.status() == Status::Blocked;
        let run = host.until(&steps, "asks again", asks_again).await;
        assert_eq!(run.pin(), "a@1", "{upgrade:?}");
        told(&host, &waits).await;
        host.until(&waits, "asks again", asks_again).await;
        for id in [&waits, &steps] {
            told(&host, id).await;
            let expected = match upgrade {
                Upgrade::Pinned => ("then", "a@1", 0),
                Upgrade::Adopt => ("now", "a@2", 1),
            };
            assert_eq!(result(&host, id).await, expected.0, "{upgrade:?}");
            let kinds = host.kinds(id).await;
            let adopted = kinds.iter().filter(|kind| **kind == "adopted").count();
            assert_eq!((host.get(id).await.pin(), adopted), (expected.1, expected.2));
            assert!(!kinds.contains(&"replay_diverged") && !kinds.contains(&"step_restarted"));
        }
    }
}

#[tokio::test]
async fn a_run_that_did_not_begin_is_adopted_when_it_does() {
    let (mut world, shelf, gates) = world();
    gates.open("x");
    let then = version(&mut world, 1, LET, asks("then"));
    let door = world.door().await;
    let id = door.spawn(&request("a", "x")).await;
    let mut now = version(&mut world, 2, LET, asks("now"));
    now.upgrade = Upgrade::Adopt;
    world.loaded(&Arc::new(now.clone()));
    shelf.keep(&within(&then, &now));
    let host = world.start().await;
    told(&host, &id).await;
    assert_eq!(result(&host, &id).await, "now let");
    let kinds = host.kinds(&id).await;
    assert_eq!(kinds[..3], ["queued", "started", "adopted"]);
    assert!(!kinds.contains(&"rules_changed"), "it is said once");
}
