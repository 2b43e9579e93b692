//! Tasks that are delegated into rooms: what was done before is used again (RS-16), and rooms take
//! turns (RS-17), by the tool as models call it.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun::spawn::{REUSE_DEFAULT, SpawnRequest};
use taskrun_journal::ids::RunId;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::status::Status;
use taskrun_journal::time::{Clock, Timestamp, millis};
use taskrun_policy::DelegationSettings;

use super::common::{Gates, Handle, named};
use super::dying::{Point, die_at_each, survive};
use super::host_tools::{leader_with, words};
use crate::native::{ClosurePlanner, Native, Op, Side, World, answer, failed, request};

/// An agent that delegates what it is asked to, waits for it, and says what the tools answered.
fn delegating(world: &mut World, delegation: DelegationSettings) {
    leader_with(
        world,
        ("lead", &["worker"]),
        |task, said| match said.len() {
            0 => vec![("delegate_task", serde_json::from_str(task).expect("arguments"))],
            1 if said[0]["status"] == "delegated" => {
                vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))]
            }
            _ => Vec::new(),
        },
        |agent| agent.delegation = delegation,
    );
}

/// Says the messages that it was shown; fails where it is told to.
fn worker(world: &mut World) {
    let planner = ClosurePlanner::new(|input: taskrun::ports::planner::PlanInput, _| async move {
        let told: Vec<_> = input.messages.iter().map(|message| message.joined_text()).collect();
        match told.last().map(String::as_str) {
            Some("fail") => failed(None, "it broke"),
            _ => answer(&told.join("|")),
        }
    });
    world.agent("worker", planner);
}

fn reuses(within: Duration) -> DelegationSettings {
    DelegationSettings { reuse_within: Some(within), ..DelegationSettings::default() }
}

fn asked(task: &str, context: Option<Value>) -> SpawnRequest {
    let mut arguments = json!({ "agent": "worker", "task": task });
    if let Some(context) = context {
        arguments["context"] = context;
    }
    SpawnRequest { converses: true, ..request("lead", &arguments.to_string()) }
}

/// The answer of the tool in a line of its own, and the words of the run about what it was told.
async fn line((world, host): (&World, &Native), asked: &SpawnRequest) -> (Value, String) {
    // The next line is a later one.
    world.clock.advance(Duration::from_millis(1));
    let said = words(host, &host.spawn(asked).await).await;
    let told = said.get(1).map(|ends| ends[0]["result"].as_str().unwrap_or_default().to_owned());
    (said[0].clone(), told.unwrap_or_default())
}

#[tokio::test]
async fn rs_16_a_task_that_was_done_lately_is_answered_from_before_and_others_are_told_of_it() {
    let mut world = World::new();
    worker(&mut world);
    delegating(&mut world, reuses(REUSE_DEFAULT));
    let host = world.start().await;
    let context = Some(json!({ "pr": 7 }));
    let (first, told) = line((&world, &host), &asked("Review THIS", context.clone())).await;
    assert_eq!((&first["status"], first.get("from_cache")), (&json!("delegated"), None));
    assert_eq!(told, "Context of the task:\n{\"pr\":7}|Review THIS", "nothing was before");
    let (again, _) = line((&world, &host), &asked(" review this ", context.clone())).await;
    let expected = json!({
        "status": "completed",
        "task_id": first["task_id"],
        "child_room_id": first["child_room_id"],
        "agent_id": "worker",
        "from_cache": true,
        "result": told,
    });
    assert_eq!(again, expected);
    // Another context is another question; other rooms are apart.
    let (other, told) =
        line((&world, &host), &asked("review this", Some(json!({ "pr": 8 })))).await;
    assert_eq!(other["status"], "delegated");
    let before = "{\"pr\":8,\"previous_tasks\":[\"Review THIS\"]}";
    assert_eq!(told, format!("Context of the task:\n{before}|review this"));
    let elsewhere = SpawnRequest {
        parent_session_id: "elsewhere".into(),
        ..asked("review this", context.clone())
    };
    let (apart, told) = line((&world, &host), &elsewhere).await;
    assert_eq!((&apart["status"], told.contains("previous")), (&json!("delegated"), false));
    // Only what was completed counts.
    for _ in 0..2 {
        assert_eq!(line((&world, &host), &asked("fail", None)).await.0["status"], "delegated");
    }
    // The latest three, each once.
    for task in ["a", "b"] {
        assert_eq!(line((&world, &host), &asked(task, None)).await.0["status"], "delegated");
    }
    let (_, told) = line((&world, &host), &asked("c", None)).await;
    let before = "{\"previous_tasks\":[\"b\",\"a\",\"fail\"]}";
    assert_eq!(told, format!("Context of the task:\n{before}|c"));
    world.clock.advance(REUSE_DEFAULT + Duration::from_millis(1));
    let (late, told) = line((&world, &host), &asked("review this", context)).await;
    assert_eq!((&late["status"], told.contains("previous")), (&json!("delegated"), false));
}

