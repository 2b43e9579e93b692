//! The examples that are policies, as a reader runs them.

use std::path::Path;

use serde_json::{Value, json};
use taskrun_examples::{CHAT, WORKSPACE};

use crate::project::Project;

/// An example in a project where its components are built.
fn project(name: &str) -> Project {
    let project = Project::new();
    for (component, bytes) in [("chat", CHAT.bytes), ("workspace", WORKSPACE.bytes)] {
        project.write(&format!("{BUILT}/{component}.wasm"), bytes);
    }
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-examples").join(name);
    copy(&project, &from, "");
    let policy = std::fs::read_to_string(from.join("taskrun.toml")).expect("it is read");
    assert!(policy.contains(&format!("\"../{BUILT}/chat.wasm\"")), "{policy}");
    project.write("taskrun.toml", policy.replace("\"../target", "\"target").as_bytes());
    project
}

/// The folder, beside those of the examples, where components are built.
const BUILT: &str = "target/wasm32-unknown-unknown/release";

fn copy(project: &Project, from: &Path, to: &str) {
    for entry in std::fs::read_dir(from).expect("it is there") {
        let path = entry.expect("it is read").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        match path.is_dir() {
            true => copy(project, &path, &format!("{to}{name}/")),
            false => {
                project.write(&format!("{to}{name}"), &std::fs::read(&path).expect("it is read"));
            }
        }
    }
}

/// The answer of a run that completed.
fn ended(project: &Project, args: &[&str]) -> Value {
    let ran = project.run(&[args, &["--wait", "-o", "json"]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    let run = ran.json();
    assert_eq!(run["status"], "completed", "{run}");
    run
}

#[test]
fn each_form_of_delegation_does_what_its_example_says() {
    let project = project("delegation");
    let asked = ended(&project, &["run", "asks", "a line about apples"]);
    assert!(asked["result"].as_str().is_some_and(|text| text.contains("The writer says")));
    let tree = project.run(&["tree", asked["id"].as_str().expect("an id"), "-o", "json"]).json();
    let writer = &tree["descendants"][0];
    assert_eq!((&writer["agent_name"], &writer["attached"]), (&json!("writer"), &json!(true)));

    let handed = ["run", "hands_over", "a line about apples", "--session", "talk"];
    let handed = ended(&project, &handed);
    assert_eq!(handed["result"], "Apples are kept in the cellar.");
    assert_eq!(handed["handed_over_to"], "writer");

    let starts = |line: &str| {
        let run = ended(&project, &["run", "starts", line, "--session", "office"]);
        run["id"].as_str().expect("an id").to_owned()
    };
    let first = starts("a line about apples");
    let tree = project.run(&["tree", &first, "-o", "json"]).json();
    let writer = tree["descendants"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(project.run(&["wait", &writer]).code, 0);
    let transcripts = || {
        let second = starts("what has come of it?");
        [&first, &second].map(|id| project.run(&["transcript", id]).stdout).concat()
    };
    // The writer may have been quicker than the second step of the first line.
    assert!(transcripts().contains("Apples are kept in the cellar."));

    let told = |event: &str, agent: &str| {
        let text = std::fs::read_to_string(project.path().join("events.jsonl"));
        let text = text.unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let of = |line: &Value| line["type"] == event && line["data"]["agent_name"] == agent;
        lines.filter(of).count()
    };
    // One writer for each form.
    for event in ["on_task_delegated", "on_task_completed"] {
        project.until("they are told", || told(event, "starts") == 2 && told(event, "writer") == 3);
        assert_eq!(told(event, "asks"), 0);
    }
}

#[test]
fn c_080_the_example_autonomous_is_done_without_a_key() {
    let project = project("autonomous");
    let words = ["run", "keeper", "Find out where the apples are.", "--autonomous"];
    let run = ended(&project, &words);
    assert_eq!((&run["stop_reason"], &run["rounds"]), (&json!("done"), &json!(2)), "{run}");
    assert_eq!(run["result"], "The apples are in the cellar.");
    assert_eq!(run["detail"], "found the apples");
}

#[test]
fn c_080_the_example_autonomous_resume_completes_after_its_rounds() {
    let project = project("autonomous-resume");
    let words = ["run", "keeper", "Count to three.", "--autonomous", "--rounds", "2"];
    let words = [&words[..], &["--session", "counting", "--wait", "-o", "json"]].concat();
    let ran = project.run(&words);
    assert_eq!(ran.code, 9, "a budget ended it: {ran:?}");
    let run = ran.json();
    let first = &run["id"];
    assert_eq!(
        (&run["stop_reason"], &run["partial"]),
        (&json!("max_turns"), &json!(true)),
        "{run}"
    );
    assert_eq!(run["result"], "Two.");
    let second = project.run(&["resume", "--session", "counting"]).id();
    let run = project.ends_by_itself(&second);
    assert_eq!((&run["stop_reason"], &run["result"]), (&json!("done"), &json!("Three.")), "{run}");
    assert_eq!((&run["rounds"], &run["continues"]), (&json!(3), first), "{run}");
}

#[test]
fn c_060_the_example_with_subagent_asks_another_agent_and_goes_on() {
    let project = project("with-subagent");
    let words = ["run", "keeper", "Write a line about the apples.", "--autonomous"];
    let run = ended(&project, &words);
    assert_eq!((&run["stop_reason"], &run["rounds"]), (&json!("done"), &json!(2)), "{run}");
    assert_eq!(run["result"], "Apples keep well in the cellar.");
    let tree = project.run(&["tree", run["id"].as_str().expect("an id"), "-o", "json"]).json();
    let scout = &tree["descendants"][0];
    assert_eq!((&scout["agent_name"], &scout["attached"]), (&json!("scout"), &json!(true)));
    assert_eq!(
        (&scout["status"], &scout["result"]),
        (&json!("completed"), &json!("In the cellar."))
    );
}
