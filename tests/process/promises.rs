//! Promises of tools, and what a call is told of the calls around it.

use serde_json::{Value, json};
use taskrun_examples::DELEGATE;

use crate::project::Project;

const POLICY: &str = r#"
[tool.scripted]
component = "components/scripted-tool.wasm"

[tool.delegate]
component = "components/delegate.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["scripted/*"]

[agent.asking]
component = "components/scripted.wasm"
tools = ["scripted/*"]
ask = ["tool: scripted/ids"]

[agent.caller]
component = "components/scripted.wasm"
tools = ["scripted/ids", "agent/worker"]
ask = ["tool: scripted/ids"]

[agent.boss]
component = "components/scripted.wasm"
tools = ["delegate/*"]
members = ["worker"]
allow = ["controller: *"]
"#;

fn project() -> Project {
    let project = Project::new();
    project.write("components/delegate.wasm", DELEGATE.bytes);
    project.write("taskrun.toml", POLICY.as_bytes());
    project
}

/// The outputs of the tool calls of a run that has ended, by the ids of the calls.
fn outputs(project: &Project, id: &str) -> Vec<Value> {
    let events = project.events(id);
    let results = events.iter().filter(|event| event["kind"] == "tool_result");
    results.map(|event| event["output"].clone()).collect()
}

/// A script that calls `name` as `c`, beneath `p`, and then ends.
fn beneath(name: &str, args: &Value) -> String {
    let call = json!({ "name": name, "id": "c", "parent": "p", "args": args });
    json!({ "steps": [[{ "plan": { "tool-calls": [call] } }], [{ "reply": "done" }]] }).to_string()
}

#[test]
fn l_011_a_result_that_does_not_fit_its_output_schema_is_a_failed_call_with_a_hint() {
    let project = project();
    let call = |id: &str, result: Value| json!({ "call": { "id": id, "name": "scripted/measure", "args": { "result": result } } });
    let steps = json!({ "steps": [
        [call("fits", json!({ "n": 1 })), call("text", json!({ "n": "1" })), call("none", json!({}))],
        [{ "reply": "done" }],
    ] });
    let id = project.run(&["run", "worker", &steps.to_string(), "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0, "the run goes on");
    let outputs = outputs(&project, &id);
    let of = |id: &str| {
        let output = outputs.iter().find(|output| output["tool_call_id"] == id).expect("a result");
        output["outcome"].clone()
    };
    assert_eq!(of("fits")["value"], "{\"n\":1}");
    for (id, says) in [("text", "n: \"1\" is not of type"), ("none", "n is required")] {
        let failure = &of(id)["failure"];
        assert_eq!(failure["error"]["code"], "contract", "{failure}");
        let message = failure["error"]["message"].as_str().expect("a text");
        assert!(message.contains("does not fit its schema") && message.contains(says), "{message}");
        assert_eq!(failure["retry_hint"]["reason"], "malformed_response");
        assert_eq!(failure["retry_hint"]["tool"], "scripted/measure");
    }
    let called = ["tool", "call", "scripted/measure", "{\"result\":{}}", "--agent", "worker"];
    let called = project.run(&called);
    assert_eq!(called.code, 5, "{called:?}");
    assert!(called.stderr.contains("n is required"), "{called:?}");
}

#[test]
fn l_010_a_call_knows_the_one_that_it_belongs_under_after_a_consent() {
    let project = project();
    let id = project.run(&["run", "asking", &beneath("scripted/ids", &json!({})), "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 8);
    let answered = project.run(&["answer", &id, "--accept", "--owner", "local"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    project.ends_by_itself(&id);
    let value = outputs(&project, &id)[0]["outcome"]["value"].clone();
    let value: Value = serde_json::from_str(value.as_str().expect("a value")).expect("JSON");
    assert_eq!(value["parent"], "p");
}

#[test]
fn l_010_a_call_knows_the_one_that_it_belongs_under_after_the_death_of_its_host() {
    let project = project();
    let slow = beneath("scripted/ids", &json!({ "sleep_ms": 8_000 }));
    let id = project.run(&["run", "worker", &slow, "-d"]).id();
    project.sees(&id, "tool_call_scheduled");
    assert!(project.kill_hosts() > 0, "somebody executed it");
    let waited = project.run(&["wait", &id]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let value = outputs(&project, &id)[0]["outcome"]["value"].clone();
    let value: Value = serde_json::from_str(value.as_str().expect("a value")).expect("JSON");
    assert_eq!(value["parent"], "p");
    let decided = project.events(&id).into_iter().find(|event| event["kind"] == "plan_decided");
    assert_eq!(decided.expect("a decision")["parents"], json!({ "c": "p" }));
}

#[test]
fn l_010_a_call_knows_the_one_that_it_belongs_under_beside_one_that_is_parked() {
    let project = project();
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let asks = json!({ "steps": [[{ "plan": { "await": [question] } }], [{ "reply": "x" }]] });
    let worker = json!({ "name": "agent/worker", "id": "k", "parent": "p",
        "args": { "request": asks.to_string() } });
    let ids = json!({ "name": "scripted/ids", "id": "c", "parent": "k" });
    let steps = json!([[{ "plan": { "tool-calls": [worker, ids] } }], [{ "reply": "done" }]]);
    let script = json!({ "steps": steps }).to_string();
    let id = project.run(&["run", "caller", &script, "-d"]).id();
    project.sees(&id, "tool_call_parked");
    project.until("it asks for consent", || {
        project.get(&id)["awaits"].as_array().is_some_and(|asked| !asked.is_empty())
    });
    assert_eq!(project.run(&["answer", &id, "--accept"]).code, 0);
    project.sees(&id, "tool_result");
    let child =
        project.sees(&id, "child_run_linked")["child_run_id"].as_str().expect("an id").to_owned();
    project.reach(&child, "blocked");
    assert_eq!(project.run(&["answer", &child, "that"]).code, 0);
    project.ends_by_itself(&id);
    let outputs = outputs(&project, &id);
    assert_eq!(outputs[0]["tool_call_id"], "c", "the other one waits");
    let value = outputs[0]["outcome"]["value"].as_str().expect("a value");
    assert_eq!(serde_json::from_str::<Value>(value).expect("JSON")["parent"], "k");
}

#[test]
fn l_011_the_runs_that_a_call_started_are_counted() {
    let project = project();
    let spawn = |id: &str, task: &str, key: &str| {
        let args = json!({ "agent": "worker", "task": task, "key": key });
        json!({ "call": { "id": id, "name": "delegate/spawn", "args": args } })
    };
    let list = json!({ "call": { "id": "l", "name": "delegate/list", "args": {} } });
    let steps = json!({ "steps": [[spawn("s", "one", "k")], [list], [{ "reply": "done" }]] });
    let id = project.run(&["run", "boss", &steps.to_string(), "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let counted: Vec<Value> = outputs(&project, &id)
        .iter()
        .map(|output| json!([output["tool_call_id"], output.get("children_count")]))
        .collect();
    assert_eq!(counted, [json!(["s", 1]), json!(["l", null])]);
}

#[test]
fn l_013_remarks_of_a_planner_are_events_with_their_labels() {
    let project = project();
    let step = json!({ "plan": { "final-response": "done", "notes": ["cheap", "quick"],
        "labels": { "k": "v" } } });
    let script = json!({ "ops": [{ "thought": "hm" }, step] }).to_string();
    let id = project.run(&["run", "worker", &script, "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let events = project.events(&id);
    let notes = events.iter().filter(|event| event["kind"] == "planner_note");
    let notes: Vec<Value> =
        notes.map(|event| json!([event["text"], event.get("labels")])).collect();
    let labels = json!({ "k": "v" });
    assert_eq!(notes, [json!(["hm", null]), json!(["cheap", labels]), json!(["quick", labels])]);
}
