//! Subagents that cannot be started, and those that come to a limit (CS-26, CS-28, CS-29), and runs that
//! are paused and executed elsewhere (CS-32, CS-34).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::error::ControllerError;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{Budget, InterruptionPolicy};

use super::agent_tools::children;
use super::common::{Gates, check_journal, following, named};
use super::host_tools::{leader, words};
use super::pause::pause;
use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, World, answer, call_of, request, value,
};

/// A call that starts a subagent, with these arguments beside or instead of the usual ones.
fn spawn(change: Value) -> (&'static str, Value) {
    let mut arguments = json!({ "agent": "worker", "goal": "dig" });
    let (Value::Object(all), Value::Object(more)) = (&mut arguments, change) else {
        panic!("arguments are an object")
    };
    all.extend(more);
    all.retain(|_, value| !value.is_null());
    ("spawn_agent", arguments)
}

#[tokio::test]
async fn cs_26_what_cannot_be_started_is_said_and_starts_nothing() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    world.agent("other", gates.planner());
    leader(&mut world, "lead", &["worker", "other"], |_, said| match said.len() {
        0 => ["has space", "has.dot", "has/slash"]
            .map(|name| spawn(json!({ "name": name })))
            .into_iter()
            .chain([
                spawn(json!({ "agent": null })),
                spawn(json!({ "goal": null })),
                spawn(json!({ "goal": "" })),
                spawn(json!({ "tools": ["none/at-all"] })),
                spawn(json!({ "agent": "lead-of-nobody" })),
            ])
            .collect(),
        8 => vec![spawn(json!({ "name": "mole" }))],
        9 => vec![spawn(json!({ "name": "mole" }))],
        10 => vec![("stop_agent", json!({ "name": "mole" }))],
        11 => vec![("await_tasks", json!({ "task_ids": [said[8]["id"]] }))],
        12 => vec![spawn(json!({ "name": "mole" }))],
        // With us a name without a character is none.
        13 => ["", " "].map(|name| spawn(json!({ "name": name }))).to_vec(),
        _ => Vec::new(),
    });
    let host = world.start().await;
    host.spawn(&named("1", "lead")).await;
    let said = words(&host, "1").await;
    for refused in &said[..7] {
        assert_eq!(refused["code"], "invalid-arguments", "{refused}");
    }
    assert_eq!(said[7]["code"], "denied", "{}", said[7]);
    assert_eq!(said[8]["status"], "running", "{}", said[8]);
    assert_eq!(said[9]["code"], "already-exists", "{}", said[9]);
    assert_eq!(said[12]["status"], "running", "the name was free again: {}", said[12]);
    let nameless = &said[13..15];
    assert!(nameless.iter().all(|one| one["name"] == one["id"]), "{nameless:?}");
    let started = [8, 12, 13, 14].map(|nth| said[nth]["id"].as_str().expect("an id").to_owned());
    let children = children(&host, "1").await;
    let ids: BTreeSet<_> = children.iter().map(|run| run.id().to_string()).collect();
    assert_eq!(ids, BTreeSet::from(started), "nothing else was started");
    check_journal(&host.journal("1").await);
}

#[tokio::test]
async fn cs_26_a_host_that_closes_starts_nothing_more() {
    let mut world = World::new();
    world.agent("a", following(Vec::new()));
    let host = world.start().await;
    host.controller.close(Duration::ZERO).await;
    let refused = host.client().spawn(&request("a", "x")).await;
    assert!(matches!(refused, Err(ControllerError::Closed)), "{refused:?}");
    // Closing it once more is nothing.
    assert!(host.controller.close(Duration::ZERO).await.stragglers.is_empty());
}

