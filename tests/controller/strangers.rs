//! Every door to other runs, and every run that is not the caller's to see: each is refused as one
//! that is not there.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun::ports::planner::PlanInput;
use taskrun::scope::RunsQuestion;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::list::Scope;
use taskrun_journal::question::Answer;
use taskrun_journal::runs::{RunsAnswer, RunsError, RunsFilter, RunsRequest};
use taskrun_journal::status::Status;
use taskrun_journal::store::ReportChange;

use super::common::{Gates, beneath, named};
use super::host_tools::leader;
use crate::native::{ClosurePlanner, Native, World, answer, request};

/// A run that is not there.
const NOBODY: &str = "nobody";

/// Every tool of the host that names a run and is no batch's, for one.
fn by_tools(target: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("get_task_run", json!({ "id": target })),
        ("get_task_run", json!({ "id": target, "result_from": 0 })),
        ("stop_agent", json!({ "name": target })),
        ("cancel_task_run", json!({ "id": target })),
        ("wait_task_run", json!({ "id": target, "timeout_seconds": 1 })),
        ("read_task_run_transcript", json!({ "id": target })),
        ("await_tasks", json!({ "task_ids": [target] })),
        ("check_tasks", json!({ "parent_id": target })),
        ("check_tasks", json!({})),
        ("list_task_runs", json!({})),
    ]
}

/// Every request of a component that names a run, for one.
fn by_interface(target: &str) -> Vec<RunsRequest> {
    let id = || target.to_owned();
    vec![
        RunsRequest::Get { id: id() },
        RunsRequest::Cancel { id: id(), reason: None },
        RunsRequest::CancelTree { id: id(), reason: None },
        RunsRequest::Pause { id: id(), reason: None, timeout_ms: Some(1) },
        RunsRequest::Resume { id: id(), note: None },
        RunsRequest::Wait { id: id(), timeout_ms: Some(0) },
        RunsRequest::Provide { id: id(), item: None, answer: Answer::Text("yes".to_owned()) },
        RunsRequest::Subscribe { id: id(), after: 0, limit: 1, timeout_ms: Some(0) },
        RunsRequest::List(RunsFilter { parent_run_id: Some(id()), ..RunsFilter::default() }),
        RunsRequest::List(RunsFilter::default()),
    ]
}

/// Asks all of these and answers with what was said.
fn prying() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, scope| async move {
        let target = input.messages.last().map(|task| task.joined_text()).unwrap_or_default();
        let mut said = Vec::new();
        for request in by_interface(&target) {
            let operation = request.operation();
            let answered: Result<RunsAnswer, RunsError> =
                scope.ask(RunsQuestion::from(request)).await;
            said.push(format!("{operation}: {answered:?}"));
        }
        answer(&said.join("\n"))
    })
}

/// Runs of others, of another session and of another place in the tree; by what they are to a run
/// beneath `root`.
async fn strangers(host: &Native) -> Vec<(&'static str, String)> {
    host.spawn(&named("root", "worker")).await;
    host.spawn(&beneath("root", "sibling", "worker")).await;
    host.spawn(&beneath("sibling", "nephew", "worker")).await;
    host.spawn(&named("same-session", "worker")).await;
    let elsewhere =
        SpawnRequest { parent_session_id: "another".into(), ..named("other-session", "worker") };
    host.spawn(&elsewhere).await;
    let other = SpawnRequest { owner_user_id: "user-b".into(), ..named("other-owner", "worker") };
    host.spawn(&other).await;
    let client = host.controller.at(&Scope::tenant("another"));
    let foreign = client.spawn(&request("worker", "x")).await.expect("is accepted");
    let known = ["root", "sibling", "nephew", "same-session", "other-session", "other-owner"];
    let mut all: Vec<_> = known.map(|id| (id, id.to_owned())).into();
    all.push(("other-tenant", foreign.id().to_string()));
    all
}

fn child(parent: &str) -> SpawnRequest {
    SpawnRequest { parent_run_id: Some(parent.to_owned()), ..request("worker", "x") }
}

async fn said(host: &Native, agent: &str, target: &str) -> String {
    let id = format!("{agent}-{target}");
    let asked = SpawnRequest { task: target.to_owned(), ..beneath("root", &id, agent) };
    host.spawn(&asked).await;
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{:?}", run.ending());
    let said = run.state.reply.result().expect("an answer");
    said.replace(target, "ID")
}