#[tokio::test]
async fn rs_16_a_task_is_answered_from_before_only_for_who_may_do_the_same() {
    const NOTHING: &[&str] = &[];
    const MODELS: &[&str] = &["model: *"];
    const METRICS: &[&str] = &["metrics: *"];
    for (before, now, expected) in [
        (NOTHING, NOTHING, "completed"),
        (MODELS, MODELS, "completed"),
        (NOTHING, MODELS, "delegated"),
        (MODELS, NOTHING, "delegated"),
        (MODELS, METRICS, "delegated"),
    ] {
        let mut world = World::new();
        worker(&mut world);
        delegating(&mut world, reuses(REUSE_DEFAULT));
        let host = world.start().await;
        let within = |deny: &[&str]| {
            let deny = deny.iter().map(|rule| (*rule).to_owned()).collect();
            let narrow = Narrowing { deny, ..Narrowing::default() };
            SpawnRequest { narrow, ..asked("review this", None) }
        };
        let first = line((&world, &host), &within(before)).await.0;
        assert_eq!(first["status"], "delegated", "{before:?}");
        let again = line((&world, &host), &within(now)).await.0;
        assert_eq!(again["status"], expected, "{before:?} then {now:?}");
    }
}

#[tokio::test]
async fn rs_16_a_task_is_answered_from_before_whatever_is_left_of_the_budget() {
    let mut world = World::new();
    worker(&mut world);
    delegating(&mut world, reuses(REUSE_DEFAULT));
    let host = world.start().await;
    for (tokens, expected) in [(1_000, "delegated"), (900, "completed")] {
        let narrow = Narrowing { tokens: Some(tokens), ..Narrowing::default() };
        let asked = SpawnRequest { narrow, ..asked("review this", None) };
        assert_eq!(line((&world, &host), &asked).await.0["status"], expected, "{tokens}");
    }
}

#[tokio::test]
async fn rs_16_a_task_that_was_done_before_the_clock_was_set_back_is_done_again() {
    let mut world = World::new();
    worker(&mut world);
    delegating(&mut world, reuses(REUSE_DEFAULT));
    world.clock.advance(2 * REUSE_DEFAULT);
    let host = world.start().await;
    let asked = asked("review this", None);
    assert_eq!(line((&world, &host), &asked).await.0["status"], "delegated");
    let now = Duration::from_millis(world.clock.now().0);
    let before = now - 2 * REUSE_DEFAULT;
    world.clock.set_time_of_day(Timestamp(millis(before)));
    let (again, told) = line((&world, &host), &asked).await;
    assert_eq!((&again["status"], &*told), (&json!("delegated"), "review this"));
}

