//! Turns, caps, refusals and time, through real components.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use taskrun::clock::SimulatedClock;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::Event;
use taskrun_journal::message::RetryReason;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::{ToolFailure, ToolOutcome, ToolOutput};
use taskrun_tests::{Builder, House, Script, Storage};

const POLICY: &str = r#"
[tool.lookup]
component = "components/scripted-tool.wasm"

[tool.workspace]
component = "components/workspace.wasm"

[model.parrot]
provider = "echo"

[agent.worker]
component = "components/scripted.wasm"
tools = ["lookup/*"]
limits = { tool_calls = 3 }
budget = { turns = 4 }

[agent.reader]
component = "components/scripted.wasm"
tools = ["workspace/*"]
allow = ["workspace-read: docs/**"]
deny = ["workspace-write: **"]

[agent.talker]
component = "components/chat.wasm"
model = "parrot"
"#;

async fn outputs(house: &House, id: &str) -> Vec<ToolOutput> {
    let journal = house.journal(id).await;
    let results = journal.into_iter().filter_map(|recorded| {
        let Event::ToolResult { output, .. } = recorded.event else { return None };
        Some(*output)
    });
    results.collect()
}

fn failure(output: &ToolOutput) -> &ToolFailure {
    match &output.outcome {
        ToolOutcome::Failure(failure) => failure,
        ToolOutcome::Value(value) => panic!("an answer instead of a failure: {value}"),
    }
}

#[tokio::test]
async fn ls_04_results_stand_in_the_order_requested_and_events_in_the_order_of_completion() {
    let clock = Arc::new(SimulatedClock::new(Timestamp(1_000)));
    let house = Builder::new(POLICY).clock(clock.clone()).open().await;
    let script = Script::new()
        .call("slow", "lookup/lookup", json!({ "sleep_ms": 20, "result": 1 }))
        .call("fast", "lookup/lookup", json!({ "sleep_ms": 10, "result": 2 }))
        .then()
        .raw(json!("reply_input"));
    let id = house.spawn(&house.request("worker", &script.task())).await;
    clock.wait_for_sleepers(2).await;
    clock.advance(Duration::from_millis(10));
    house.event(&id, |one| one.event.kind() == "tool_result").await;
    clock.advance(Duration::from_millis(10));
    let run = house.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    let completed: Vec<_> =
        outputs(&house, &id).await.into_iter().map(|output| output.tool_call_id).collect();
    assert_eq!(completed, ["fast", "slow"]);
    let seen = run.state.reply.result().expect("what the planner was given");
    let (slow, fast) = (seen.find("slow").expect("slow"), seen.find("fast").expect("fast"));
    assert!(slow < fast, "{seen}");
}

#[tokio::test]
async fn ls_32_calls_over_the_cap_are_refused_one_by_one_and_the_next_ones_end_the_run() {
    let house = Builder::new(POLICY).open().await;
    let mut script = Script::new();
    for index in 0..5 {
        script = script.call(&format!("c{index}"), "lookup/lookup", json!({ "result": index }));
    }
    let script = script.then().call("late", "lookup/lookup", json!({ "result": 9 }));
    let mut task: serde_json::Value = serde_json::from_str(&script.task()).expect("JSON");
    task["finalize"] = json!([{ "reply": "what I have" }]);
    let id = house.spawn(&house.request("worker", &task.to_string())).await;
    let view = RunView::from(&house.end(&id).await);
    let outputs = outputs(&house, &id).await;
    let by_id = |id: &str| outputs.iter().find(|o| o.tool_call_id == id).expect("a result");
    for id in ["c0", "c1", "c2"] {
        assert!(matches!(by_id(id).outcome, ToolOutcome::Value(_)), "{id}");
    }
    for id in ["c3", "c4"] {
        assert_eq!(failure(by_id(id)).error.code.as_deref(), Some("cap"), "{id}");
    }
    let late = &failure(by_id("late")).error.message;
    assert_eq!(late, "Finalized before a tool result was provided for this request.");
    assert_eq!((view.status, view.stop_reason), (Status::Completed, Some(StopReason::ToolCap)));
    assert!(view.partial);
    assert_eq!(view.result.as_deref(), Some("what I have"));
}

