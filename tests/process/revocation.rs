//! Rights that are taken away from a tool while it uses them without end.

use serde_json::json;
use taskrun_examples::evil;

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
