//! Removing runs that ended long ago.

use std::time::Duration;

use taskrun_journal::list::Scope;
use taskrun_journal::store::RemovalOutcome;
use taskrun_journal::time::Clock;

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
