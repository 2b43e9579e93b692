//! The result that a run said it is done with, which reaches whoever asked for it by every door
//! (R-047, R-010, C-012, C-065, M-59), whatever the run says afterwards.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::planner::PlanInput;
use taskrun::spawn::{REUSE_DEFAULT, SpawnRequest};
use taskrun_journal::dispatch::TaskEvent;
use taskrun_journal::event::Event;
use taskrun_journal::message::Message;
use taskrun_journal::question::Answer;
use taskrun_journal::reply::RESULT_CHARS_MAX;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_policy::DelegationSettings;

use super::agent_tools::{PLAY, caller, calling};
use super::common::{following, named, task_tools};
use super::dispatches::{Heard, all_delivered, hears, registered, rows, told};
use super::host_tools::{leader, leader_with, words};
use super::rounds::Turn::{Call, Say};
use super::rounds::{bounded, played};
use crate::native::{ClosurePlanner, Native, World, answer, request};

const SCHEMA: &str = r#"{"type":"object","required":["summary","status"]}"#;

fn completed() -> Value {
    json!({ "summary": "S-OK", "status": "completed", "data": { "answer": 42 } })
}

fn failure() -> Value {
    json!({ "summary": "s", "status": "failed", "reason": "no luck" })
}

/// An agent that reports this result and says `bye` afterwards; asked to `tell`, it answers with
/// what it was shown.
fn worker(world: &mut World, result: &Value) {
    worker_that(world, result, "bye");
}

/// The same with other last words.
fn worker_that(world: &mut World, result: &Value, says: &'static str) {
    let report = ("d", "host/report_done", json!({ "result": result }));
    let turns = [Call(vec![report]), Say(says)];
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let shown: Vec<_> = input.messages.iter().map(Message::joined_text).collect();
        let planned = match shown.last().map(String::as_str) {
            Some("tell") => answer(&shown.join("|")),
            Some(_) | None => played(&turns, &input),
        };
        async move { planned }
    });
    world.agent_with("rk", planner, |agent| agent.autonomous = Some(bounded(Some(SCHEMA))));
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The answer of a run that has completed.
async fn answer_of(host: &Native, id: &str) -> String {
    let run = host.end(id).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    run.state.reply.result().expect("an answer")
}

#[tokio::test]
async fn m_59_an_agent_that_is_called_gives_the_result_that_it_returned_as_it_is() {
    let mut world = World::new();
    worker(&mut world, &completed());
    world.agent_with("parent", caller(&[("c1", "agent/rk", PLAY)]), calling(&["rk"]));
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    assert_eq!(parsed(&answer_of(&host, "1").await), completed());
}

