//! Runs that a host of another policy file executes than the one that they were accepted under: what
//! is taken out of their own file is gone for them, whichever host has them.

use std::process::Child;

use serde_json::{Value, json};
use taskrun_examples::evil;

use crate::project::{Project, Ran};

/// The place of the agent that gives no such right any more.
const PLACE: &str = "/taskrun.toml:3:1";

/// An agent that reads, with as many calls and this rule.
fn policy(calls: usize, rule: &str) -> String {
    format!(
        "[tool.workspace]\ncomponent = \"components/workspace.wasm\"\n[agent.reader]\n\
         component = \"components/scripted.wasm\"\ntools = [\"workspace/read\"]\n\
         allow = [\"workspace-read: {rule}\"]\ndeny = [\"workspace-write: **\"]\nlimits = {{ tool_calls = {calls} }}\n"
    )
}

/// A run of the agent that waits for a person, and reads a file twice after that; no host lives.
fn waits() -> (Project, String) {
    let project = Project::new();
    project.write("taskrun.toml", policy(9, "docs/**").as_bytes());
    project.write("other.toml", policy(8, "docs/**").as_bytes());
    project.write("docs/a.txt", b"the words");
    let clarification = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let args = json!({ "path": "docs/a.txt" });
    let read = |id: &str| json!([{ "call": { "id": id, "name": "workspace/read", "args": args } }]);
    let question = json!([{ "plan": { "await": [clarification] } }]);
    let steps = [question, read("c1"), read("c2"), json!([{ "reply": "thanks" }])];
    let id = project.run(&["run", "reader", &json!({ "steps": steps }).to_string(), "-d"]).id();
    project.reach(&id, "blocked");
    project.kill_hosts_and_wait();
    (project, id)
}

/// A command under the other file.
fn elsewhere(project: &Project, args: &[&str]) -> Ran {
    project.run(&[&["--config", "other.toml", "--data-dir", ".taskrun"], args].concat())
}

/// A host of the other file, which stays whatever it has to do.
fn host_elsewhere(project: &Project) -> Child {
    let words = ["--config", "other.toml", "--data-dir", ".taskrun", "host", "--idle-exit", "0"];
    project.start(&words)
}

