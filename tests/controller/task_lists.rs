//! Lists of tasks, by the tool as models call it (W-021 to W-023, W-054).

use std::time::Duration;

use serde_json::{Value, json};
use taskrun_journal::status::Status;

use super::common::Gates;
use super::delivery::line;
use super::host_tools::{leader, words};
use crate::native::{ClosurePlanner, World, answer, failed, request};

fn descriptions(list: &Value) -> Vec<&str> {
    let tasks = list.as_array().expect("a list").iter();
    tasks.map(|task| task["description"].as_str().expect("a text")).collect()
}

#[tokio::test]
async fn w_021_the_filters_of_a_list_all_count() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("waits", gates.planner());
    world.agent("works", ClosurePlanner::new(|_, _| async { answer("done") }));
    world.agent("breaks", ClosurePlanner::new(|_, _| async { failed(None, "it broke") }));
    leader(&mut world, "lead", &["waits", "works", "breaks"], |_, said| {
        let task = |agent: &str| {
            ("spawn_task", json!({ "agent": agent, "message": format!("of {agent}") }))
        };
        let check = |filter: Value| ("check_tasks", filter);
        match said.len() {
            0 => vec![task("waits"), task("works"), task("breaks"), task("works")],
            4 => {
                let ended = [1, 2, 3].map(|nth: usize| said[nth]["task_id"].clone());
                vec![("await_tasks", json!({ "task_ids": ended }))]
            }
            5 => vec![check(json!({ "agent": "works" }))],
            6 => {
                let parent = &said[5][0]["parent_id"];
                vec![
                    check(json!({ "status": "finished" })),
                    check(json!({ "status": "failed" })),
                    check(json!({ "status": "finished", "agent": "breaks" })),
                    check(json!({ "status": "finished", "agent": "works", "parent_id": parent })),
                    check(json!({ "status": "finished", "agent": "works", "parent_id": "other" })),
                ]
            }
            _ => Vec::new(),
        }
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let lists: Vec<Vec<&str>> = said[5..].iter().map(descriptions).collect();
    let two = vec!["of works"; 2];
    let expected = [two.clone(), two.clone(), vec!["of breaks"], Vec::new(), two, Vec::new()];
    assert_eq!(lists, expected);
    for run in gates.came() {
        gates.open(&run);
    }
}

#[tokio::test]
async fn w_022_a_list_has_the_latest_sixteen_and_of_each_the_documented_keys() {
    let mut world = World::new();
    world.agent("works", ClosurePlanner::new(|_, _| async { answer("done") }));
    leader(&mut world, "lead", &["works"], |task, said| match (said.len(), task) {
        (0, "list") => vec![("check_tasks", json!({}))],
        (0, _) => vec![("spawn_task", json!({ "agent": "works", "message": task }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let numbers: Vec<String> = (0..20).map(|nth| nth.to_string()).collect();
    for nth in &numbers {
        words(&host, &host.spawn(&line("lead", nth)).await).await;
        world.clock.advance(Duration::from_millis(1));
    }
    let said = words(&host, &host.spawn(&line("lead", "list")).await).await;
    let latest: Vec<&str> = numbers[4..].iter().rev().map(String::as_str).collect();
    assert_eq!(descriptions(&said[0]), latest);
    let list = said[0].as_array().expect("a list");
    let mut keys: Vec<_> = list[0].as_object().expect("an object").keys().collect();
    keys.sort();
    let expected = [
        "agent",
        "alive_secs",
        "blocked_on",
        "completion_tokens",
        "created_by",
        "description",
        "error",
        "parent_id",
        "prompt_tokens",
        "result",
        "status",
        "task_id",
    ];
    assert_eq!(keys, expected);
}

#[tokio::test]
async fn w_054_a_task_that_was_canceled_has_failed_and_says_by_whom_and_why() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("waits", gates.planner());
    world.agent("works", ClosurePlanner::new(|_, _| async { answer("done") }));
    world.agent("breaks", ClosurePlanner::new(|_, _| async { failed(None, "it broke") }));
    leader(&mut world, "lead", &["waits", "works", "breaks"], |_, said| {
        let task = |agent: &str, message: &str| {
            ("spawn_task", json!({ "agent": agent, "message": message }))
        };
        match said.len() {
            0 => vec![
                task("works", "works"),
                task("breaks", "breaks"),
                task("waits", "killed"),
                task("waits", "killed for a reason"),
                task("waits", "canceled"),
            ],
            5 => vec![("cancel_task_run", json!({ "id": said[4]["task_id"] }))],
            6 => {
                let ids: Vec<&Value> = said[..5].iter().map(|one| &one["task_id"]).collect();
                vec![("await_tasks", json!({ "task_ids": ids }))]
            }
            7 => vec![
                ("check_tasks", json!({})),
                ("get_task_run", json!({ "id": said[2]["task_id"] })),
            ],
            _ => Vec::new(),
        }
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    // It waits for nothing before.
    host.reach(&id, Status::Blocked).await;
    let tree = host.client().tree(&id).await.expect("there");
    for (task, reason) in [("killed", None), ("killed for a reason", Some("not wanted"))] {
        let run = tree.descendants.iter().find(|run| run.spec.task == task).expect("it is there");
        host.client().cancel(run.id().as_str(), reason).await.expect("canceled");
    }
    let said = words(&host, &id).await;
    let expected = [
        (json!("finished"), Value::Null),
        (json!("failed"), json!("it broke")),
        (json!("failed"), json!("killed by user")),
        (json!("failed"), json!("killed by user: not wanted")),
        (json!("failed"), json!("canceled by a run above")),
    ];
    let ends = said[6].as_array().expect("a list");
    let listed = said[7].as_array().expect("a list");
    for (nth, (status, error)) in expected.into_iter().enumerate() {
        let id = &said[nth]["task_id"];
        let of_list = listed.iter().find(|one| one["task_id"] == *id).expect("it is in the list");
        for shown in [&ends[nth], of_list] {
            assert_eq!((&shown["status"], &shown["error"]), (&status, &error), "{shown}");
        }
    }
    // The record of a run has no error where it was canceled.
    let run = &said[8];
    assert_eq!((&run["status"], &run["summary"]), (&json!("canceled"), &json!("canceled")));
    assert_eq!(run.get("error"), None, "{run}");
}
