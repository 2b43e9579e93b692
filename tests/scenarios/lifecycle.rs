//! A run from its start to its end: completion, progress, cancellation, refusals (TS-01, TS-02,
//! TS-04, TS-08).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use taskrun::clock::SimulatedClock;
use taskrun::controller::Controller;
use taskrun::error::ControllerError;
use taskrun::spawn::{RunOptions, SpawnRequest};
use taskrun_journal::event::Event;
use taskrun_journal::list::{ListFilter, PAGE_DEFAULT, Scope};
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::time::Timestamp;
use taskrun_tests::{Builder, House, Script, Storage};

const POLICY: &str = r#"
[tool.lookup]
component = "components/scripted-tool.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["lookup/*"]
"#;

async fn house(storage: Storage) -> House {
    Builder::new(POLICY).storage(storage).open().await
}

async fn ts_01(storage: Storage) {
    let house = house(storage).await;
    let script = Script::new().reply_context().reply("finished delegated work");
    let request = SpawnRequest {
        app_name: Some("fallback-app".into()),
        run_options: RunOptions { app_name: Some("child-app".into()) },
        timeout: Some(Duration::from_secs(1)),
        runtime_state: [("trace_id".to_owned(), "trace-1".to_owned())].into(),
        ..house.request("worker", &script.task())
    };
    let spawned = house.client().spawn(&request).await.expect("accepted");
    assert_eq!(spawned.status(), Status::Queued);
    assert_eq!(RunView::from(&spawned).app_name.as_deref(), Some("child-app"));

    let id = spawned.id().to_string();
    let ended = RunView::from(&house.end(&id).await);
    assert_eq!(ended.status, Status::Completed, "{ended:?}");
    assert_eq!(ended.stop_reason, Some(StopReason::FinalResponse));
    assert_eq!(ended.result.as_deref(), Some("finished delegated work"));
    assert_eq!(ended.summary, ended.result);
    let prefix = format!("taskrun:{id}:");
    assert!(ended.child_session_id.is_some_and(|session| session.starts_with(&prefix)));
    assert!(ended.request_id.is_some_and(|request| request.starts_with(&prefix)));

    let scope = house.scope.clone().owner("user-a").session("parent-a");
    let page = house.controller.at(&scope).list(&ListFilter::default(), None, PAGE_DEFAULT).await;
    assert_eq!(page.expect("listed").runs.len(), 1);

    // What the child saw is its first message.
    let transcript = house.client().transcript(&id, None, 40).await.expect("read");
    let seen: serde_json::Value =
        serde_json::from_str(&transcript.events[1].content).expect("the context as JSON");
    let envelope = &seen["envelope"];
    assert_eq!(envelope["taskrun.run"], json!("true"), "{seen}");
    assert_eq!(envelope["taskrun.run_id"], json!(id));
    assert_eq!(envelope["taskrun.parent_session_id"], json!("parent-a"));
    assert_eq!(envelope["trace_id"], json!("trace-1"));

    // The observer saw it queued, running and completed, in this order.
    let kinds: Vec<_> = house.journal(&id).await.iter().map(|one| one.event.kind()).collect();
    assert_eq!((kinds[0], kinds[1]), ("queued", "started"));
    assert_eq!(kinds[kinds.len() - 2..], ["finalizing", "finished"]);
}

#[tokio::test]
async fn ts_01_spawn_completes_run_in_memory() {
    ts_01(Storage::Memory).await;
}

#[tokio::test]
async fn ts_01_spawn_completes_run_in_sqlite() {
    ts_01(Storage::Sqlite).await;
}

async fn ts_02(storage: Storage) {
    let start = Timestamp(1_700_000_000_000);
    let clock = Arc::new(SimulatedClock::new(start));
    let house = Builder::new(POLICY).storage(storage).clock(clock.clone()).open().await;
    let second = Duration::from_secs(1);
    let script = Script::new()
        .sleep(1_000)
        .call("call-1", "lookup/lookup", json!({ "sleep_ms": 1_000, "result": "found" }))
        .usage(2, 1, 3)
        .then()
        .sleep(1_000)
        .reply("done")
        .usage(4, 3, 7);
    let id = house.spawn(&house.request("worker", &script.task())).await;
    // The agent, its tool, and the agent again each wait a second of the clock that they see.
    let (run, passed) = clock.run_until(3 * second, house.end(&id)).await;
    assert_eq!(passed, 3 * second);
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    let progress = run.state.progress;
    assert_eq!(progress.event_count, 3);
    assert_eq!((progress.tool_call_count, progress.tool_result_count), (1, 1));
    assert_eq!((progress.prompt_tokens, progress.completion_tokens), (6, 4));
    assert_eq!(progress.total_tokens, 10);
    assert_eq!(progress.last_event_at, Some(start.plus(3 * second)));
}

#[tokio::test]
async fn ts_02_progress_counts_events_calls_results_and_tokens_in_memory() {
    ts_02(Storage::Memory).await;
}

#[tokio::test]
async fn ts_02_progress_counts_events_calls_results_and_tokens_in_sqlite() {
    ts_02(Storage::Sqlite).await;
}

async fn ts_04(storage: Storage) {
    let house = house(storage).await;
    let id = house.spawn(&house.request("worker", &Script::new().block().task())).await;
    house.reach(&id, Status::Running).await;
    let canceled = house.client().cancel(&id, Some("enough")).await;
    let canceled = canceled.expect("can be canceled");
    assert!(canceled.changed);
    assert_eq!(canceled.run.status(), Status::Canceling);
    assert_eq!(RunView::from(&canceled.run).finished_at, None);
    let ended = RunView::from(&house.end(&id).await);
    assert_eq!(ended.status, Status::Canceled);
    assert_eq!(ended.stop_reason, Some(StopReason::CanceledByOwner));
    assert_eq!(ended.error, None);
    assert_eq!(ended.summary.as_deref(), Some("canceled"));
    let again = house.client().cancel(&id, None).await.expect("answers");
    assert!(!again.changed);
    let requests = house.journal(&id).await;
    let requests = requests.iter().filter(|one| {
        matches!(&one.event, Event::CancelRequested { reason, .. } if reason.as_deref() == Some("enough"))
    });
    assert_eq!(requests.count(), 1);
}

#[tokio::test]
async fn ts_04_cancel_of_a_blocked_agent_in_memory() {
    ts_04(Storage::Memory).await;
}

#[tokio::test]
async fn ts_04_cancel_of_a_blocked_agent_in_sqlite() {
    ts_04(Storage::Sqlite).await;
}

fn refusal(error: &ControllerError) -> (&'static str, String) {
    (error.code(), error.to_string())
}

async fn count(controller: &Controller, scope: &Scope) -> usize {
    let page = controller.at(scope).list(&ListFilter::default(), None, PAGE_DEFAULT).await;
    page.expect("listed").runs.len()
}

async fn ts_08(storage: Storage) {
    let house = Builder::new(POLICY).storage(storage).build().await;
    let (controller, scope) = (&house.controller, &house.scope);
    let task = Script::new().reply("ok").task();
    let good = house.request("worker", &task);
    let error = controller.at(scope).spawn(&good).await.expect_err("not started");
    assert_eq!(error.code(), "not-started");
    controller.start().await.expect("starts");
    controller.start().await.expect("starts again");

    let bad = [
        (SpawnRequest { owner_user_id: "  ".into(), ..good.clone() }, "empty owner"),
        (SpawnRequest { parent_session_id: " ".into(), ..good.clone() }, "empty parent session id"),
        (SpawnRequest { task: "\n".into(), ..good.clone() }, "empty task"),
        (
            SpawnRequest { idempotency_key: Some(" ".into()), ..good.clone() },
            "empty idempotency key",
        ),
    ];
    for (request, text) in bad {
        let error = controller.at(scope).spawn(&request).await.expect_err("refused");
        assert_eq!(refusal(&error), ("invalid", text.to_owned()));
    }
    let error = controller.at(&Scope::tenant(" ")).spawn(&good).await.expect_err("refused");
    assert_eq!(refusal(&error), ("invalid", "empty tenant".to_owned()));
    // All three are wrong: the owner is told first.
    let error = controller.at(scope).spawn(&SpawnRequest::default()).await.expect_err("refused");
    assert_eq!(error.to_string(), "empty owner");
    let unknown = SpawnRequest { agent_name: "wroker".into(), ..good.clone() };
    let error = controller.at(scope).spawn(&unknown).await.expect_err("refused");
    assert!(error.to_string().contains("unknown agent \"wroker\""), "{error}");
    assert_eq!(count(controller, scope).await, 0, "nothing is kept of what was refused");

    let mut ids = Vec::new();
    for (owner, session) in [("user-a", "parent-a"), ("user-a", "parent-b"), ("user-b", "parent-a")]
    {
        let request = SpawnRequest {
            owner_user_id: owner.into(),
            parent_session_id: session.into(),
            ..good.clone()
        };
        ids.push(house.spawn(&request).await);
    }
    let user_a = scope.clone().owner("user-a");
    assert_eq!(count(controller, &user_a).await, 2);
    assert_eq!(count(controller, &user_a.clone().session("parent-a")).await, 1);

    let first = house.end(&ids[0]).await;
    let same = SpawnRequest { id: Some(ids[0].clone()), ..good.clone() };
    let error = controller.at(scope).spawn(&same).await.expect_err("taken");
    assert_eq!(error.code(), "already-exists");
    assert_eq!(controller.at(scope).get(&ids[0]).await.expect("still there"), first);

    for error in [
        controller.at(scope).get("missing").await.expect_err("unknown"),
        controller.at(scope).cancel("missing", None).await.map(|c| c.run).expect_err("unknown"),
        // What belongs to others looks the same.
        controller.at(&scope.clone().owner("user-b")).get(&ids[0]).await.expect_err("not theirs"),
        controller.at(&Scope::tenant("other")).get(&ids[0]).await.expect_err("not theirs"),
    ] {
        assert_eq!(error.code(), "not-found");
        assert!(error.to_string().starts_with("run not found: "), "{error}");
    }
    let late = controller.at(scope).cancel(&ids[0], None).await.expect("answers");
    assert!(!late.changed);
    assert_eq!(late.run, first);
}

#[tokio::test]
async fn ts_08_scopes_and_errors_in_memory() {
    ts_08(Storage::Memory).await;
}

#[tokio::test]
async fn ts_08_scopes_and_errors_in_sqlite() {
    ts_08(Storage::Sqlite).await;
}
