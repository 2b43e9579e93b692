//! Agents that do not load, as those who call them are told of it, and as people are.

use serde_json::{Value, json};
use taskrun_examples::evil;

use crate::project::Project;

const POLICY: &str = r#"
[tool.scripted]
component = "components/scripted-tool.wasm"

[tool.silent]
component = "components/evil-describe.wasm"

[agent.lacking]
component = "components/scripted.wasm"
tools = ["scripted/nosuch"]

[agent.silent]
component = "components/scripted.wasm"
tools = ["silent/*"]

[agent.boss]
component = "components/scripted.wasm"
members = ["lacking", "silent"]
tools = ["agent/lacking", "agent/silent", "host/task_runs"]
allow = ["controller: *"]
limits = { call = "60s" }
"#;

fn call(id: &str, name: &str, args: &Value) -> Value {
    json!({ "call": { "id": id, "name": name, "args": args } })
}

#[test]
fn case_70_a_caller_is_told_why_an_agent_does_not_load_and_no_place_of_the_host() {
    let project = Project::new();
    project.write("components/evil-describe.wasm", evil::DESCRIBE.bytes);
    project.write("taskrun.toml", POLICY.as_bytes());
    let request = json!({ "request": "go on" });
    let start = json!({ "task": "go on", "agent_name": "lacking", "mode": "sync" });
    let script = json!({ "steps": [
        [call("l", "agent/lacking", &request), call("s", "agent/silent", &request)],
        [call("t", "host/start_task_run", &start)],
        [call("a", "host/list_task_runs", &json!({}))],
        [{ "reply": "done" }],
    ] });
    let id = project.run(&["run", "boss", &script.to_string(), "-d"]).id();
    assert_eq!(project.ends_by_itself(&id)["result"], "done");
    let events = project.events(&id);
    let results: Vec<&Value> =
        events.iter().filter(|event| event["kind"] == "tool_result").collect();
    assert_eq!(results.len(), 4, "{results:?}");
    let folder = project.path().to_str().expect("UTF-8");
    for result in &results {
        let output = result["output"].to_string();
        let place = [folder, ".toml", ".wasm"].into_iter().find(|place| output.contains(place));
        assert_eq!(place, None, "{output}");
        let why = match result["output"]["tool_call_id"].as_str() {
            Some("s") => "agent silent does not load: the tool did not describe itself",
            _ => "agent lacking does not load: tool scripted has no function",
        };
        assert!(output.contains(why), "{output}");
        // People are told where to look, with the run that was accepted.
        let run = result["output"]["run_link"].as_str();
        let id = result["output"]["tool_call_id"].as_str();
        assert!(run.is_some() || !matches!(id, Some("l" | "s")), "{result}");
        if let Some(run) = run {
            let error = project.get(run)["error"].as_str().unwrap_or_default().to_owned();
            assert!(error.contains("taskrun.toml:"), "{error}");
        }
    }
}