#[tokio::test]
async fn without_a_last_word_a_run_at_its_cap_has_failed() {
    let house = Builder::new(POLICY).open().await;
    let mut script = Script::new();
    for _ in 0..6 {
        script = script.call("", "lookup/nothing", json!({})).then();
    }
    // Its last word is one more call.
    let mut task: serde_json::Value = serde_json::from_str(&script.task()).expect("JSON");
    task["finalize"] = json!([{ "call": { "name": "lookup/nothing", "args": {} } }]);
    let view = RunView::from(&house.run("worker", &task.to_string()).await);
    assert_eq!(view.status, Status::Failed, "{view:?}");
    assert_eq!(view.stop_reason, Some(StopReason::MaxTurns));
    assert_eq!(view.error.as_deref(), Some("turn cap exceeded: `turns` is 4"));
}

#[tokio::test]
async fn calls_that_do_not_fit_come_back_with_a_hint_and_the_run_goes_on() {
    let house = Builder::new(POLICY).open().await;
    let script = Script::new()
        .call("unknown", "lookup/lokup", json!({}))
        .call("wrong", "lookup/lookup", json!({ "sleep_ms": "soon" }))
        .call("extra", "lookup/lookup", json!({ "nonsense": 1 }))
        .then()
        .reply("went on");
    let id = house.spawn(&house.request("worker", &script.task())).await;
    let run = house.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("went on"));
    let outputs = outputs(&house, &id).await;
    let hint = |index: usize| failure(&outputs[index]).retry_hint.clone().expect("a hint");
    assert_eq!(hint(0).reason, RetryReason::ToolUnavailable);
    assert_eq!(failure(&outputs[0]).error.message, "tool not available: lookup/lokup");
    assert_eq!(hint(1).reason, RetryReason::InvalidArguments);
    let question = hint(1).clarifying_question.expect("a question");
    assert!(question.contains("lookup/lookup") && question.contains("sleep_ms"), "{question}");
    assert_eq!(hint(2).reason, RetryReason::InvalidArguments);
    assert_eq!(run.state.tool_calls, 0, "none of them was executed");
}

#[tokio::test]
async fn the_same_tool_is_refused_under_a_read_only_policy_and_the_rule_is_told() {
    let house = Builder::new(POLICY).file("docs/a.md", "text").open().await;
    let write = json!({ "path": "docs/a.md", "contents": "changed", "mode": "replace" });
    let script = Script::new().call("w", "workspace/write", write).then().reply("refused");
    let id = house.spawn(&house.request("reader", &script.task())).await;
    house.end(&id).await;
    let outputs = outputs(&house, &id).await;
    assert_eq!(failure(&outputs[0]).error.code.as_deref(), Some("denied"), "{outputs:?}");
    let decision = house.event(&id, |one| one.event.kind() == "policy_decision").await;
    let Event::PolicyDecision { capability, subject, rule, .. } = decision.event else {
        panic!("another event")
    };
    assert_eq!((capability.as_str(), subject.as_str()), ("workspace-write", "docs/a.md"));
    assert!(rule.contains("workspace-write: **") && rule.contains("taskrun.toml:"), "{rule}");
    let text = std::fs::read_to_string(house.path().join("docs/a.md")).expect("still there");
    assert_eq!(text, "text");
}