#[tokio::test]
async fn m_24_no_door_tells_a_run_of_others_from_one_that_is_not_there() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent_with("worker", gates.planner(), |agent| {
        agent.members = vec!["*".to_owned()];
    });
    leader(&mut world, "model", &["worker"], |task, said| match said.is_empty() {
        true => by_tools(task),
        false => Vec::new(),
    });
    world.agent("component", prying());
    let host = world.start().await;
    let strangers = strangers(&host).await;
    for agent in ["model", "component"] {
        let nobody = said(&host, agent, NOBODY).await;
        let refused = nobody.matches(if agent == "model" { "not-found" } else { "NotFound" });
        let named = if agent == "model" { 7 } else { 8 };
        assert_eq!(refused.count(), named, "each that names a run refuses it: {nobody}");
        for (what, target) in &strangers {
            let said = said(&host, agent, target).await;
            // It may be told that it would wait for a run above it.
            let said = match *what {
                "root" => said
                    .replace("cycle: the run waits for the one that asks", "task ID not found")
                    .replace("\"cycle\"", "\"not-found\""),
                _ => said,
            };
            assert_eq!(said, nobody, "{agent}: {what}");
        }
    }
    for (what, target) in &strangers {
        let run = match *what {
            "other-tenant" => {
                let client = host.controller.at(&Scope::tenant("another"));
                client.get(target).await.expect("it is there")
            }
            _ => host.get(target).await,
        };
        assert!(!run.status().is_terminal(), "{what} is as it was");
        assert!(run.state.pause.is_none(), "{what} is as it was");
    }
}

#[tokio::test]
async fn m_24_no_principal_gets_a_run_of_others_by_any_door_of_the_library() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", gates.planner());
    let host = world.start().await;
    host.spawn(&named("mine", "worker")).await;
    gates.have_come(1).await;
    let own = Scope::tenant("default");
    let wrong = [
        ("tenant", Scope::tenant("another")),
        ("owner", Scope { owner_user_id: Some("user-b".into()), ..own.clone() }),
        ("session", Scope { parent_session_id: Some("another".into()), ..own.clone() }),
        ("application", Scope { parent_app_name: Some("another".into()), ..own }),
    ];
    for (what, scope) in wrong {
        let client = host.controller.at(&scope);
        for id in ["mine", NOBODY] {
            let refused = [
                client.get(id).await.map(|_| ()),
                client.view(id).await.map(|_| ()),
                client.snapshot(id).await.map(|_| ()),
                client.events(id, 0, 1).await.map(|_| ()),
                client.follow(id, 0).await.map(|_| ()),
                client.tree(id).await.map(|_| ()),
                client.cancel(id, None).await.map(|_| ()),
                client.cancel_alone(id, None).await.map(|_| ()),
                client.pause(id, &Default::default()).await.map(|_| ()),
                client.resume(id, &Default::default()).await.map(|_| ()),
                client.inject(id, "x").await.map(|_| ()),
                client.wake(id, "x").await.map(|_| ()),
                client.hear(id, "mail", "x").await.map(|_| ()),
                client.continuation(id).await.map(|_| ()),
                client.artifact(id, "0").await.map(|_| ()),
                client.report(id).await.map(|_| ()),
                client.change_report(id, ReportChange::Drop).await.map(|_| ()),
                client.dispatches_of(id).await.map(|_| ()),
                client.change_dispatches(id, None, ReportChange::Drop).await.map(|_| ()),
                client.answer(id, None, Answer::Text("x".into())).await.map(|_| ()),
                client.asks(id).await.map(|_| ()),
                client.adopt(id).await.map(|_| ()),
                client.transcript(id, None, 1).await.map(|_| ()),
                client.wait(id, Some(Duration::ZERO)).await.map(|_| ()),
                client.wait_for(id, Some(Duration::ZERO), |_| true).await.map(|_| ()),
                client.wait_all(&[id], WaitMode::All, Some(Duration::ZERO)).await.map(|_| ()),
                client.watch_progress(id).await.map(|_| ()),
                client.complete_entry(id, id, "x").await.map(|_| ()),
                client.fail_entry(id, id, "x").await.map(|_| ()),
                client.spawn(&child(id)).await.map(|_| ()),
            ];
            let last = refused.len() - 1;
            for (nth, refused) in refused.into_iter().enumerate() {
                let error = refused.expect_err("it is refused");
                // Who may ask in one name only is told so before any run is looked for.
                let expected = match what {
                    "owner" | "session" | "application" if nth == last => "forbidden",
                    _ => "not-found",
                };
                assert_eq!(error.code(), expected, "{what}, {id}, {nth}");
            }
        }
    }
    assert_eq!(host.get("mine").await.status(), Status::Running);
}
