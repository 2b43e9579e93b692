//! Removing runs that ended long ago.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::Model;
use taskrun_journal::list::Scope;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::RemovalOutcome;
use taskrun_journal::time::Clock;
use taskrun_store::{SqliteOptions, SqliteStore};

use super::budgets::{ask, family};
use super::common::{Gates, named};
use super::delivery::{children, coordinator, line, say, worker};
use super::host_tools::{leader, words};
use crate::native::{ClosurePlanner, Gate, Native, World, answer, request};

async fn exists(host: &Native, id: &str) -> bool {
    host.client().get(id).await.is_ok()
}

/// A host with an agent that answers and one that stays at the gate.
async fn host(world: &mut World, gate: &Gate) -> Native {
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("done") }));
    world.agent("slow", gate.answering("done"));
    world.start().await
}

#[tokio::test]
async fn gc_removes_ended_runs_past_their_age_and_says_what_it_did() {
    let (mut world, gate) = (World::new(), Gate::new());
    let host = host(&mut world, &gate).await;
    let open = host.spawn(&request("slow", "x")).await;
    gate.reached_by(1).await;
    let mut old = Vec::new();
    for _ in 0..3 {
        let id = host.spawn(&request("quick", "x")).await;
        host.end(&id).await;
        old.push(id);
    }
    let events = 3 * host.journal(&old[0]).await.len() as u64;
    world.clock.advance(Duration::from_secs(60));
    let before = world.clock.now();
    let young = host.spawn(&request("quick", "x")).await;
    host.end(&young).await;

    let none = host.controller.at(&Scope::tenant("other")).gc(before, false).await.expect("done");
    assert_eq!(none, RemovalOutcome::default(), "another tenant's are none of its business");
    let would = host.client().gc(before, true).await.expect("done");
    assert_eq!((would.runs, would.events, would.kept), (3, events, 0));
    assert!(would.bytes > 0);
    for id in &old {
        assert!(exists(&host, id).await, "a dry run removes nothing");
    }
    let did = host.client().gc(before, false).await.expect("done");
    assert_eq!(did, would);
    for id in &old {
        assert!(!exists(&host, id).await);
    }
    assert!(exists(&host, &young).await && exists(&host, &open).await);
    let again = host.client().gc(before, false).await.expect("done");
    assert_eq!(again, RemovalOutcome::default());
}

#[tokio::test]
async fn all_of_the_file_that_nothing_uses_is_given_back_after_gc() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(dir.path(), SqliteOptions::default());
    let store = Arc::new(store.expect("a store"));
    let (mut world, gate) = (World::over(store.clone(), store.clone(), store), Gate::new());
    let host = host(&mut world, &gate).await;
    // More than one removal gives back.
    for _ in 0..41 {
        let id = host.spawn(&request("quick", &"x".repeat(60_000))).await;
        host.end(&id).await;
    }
    world.clock.advance(Duration::from_secs(60));
    let did = host.client().gc(world.clock.now(), false).await.expect("done");
    assert!(did.runs == 41 && did.unused > 0, "{did:?}");
    let left = host.client().give_back_room(Duration::from_secs(60)).await.expect("done");
    assert_eq!(left, 0);
    let again = host.client().gc(world.clock.now(), false).await.expect("done");
    assert_eq!(again, RemovalOutcome::default());
}

#[tokio::test]
async fn gc_keeps_what_stands_above_an_open_run() {
    let (mut world, gate) = (World::new(), Gate::new());
    let host = host(&mut world, &gate).await;
    // root -> middle -> leaf and root -> side; only the leaf stays open.
    let root = host.spawn(&request("slow", "root")).await;
    gate.reached_by(1).await;
    let beneath = |agent: &str, parent: &str| {
        let mut asked = request(agent, "x");
        asked.parent_run_id = Some(parent.to_owned());
        asked
    };
    let middle = host.spawn(&beneath("slow", &root)).await;
    gate.reached_by(2).await;
    let side = host.spawn(&beneath("quick", &root)).await;
    host.end(&side).await;
    let leaf = host.spawn(&beneath("slow", &middle)).await;
    gate.reached_by(3).await;
    for id in [&root, &middle] {
        host.client().cancel_alone(id, None).await.expect("there");
        host.end(id).await;
    }
    world.clock.advance(Duration::from_secs(60));
    let before = world.clock.now();
    let did = host.client().gc(before, false).await.expect("done");
    assert_eq!((did.runs, did.kept), (1, 2), "only the side branch goes");
    assert!(!exists(&host, &side).await);
    assert!(exists(&host, &root).await && exists(&host, &middle).await);
    gate.open();
    host.end(&leaf).await;
    let did = host.client().gc(before, false).await.expect("done");
    assert_eq!((did.runs, did.kept), (2, 0));
    assert!(exists(&host, &leaf).await, "it has just ended");
}

/// Removes all that has ended so far; the runs that are removed and those that stay.
async fn removed(world: &World, host: &Native) -> (u64, u64) {
    world.clock.advance(Duration::from_secs(1));
    let did = host.client().gc(world.clock.now(), false).await.expect("done");
    (did.runs, did.kept)
}

#[tokio::test]
async fn gc_keeps_the_results_that_an_open_run_waits_for_with_others() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("all of it") }));
    world.agent("slow", gate.answering("the rest"));
    leader(&mut world, "lead", &["quick", "slow"], |_, said| match said.is_empty() {
        true => {
            let tasks = ["quick", "slow"].map(|agent| json!({ "agent": agent, "message": "go" }));
            vec![("delegate", json!({ "tasks": tasks }))]
        }
        false => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    gate.reached_by(1).await;
    host.reach(&id, Status::Blocked).await;
    let tree = host.client().tree(&id).await.expect("there");
    let quick = tree.descendants.iter().find(|run| run.spec.agent_name == "quick");
    host.end(quick.expect("it was started").id().as_str()).await;
    assert_eq!(removed(&world, &host).await, (0, 1));
    gate.open();
    let said = words(&host, &id).await;
    assert_eq!([&said[0][0]["result"], &said[0][1]["result"]], ["all of it", "the rest"]);
}

#[tokio::test]
async fn gc_keeps_what_counts_in_the_budget_of_an_open_run() {
    let (mut world, model) = family(&["1", "2", "3"], |agent| agent.budget.tokens = Some(60));
    let gates = Gates::new();
    let visited = Arc::clone(&gates);
    let child = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let gates = Arc::clone(&visited);
        async move {
            let said = ask(&scope).await;
            let _inside = gates.pass(&input.run.run_id).await;
            answer(&said)
        }
    });
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("child", child, Some(own), |_| {});
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let first = gates.have_come(1).await.remove(0);
    gates.open(&first);
    host.end(&first).await;
    let second = gates.have_come(2).await.remove(1);
    assert_eq!(removed(&world, &host).await, (0, 1), "its thirty tokens still count");
    gates.open(&second);
    let run = host.end("1").await;
    assert_eq!(run.ending().map(|ending| ending.stop_reason), Some(StopReason::MaxTokens));
    assert_eq!(model.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn gc_keeps_an_outcome_until_the_conversation_was_told() {
    let mut world = World::new();
    world.agent("worker", worker());
    super::delivery::leader(&mut world, "lead", coordinator());
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start one")).await;
    host.end(&first).await;
    let outcome = children(&host, &first).await.remove(0);
    host.end(&outcome).await;
    assert_eq!(removed(&world, &host).await, (1, 1), "the line that started it goes");
    let told = say(&world, &host, &line("lead", "what is new?")).await;
    assert!(told.contains("did one"), "{told}");
    assert_eq!(removed(&world, &host).await, (2, 0));
}
