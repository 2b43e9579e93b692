//! Real components that are called as tools by another one.

use serde_json::{Value, json};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::Strategy;
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
        "timeout_ms": 60_000, "turn_calls": 5, "tool_failures": 2, "wall_ms": 50_000,
        "timeouts": { "workspace/*": 3_000 }, "step_ms": 70_000, "last_step_ms": 9_000,
        "no_pause": true,
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
    assert_eq!((spec.narrow.turn_calls, spec.narrow.tool_failures), (Some(5), Some(2)));
    assert_eq!(spec.narrow.wall_ms, Some(50_000));
    assert_eq!(spec.narrow.timeouts, [("workspace/*".to_owned(), 3_000)].into());
    assert_eq!((spec.narrow.step_ms, spec.narrow.last_step_ms), (Some(70_000), Some(9_000)));
    assert!(spec.narrow.no_pause);
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

#[tokio::test]
async fn m_56_a_component_says_how_an_outcome_is_delivered_and_names_nobody_that_it_may_not() {
    let policy = format!(
        "{BOUNDED}conversation = \"session\"\n[agent.other]\n\
         component = \"components/scripted.wasm\"\nconversation = \"session\"\n"
    );
    let house = Builder::new(&policy).slots(1).open().await;
    let spawn = |more: Value| {
        let mut spawn = json!({ "agent": "writer", "task": Script::new().reply("x").task() });
        let more = more.as_object().cloned().unwrap_or_default();
        spawn.as_object_mut().expect("an object").extend(more);
        spawn
    };
    let script = Script::new()
        .call("1", "delegate/spawn", spawn(json!({ "deliver": "queued", "notify": "writer" })))
        .then()
        .call("2", "delegate/spawn", spawn(json!({ "deliver": "none", "key": "2" })))
        .then()
        .call("3", "delegate/spawn", spawn(json!({ "deliver": "immediate", "notify": "other" })))
        .call("4", "delegate/spawn", spawn(json!({ "deliver": "queued", "attached": true })))
        .then()
        .raw(json!("reply_input"));
    let request = SpawnRequest { converses: true, ..house.request("lead", &script.task()) };
    let id = house.spawn(&request).await;
    let run = house.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    let mut beneath = house.client().tree(&id).await.expect("there").descendants;
    beneath.sort_by_key(|run| run.spec.delivery.is_none());
    let [told, untold] = beneath.as_slice() else { panic!("{beneath:?}") };
    let delivery = told.spec.delivery.clone().expect("somebody is told");
    assert_eq!(Some(delivery.strategy), Strategy::of_word("queued"));
    assert_eq!(delivery.conversation.expect("a conversation").agent, "writer");
    assert_eq!(untold.spec.delivery, None);
    let refused = outputs(&house, &run).await.into_iter().filter_map(|output| {
        let ToolOutcome::Failure(failure) = output.outcome else { return None };
        Some((output.tool_call_id, failure.error.code.unwrap_or_default()))
    });
    let refused: std::collections::BTreeMap<_, _> = refused.collect();
    let codes: Vec<_> = refused.values().map(String::as_str).collect();
    assert_eq!(codes, ["forbidden", "invalid"], "{refused:?}");
}
