//! Spans of runs and of what happens in them, in the log of the host that executes them.

use serde_json::{Value, json};

use crate::project::{Project, deadline};

const FILTER: &str = "warn,taskrun=debug,taskrun_engine::bindings=trace";

/// The ends of spans in the log of the host.
fn ends(project: &Project) -> Vec<Value> {
    let log = std::fs::read_to_string(project.path().join(".taskrun/host.log")).unwrap_or_default();
    let lines = log.lines().map(|line| serde_json::from_str(line).expect("a line is JSON"));
    lines.filter(|line: &Value| line["fields"]["message"] == "close").collect()
}

/// The names of the spans around one.
fn around(end: &Value) -> Vec<&str> {
    let spans = end["spans"].as_array().expect("spans");
    spans.iter().map(|span| span["name"].as_str().expect("a name")).collect()
}

#[test]
fn l_014_m_65_a_run_its_steps_its_calls_and_what_they_ask_of_the_host_are_spans() {
    let project = Project::new();
    let read = json!({ "call": { "id": "c", "name": "workspace/read",
        "args": { "path": "docs/a.md" } } });
    let script = json!({ "steps": [[read], [{ "reply": "done" }]] }).to_string();
    let mut command = project.command(&["run", "reader", &script, "-d"]);
    let started = command.env("TASKRUN_LOG", FILTER).env("TASKRUN_LOG_FORMAT", "json").output();
    let started: crate::project::Ran = started.expect("starts").into();
    let id = started.id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let deadline = deadline();
    let of_run = |end: &Value| end["span"]["name"] == "run" && end["span"]["id"] == id.as_str();
    while !ends(&project).iter().any(of_run) {
        assert!(!deadline.is_over(), "the run's span has no end");
    }
    let ends = ends(&project);
    let find = |is: &dyn Fn(&Value) -> bool| {
        let found = ends.iter().find(|end| is(&end["span"]));
        found.unwrap_or_else(|| panic!("{ends:#?}"))
    };
    let run = find(&|span| span["name"] == "run");
    assert_eq!(run["span"]["agent"], "reader");
    assert!(run["fields"]["time.busy"].is_string(), "{run}");
    let step = find(&|span| span["name"] == "step" && span["turn"] == 2);
    assert_eq!((around(step), &step["spans"][0]["id"]), (vec!["run"], &json!(id)));
    let call = find(&|span| span["name"] == "tool_call");
    assert_eq!((around(call), &call["span"]["tool"]), (vec!["run"], &json!("workspace/read")));
    let asked = find(&|span| span["module"] == "workspace-read" && span["function"] == "read");
    assert_eq!(around(asked), ["run", "tool_call"]);
    let kept = find(&|span| span["module"] == "state");
    assert_eq!(around(kept), ["run", "step"]);
    let log = std::fs::read_to_string(project.path().join(".taskrun/host.log")).expect("a log");
    assert!(!log.contains("docs/a.md"), "what guests give and are given is not in it: {log}");
}

#[test]
fn a_log_that_nobody_asked_for_has_no_spans() {
    let project = Project::new();
    let id = project.run(&["run", "worker", "said", "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let log = || std::fs::read_to_string(project.path().join(".taskrun/host.log"));
    let begins = || log().is_ok_and(|log| log.contains("host begins"));
    project.until("the host's first line is written", begins);
    let log = log().expect("a log");
    assert!(!log.contains("time.busy"), "{log}");
}
