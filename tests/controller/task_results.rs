//! Results of delegated tasks, canceled ones, waits and repeated requests (RS-*), by the tools of the
//! host and the client.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun::spawn::{REUSE_DEFAULT, SpawnRequest};
use taskrun_journal::status::{Status, StopReason};

use super::common::Gates;
use super::dying::WRITES_MAX;
use super::host_tools::{leader, words};
use crate::native::{ClosurePlanner, Gate, Native, Op, Side, World, answer, failed, request};

/// The first task that was started.
fn first_id(said: &[Value]) -> Value {
    said[0].get("id").or(said[0].get("task_id")).cloned().unwrap_or_default()
}

/// Starts a task and waits for it.
fn started_and_awaited(_: &str, said: &[Value]) -> Vec<(&'static str, Value)> {
    match said.len() {
        0 => vec![("spawn_task", json!({ "agent": "worker", "message": "do it" }))],
        1 => vec![("await_tasks", json!({ "task_ids": [first_id(said)] }))],
        _ => Vec::new(),
    }
}

/// The run that the tool started, as the record has it.
async fn child_of(host: &Native, said: &[Value]) -> taskrun_journal::run::Run {
    host.get(first_id(said).as_str().expect("an id")).await
}

#[tokio::test]
async fn rs_02_a_task_is_submitted_and_waited_for() {
    let mut world = World::new();
    let gate = Gate::new();
    world.agent("worker", gate.answering("task done"));
    leader(&mut world, "lead", &["worker"], started_and_awaited);
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    gate.reached_by(1).await;
    host.reach(&id, Status::Blocked).await;
    world.clock.advance(Duration::from_millis(7));
    gate.open();
    let said = words(&host, &id).await;
    assert_eq!(said[1][0]["status"], "finished");
    assert_eq!(said[1][0]["result"], "task done");
    assert_eq!(said[1][0]["task_id"], first_id(&said), "ids are copied");
    let child = child_of(&host, &said).await;
    assert_eq!(child.spec.parent_run_id.as_ref().map(|id| id.as_str()), Some(id.as_str()));
    assert_eq!(host.view(child.id().as_str()).await.duration_ms, Some(7));
}

#[tokio::test]
async fn rs_04_a_task_whose_agent_returns_nothing_has_failed() {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("") }));
    leader(&mut world, "lead", &["worker"], started_and_awaited);
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    assert_eq!(said[1][0]["status"], "failed");
    assert_eq!(said[1][0]["error"], "empty output");
    assert_eq!(child_of(&host, &said).await.status(), Status::Failed);
}

