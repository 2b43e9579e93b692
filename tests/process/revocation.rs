//! Rights that are taken away from a tool while it uses them without end, or by tags from runs that
//! were accepted before.

use serde_json::{Value, json};
use taskrun_examples::evil;

use crate::explain::{ask, edit};
use crate::explain_runs::waits;
use crate::project::Project;

const POLICY: &str = r#"[tool.evil]
component = "components/evil-tool.wasm"

[tool.wasi]
component = "components/evil-wasi.wasm"

[agent.writer]
component = "components/scripted.wasm"
tools = ["evil/fill", "wasi/*"]
limits = { host_calls = 10000000, call = "120s" }
allow = [
    "workspace-read: notes/**",
    "workspace-write: notes/**",
]
"#;
const WRITING: &str = "    \"workspace-write: notes/**\",\n";

/// Begins a call that writes without end, takes the right away, where the component of its agent may be
/// missing by then, and gives the events of the run once it has ended by itself.
fn taken_away(
    function: &str,
    args: &serde_json::Value,
    is_missing: bool,
) -> Vec<serde_json::Value> {
    let project = Project::new();
    project.write("components/evil-tool.wasm", evil::TOOL.bytes);
    project.write("components/evil-wasi.wasm", evil::WASI.bytes);
    project.write("taskrun.toml", POLICY.as_bytes());
    std::fs::create_dir(project.path().join("notes")).expect("made");
    let call = json!({ "call": { "id": "c", "name": function, "args": args } });
    let steps = json!({ "steps": [[call], [{ "reply": "thanks" }]] }).to_string();
    let id = project.run(&["run", "writer", &steps, "-d"]).id();
    let notes = project.path().join("notes");
    project
        .until("it writes", || std::fs::read_dir(&notes).is_ok_and(|mut all| all.next().is_some()));
    let host = project.hosts();
    if is_missing {
        std::fs::remove_file(project.path().join("components/scripted.wasm")).expect("it is there");
        let log = project.path().join(".taskrun/host.log");
        let is_told = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("left out"));
        project.until("the host has noticed", is_told);
    }
    project.write("taskrun.toml", POLICY.replace(WRITING, "").as_bytes());
    let run = project.ends_by_itself(&id);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("thanks")), "{run}");
    assert_eq!(project.hosts(), host, "the host is the same");
    project.events(&id)
}

fn check(events: &[serde_json::Value]) -> String {
    let denied: Vec<_> = events.iter().filter(|event| event["kind"] == "policy_decision").collect();
    let [denied] = denied[..] else { panic!("{denied:?}") };
    let text = denied.to_string();
    assert!(text.contains("workspace-write") && text.contains("taskrun.toml:7"), "{text}");
    let calls = events.iter().filter(|event| event["kind"] == "tool_call_scheduled").count();
    assert_eq!(calls, 1, "it was called once");
    let result = events.iter().find(|event| event["kind"] == "tool_result").expect("a result");
    result.to_string()
}

#[test]
fn a_tool_that_writes_files_by_the_interface_is_refused_the_next() {
    let fill = json!({ "how": "replace", "folder": "notes", "files": 1_000_000, "bytes": 8 });
    let result = check(&taken_away("evil/fill", &fill, false));
    assert!(result.contains("denied") && result.contains("done"), "{result}");
}

#[test]
fn a_right_is_taken_away_also_while_the_component_of_the_agent_is_missing() {
    let fill = json!({ "how": "replace", "folder": "notes", "files": 1_000_000, "bytes": 8 });
    let result = check(&taken_away("evil/fill", &fill, true));
    assert!(result.contains("denied") && result.contains("done"), "{result}");
}

#[test]
fn a_tool_that_writes_to_an_open_file_of_wasi_is_stopped() {
    let attempts = json!({ "attempts": [{ "op": "write-on", "path": "/notes/a" }] });
    let result = check(&taken_away("wasi/attempt", &attempts, false));
    assert!(result.contains("denied") && result.contains("a rule was taken away"), "{result}");
}

const TAGGED: &str = r#"[tool.scripted]
component = "components/scripted-tool.wasm"
tags = ["look"]

[agent.asking]
component = "components/scripted.wasm"
tools = ["scripted/*"]
ask = ["tag: test"]

[agent.blocking]
component = "components/scripted.wasm"
tools = ["scripted/*"]
policy = { block_tags = ["danger"] }

[agent.allowing]
component = "components/scripted.wasm"
tools = ["scripted/*"]
policy = { allow_tags = ["look"] }
"#;

/// A run that asks something, and then calls a tool.
fn asks_and_calls(project: &Project, agent: &str, more: &[&str]) -> String {
    let call = json!({ "call": { "id": "c", "name": "scripted/change", "args": {} } });
    waits(project, agent, more, &[json!([call]), json!([{ "reply": "thanks" }])])
}

/// Answers a run, and gives the code with which the wait for it ends.
fn goes_on(project: &Project, id: &str) -> i32 {
    let answered = project.run(&["answer", id, "which", "Q3"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    project.run(&["wait", id]).code
}

fn verdict(project: &Project, id: &str) -> Value {
    let call = ["--run", id, "--cap", "tool", "--arg", "name=scripted/change"];
    ask(project, &call).json()["verdict"].clone()
}

#[test]
fn tags_of_now_take_away_from_runs_of_before_and_those_of_then_go_on_to() {
    let project = Project::new();
    project.write("taskrun.toml", TAGGED.as_bytes());
    let [asking, blocking, allowing] =
        ["asking", "blocking", "allowing"].map(|agent| asks_and_calls(&project, agent, &[]));
    let denied = asks_and_calls(&project, "asking", &["--deny-tag", "danger"]);
    let kept = asks_and_calls(&project, "asking", &["--deny-tag", "look"]);
    project.end_hosts();
    // The first tag is what the tool says of itself, as soon as the policy says nothing.
    edit(&project, "tags = [\"look\"]\n", "");
    assert_eq!(verdict(&project, &asking), "ask");
    assert_eq!(goes_on(&project, &asking), 8, "somebody is asked");
    let item = project.run(&["inbox", "-o", "json"]).json()["items"].to_string();
    assert!(item.contains("confirm:2:c"), "{item}");
    project.end_hosts();
    edit(&project, "[agent.asking]", "tags = [\"danger\"]\n\n[agent.asking]");
    for id in [&blocking, &allowing, &denied, &kept] {
        assert_eq!(verdict(&project, id), "denied", "{id}");
        goes_on(&project, id);
        let events = project.events(id);
        let calls = events.iter().filter(|event| event["kind"] == "tool_call_scheduled").count();
        assert_eq!(calls, 0, "{events:?}");
    }
}