#[tokio::test]
async fn a_run_that_takes_longer_than_it_may_has_failed() {
    let clock = Arc::new(SimulatedClock::new(Timestamp(1_000)));
    let house = Builder::new(POLICY).clock(clock.clone()).open().await;
    let timeout = Duration::from_secs(7);
    let request = SpawnRequest {
        timeout: Some(timeout),
        ..house.request("worker", &Script::new().block().task())
    };
    let id = house.spawn(&request).await;
    house.reach(&id, Status::Running).await;
    let (run, passed) = clock.run_until(timeout, house.end(&id)).await;
    let view = RunView::from(&run);
    assert_eq!((view.status, view.stop_reason), (Status::Failed, Some(StopReason::RunTimeout)));
    assert!(view.error.is_some_and(|error| error.contains("deadline exceeded")));
    assert_eq!(passed, timeout);
}

#[tokio::test]
async fn ws_25_by_the_clock_on_the_wall_the_slot_is_free_when_the_time_is_up() {
    // Without a time-out it would be there for ever, and the next one would wait for ever.
    let house = Builder::new(POLICY).slots(1).open().await;
    let timeout = Duration::from_secs(1);
    let blocked = SpawnRequest {
        timeout: Some(timeout),
        ..house.request("worker", &Script::new().block().task())
    };
    let id = house.spawn(&blocked).await;
    house.reach(&id, Status::Running).await;
    let next = house.spawn(&house.request("worker", &Script::new().reply("next").task())).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!((view.status, view.stop_reason), (Status::Failed, Some(StopReason::RunTimeout)));
    let error = view.error.expect("why");
    assert!(error.contains("task timed out"), "{error}");
    assert!(view.duration_ms >= Some(1_000), "not before its time: {:?}", view.duration_ms);
    let next = RunView::from(&house.end(&next).await);
    assert_eq!(next.status, Status::Completed);
    assert!(next.started_at >= view.finished_at, "one slot: {next:?}");
}

#[tokio::test]
async fn a_guest_that_hears_the_cancellation_is_given_its_grace() {
    let clock = Arc::new(SimulatedClock::new(Timestamp(1_000)));
    let house = Builder::new(POLICY).clock(clock.clone()).open().await;
    // It would go on for an hour; the grace is five seconds.
    let script = Script::new().delta("begun").ignore_cancel(3_600_000);
    let id = house.spawn(&house.request("worker", &script.task())).await;
    // A guest that has not begun when its run is canceled has nothing to end, and no grace.
    house.event(&id, |one| one.event.kind() == "assistant_chunk").await;
    house.client().cancel(&id, None).await.expect("answers");
    assert_eq!(house.client().get(&id).await.expect("there").status(), Status::Canceling);
    // The guest sleeps in slices, so that time passes also before its grace begins and after that.
    let (run, passed) = clock.run_until(Duration::from_secs(60), house.end(&id)).await;
    assert_eq!(run.status(), Status::Canceled);
    assert!(passed >= Duration::from_secs(5), "{passed:?}");
}

#[tokio::test]
async fn state_lives_from_step_to_step_and_not_from_run_to_run() {
    let house = Builder::new(POLICY).open().await;
    let script = Script::new()
        .raw(json!({ "set": ["k", "kept"] }))
        .call("c", "lookup/lookup", json!({ "result": 1 }))
        .then()
        .raw(json!({ "get": "k" }));
    let run = house.run("worker", &script.task()).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("kept"), "{run:?}");
    let other = Script::new().raw(json!({ "get": "k" })).reply("nothing").task();
    let run = house.run("worker", &other).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("nothing"));
}

#[tokio::test]
async fn a_model_is_asked_by_the_host_and_its_tokens_are_counted() {
    let house = Builder::new(POLICY).open().await;
    let run = house.run("talker", "one two three").await;
    assert_eq!(run.state.reply.result().as_deref(), Some("one two three"), "{run:?}");
    assert_eq!(run.state.progress.completion_tokens, 3);
    let chunks = house.journal(run.id().as_str()).await;
    let chunks = chunks.iter().filter(|one| one.event.kind() == "assistant_chunk").count();
    assert!(chunks > 0, "the answer was streamed");
}