#[tokio::test]
async fn rs_05_a_running_task_is_canceled_and_an_unknown_one_is_not_found() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
        0 => vec![("spawn_task", json!({ "agent": "worker", "message": "sleep" }))],
        1 => vec![("cancel_task_run", json!({ "id": first_id(said) }))],
        2 => vec![("cancel_task_run", json!({ "id": "nobody" }))],
        3 => vec![("wait_task_run", json!({ "id": first_id(said) }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    assert_eq!(said[2]["code"], "not-found");
    assert_eq!(said[3]["status"], "canceled");
    assert_eq!(child_of(&host, &said).await.status(), Status::Canceled);
}

#[tokio::test]
async fn rs_07_a_wait_that_is_too_short_changes_nothing_and_a_longer_one_has_the_result() {
    let mut world = World::new();
    let gate = Gate::new();
    world.agent("worker", gate.answering("late"));
    let host = world.start().await;
    let id = host.spawn(&request("worker", "x")).await;
    gate.reached_by(1).await;
    let client = host.client();
    let wait = client.wait(&id, Some(Duration::from_millis(10)));
    let (waited, passed) = world.run_until(Duration::from_secs(1), wait).await;
    assert_eq!(passed, Duration::from_millis(10));
    let waited = waited.expect("answers");
    assert!(waited.timed_out);
    assert_eq!(waited.run.status(), Status::Running, "it goes on");
    gate.open();
    let waited = client.wait(&id, Some(Duration::from_secs(2))).await.expect("answers");
    assert_eq!((waited.timed_out, waited.run.status()), (false, Status::Completed));
    assert_eq!(waited.run.state.reply.result().as_deref(), Some("late"));
}

#[tokio::test]
async fn rs_08_a_task_that_is_canceled_twice_is_canceled_once() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    let host = world.start().await;
    let id = host.spawn(&request("worker", "x")).await;
    gates.have_come(1).await;
    let client = host.client();
    client.cancel(&id, None).await.expect("canceled");
    client.cancel(&id, None).await.expect("answers");
    let waited = client.wait(&id, None).await.expect("answers");
    assert_eq!((waited.timed_out, waited.run.status()), (false, Status::Canceled));
    let reason = waited.run.ending().map(|ending| ending.stop_reason);
    assert_eq!(reason, Some(StopReason::CanceledByOwner));
    let kinds = host.kinds(&id).await;
    assert_eq!(kinds.iter().filter(|kind| **kind == "cancel_requested").count(), 1);
    assert_eq!(kinds.iter().filter(|kind| **kind == "finished").count(), 1);
}

#[tokio::test]
async fn rs_14_the_record_of_a_task_moves_on_and_its_end_is_one_write() {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("task done") }));
    let host = world.start().await;
    let id = host.spawn(&request("worker", "x")).await;
    host.end(&id).await;
    let kinds = host.kinds(&id).await;
    let statuses = kinds.iter().filter(|kind| ["queued", "started", "finished"].contains(kind));
    assert_eq!(statuses.count(), 3, "{kinds:?}");
    assert!(kinds.ends_with(&["finalizing", "finished"]), "{kinds:?}");
    // Wherever a host dies, the record has both of them or neither.
    for side in [Side::Before, Side::After] {
        let mut ends = Vec::new();
        for nth in 1..WRITES_MAX {
            let mut world = World::new();
            world.agent("worker", ClosurePlanner::new(|_, _| async { answer("task done") }));
            let door = world.door().await;
            let host = world.start().await;
            world.store.cut(Op::Append, nth, side);
            // By the door: to write a run that a host has taken up is a write that stands still as well.
            let id = door.spawn(&request("worker", "x")).await;
            tokio::select! {
                () = world.store.is_cut() => {}
                _ = door.end(&id) => {}
            }
            let dies = world.store.tries(Op::Append) >= nth;
            if dies {
                world.store.is_cut().await;
            }
            let found = door.kinds(&id).await;
            let has = |kind: &str| found.contains(&kind);
            assert_eq!(has("finalizing"), has("finished"), "{side:?} {nth}: {found:?}");
            ends.push(has("finished"));
            world.kill(host).await;
            if !dies {
                break;
            }
        }
        // All of it is one append: without that nothing, and nobody dies at another one.
        assert_eq!(ends, [side == Side::After, true], "{side:?}");
    }
}

#[tokio::test]
async fn rs_16_a_task_that_was_completed_lately_is_not_done_again() {
    let mut world = World::new();
    world.agent(
        "worker",
        ClosurePlanner::new(|input, _| async move {
            match input.messages.last().map(|last| last.joined_text()).as_deref() {
                Some("fail") => failed(None, "child failed"),
                _ => answer("done"),
            }
        }),
    );
    let host = world.start().await;
    let asked = |task: &str, within: Duration| SpawnRequest {
        reuse_within: Some(within),
        ..request("worker", task)
    };
    let submit = async |request: &SpawnRequest| {
        let outcome = host.client().submit(request).await.expect("accepted");
        host.end(outcome.run.id().as_str()).await;
        (outcome.run.id().clone(), outcome.reused)
    };
    let (first, reused) = submit(&asked("Review THIS", REUSE_DEFAULT)).await;
    assert!(!reused);
    assert_eq!(submit(&asked(" review this ", REUSE_DEFAULT)).await, (first.clone(), true));
    let elsewhere = SpawnRequest {
        parent_session_id: "elsewhere".into(),
        ..asked("review this", REUSE_DEFAULT)
    };
    assert!(!submit(&elsewhere).await.1, "other rooms are apart");
    world.clock.advance(Duration::from_millis(1));
    assert!(!submit(&asked("review this", Duration::ZERO)).await.1, "it is too old");
    assert!(!submit(&asked("fail", REUSE_DEFAULT)).await.1);
    assert!(!submit(&asked("fail", REUSE_DEFAULT)).await.1, "only what was completed counts");
}

#[tokio::test]
async fn rs_17_serial_tasks_of_a_session_run_one_after_the_other() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    let host = world.start().await;
    let serial =
        |id: &str| SpawnRequest { id: Some(id.to_owned()), serial: true, ..request("worker", "x") };
    host.spawn(&serial("a")).await;
    host.spawn(&serial("b")).await;
    assert_eq!(gates.have_come(1).await, ["a"]);
    host.settle().await;
    assert_eq!(host.get("b").await.status(), Status::Queued);
    gates.open("a");
    host.end("a").await;
    assert_eq!(gates.have_come(2).await, ["a", "b"]);
    gates.open("b");
    host.end("b").await;
    let ended = host.get("a").await.state.updated_at;
    let began = host.get("b").await.execution().map(|execution| execution.started_at);
    assert!(began.is_some_and(|began| began >= ended), "{began:?} after {ended:?}");
}
