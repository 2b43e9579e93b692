//! Lists of tasks, by the tool as models call it (W-021 to W-023).

use std::time::Duration;

use serde_json::{Value, json};

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
