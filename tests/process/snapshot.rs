//! The work of a run so far, in one look.

use serde_json::{Value, json};

use crate::project::Project;

const POLICY: &str = r#"
[tool.scripted]
component = "components/scripted-tool.wasm"

[agent.worker]
component = "components/scripted.wasm"

[agent.boss]
component = "components/scripted.wasm"
tools = ["scripted/*", "agent/worker"]
ask = ["tool: scripted/change"]
limits = { tool_calls = 5 }
"#;

fn snapshot(project: &Project, id: &str) -> Value {
    let ran = project.run(&["get", id, "--calls", "-o", "json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.json()
}

fn call(id: &str, name: &str, args: &Value) -> Value {
    json!({ "call": { "id": id, "name": name, "args": args } })
}

/// The calls without their times and runs, each of which there is where it has to be.
fn calls(snapshot: &Value) -> Vec<Value> {
    let calls = snapshot["calls"].as_array().expect("calls");
    calls
        .iter()
        .map(|call| {
            let is_over = call["status"] == "completed" || call["status"] == "failed";
            assert_eq!(call["duration_ms"].is_u64(), is_over, "{call}");
            json!([call["tool_call_id"], call["tool_name"], call["status"], call["error_code"]])
        })
        .collect()
}

#[test]
fn l_089_a_look_at_a_run_shows_its_phase_its_calls_its_questions_its_pause_and_its_children() {
    let project = Project::new();
    project.write("taskrun.toml", POLICY.as_bytes());
    let fails = json!({ "fail": { "code": "gone", "message": format!("{} é", "x".repeat(300)) } });
    let question = json!({ "questions": { "id": "form", "tool-name": "t", "tool-call-id": "q",
        "title": "Paint", "questions": [{ "id": "colour", "prompt": "Which colour?",
        "options": [["r", "red"]] }] } });
    let outside = json!({ "external-tools": { "id": "crm", "items": [
        { "name": "crm/find", "tool-call-id": "o1" }, { "name": "crm/find", "tool-call-id": "o2" }] } });
    let script = json!({ "steps": [
        [call("ok", "scripted/lookup", &json!({})), call("bad", "scripted/lookup", &fails),
            call("kid", "agent/worker", &json!({ "request": "hello" }))],
        [call("ask", "scripted/change", &json!({}))],
        [{ "plan": { "await": [question, outside] } }],
        [call("none", "scripted/nothing", &json!({}))],
        [{ "reply": "done" }],
    ] });
    let id = project.run(&["run", "boss", &script.to_string(), "-d"]).id();

    assert_eq!(project.run(&["wait", &id]).code, 8, "it asks for consent");
    let seen = snapshot(&project, &id);
    assert_eq!((&seen["phase"], &seen["status"]), (&json!("executing_tools"), &json!("blocked")));
    let first = [
        json!(["ok", "scripted/lookup", "completed", null]),
        json!(["bad", "scripted/lookup", "failed", "gone"]),
        json!(["kid", "agent/worker", "completed", null]),
    ];
    let ask = |status: &str| json!(["ask", "scripted/change", status, null]);
    assert_eq!(calls(&seen), [&first[..], &[ask("waiting")]].concat());
    let error = seen["calls"][1]["error"].as_str().expect("a text");
    assert_eq!(error.chars().count(), 240, "{error}");
    let kid = &seen["children"][0];
    assert_eq!((&kid["agent_name"], &kid["status"]), (&json!("worker"), &json!("completed")));
    assert_eq!(
        (&kid["parent_tool_call_id"], &kid["id"]),
        (&json!("kid"), &seen["calls"][2]["child_run_id"])
    );

    let paused = project.run(&["pause", &id, "--reason", "lunch"]);
    assert_eq!(paused.code, 0, "{paused:?}");
    let seen = snapshot(&project, &id);
    assert_eq!(
        (&seen["phase"], &seen["paused"]["reason"]),
        (&json!("executing_tools"), &json!("lunch"))
    );
    project.run(&["resume", &id]);
    let answered = project.run(&["answer", &id, "--accept"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    assert_eq!(project.run(&["wait", &id]).code, 8, "it asks two things");
    let seen = snapshot(&project, &id);
    assert_eq!(seen["phase"], "executing_tools", "those outside are executed");
    assert_eq!(seen["awaits"][0]["id"], "form");
    let outside = |one: &str, other: &str| {
        [json!(["o1", "crm/find", one, null]), json!(["o2", "crm/find", other, null])]
    };
    let waiting = outside("waiting", "waiting");
    assert_eq!(calls(&seen), [&first[..], &[ask("completed")], &waiting].concat());

    let results = r#"{"o1": {"n": 1}, "o2": {"failure": "nobody is there"}}"#;
    assert_eq!(project.run(&["answer", &id, "crm", results]).code, 0);
    assert_eq!(snapshot(&project, &id)["phase"], "planning", "a form is no call");
    assert_eq!(project.run(&["answer", &id, "form", "colour=r"]).code, 0);
    project.ends_by_itself(&id);
    let seen = snapshot(&project, &id);
    assert_eq!(seen["phase"], "completed");
    let last = json!(["none", "scripted/nothing", "refused", "tool-unavailable"]);
    let given = outside("completed", "failed");
    assert_eq!(calls(&seen), [&first[..], &[ask("completed")], &given, &[last]].concat());

    let shown = project.run(&["get", &id, "--calls"]).stdout;
    for line in
        ["phase     completed", "bad scripted/lookup: failed after", "worker: completed, for kid"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(project.get(&id)["calls"].is_null(), "only where it is asked for");
}

#[test]
fn l_089_each_phase_of_a_run_has_its_word() {
    let project = Project::new();
    project.write("taskrun.toml", POLICY.as_bytes());
    let phase = |id: &str| snapshot(&project, id)["phase"].clone();
    let blocks = json!({ "ops": ["block"] }).to_string();
    let id = project.run(&["run", "worker", &blocks, "-d"]).id();
    project.reach(&id, "running");
    assert_eq!(phase(&id), "planning");
    project.run(&["cancel", &id]);
    project.run(&["wait", &id]);
    assert_eq!(phase(&id), "canceled");
    let fails = json!({ "ops": [{ "err": "no" }] }).to_string();
    let id = project.run(&["run", "worker", &fails, "-d"]).id();
    project.run(&["wait", &id]);
    assert_eq!(phase(&id), "failed");
    let last_word = json!({ "steps": [[call("a", "scripted/lookup", &json!({}))]],
        "finalize": ["block"] });
    let script = last_word.to_string();
    let id = project.run(&["run", "boss", &script, "-d", "--budget", "tool-calls=0"]).id();
    project.sees(&id, "finalize_requested");
    assert_eq!(phase(&id), "synthesizing");
    let serial = |task: &str| {
        project.run(&["run", "worker", task, "-d", "--serial", "--session", "one"]).id()
    };
    let (first, second) = (serial(&blocks), serial("later"));
    project.reach(&first, "running");
    assert_eq!((phase(&first), phase(&second)), (json!("planning"), json!("prompted")));
    for id in [id, first] {
        project.run(&["cancel", &id]);
    }
}

#[test]
fn a_run_that_was_waited_for_is_shown_as_it_is_when_it_is_looked_at() {
    let project = Project::new();
    project.write("taskrun.toml", POLICY.as_bytes());
    let kid = call("kid", "agent/worker", &json!({ "request": "hello" }));
    let script = json!({ "steps": [[kid], [{ "reply": "done" }]] }).to_string();
    let given = ["--state", "page=1", "--metadata", "from=a form"];
    let run = ["run", "boss", &script, "--wait", "-o", "json"];
    let waited = project.run(&[&run[..], &given].concat());
    assert_eq!(waited.code, 0, "{waited:?}");
    let waited = waited.json();
    assert_eq!(waited["runtime_state"], json!({ "page": "1" }), "{waited}");
    assert_eq!(waited["progress"]["finished_children"], 1, "{waited}");
    assert_eq!(waited, project.get(waited["id"].as_str().expect("an id")));
}
