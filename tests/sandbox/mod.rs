//! Hostile components, by the number of the case: what each tries, the typed reason that comes
//! out, that the host answers another tenant at once afterwards, and that memory returns.

mod aliases;
mod bytes;
mod cases;
mod deep;
mod delegation;
mod disk;
mod files;
mod imports;
mod limits;
mod neighbours;
mod wasi_disk;
mod wasi_files;

use serde_json::{Value, json};
use taskrun_journal::event::Event;
use taskrun_journal::list::Scope;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};
use taskrun_tests::{Builder, House, Script};

/// An agent that plays scripts and calls the evil tool, under limits that make tests short.
const EVIL: &str = r#"
[tool.evil]
component = "components/evil-tool.wasm"

[tool.honest]
component = "components/scripted-tool.wasm"

[agent.victim]
component = "components/scripted.wasm"
tools = ["evil/*", "honest/*"]
allow = ["workspace-read: docs/**"]
deny = ["workspace-write: **"]
limits = { call = "500ms", tool_calls = 100 }

[agent.patient]
component = "components/scripted.wasm"
tools = ["evil/*", "honest/*"]
allow = ["workspace-read: docs/**"]
deny = ["workspace-write: **"]
limits = { call = "10m", tool_calls = 100 }

[agent.honest]
component = "components/scripted.wasm"
tools = ["honest/*"]
budget = { turns = 100 }
limits = { tool_calls = 100 }

[agent.talkative]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: docs/**"]
deny = ["workspace-write: **"]
limits = { call = "10m", host_calls = 1000 }

[agent.evil]
component = "components/evil-agent.wasm"
limits = { step = "500ms" }

[agent.patient_evil]
component = "components/evil-agent.wasm"
limits = { step = "10m" }

[agent.terse_evil]
component = "components/evil-agent.wasm"
limits = { step = "10m", events = 100 }
"#;

async fn evil_house() -> House {
    Builder::new(EVIL).open().await
}

/// A script that makes one call and then says so.
fn one_call(name: &str, args: Value) -> String {
    Script::new().call("c1", name, args).then().reply("survived").task()
}

/// Lets the agent `victim` make one call, and gives its outcome. The agent must live on.
async fn call(house: &House, name: &str, args: Value) -> ToolOutcome {
    call_by(house, "victim", name, args).await
}

/// The same for another agent.
async fn call_by(house: &House, agent: &str, name: &str, args: Value) -> ToolOutcome {
    let run = house.run(agent, &one_call(name, args)).await;
    assert_eq!(run.status(), Status::Completed, "the agent lives on: {run:?}");
    output(house, &run).await.outcome
}

/// The result of the first tool call of a run.
async fn output(house: &House, run: &Run) -> ToolOutput {
    let journal = house.journal(run.id().as_str()).await;
    let found = journal.into_iter().find_map(|recorded| {
        let Event::ToolResult { output, .. } = recorded.event else { return None };
        Some(*output)
    });
    found.expect("a tool result")
}

/// The code of a failed call.
fn code(outcome: &ToolOutcome) -> &str {
    match outcome {
        ToolOutcome::Failure(failure) => failure.error.code.as_deref().unwrap_or("(none)"),
        ToolOutcome::Value(value) => panic!("an answer instead of a failure: {value:.200}"),
    }
}

/// The value of a call that answered.
fn value(outcome: &ToolOutcome) -> Value {
    match outcome {
        ToolOutcome::Value(value) => serde_json::from_str(value).expect("JSON"),
        ToolOutcome::Failure(failure) => panic!("a failure instead of an answer: {failure:?}"),
    }
}

/// Another tenant's call is answered.
async fn neighbour_is_served(house: &House) {
    let other = Scope::tenant("neighbour");
    let task = one_call("honest/lookup", json!({ "result": { "served": true } }));
    let run = house.controller.at(&other).spawn(&house.request("victim", &task)).await;
    let id = run.expect("accepted").id().to_string();
    let waited = house.controller.at(&other).wait(&id, None).await.expect("ends");
    assert_eq!(waited.run.status(), Status::Completed, "{:?}", waited.run);
    assert_eq!(waited.run.state.reply.result().as_deref(), Some("survived"));
}