/// Answers the run and has a host of the other file execute it to its end.
fn ends_elsewhere(project: &Project, id: &str) -> Value {
    let answered = elsewhere(project, &["answer", id, "the first"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let run = project.ends_by_itself(id);
    let shown = elsewhere(project, &["policy", "show", "-o", "json"]).json();
    assert_eq!(shown["hosts"][0]["same_file"], true, "{shown}");
    run
}

/// The same for a run that completes; gives the results of its calls.
fn answered_elsewhere(project: &Project, id: &str) -> Vec<String> {
    let run = ends_elsewhere(project, id);
    assert_eq!(run["status"], "completed", "{run}");
    results(&project.events(id))
}

fn results(events: &[Value]) -> Vec<String> {
    let results = events.iter().filter(|event| event["kind"] == "tool_result");
    results.map(ToString::to_string).collect()
}

fn denials(events: &[Value]) -> String {
    let denials = events.iter().filter(|event| event["kind"] == "policy_decision");
    denials.map(ToString::to_string).collect()
}

#[test]
fn what_both_files_give_a_run_has_on_a_host_of_either() {
    let (project, id) = waits();
    let results = answered_elsewhere(&project, &id);
    assert!(results.len() == 2 && results.iter().all(|it| it.contains("the words")), "{results:?}");
}

#[test]
fn a_rule_that_is_taken_out_of_its_own_file_denies_a_run_on_a_host_of_another() {
    let (project, id) = waits();
    project.write("taskrun.toml", policy(9, "x/**").as_bytes());
    let explain = ["policy", "explain", "--run", &id, "--cap", "workspace-read", "--arg"];
    let explained = elsewhere(&project, &[&explain[..], &["path=docs/a.txt"]].concat());
    assert!(
        explained.code == 4 && explained.stdout.contains("(taskrun.toml:3:1)"),
        "{explained:?}"
    );
    let results = answered_elsewhere(&project, &id);
    assert!(results.iter().all(|it| it.contains("denied")), "{results:?}");
    let denials = denials(&project.events(&id));
    assert!(denials.contains(PLACE), "{denials}");
}

#[test]
fn a_bound_that_is_lowered_in_its_own_file_holds_on_a_host_of_another() {
    let (project, id) = waits();
    project.write("taskrun.toml", policy(1, "docs/**").as_bytes());
    let results = answered_elsewhere(&project, &id);
    let [first, second] = &results[..] else { panic!("{results:?}") };
    assert!(first.contains("the words") && !second.contains("the words"), "{results:?}");
}

#[test]
fn rounds_that_are_lowered_in_its_own_file_hold_on_a_host_of_another() {
    let rounds = |calls: usize, most: usize| {
        format!("{}autonomous = {{ rounds = {most} }}\n", policy(calls, "docs/**"))
    };
    let project = Project::new();
    project.write("taskrun.toml", rounds(9, 9).as_bytes());
    project.write("other.toml", rounds(8, 9).as_bytes());
    let clarification = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let steps = json!({ "steps": [
        [{ "reply": "one" }], [{ "plan": { "await": [clarification] } }],
        [{ "reply": "two" }], [{ "reply": "three" }], [{ "reply": "four" }],
    ] });
    let steps = steps.to_string();
    let words = ["run", "reader", &steps, "--autonomous", "--answers", "inbox", "-d"];
    let id = project.run(&words).id();
    project.reach(&id, "blocked");
    project.kill_hosts_and_wait();
    project.write("taskrun.toml", rounds(9, 2).as_bytes());
    let run = ends_elsewhere(&project, &id);
    assert_eq!((&run["stop_reason"], &run["rounds"]), (&json!("max_turns"), &json!(2)), "{run}");
}

#[test]
fn a_tool_that_is_taken_out_of_its_own_file_is_gone_on_a_host_of_another() {
    let (project, id) = waits();
    let without = policy(9, "docs/**").replace("\"workspace/read\"", "\"workspace/list\"");
    project.write("taskrun.toml", without.as_bytes());
    let explain = ["policy", "explain", "--run", &id, "--cap", "tool", "--arg"];
    let explained = elsewhere(&project, &[&explain[..], &["name=workspace/read"]].concat());
    let told = "not among its `tools` (taskrun.toml:3:1)";
    assert!(explained.code == 4 && explained.stdout.contains(told), "{explained:?}");
    let results = answered_elsewhere(&project, &id);
    assert!(results.iter().all(|it| !it.contains("the words")), "{results:?}");
}

#[test]
fn the_text_in_force_binds_where_the_file_is_gone_or_has_a_mistake() {
    for text in [None, Some("[agent.reader]\nno = 1\n")] {
        let (project, id) = waits();
        let shown = project.run(&["policy", "show", "-o", "json"]).json();
        assert_eq!(shown["in_force"]["revision"], 1, "{shown}");
        project.write("taskrun.toml", policy(9, "x/**").as_bytes());
        let applied = project.run(&["policy", "apply", "-o", "json"]);
        assert_eq!((applied.code, &applied.json()["revision"]), (0, &json!(2)), "{applied:?}");
        let path = project.path().join("taskrun.toml");
        match text {
            None => std::fs::remove_file(path).expect("it is there"),
            Some(text) => std::fs::write(path, text).expect("written"),
        }
        let results = answered_elsewhere(&project, &id);
        assert!(results.iter().all(|it| it.contains("denied")), "{results:?}");
    }
}

#[test]
fn a_run_whose_own_file_has_no_such_agent_any_more_begins_nothing_on_any_host() {
    let (project, id) = waits();
    let before = policy(9, "docs/**");
    project.write("taskrun.toml", before.replace("[agent.reader]", "[agent.other]").as_bytes());
    let answered = elsewhere(&project, &["answer", &id, "the first"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let mut host = host_elsewhere(&project);
    let is_told = || {
        let got = elsewhere(&project, &["get", &id]);
        got.stderr.contains("has no agent reader any more")
    };
    project.until("it is told why the run waits", is_told);
    assert_eq!(results(&project.events(&id)), Vec::<String>::new());
    // Put back, it goes on.
    project.write("taskrun.toml", before.as_bytes());
    let run = project.ends_by_itself(&id);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("thanks")), "{run}");
    host.kill().expect("killed");
    host.wait().expect("gone");
}

#[test]
fn a_right_that_is_taken_out_of_its_own_file_is_gone_at_the_next_host_call_under_way_elsewhere() {
    let writer = |calls: usize, rules: &str| {
        format!(
            "[tool.evil]\ncomponent = \"components/evil-tool.wasm\"\n[agent.writer]\n\
             component = \"components/scripted.wasm\"\ntools = [\"evil/fill\"]\n\
             allow = [{rules}]\n\
             limits = {{ host_calls = 10000000, call = \"120s\", tool_calls = {calls} }}\n"
        )
    };
    let both = "\"workspace-read: notes/**\", \"workspace-write: notes/**\"";
    let project = Project::new();
    project.write("components/evil-tool.wasm", evil::TOOL.bytes);
    project.write("taskrun.toml", writer(9, both).as_bytes());
    project.write("other.toml", writer(8, both).as_bytes());
    let notes = project.path().join("notes");
    std::fs::create_dir(&notes).expect("made");
    // It waits for a person first, so that the host of the other file has it.
    let clarification = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let args = json!({ "how": "replace", "folder": "notes", "files": 1_000_000, "bytes": 8 });
    let call = json!({ "call": { "id": "c", "name": "evil/fill", "args": args } });
    let steps = json!({ "steps": [
        [{ "plan": { "await": [clarification] } }], [call], [{ "reply": "thanks" }]
    ] });
    let id = project.run(&["run", "writer", &steps.to_string(), "-d"]).id();
    project.reach(&id, "blocked");
    project.kill_hosts_and_wait();
    let mut stays = host_elsewhere(&project);
    project.meets_host();
    let host = project.hosts();
    assert_eq!(elsewhere(&project, &["answer", &id, "the first"]).code, 0);
    project
        .until("it writes", || std::fs::read_dir(&notes).is_ok_and(|mut all| all.next().is_some()));
    project.write("taskrun.toml", writer(9, "\"workspace-read: notes/**\"").as_bytes());
    let run = project.ends_by_itself(&id);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("thanks")), "{run}");
    assert_eq!(project.hosts(), host, "the host is the same");
    stays.kill().expect("killed");
    stays.wait().expect("gone");
    let events = project.events(&id);
    let (denials, results) = (denials(&events), results(&events).concat());
    assert!(denials.contains(PLACE) && results.contains("denied"), "{denials} {results}");
    let calls = events.iter().filter(|event| event["kind"] == "tool_call_scheduled").count();
    assert_eq!(calls, 1, "it was called once");
}

#[test]
fn a_host_of_another_file_gives_a_run_no_other_form_by_itself() {
    let (project, id) = waits();
    project.write("taskrun.toml", policy(9, "x/**").as_bytes());
    let upgrades = policy(8, "docs/**") + "upgrade = \"adopt\"\n";
    project.write("other.toml", upgrades.as_bytes());
    let results = answered_elsewhere(&project, &id);
    assert!(results.iter().all(|it| it.contains("denied")), "{results:?}");
    let adopted = |event: &Value| event["kind"] == "adopted";
    assert!(!project.events(&id).iter().any(adopted), "what it lost it would have again");
}

#[test]
fn a_run_that_is_adopted_under_another_file_is_of_that_one() {
    let (project, id) = waits();
    project.write("taskrun.toml", policy(9, "x/**").as_bytes());
    assert_eq!(elsewhere(&project, &["adopt", &id]).code, 0);
    let results = answered_elsewhere(&project, &id);
    assert!(results.len() == 2 && results.iter().all(|it| it.contains("the words")), "{results:?}");
}