#[tokio::test]
async fn a_policy_that_reuses_nothing_has_each_task_done() {
    let mut world = World::new();
    worker(&mut world);
    delegating(&mut world, DelegationSettings::default());
    let host = world.start().await;
    for _ in 0..2 {
        let (said, told) = line((&world, &host), &asked("review this", None)).await;
        assert_eq!((&said["status"], &*told), (&json!("delegated"), "review this"));
    }
}

#[tokio::test]
async fn rs_17_one_task_of_a_conversation_is_worked_on_at_a_time_whichever_line_delegated_it() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    delegating(&mut world, DelegationSettings { serial: true, ..DelegationSettings::default() });
    let host = world.start().await;
    let mut lines = Vec::new();
    for nth in 1..=3 {
        lines.push(host.spawn(&asked(&format!("task {nth}"), None)).await);
        host.reach(&lines[nth - 1], Status::Blocked).await;
        gates.have_come(1).await;
    }
    // Other conversations do not wait.
    let elsewhere = SpawnRequest { parent_session_id: "elsewhere".into(), ..asked("apart", None) };
    let apart = host.spawn(&elsewhere).await;
    let came = gates.have_come(2).await;
    gates.open(&came[1]);
    host.end(&apart).await;
    for (nth, line) in lines.iter().enumerate() {
        // The one that came from elsewhere came second.
        let place = if nth == 0 { 0 } else { nth + 1 };
        let came = gates.have_come(place.max(1) + 1).await;
        assert_eq!(host.get(&came[place]).await.spec.task, format!("task {}", nth + 1));
        host.settle().await;
        assert_eq!(gates.came().len(), came.len(), "the next one has begun");
        gates.open(&came[place]);
        host.end(line).await;
    }
}

/// Whatever host dies at whatever write: one run is there for one call, and the call for the same task
/// has its result.
async fn play(point: Point) -> u32 {
    let mut world = World::new();
    worker(&mut world);
    leader_with(
        &mut world,
        ("lead", &["worker"]),
        |_, said| {
            let task = |task: &str| json!({ "agent": "worker", "task": task });
            match said.len() {
                0 => vec![("delegate_task", task("one"))],
                1 => vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))],
                2 => vec![("delegate_task", task("ONE"))],
                3 => vec![("delegate_task", task("two"))],
                _ => Vec::new(),
            }
        },
        |agent| {
            agent.delegation = DelegationSettings { serial: true, ..reuses(REUSE_DEFAULT) };
        },
    );
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("1", "lead")).await;
        words(&door, "1").await
    };
    let (said, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let tree = door.client().tree("1").await.expect("there");
    let mut tasks: Vec<&str> = tree.descendants.iter().map(|run| run.spec.task.as_str()).collect();
    tasks.sort_unstable();
    assert_eq!(tasks, ["one", "two"], "{point:?}");
    assert_eq!(said[2]["from_cache"], true, "{point:?}: {said:?}");
    assert_eq!(said[2]["task_id"], said[0]["task_id"], "{point:?}");
    assert_eq!(said[3]["status"], "delegated", "{point:?}");
    let second = RunId::new(said[3]["task_id"].as_str().expect("an id")).expect("an id");
    let second = tree.descendants.iter().find(|run| *run.id() == second).expect("there");
    let told = second.spec.context_messages.first().map(|message| message.joined_text());
    assert!(told.is_some_and(|told| told.ends_with("{\"previous_tasks\":[\"one\"]}")));
    deaths
}

#[tokio::test]
async fn a_delegated_task_is_done_once_whenever_the_host_dies_at_its_acceptance() {
    die_at_each(Op::Create, Side::Before, 2, play).await;
    die_at_each(Op::Create, Side::After, 2, play).await;
}

#[tokio::test]
async fn a_delegated_task_is_done_once_whenever_the_host_dies_at_what_it_records() {
    die_at_each(Op::Append, Side::Before, 2, play).await;
    die_at_each(Op::Append, Side::After, 2, play).await;
}
