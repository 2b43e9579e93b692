//! Two processes on one data directory, and terminals that die.

use serde_json::json;

use crate::project::Project;

fn spin(project: &Project) -> String {
    project.run(&["run", "spinner", "spin", "-d"]).id()
}

#[test]
fn a_run_started_in_one_process_is_seen_waited_for_and_canceled_in_another() {
    let project = Project::new();
    let id = spin(&project);
    project.reach(&id, "running");
    let listed = project.run(&["ps", "-o", "json"]).json();
    assert_eq!(listed["v"], 1);
    assert_eq!(listed["runs"][0]["id"], id.as_str());
    assert_eq!(listed["runs"][0]["status"], "running");
    let waited = project.run(&["wait", &id, "--timeout", "200ms"]);
    assert_eq!(waited.code, 124, "{waited:?}");
    let waiting = project.start(&["wait", &id]);
    let canceled = project.run(&["cancel", &id, "--reason", "enough"]);
    assert_eq!(canceled.code, 0, "{canceled:?}");
    let waited = waiting.wait_with_output().expect("ends");
    assert_eq!(waited.status.code(), Some(6), "{waited:?}");
    assert_eq!(project.get(&id)["status"], "canceled");
}

#[test]
fn a_waiter_in_another_process_gets_the_answer() {
    let project = Project::new();
    let question = "Where are apples kept?";
    let id = project.run(&["run", "readonly_researcher", question, "-d"]).id();
    let waited = project.run(&["wait", &id]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let run = project.get(&id);
    assert_eq!(run["status"], "completed");
    let result = run["result"].as_str().expect("a result");
    assert!(result.contains("docs/a.md:3"), "{result}");
    let direct = project.run(&["run", "readonly_researcher", question, "--wait"]);
    assert_eq!(direct.code, 0, "{direct:?}");
    assert!(direct.stdout.contains("docs/a.md:3"), "{direct:?}");
}

#[test]
fn kill_9_of_the_terminal_does_not_hurt_the_run() {
    let project = Project::new();
    let mut child = project.start(&["run", "spinner", "spin", "--wait"]);
    let id = loop {
        let runs = project.run(&["ps", "-o", "json"]).json();
        if runs["runs"][0]["status"] == "running" {
            break runs["runs"][0]["id"].as_str().expect("an id").to_owned();
        }
    };
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert_eq!(project.get(&id)["status"], "running");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    assert_eq!(project.run(&["wait", &id]).code, 6);
}

#[test]
fn t_070_a_wait_that_times_out_prints_how_the_run_stands_and_a_cancel_says_why() {
    let project = Project::new();
    let waited = project.run(&["run", "spinner", "spin", "--wait=300ms", "-o", "json"]);
    assert_eq!(waited.code, 124, "{waited:?}");
    let run = waited.json();
    assert_eq!((&run["timed_out"], &run["agent_name"]), (&json!(true), &json!("spinner")), "{run}");
    assert!(["queued", "running"].contains(&run["status"].as_str().expect("a status")), "{run}");
    let id = run["id"].as_str().expect("an id");
    assert_eq!(waited.error()["run_id"], id, "{waited:?}");
    assert_eq!(project.run(&["cancel", id, "--reason", "enough of it"]).code, 0);
    let waited = project.run(&["wait", id]);
    assert_eq!(waited.code, 6, "{waited:?}");
    assert!(waited.stderr.contains("reason: enough of it"), "{waited:?}");
    assert_eq!(project.get(id)["cancel_reason"], "enough of it");
    let shown = project.run(&["get", id]).stdout;
    assert!(shown.lines().any(|line| line.starts_with("reason") && line.ends_with("enough of it")));
}

#[test]
fn a_transcript_says_how_long_a_tool_took_and_what_went_wrong() {
    let project = Project::new();
    let fail = json!({ "code": "torn", "message": "no page", "causes": ["it was torn out"] });
    let script = json!({ "steps": [
        [
            { "call": { "name": "scripted/lookup", "args": { "sleep_ms": 20, "result": 1 } } },
            { "call": { "name": "scripted/lookup", "args": { "fail": fail } } },
        ],
        [{ "reply": "done" }],
    ] });
    let id = project.run(&["run", "worker", &script.to_string(), "--wait", "-o", "name"]).id();
    let told = project.run(&["transcript", &id, "-o", "json"]).json();
    let entries = told["events"].as_array().expect("entries");
    let tools: Vec<_> = entries.iter().filter(|entry| entry["role"] == "tool").collect();
    assert_eq!(tools.len(), 2, "{told}");
    let went_well = tools.iter().find(|entry| entry["content"] == "1").expect("the first");
    assert!(went_well["duration_ms"].as_u64().is_some_and(|ms| ms >= 20), "{went_well}");
    let failed = tools.iter().find(|entry| entry["error_code"] == "torn").expect("the second");
    assert_eq!(failed["error"], "no page\ncaused by: it was torn out");
    assert!(failed["duration_ms"].is_u64(), "{failed}");
    let shown = project.run(&["transcript", &id]).stdout;
    assert!(shown.contains("error (torn):\n> no page\n> caused by: it was torn out"), "{shown}");
    let timed = |line: &&str| line.starts_with("### scripted/lookup ") && line.ends_with('s');
    assert_eq!(shown.lines().filter(timed).count(), 2, "{shown}");
}
