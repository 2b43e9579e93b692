//! Real components that are called as tools by another one.

use serde_json::json;
use taskrun_journal::event::Event;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};
use taskrun_tests::{Builder, House, Script};

const POLICY: &str = r#"
[tool.workspace]
component = "components/workspace.wasm"

[agent.lead]
component = "components/scripted.wasm"
tools = ["agent/worker", "agent/writer"]
allow = ["workspace-read: docs/**"]

[agent.worker]
component = "components/scripted.wasm"
description = "Does as it is told."

[agent.writer]
component = "components/scripted.wasm"
tools = ["workspace/write"]
allow = ["workspace-read: **", "workspace-write: **"]
"#;

async fn outputs(house: &House, run: &Run) -> Vec<ToolOutput> {
    let journal = house.journal(run.id().as_str()).await.into_iter();
    let results = journal.filter_map(|recorded| {
        let Event::ToolResult { output, .. } = recorded.event else { return None };
        Some(*output)
    });
    results.collect()
}

fn task(script: &Script) -> serde_json::Value {
    json!({ "request": script.task() })
}

#[tokio::test]
async fn l_047_an_agent_calls_two_others_at_once_and_reads_what_they_gave() {
    let house = Builder::new(POLICY).slots(1).open().await;
    let script = Script::new()
        .call("one", "agent/worker", task(&Script::new().reply("first")))
        .call("two", "agent/worker", task(&Script::new().err("second")))
        .then()
        .raw(json!("reply_input"));
    let id = house.spawn(&house.request("lead", &script.task())).await;
    let run = house.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    let outputs = outputs(&house, &run).await;
    assert_eq!(outputs[0].outcome, ToolOutcome::Value("\"first\"".to_owned()));
    let ToolOutcome::Failure(failure) = &outputs[1].outcome else { panic!("{outputs:?}") };
    assert_eq!(failure.error.message, "agent/worker: agent_error: second");
    // The planner is told which runs did the work.
    let seen = run.state.reply.result().expect("what the planner was given");
    for output in &outputs {
        let link = output.run_link.as_deref().expect("a run");
        assert!(seen.contains(link), "{link} in {seen}");
    }
}

#[tokio::test]
async fn m_12_an_agent_that_is_called_may_do_no_more_than_its_caller() {
    let house = Builder::new(POLICY).open().await;
    let write = json!({ "path": "docs/new.md", "contents": "x" });
    let writes = Script::new().call("w", "workspace/write", write).then().raw(json!("reply_input"));
    let script = Script::new().call("c", "agent/writer", task(&writes)).then().reply("done");
    let run = house.run("lead", &script.task()).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    let outputs = outputs(&house, &run).await;
    let ToolOutcome::Value(said) = &outputs[0].outcome else { panic!("{outputs:?}") };
    assert!(said.contains("denied"), "{said}");
}

const BOUNDED: &str = r#"
[tool.delegate]
component = "components/delegate.wasm"

[tool.workspace]
component = "components/workspace.wasm"

[agent.lead]
component = "components/scripted.wasm"
tools = ["delegate/*"]
members = ["writer"]
allow = ["controller: *", "workspace-read: **", "workspace-write: **"]

[agent.writer]
component = "components/scripted.wasm"
tools = ["workspace/write", "workspace/read"]
allow = ["workspace-read: **", "workspace-write: **"]
"#;

#[tokio::test]
async fn c_069_a_component_narrows_names_attaches_and_bounds_what_it_starts() {
    // One slot, which the child gets when its parent has ended.
    let house = Builder::new(BOUNDED).slots(1).open().await;
    let write = json!({ "path": "a.md", "contents": "x" });
    let writes = Script::new().call("w", "workspace/write", write).then().raw(json!("reply_input"));
    let spawn = json!({
        "agent": "writer", "task": writes.task(), "name": "scribe", "attached": false,
        "tools": ["workspace/read"], "deny": ["workspace-write: **"], "turns": 7, "tokens": 900,
        "timeout_ms": 60_000,
    });
    let attached = json!({ "agent": "writer", "task": "x", "name": "scribe", "attached": true });
    let wrong = json!({ "agent": "writer", "task": "x", "name": "9 lives" });
    let gives = json!({ "agent": "writer", "task": "x", "tools": ["fetch/get"] });
    let script = Script::new()
        .call("1", "delegate/spawn", spawn)
        .then()
        .call("2", "delegate/spawn", attached)
        .call("3", "delegate/spawn", wrong)
        .call("4", "delegate/spawn", gives)
        .then()
        .raw(json!("reply_input"));
    let id = house.spawn(&house.request("lead", &script.task())).await;
    let run = house.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    let tree = house.client().tree(&id).await.expect("there");
    let [child] = tree.descendants.as_slice() else { panic!("{:?}", tree.descendants) };
    let spec = &child.spec;
    assert_eq!(spec.name.as_deref(), Some("scribe"));
    assert!(!spec.attached);
    assert_eq!(spec.timeout_ms, Some(60_000));
    assert_eq!((spec.narrow.turns, spec.narrow.tokens), (Some(7), Some(900)));
    assert_eq!(spec.narrow.deny, ["workspace-write: **"]);
    let child = house.end(child.id().as_str()).await;
    let said = child.state.reply.result().expect("it says what it was told");
    assert!(said.contains("tool not available: workspace/write"), "{said}");
    let refused = outputs(&house, &run).await.into_iter().filter_map(|output| {
        let ToolOutcome::Failure(failure) = output.outcome else { return None };
        Some((output.tool_call_id, failure.error.code.unwrap_or_default()))
    });
    let refused: std::collections::BTreeMap<_, _> = refused.collect();
    let codes: Vec<_> = refused.values().map(String::as_str).collect();
    assert_eq!(codes, ["already-exists", "invalid", "invalid"], "{refused:?}");
}