#[tokio::test]
async fn the_same_key_with_the_same_request_gives_the_same_run() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        let request = SpawnRequest {
            idempotency_key: Some("once".into()),
            ..house.request("worker", "hello")
        };
        let id = house.spawn(&request).await;
        assert_eq!(house.spawn(&request).await, id);
        let other = SpawnRequest { task: "another".into(), ..request };
        let error = house.client().spawn(&other).await.expect_err("taken");
        assert_eq!(error.code(), "already-exists");
    }
}

#[tokio::test]
async fn closing_cancels_what_runs_and_accepts_nothing_more() {
    let house = Builder::new(POLICY).open().await;
    let request = house.request("worker", &Script::new().block().task());
    let id = house.spawn(&request).await;
    house.reach(&id, Status::Running).await;
    let closed = house.controller.close(Duration::from_secs(30)).await;
    assert_eq!(closed.stragglers, []);
    let view = RunView::from(&house.client().get(&id).await.expect("there"));
    assert_eq!((view.status, view.stop_reason), (Status::Canceled, Some(StopReason::HostShutdown)));
    assert_eq!((view.error, view.summary.as_deref()), (None, Some("canceled")));
    let error = house.client().spawn(&request).await.expect_err("closed");
    assert_eq!(error.code(), "closed");
}

#[tokio::test]
async fn a_refusal_is_no_longer_than_its_reader_can_bear() {
    let house = Builder::new(POLICY).open().await;
    let many: serde_json::Map<_, _> = (0..5_000).map(|i| (format!("key-{i}"), json!(i))).collect();
    let script = Script::new().call("c", "lookup/lookup", many.into()).then().reply("went on");
    let id = house.spawn(&house.request("worker", &script.task())).await;
    assert_eq!(house.end(&id).await.status(), Status::Completed);
    let outputs = outputs(&house, &id).await;
    let failure = failure(&outputs[0]);
    let hint = failure.retry_hint.as_ref().expect("a hint");
    assert!(failure.error.message.len() < 4_096, "{} bytes", failure.error.message.len());
    assert_eq!(hint.prior_input, None, "too long to be handed back");
}

#[tokio::test]
async fn nobody_starts_a_run_in_the_name_of_another() {
    let house = Builder::new(POLICY).open().await;
    let request =
        SpawnRequest { idempotency_key: Some("key".into()), ..house.request("worker", "hello") };
    let own = house.scope.clone().owner("user-a").session("parent-a");
    house.controller.at(&own).spawn(&request).await.expect("their own");
    for other in [house.scope.clone().owner("user-b"), house.scope.clone().session("parent-b")] {
        let error = house.controller.at(&other).spawn(&request).await.expect_err("not theirs");
        assert_eq!(error.code(), "forbidden");
    }
    // The same key of another owner has nothing to do with it.
    let theirs = SpawnRequest { owner_user_id: "user-b".into(), ..request };
    house.client().spawn(&theirs).await.expect("a run of its own");
}

#[tokio::test]
async fn a_time_out_is_seen_however_fast_the_calls_are() {
    let clock = Arc::new(SimulatedClock::new(Timestamp(1_000)));
    let house = Builder::new(POLICY).clock(clock.clone()).open().await;
    // Each wait is shorter than the time-out; together they are longer.
    let script = Script::new()
        .sleep(600)
        .call("c", "lookup/lookup", json!({ "result": 1 }))
        .then()
        .sleep(600)
        .reply("too late");
    let request = SpawnRequest {
        timeout: Some(Duration::from_secs(1)),
        ..house.request("worker", &script.task())
    };
    let id = house.spawn(&request).await;
    let (run, _) = clock.run_until(Duration::from_secs(2), house.end(&id)).await;
    let view = RunView::from(&run);
    assert_eq!((view.status, view.stop_reason), (Status::Failed, Some(StopReason::RunTimeout)));
}
