//! Runs that an earlier line of a conversation started, by the tools of the host in a later one.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun_journal::status::Status;

use super::common::Gates;
use super::delivery::line;
use super::host_tools::{leader, words};
use crate::native::{Native, World};

/// Starts a line that does this with a run, and gives its id.
async fn begin((world, host): (&World, &Native), verb: &str, target: &str) -> String {
    // Lines of the same millisecond are ordered by id.
    world.clock.advance(Duration::from_millis(1));
    host.spawn(&line("lead", &format!("{verb} {target}"))).await
}

#[tokio::test]
async fn a_run_of_an_earlier_line_is_looked_at_waited_for_and_canceled_in_a_later_one() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    leader(&mut world, "lead", &["worker"], |task, said| {
        let (verb, id) = task.split_once(' ').expect("two words");
        match (said.is_empty(), verb) {
            (true, "start") => vec![("start_task_run", json!({ "task": "t" })); 2],
            (true, "look") => {
                vec![("get_task_run", json!({ "id": id })), ("list_task_runs", json!({}))]
            }
            (true, "wait") => {
                vec![("wait_task_run", json!({ "id": id, "timeout_seconds": 5 }))]
            }
            (true, "cancel") => vec![("cancel_task_run", json!({ "id": id }))],
            (_, _) => Vec::new(),
        }
    });
    let host = world.start().await;
    let at = (&world, &host);
    let said = words(&host, &begin(at, "start", "two").await).await;
    let [one, other] = [0, 1].map(|nth: usize| said[nth]["id"].as_str().expect("an id").to_owned());
    gates.have_come(2).await;

    let said = words(&host, &begin(at, "look", &one).await).await;
    assert_eq!((&said[0]["id"], &said[0]["status"]), (&json!(one), &json!("running")));
    let listed = said[1]["runs"].as_array().expect("a list");
    let mut listed: Vec<&Value> = listed.iter().map(|run| &run["id"]).collect();
    listed.sort_by_key(|id| id.to_string());
    let mut both = [json!(one), json!(other)];
    both.sort_by_key(|id| id.to_string());
    assert_eq!(listed, both.iter().collect::<Vec<_>>());

    // A wait that is over shows the run as it stands, and a later one its result.
    let waits = begin(at, "wait", &one).await;
    host.reach(&waits, Status::Blocked).await;
    world.clock.advance(Duration::from_secs(5));
    let said = words(&host, &waits).await;
    let keys = ["id", "status", "timed_out"].map(|key| said[0][key].clone());
    assert_eq!(keys, [json!(one), json!("running"), json!(true)]);
    let waits = begin(at, "wait", &one).await;
    host.reach(&waits, Status::Blocked).await;
    gates.open(&one);
    let said = words(&host, &waits).await;
    let keys = ["id", "status", "result"].map(|key| said[0][key].clone());
    assert_eq!(keys, [json!(one), json!("completed"), json!(format!("done {one}"))]);

    let said = words(&host, &begin(at, "cancel", &other).await).await;
    assert_eq!(said[0]["id"], json!(other));
    assert_eq!(host.end(&other).await.status(), Status::Canceled);
    let said = words(&host, &begin(at, "look", &other).await).await;
    assert_eq!((&said[0]["id"], &said[0]["status"]), (&json!(other), &json!("canceled")));
}