#[tokio::test]
async fn cs_28_a_subagent_whose_time_is_over_is_deferred_with_what_it_has() {
    let (mut world, gate) = (World::new(), Gate::new());
    let worker = ClosurePlanner::new(move |input: PlanInput, _| {
        let gate = gate.clone();
        async move {
            if input.resume.is_some_and(|resume| resume.finalize.is_some()) {
                return answer("half of it");
            }
            gate.pass().await;
            answer("all of it")
        }
    });
    world.agent("worker", worker);
    leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
        0 => vec![spawn(json!({ "max_wallclock_seconds": 1, "wait": true }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    host.spawn(&named("1", "lead")).await;
    let (said, _) = world.run_until(Duration::from_secs(10), words(&host, "1")).await;
    assert_eq!(
        (&said[0]["status"], &said[0]["stop_reason"]),
        (&json!("deferred"), &json!("wallclock"))
    );
    let guidance = said[0]["guidance"].as_str().expect("it says what is next");
    assert!(guidance.contains("wallclock"), "{guidance}");
    assert_eq!(said[0]["output"], "half of it");
}

/// Turns, and millionths of a dollar.
type Bounds = (Option<u32>, Option<u64>);

/// Each with what is asked for, and the bounds that there are then; `None` where it is refused, as it
/// would give something.
fn tightenings() -> [(Value, Option<Bounds>); 7] {
    let worker = |turns, cost| Some((Some(turns), Some(cost)));
    [
        (json!({ "max_turns": 10 }), worker(10, 2_000_000)),
        (json!({ "max_turns": 90 }), None),
        (json!({}), worker(50, 2_000_000)),
        (json!({ "agent": "free", "max_turns": 10 }), Some((Some(10), None))),
        (json!({ "agent": "free" }), Some((None, None))),
        (json!({ "max_turns": 10, "max_cost_usd": 5.0 }), None),
        (json!({ "max_turns": 10, "max_cost_usd": 0.5 }), worker(10, 500_000)),
    ]
}

#[tokio::test]
async fn cs_29_a_request_for_a_subagent_only_tightens_its_budgets() {
    let mut world = World::new();
    let seen: Arc<Mutex<Vec<Bounds>>> = Arc::default();
    let planner = || {
        let seen = Arc::clone(&seen);
        ClosurePlanner::new(move |_, scope: Arc<CallScope>| {
            let seen = Arc::clone(&seen);
            async move {
                // The present turn is one of them.
                let left = scope.remaining().await;
                let turns = left.turns.map(|turns| turns + 1);
                seen.lock().expect("unharmed").push((turns, left.cost_microusd));
                answer("seen")
            }
        })
    };
    world.agent_with("worker", planner(), |agent| {
        let cost_microusd = Some(2_000_000);
        agent.budget = Budget { turns: Some(50), cost_microusd, ..agent.budget };
    });
    world.agent("free", planner());
    leader(&mut world, "lead", &["worker", "free"], |_, said| {
        let asked = tightenings().into_iter().nth(said.len());
        let wait = |(mut asked, _): (Value, _)| {
            asked["wait"] = json!(true);
            spawn(asked)
        };
        asked.map(wait).into_iter().collect()
    });
    let host = world.start().await;
    host.spawn(&named("1", "lead")).await;
    let said = words(&host, "1").await;
    for ((asked, left), said) in tightenings().iter().zip(&said) {
        match left {
            Some(_) => assert_eq!(said["status"], "completed", "{asked}: {said}"),
            None => assert_eq!(said["code"], "invalid-arguments", "{asked}: {said}"),
        }
    }
    let expected: Vec<_> = tightenings().into_iter().filter_map(|(_, left)| left).collect();
    assert_eq!(*seen.lock().expect("unharmed"), expected);
}

/// Asks for a call in each of two turns, and then answers.
fn two_turns() -> ClosurePlanner {
    following(vec![vec![("c1", "t/f", "{}")], vec![("c2", "t/f", "{}")]])
}

#[tokio::test]
async fn cs_32_a_run_that_is_paused_after_two_turns_and_loses_its_host_has_had_two() {
    let (mut world, gate, calls) = (World::new(), Gate::new(), Arc::new(AtomicU32::new(0)));
    let (door, counted) = (gate.clone(), Arc::clone(&calls));
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        let (door, second) = (door.clone(), counted.fetch_add(1, Ordering::SeqCst) == 1);
        async move {
            if second {
                door.pass().await;
            }
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    world.agent("a", two_turns());
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gate.reached_by(1).await;
    pause(&first, "1").await.expect("it can be paused");
    gate.open();
    let paused = first.reach("1", Status::Blocked).await;
    assert_eq!((paused.state.turns, paused.state.tool_calls), (2, 2));
    world.kill(first).await;
    let second = world.take_over().await;
    let found = second.get("1").await;
    assert_eq!((found.state.turns, found.state.tool_calls), (2, 2), "not from the beginning");
    let resumed = second.client().resume("1", &Default::default()).await;
    assert!(resumed.expect("it is paused").changed);
    let run = second.end("1").await;
    assert_eq!((run.status(), run.state.turns), (Status::Completed, 3));
    assert_eq!((run.state.tool_calls, calls.load(Ordering::SeqCst)), (2, 2), "each call once");
    check_journal(&second.journal("1").await);
}

#[tokio::test]
async fn cs_34_an_effect_whose_host_died_before_it_was_on_record_happens_once() {
    // A tool that takes the id of a call as a key, and the host dies with the effect done.
    let (mut world, gates, done) =
        (World::new(), Gates::new(), Arc::new(Mutex::new(BTreeSet::new())));
    let (effects, inside) = (Arc::clone(&done), Arc::clone(&gates));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let hints = ToolHints { idempotent: true, ..ToolHints::default() };
    let tool = ClosureTool::new("f", hints, move |call, _| {
        effects.lock().expect("unharmed").insert(call.tool_call_id);
        let (first, gates) = (counted.fetch_add(1, Ordering::SeqCst) == 0, Arc::clone(&inside));
        async move {
            if first {
                let _inside = gates.pass("never").await;
            }
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(|input: PlanInput, _| async move {
        match input.resume {
            None => call_of(&[("pay", "t/f", "{}")]),
            Some(_) => answer("paid"),
        }
    });
    world.agent("a", planner);
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.kill(first).await;
    let second: Native = world.take_over().await;
    let run = second.end("1").await;
    assert_eq!(RunView::from(&run).stop_reason, Some(StopReason::FinalResponse));
    assert_eq!(calls.load(Ordering::SeqCst), 2, "it was made again");
    assert_eq!(done.lock().expect("unharmed").len(), 1, "under the same key");
    check_journal(&second.journal("1").await);
}
