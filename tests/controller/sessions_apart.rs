//! Runs that were asked for from one session and share no conversation (M-24).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::{CallScope, RunsQuestion};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::history::History;
use taskrun_journal::runs::RunsFilter;
use taskrun_journal::status::Status;
use taskrun_policy::DelegationSettings;

use super::common::{Gates, named, spawning};
use super::delivery::children;
use super::host_tools::{leader_with, words};
use crate::native::{ClosurePlanner, World, answer, request};

/// A run starts one in the background, and a later one of its agent looks for that by every tool. Each
/// converses or does not.
async fn are_apart(converse: [bool; 2], conversation: History) {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    leader_with(
        &mut world,
        ("lead", &["worker"]),
        |task, said| match (said.is_empty(), task) {
            (true, "start") => {
                let mole = json!({ "agent": "worker", "goal": "dig", "name": "mole" });
                vec![("spawn_agent", mole)]
            }
            (true, id) => vec![
                ("get_task_run", json!({ "id": id })),
                ("cancel_task_run", json!({ "id": id })),
                ("wait_task_run", json!({ "id": id })),
                ("await_tasks", json!({ "task_ids": [id] })),
                ("read_task_run_transcript", json!({ "id": id })),
                ("stop_agent", json!({ "name": "mole" })),
                ("list_task_runs", json!({})),
            ],
            (false, _) => Vec::new(),
        },
        |agent| agent.conversation = conversation,
    );
    let host = world.start().await;
    let [first, second] = converse;
    let asked = |task: &str, converses| SpawnRequest { converses, ..request("lead", task) };
    let said = words(&host, &host.spawn(&asked("start", first)).await).await;
    let child = said[0]["id"].as_str().expect("an id").to_owned();
    gates.have_come(1).await;
    world.clock.advance(Duration::from_millis(1));
    let said = words(&host, &host.spawn(&asked(&child, second)).await).await;
    let (list, refused) = said.split_last().expect("it has called");
    assert_eq!(refused.len(), 6);
    for refused in refused {
        assert_eq!(refused["code"], "not-found", "{converse:?} {conversation:?}: {refused}");
    }
    assert_eq!(list["runs"], json!([]), "{converse:?} {conversation:?}");
    gates.open(&child);
    assert_eq!(host.end(&child).await.status(), Status::Completed, "nobody has canceled it");
}

#[tokio::test]
async fn m_24_runs_that_share_no_conversation_see_nothing_of_each_other() {
    are_apart([false, false], History::Agent).await;
    are_apart([true, false], History::Agent).await;
    are_apart([false, true], History::Agent).await;
    are_apart([true, true], History::None).await;
}

#[tokio::test]
async fn rs_17_the_rooms_of_runs_that_share_no_conversation_do_not_take_turns() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    leader_with(
        &mut world,
        ("lead", &["worker"]),
        |_, said| match said.is_empty() {
            true => vec![("delegate_task", json!({ "agent": "worker", "task": "dig" }))],
            false => Vec::new(),
        },
        |agent| {
            agent.delegation = DelegationSettings { serial: true, ..DelegationSettings::default() };
        },
    );
    let host = world.start().await;
    for _ in 0..2 {
        host.end(&host.spawn(&request("lead", "x")).await).await;
    }
    for run in gates.have_come(2).await {
        gates.open(&run);
        host.end(&run).await;
    }
}

/// Bounds a request of an autonomous run to so many rounds, those that it continues included.
fn bounded(mut request: SpawnRequest, rounds: u32) -> SpawnRequest {
    request.autonomous.get_or_insert_with(AutonomyRequest::default).rounds = Some(rounds);
    request
}

#[tokio::test]
async fn a_run_that_continues_others_sees_what_they_started_without_a_conversation() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    let planner = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        if input.run.turn == 1 {
            scope.ask(spawning("worker", "dig")).await.expect("it is started");
            return answer("started");
        }
        let page = scope.ask(RunsQuestion::list(RunsFilter::default())).await.expect("it lists");
        let ids: Vec<&str> = page.runs.iter().map(|run| run.id.as_str()).collect();
        answer(&format!("sees {}", ids.join(" ")))
    });
    world.agent("a", planner);
    let host = world.start().await;
    let mut last = host.spawn(&bounded(named("1", "a"), 1)).await;
    host.end(&last).await;
    let child = children(&host, &last).await.remove(0);
    for rounds in 2..=3 {
        world.clock.advance(Duration::from_millis(1));
        let next = host.client().continuation(&last).await.expect("it may be continued");
        assert!(!next.converses);
        last = host.spawn(&bounded(next, rounds)).await;
        host.end(&last).await;
        let said = host.view(&last).await.result;
        assert_eq!(said, Some(format!("sees {child}")), "after {rounds} rounds");
    }
    gates.open(&child);
    host.end(&child).await;
}
