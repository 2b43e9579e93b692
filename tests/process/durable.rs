//! Hosts that die or are told to end: what they executed is continued.

use serde_json::{Value, json};

use crate::project::Project;

/// A run that calls a tool which takes so long that a busy machine sees it, and then answers.
fn slow() -> String {
    let call = json!({ "call": {
        "name": "scripted/lookup",
        "args": { "sleep_ms": 8_000, "result": "found" },
    }});
    json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string()
}

/// The events of a kind.
fn of_kind<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["kind"] == kind).collect()
}

#[test]
fn after_kill_9_of_the_host_the_next_one_continues_the_run_and_damages_nothing() {
    let project = Project::new();
    let done = project.run(&["run", "worker", "said", "--wait"]);
    assert_eq!((done.code, done.stdout.trim()), (0, "said"), "{done:?}");
    let id = project.run(&["run", "worker", &slow(), "-d"]).id();
    project.sees(&id, "tool_call_scheduled");
    assert!(project.kill_hosts() > 0, "somebody executed it");
    // Whoever looks finds that the host is gone, and that the run is not.
    let listed = project.run(&["ps", "-a", "-o", "json"]).json();
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(2));
    assert_eq!(project.get(&id)["status"], "running");
    let waited = project.run(&["wait", &id]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let run = project.get(&id);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("done")), "{run}");
    let events = project.events(&id);
    let lost = of_kind(&events, "lost");
    assert!(lost.iter().all(|event| event["crashed"] == true), "{lost:?}");
    assert_eq!(lost.len(), of_kind(&events, "resumed").len(), "{events:?}");
    assert!(!lost.is_empty(), "{events:?}");
    assert_eq!(of_kind(&events, "tool_call_repeated").len(), lost.len(), "it may be repeated");
    assert_eq!(of_kind(&events, "tool_result").len(), 1);
    assert_eq!(project.run(&["doctor"]).code, 0);
}

#[test]
fn a_host_that_is_told_to_end_hands_its_runs_over() {
    let project = Project::new();
    let id = project.run(&["run", "worker", &slow(), "-d"]).id();
    let spinning = project.run(&["run", "spinner", "spin", "-d"]).id();
    project.sees(&id, "tool_call_scheduled");
    project.reach(&spinning, "running");
    assert!(project.end_hosts() > 0, "somebody executed them");
    // The one came to a point at which it could be given back, the other was stopped.
    for id in [&id, &spinning] {
        let run = project.get(id);
        assert!(run["status"] == "running" || run["status"] == "completed", "{run}");
        let events = project.events(id);
        assert!(of_kind(&events, "lost").iter().all(|event| event["crashed"] == false));
    }
    assert_eq!(project.run(&["wait", &id]).code, 0);
    assert_eq!(project.get(&id)["result"], "done");
    project.sees(&spinning, "resumed");
    assert_eq!(project.run(&["cancel", &spinning]).code, 0);
    assert_eq!(project.run(&["wait", &spinning]).code, 6);
}

#[test]
fn a_run_that_is_not_to_be_continued_fails_with_its_host() {
    let project = Project::new();
    let block = json!({ "steps": [["block"]] }).to_string();
    let id = project.run(&["run", "fragile", &block, "-d"]).id();
    project.reach(&id, "running");
    assert!(project.kill_hosts() > 0, "somebody executed it");
    let waited = project.run(&["wait", &id]);
    assert_eq!(waited.code, 5, "{waited:?}");
    let run = project.get(&id);
    assert_eq!(run["stop_reason"], "interrupted_by_restart", "{run}");
}