#[tokio::test]
async fn r_047_the_tools_of_the_host_give_the_result_that_a_run_returned() {
    let mut world = World::new();
    worker(&mut world, &completed());
    leader(&mut world, "lead", &["rk"], |_, said| match said.len() {
        0 => vec![("spawn_agent", json!({ "agent": "rk", "goal": "do", "wait": true }))],
        1 => vec![("delegate", json!({ "tasks": [{ "agent": "rk", "message": "do" }] }))],
        2 => vec![("start_task_run", json!({ "task": "do", "mode": "sync" }))],
        3 => vec![("get_task_run", json!({ "id": said[2]["id"], "result_from": 0 }))],
        4 => vec![("spawn_task", json!({ "agent": "rk", "message": "do" }))],
        5 => vec![("await_tasks", json!({ "task_ids": [said[4]["task_id"]] }))],
        6 => vec![("check_tasks", json!({ "agent": "rk" }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    assert_eq!((&said[0]["output"], &said[0]["final_text"]), (&completed(), &json!("bye")));
    assert_eq!(
        (&said[0]["status"], &said[0]["stop_reason"]),
        (&json!("completed"), &json!("done"))
    );
    assert_eq!((&said[1][0]["result"], &said[1][0]["status"]), (&completed(), &json!("finished")));
    assert_eq!((&said[2]["result"], &said[2]["final_text"]), (&completed(), &json!("bye")));
    assert_eq!(said[2].get("returned"), None, "it is there once");
    assert_eq!(parsed(said[3]["result"].as_str().expect("a text")), completed());
    assert_eq!(said[5][0]["result"], completed());
    let tasks = said[6].as_array().expect("a list");
    assert_eq!(tasks.len(), 4, "{tasks:?}");
    assert!(tasks.iter().all(|task| task["result"] == completed()), "{tasks:?}");
}

#[tokio::test]
async fn a_planner_that_waits_for_a_run_is_given_the_result_that_it_returned() {
    let mut world = World::new();
    worker(&mut world, &completed());
    let handle = task_tools(&mut world);
    let turns = vec![vec![("s", "spawn/f", "\"rk 2\"")], vec![("w", "await/f", "\"all - 2\"")]];
    world.agent("parent", following(turns));
    let host = world.start().await;
    handle.set(&host);
    host.spawn(&named("1", "parent")).await;
    let said = answer_of(&host, "1").await;
    // A text in a text would have its quotes escaped.
    assert!(said.contains("\"answer\":42") && !said.contains("bye"), "{said}");
}

#[tokio::test]
async fn r_010_a_task_that_was_done_before_is_answered_with_the_result_that_was_returned() {
    for says in ["bye", ""] {
        is_answered_with_what_was_returned(says).await;
    }
}

/// Holds two lines of a conversation to that, with a worker whose last words are these.
async fn is_answered_with_what_was_returned(says: &'static str) {
    let mut world = World::new();
    worker_that(&mut world, &completed(), says);
    leader_with(
        &mut world,
        ("lead", &["rk"]),
        |_, said| match said.len() {
            0 => vec![("delegate_task", json!({ "agent": "rk", "task": "do" }))],
            1 if said[0]["status"] == "delegated" => {
                vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))]
            }
            _ => Vec::new(),
        },
        |agent| {
            let within = Some(REUSE_DEFAULT);
            agent.delegation = DelegationSettings { reuse_within: within, ..Default::default() };
        },
    );
    let host = world.start().await;
    let asked = SpawnRequest { converses: true, ..request("lead", "x") };
    let first = words(&host, &host.spawn(&asked).await).await;
    assert_eq!(first[1][0]["result"], completed(), "{says:?}");
    world.clock.advance(Duration::from_millis(1));
    let again = words(&host, &host.spawn(&asked).await).await;
    let told = (&again[0]["from_cache"], &again[0]["result"]);
    assert_eq!(told, (&json!(true), &completed()), "{says:?}");
}

#[tokio::test]
async fn a_report_has_the_result_that_a_run_returned_and_a_long_one_is_read_part_by_part() {
    let mut world = World::new();
    let mut long = completed();
    long["data"]["text"] = json!("ä".repeat(RESULT_CHARS_MAX + 500));
    worker(&mut world, &long);
    leader(&mut world, "lead", &["rk"], |_, said| match said.len() {
        0 => vec![("start_task_run", json!({ "task": "do" }))],
        1 => vec![("ask_user", json!({ "question": "Go on?" }))],
        2 => vec![("get_task_run", json!({ "id": said[0]["id"] }))],
        _ => match said[said.len() - 1].get("result_next") {
            None if said.len() > 3 => Vec::new(),
            next => {
                let from = next.cloned().unwrap_or_else(|| json!(0));
                vec![("get_task_run", json!({ "id": said[0]["id"], "result_from": from }))]
            }
        },
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let asks = |run: &Run| run.state.awaits.iter().any(|one| !one.answered);
    host.until(&id, "asks", asks).await;
    let child = host.client().tree(&id).await.expect("there").descendants.remove(0);
    host.end(child.id().as_str()).await;
    host.client().answer(&id, None, Answer::Text("yes".to_owned())).await.expect("taken");
    let said = words(&host, &id).await;
    let shown = said[2]["result"].as_str().expect("it is cut, and a text");
    assert_eq!((shown.chars().count(), &said[2]["truncated"]), (RESULT_CHARS_MAX, &json!(true)));
    let parts: String = said[3..].iter().filter_map(|part| part["result"].as_str()).collect();
    assert_eq!(parsed(&parts), long);
    let reported = host.journal(&id).await.into_iter().find_map(|one| {
        let Event::Reported { text, .. } = one.event else { return None };
        Some(text)
    });
    let reported = reported.expect("it is told");
    let bytes = long.to_string().len();
    let heading = format!("result (its beginning; {bytes} bytes in all):\n```\n{{");
    assert!(reported.contains(&heading) && !reported.contains("bye"), "{reported}");
}

#[tokio::test]
async fn a_result_that_is_too_long_is_shown_as_its_beginning_and_marked() {
    let mut world = World::new();
    let mut long = completed();
    long["data"]["text"] = json!("x".repeat(RESULT_CHARS_MAX));
    worker(&mut world, &long);
    leader(&mut world, "lead", &["rk"], |_, said| match said.len() {
        0 => vec![("spawn_agent", json!({ "agent": "rk", "goal": "do", "wait": true }))],
        1 => vec![("delegate", json!({ "tasks": [{ "agent": "rk", "message": "do" }] }))],
        2 => vec![("check_tasks", json!({ "agent": "rk" }))],
        _ => Vec::new(),
    });
    let handle = task_tools(&mut world);
    let turns = vec![vec![("s", "spawn/f", "\"rk 2\"")], vec![("w", "await/f", "\"all - 2\"")]];
    world.agent("parent", following(turns));
    let host = world.start().await;
    handle.set(&host);
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let beginning = &long.to_string()[..RESULT_CHARS_MAX];
    let shown = [(&said[0], "output"), (&said[1][0], "result"), (&said[2][0], "result")];
    for (run, key) in shown {
        assert_eq!((&run[key], &run["truncated"]), (&json!(beginning), &json!(true)), "{run}");
    }
    host.spawn(&named("1", "parent")).await;
    host.end("1").await;
    let said = host.client().result("1").await.expect("it is read").expect("it answers");
    assert!(said.contains("\"truncated\":true"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_clients_and_later_runs_of_a_session_have_the_result_that_was_returned() {
    let (mut world, heard) = (World::new(), Heard::default());
    worker(&mut world, &completed());
    world.subscribers = registered([("audit", hears(&heard))]);
    let host = world.start().await;
    let asked = SpawnRequest {
        autonomous: Some(AutonomyRequest::default()),
        converses: true,
        ..named("1", "rk")
    };
    host.spawn(&told(asked, &["transport/audit"])).await;
    assert_eq!(answer_of(&host, "1").await, "bye", "the record has both");
    let result = host.client().result("1").await.expect("it is there").expect("it gave one");
    assert_eq!(parsed(&result), completed());
    rows(&host, "1", all_delivered(2)).await;
    let all = heard.all();
    let end = all.iter().find(|news| news.key.event == TaskEvent::Completed).expect("it ended");
    let payload = parsed(&end.to_json(true));
    assert_eq!(parsed(payload["data"]["result"].as_str().expect("a text")), completed());
    assert!(end.text.contains(&result) && !end.text.contains("bye"), "{}", end.text);
    world.clock.advance(Duration::from_millis(1));
    let later = SpawnRequest { converses: true, ..request("rk", "tell") };
    let shown = answer_of(&host, &host.spawn(&later).await).await;
    assert_eq!(shown, format!("x|{result}|tell"));
}

#[tokio::test]
async fn r_047_whoever_asked_sees_that_a_task_failed_and_why() {
    let mut world = World::new();
    worker(&mut world, &failure());
    world.agent_with("parent", caller(&[("c1", "agent/rk", PLAY)]), calling(&["rk"]));
    leader(&mut world, "lead", &["rk"], |_, said| match said.len() {
        0 => vec![("delegate", json!({ "tasks": [{ "agent": "rk", "message": "do" }] }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let said = answer_of(&host, "1").await;
    assert!(said.starts_with("agent-failed: ") && said.ends_with("no luck"), "{said}");
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let end = &said[0][0];
    assert_eq!((&end["status"], &end["error"]), (&json!("failed"), &json!("no luck")), "{end}");
    assert_eq!(end["result"], failure());
}
