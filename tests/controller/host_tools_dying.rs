//! The tools of the host, whatever host dies at whatever write: each effect is there once, and each
//! call has the answer that it has without a death.

use serde_json::{Value, json};
use taskrun_journal::question::Answer;
use taskrun_journal::status::Status;

use super::common::{Handle, check_journal, named};
use super::dying::{Point, die_at_each, survive};
use super::host_tools::leader;
use crate::native::{ClosurePlanner, Native, Op, Side, World, answer};

/// Starts one run and waits for it, starts another, waits for that too, asks a person, starts two
/// together and waits for them, starts one in a room of its own, and leaves an entry.
fn world() -> World {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("work") }));
    world.agent_with("later", ClosurePlanner::new(|_, _| async { answer("work") }), |agent| {
        let interval = std::time::Duration::from_secs(86_400);
        agent.heartbeat = Some(taskrun_policy::Heartbeat {
            times: taskrun_policy::BeatTimes::Every(interval),
            prompt: None,
        });
    });
    leader(&mut world, "lead", &["worker", "later"], |_, said| match said.len() {
        0 => vec![(
            "start_task_run",
            json!({ "task": "one", "agent_name": "worker", "mode": "sync" }),
        )],
        1 => vec![("spawn_task", json!({ "agent": "worker", "message": "two" }))],
        2 => vec![("await_tasks", json!({ "task_ids": [said[1]["task_id"], said[0]["id"]] }))],
        3 => vec![("ask_user", json!({ "question": "Which?" }))],
        4 => {
            let task = |message: &str| json!({ "agent": "worker", "message": message });
            vec![("delegate", json!({ "tasks": [task("three"), task("four")] }))]
        }
        5 => vec![("delegate_task", json!({ "agent": "worker", "task": "five" }))],
        6 => vec![("create_task", json!({ "agent": "later", "description": "six" }))],
        _ => Vec::new(),
    });
    world
}

async fn outside(door: &Native) -> Value {
    door.spawn(&named("1", "lead")).await;
    door.until("1", "asks", |run| run.state.awaits.iter().any(|one| !one.answered)).await;
    door.client().answer("1", None, Answer::Text("this".into())).await.expect("taken");
    let run = door.end("1").await;
    assert_eq!(run.status(), Status::Completed);
    serde_json::from_str(&run.state.reply.result().expect("an answer")).expect("JSON")
}

async fn play(point: Point) -> u32 {
    let mut world = world();
    let door = world.door().await;
    let played = survive(&mut world, &[point], &Handle::default(), outside(&door)).await;
    let (said, deaths) = played;
    let tree = door.client().tree("1").await.expect("there");
    let mut tasks: Vec<&str> = tree.descendants.iter().map(|run| run.spec.task.as_str()).collect();
    tasks.sort_unstable();
    assert_eq!(tasks, ["five", "four", "one", "six", "three", "two"], "{point:?}");
    assert_eq!((&said[0]["status"], &said[0]["result"]), (&json!("completed"), &json!("work")));
    assert_eq!(said[1]["status"], "queued", "{point:?}");
    let ends: Vec<_> = said[2].as_array().expect("a list").iter().collect();
    assert_eq!(ends.len(), 2, "{point:?}");
    for (end, id) in ends.iter().zip([&said[1]["task_id"], &said[0]["id"]]) {
        assert_eq!((&end["task_id"], &end["status"]), (id, &json!("finished")), "{point:?}");
    }
    assert_eq!(said[3], "this", "{point:?}");
    let together = said[4].as_array().expect("a list");
    let statuses: Vec<_> = together.iter().map(|end| &end["status"]).collect();
    assert_eq!(statuses, ["finished", "finished"], "{point:?}");
    let task_of = |id: &Value| {
        let run =
            tree.descendants.iter().find(|run| run.id().as_str() == id.as_str().expect("text"));
        run.expect("it is in the tree").spec.task.clone()
    };
    let in_order: Vec<String> = together.iter().map(|end| task_of(&end["task_id"])).collect();
    assert_eq!(in_order, ["three", "four"], "{point:?}");
    assert_eq!(said[5]["status"], "delegated", "{point:?}");
    assert_eq!(task_of(&said[5]["task_id"]), "five", "{point:?}");
    assert_eq!(
        (&said[6]["status"], task_of(&said[6]["task_id"])),
        (&json!("queued"), "six".into())
    );
    check_journal(&door.journal("1").await);
    deaths
}

#[tokio::test]
async fn a_host_that_dies_before_it_accepts_a_run_of_a_tool() {
    die_at_each(Op::Create, Side::Before, 2, play).await;
}

#[tokio::test]
async fn a_host_that_dies_after_it_accepted_a_run_of_a_tool() {
    die_at_each(Op::Create, Side::After, 2, play).await;
}

#[tokio::test]
async fn a_host_that_dies_before_it_records_anything() {
    die_at_each(Op::Append, Side::Before, 2, play).await;
}

#[tokio::test]
async fn a_host_that_dies_after_it_recorded_anything() {
    die_at_each(Op::Append, Side::After, 2, play).await;
}
