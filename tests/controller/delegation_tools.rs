//! `delegate` and `delegate_task`, called by agents as their models call them.

use serde_json::{Value, json};
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::status::{Status, StopReason};

use super::common::Gates;
use super::host_tools::{leader, leader_with, words};
use crate::native::{ClosurePlanner, World, answer, request};

fn task(agent: &str, message: &str) -> Value {
    json!({ "agent": agent, "message": message })
}

#[tokio::test]
async fn m_69_several_tasks_are_begun_together_and_their_results_come_in_the_order_given() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |_, said| match said.is_empty() {
        true => {
            let tasks = ["one", "two", "three"].map(|message| task("worker", message));
            vec![("delegate", json!({ "tasks": tasks }))]
        }
        false => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let mut came = gates.have_come(3).await;
    host.reach(&id, Status::Blocked).await;
    // The last that came ends first.
    came.reverse();
    for run in &came {
        assert!(host.get(run).await.spec.attached);
        gates.open(run);
        host.end(run).await;
    }
    let said = words(&host, &id).await;
    let ends = said[0].as_array().expect("a list");
    let mut tasks = Vec::new();
    for end in ends {
        assert_eq!(end["status"], "finished");
        let child = end["task_id"].as_str().expect("an id");
        assert_eq!(end["result"], format!("done {child}"));
        tasks.push(host.get(child).await.spec.task.clone());
    }
    assert_eq!(tasks, ["one", "two", "three"]);
}

#[tokio::test]
async fn m_69_of_several_tasks_all_are_begun_or_none() {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("work") }));
    leader_with(
        &mut world,
        ("lead", &["worker"]),
        |_, said| match said.len() {
            0 => {
                let three = ["one", "two", "three"].map(|message| task("worker", message));
                vec![("delegate", json!({ "tasks": three }))]
            }
            1 => {
                let stranger = [task("worker", "one"), task("stranger", "two")];
                vec![("delegate", json!({ "tasks": stranger }))]
            }
            2 => {
                let blank = [task("worker", "one"), task("worker", " ")];
                vec![("delegate", json!({ "tasks": blank }))]
            }
            3 => vec![("delegate", json!({ "tasks": [] }))],
            4 => vec![("check_tasks", json!({}))],
            5 => {
                let two = ["one", "two"].map(|message| task("worker", message));
                vec![("delegate", json!({ "tasks": two }))]
            }
            _ => Vec::new(),
        },
        // The first run of the tree is one of them.
        |agent| agent.tree = TreeBounds { runs: Some(3), ..TreeBounds::default() },
    );
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let codes: Vec<_> = said[..4].iter().map(|said| said["code"].as_str()).collect();
    let invalid = Some("invalid-arguments");
    assert_eq!(codes, [Some("limit"), Some("denied"), invalid, invalid], "{said:?}");
    assert_eq!(said[0]["text"], "limit met: tree (3)");
    assert_eq!(said[1]["text"], "agent 'stranger' is not in your members list");
    assert_eq!(said[4], json!([]), "nothing was started");
    assert_eq!(said[5].as_array().map(Vec::len), Some(2), "{said:?}");
}

#[tokio::test]
async fn m_69_tasks_that_are_waited_for_end_with_the_run_that_gave_them() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |_, said| match said.is_empty() {
        true => vec![("delegate", json!({ "tasks": [task("worker", "a"), task("worker", "b")] }))],
        false => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let came = gates.have_come(2).await;
    host.reach(&id, Status::Blocked).await;
    host.client().cancel(&id, None).await.expect("cancels");
    for run in &came {
        let ended = host.end(run).await;
        let reason = ended.ending().map(|ending| ending.stop_reason);
        assert_eq!(reason, Some(StopReason::CanceledByParent));
    }
}

#[tokio::test]
async fn rs_01_a_delegated_task_runs_in_a_room_of_its_own_and_is_told_its_context() {
    let mut world = World::new();
    let told = ClosurePlanner::new(|input: taskrun::ports::planner::PlanInput, _| async move {
        let told: Vec<_> = input.messages.iter().map(|message| message.joined_text()).collect();
        answer(&told.join("|"))
    });
    world.agent("reviewer", told);
    leader(&mut world, "assistant", &["reviewer"], |_, said| match said.len() {
        0 => {
            let context = json!({ "pr": 7 });
            let arguments = json!({ "agent": "reviewer", "task": "Review.", "context": context });
            vec![("delegate_task", arguments)]
        }
        1 => vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))],
        2 => vec![("delegate_task", json!({ "agent": "nobody", "task": "Review." }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let mut asked = request("assistant", "x");
    asked.parent_session_id = "call-room".into();
    let said = words(&host, &host.spawn(&asked).await).await;
    let delegated = &said[0];
    let keys: Vec<_> = delegated.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["agent_id", "child_room_id", "status", "task_id"]);
    assert_eq!(
        (&delegated["status"], &delegated["agent_id"]),
        (&json!("delegated"), &json!("reviewer"))
    );
    let room = delegated["child_room_id"].as_str().expect("a room");
    assert!(room.starts_with("call-room::task-"), "{room}");
    let child = host.get(delegated["task_id"].as_str().expect("an id")).await;
    assert_eq!(child.execution().expect("it ran").child_session_id, room);
    assert!(!child.spec.attached);
    let [end] = said[1].as_array().expect("a list").as_slice() else { panic!("{said:?}") };
    assert_eq!(end["result"], "Context of the task:\n{\"pr\":7}|Review.");
    // RS-13: the enumeration is kept to.
    assert_eq!(said[2]["code"], "invalid-arguments", "{said:?}");
}
