//! Cases 1, 2, 7 to 10, 15, 21, 25, 47 and 70: time, memory, stack and results.

use serde_json::json;
use taskrun_engine::{AgentGrants, LoadError};
use taskrun_journal::event::Event;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::stop::CallAbort;
use taskrun_policy::Policy;
use taskrun_tests::engine;

use super::{call, call_by, code, evil_house, neighbour_is_served, one_call, output};

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: u64 = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * rustix::param::page_size() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_01_an_endless_call_ends_at_its_deadline() {
    let house = evil_house().await;
    assert_eq!(code(&call(&house, "evil/spin", json!({})).await), "deadline");
    neighbour_is_served(&house).await;

    let run = RunView::from(&house.run("evil", "spin").await);
    assert_eq!(run.status, Status::Failed);
    assert_eq!(run.stop_reason, Some(StopReason::TurnTimeout));
    assert_eq!(run.failure, Some(CallAbort::Deadline { limit_ms: 500 }));
    assert!(run.error.is_some_and(|text| text.contains("deadline exceeded")));
    neighbour_is_served(&house).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_01_more_endless_guests_than_cores_end_when_canceled() {
    let house = evil_house().await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(house.spawn(&house.request("patient_evil", "spin")).await);
    }
    for id in &ids {
        house.reach(id, Status::Running).await;
    }
    neighbour_is_served(&house).await;
    for id in &ids {
        let canceled = house.client().cancel(id, None).await.expect("answers");
        assert!(canceled.changed);
    }
    for id in &ids {
        assert_eq!(house.end(id).await.status(), Status::Canceled);
    }
    neighbour_is_served(&house).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_02_a_tool_that_spins_in_describe_does_not_load() {
    let text = "[agent.a]\ncomponent = \"x.wasm\"\n";
    let policy = Policy::parse(text, "taskrun.toml".as_ref()).expect("valid");
    let engine = engine();
    let bytes = taskrun_examples::evil::DESCRIBE.bytes.to_vec();
    let loaded = engine.load(bytes).await.expect("it is a tool like any other");
    let grants = AgentGrants::of_agent(&policy.agents["a"]);
    let error = match engine.tool(&loaded, grants).await {
        Ok(_) => panic!("it spins in describe"),
        Err(error) => error,
    };
    assert!(matches!(&error, LoadError::Describe(CallAbort::Deadline { .. })), "{error:?}");
    neighbour_is_served(&evil_house().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_09_a_guest_parked_in_a_host_call_is_canceled() {
    let house = evil_house().await;
    let parked =
        [("patient_evil", "park".to_owned()), ("patient", one_call("evil/park", json!({})))];
    for (agent, task) in parked {
        let id = house.spawn(&house.request(agent, &task)).await;
        if agent == "patient" {
            house.event(&id, |one| one.event.kind() == "tool_call_scheduled").await;
        } else {
            house.reach(&id, Status::Running).await;
        }
        let canceled = house.client().cancel(&id, None).await.expect("answers");
        assert!(canceled.changed);
        let ended = RunView::from(&house.end(&id).await);
        assert_eq!(ended.status, Status::Canceled, "{ended:?}");
        assert_eq!(ended.stop_reason, Some(StopReason::CanceledByOwner));
        neighbour_is_served(&house).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_10_a_guest_parked_in_a_host_call_meets_its_deadline() {
    let house = evil_house().await;
    assert_eq!(code(&call(&house, "evil/park", json!({})).await), "deadline");
    let run = RunView::from(&house.run("evil", "park").await);
    assert_eq!(run.failure, Some(CallAbort::Deadline { limit_ms: 500 }));
    neighbour_is_served(&house).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_15_memory_beyond_the_limit_ends_the_call_and_comes_back() {
    let house = evil_house().await;
    // The first round warms pools and caches.
    assert_eq!(code(&call_by(&house, "patient", "evil/grow", json!({})).await), "memory");
    let before = resident();
    for _ in 0..8 {
        assert_eq!(code(&call_by(&house, "patient", "evil/grow", json!({})).await), "memory");
    }
    let run = RunView::from(&house.run("patient_evil", "grow").await);
    assert_eq!(run.failure, Some(CallAbort::Memory { limit_bytes: 64 << 20 }));
    assert_eq!(run.stop_reason, Some(StopReason::AgentTrap));
    let grown = resident().saturating_sub(before);
    // Nine guests took 64 MiB each. Other tests of this process run meanwhile and may hold a few.
    assert!(grown < 9 * (64 << 20) / 2, "{grown} bytes are still resident");
    neighbour_is_served(&house).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_21_a_stack_overflow_ends_the_call() {
    let house = evil_house().await;
    for name in ["evil/overflow", "evil/overflow_in_host_call"] {
        assert_eq!(code(&call_by(&house, "patient", name, json!({})).await), "stack", "{name}");
        neighbour_is_served(&house).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_25_a_huge_result_ends_the_call() {
    let house = evil_house().await;
    // As large as memory allows, just over the limit, and a small one that is a million times
    // the same: none may make the host as large as it claims to be.
    let table = [
        ("evil/big_result", json!({}), "memory"),
        ("evil/big_result", json!({ "mib": 50 }), "limit"),
        ("evil/big_result", json!({ "mib": 2 }), "limit"),
        ("evil/alias_result", json!({ "mib": 8 }), "limit"),
    ];
    for (name, args, reason) in table {
        let outcome = call_by(&house, "patient", name, args.clone()).await;
        assert_eq!(code(&outcome), reason, "{name} {args}: {outcome:?}");
        neighbour_is_served(&house).await;
    }
    let run = house.run("patient", &one_call("evil/big_result", json!({ "mib": 0 }))).await;
    assert_eq!(output(&house, &run).await.result_bytes, 2, "what fits is answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_47_a_flood_of_events_is_cut_and_said_to_be() {
    let house = evil_house().await;
    let run = house.run("terse_evil", "flood").await;
    assert_eq!(run.state.reply.result().as_deref(), Some("flooded"));
    let journal = house.journal(run.id().as_str()).await;
    assert!(journal.len() < 120, "{} events", journal.len());
    let dropped = journal.iter().any(|one| {
        let Event::Log { source, message, .. } = &one.event else { return false };
        source == "host" && message.contains("events over the limit of the call were dropped")
    });
    assert!(dropped, "the log says that events are missing");
    neighbour_is_served(&house).await;
}

/// Each way to be ended, with the words that the caller is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_70_what_is_said_of_an_end_names_no_place_of_the_host() {
    let house = evil_house().await;
    let folder = house.path();
    let folder = folder.to_str().expect("UTF-8");
    for name in ["evil/panic", "evil/overflow", "evil/grow", "evil/lie", "evil/unbounded"] {
        let run = house.run("patient", &one_call(name, json!({}))).await;
        let said = serde_json::to_string(&output(&house, &run).await).expect("JSON");
        for part in [folder, "/tmp", "wasm backtrace", "wasm[", "0x", ".wasm", "wasmtime"] {
            assert!(!said.contains(part), "{name}: {part} in {said}");
        }
    }
    for task in ["panic", "grow", "bad-name"] {
        let view = RunView::from(&house.run("patient_evil", task).await);
        let said = format!("{:?} {:?} {:?}", view.failure, view.error, view.summary);
        for part in [folder, "/tmp", "wasm backtrace", "wasm[", "0x", ".wasm", "wasmtime"] {
            assert!(!said.contains(part), "{task}: {part} in {said}");
        }
    }
    neighbour_is_served(&house).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_breaks_its_contract_fails_with_a_reason() {
    let house = evil_house().await;
    assert_eq!(code(&call_by(&house, "patient", "evil/lie", json!({})).await), "contract");
    assert_eq!(code(&call_by(&house, "patient", "evil/unbounded", json!({})).await), "contract");
    assert_eq!(code(&call_by(&house, "patient", "evil/panic", json!({})).await), "trap");
    let table = [
        ("empty-calls", StopReason::PlannerError),
        ("empty-await", StopReason::PlannerError),
        ("same-ids", StopReason::PlannerError),
        ("tool-result", StopReason::PlannerError),
        // So many that the list itself is over the limit on results.
        ("many-calls", StopReason::AgentTrap),
    ];
    for (task, reason) in table {
        let run = RunView::from(&house.run("patient_evil", task).await);
        assert_eq!(run.status, Status::Failed, "{task}: {run:?}");
        assert_eq!(run.stop_reason, Some(reason), "{task}: {run:?}");
    }
    neighbour_is_served(&house).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_07_too_many_host_calls_end_the_call() {
    let house = evil_house().await;
    for (count, answers) in [(990, true), (1_001, false)] {
        let task = one_call("evil/slow_host_calls", json!({ "count": count }));
        let run = house.run("talkative", &task).await;
        let outcome = output(&house, &run).await.outcome;
        match answers {
            true => assert_eq!(super::value(&outcome), json!(count)),
            false => assert_eq!(code(&outcome), "limit"),
        }
        neighbour_is_served(&house).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_08_a_flood_of_lines_is_cut_and_said_to_be() {
    let house = evil_house().await;
    let flood = json!({ "lines": 20_000, "bytes": 1_000 });
    let task = one_call("evil/log_flood", flood);
    let run = house.run("patient", &task).await;
    assert_eq!(run.status(), Status::Completed);
    let journal = house.journal(run.id().as_str()).await;
    let lines = journal.iter().filter(|one| one.event.kind() == "log").count();
    assert!((500..2_000).contains(&lines), "{lines} lines of 1,000 bytes in 1 MiB");
    let dropped = journal.iter().any(|one| {
        let Event::Log { source, message, .. } = &one.event else { return false };
        source == "host" && message.contains("events over the limit of the call were dropped")
    });
    assert!(dropped, "the log says that lines are missing");
    neighbour_is_served(&house).await;
}
