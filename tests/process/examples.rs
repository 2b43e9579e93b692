//! The examples of delegation, as a reader runs them.

use std::path::Path;

use serde_json::{Value, json};
use taskrun_examples::CHAT;

use crate::project::Project;

/// The example in a project where its component is built.
fn project() -> Project {
    let project = Project::new();
    let component = "target/wasm32-unknown-unknown/release/chat.wasm";
    project.write(component, CHAT.bytes);
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-examples/delegation");
    let policy = std::fs::read_to_string(from.join("taskrun.toml")).expect("it is read");
    assert!(policy.contains(&format!("\"../{component}\"")), "{policy}");
    project.write("taskrun.toml", policy.replace("\"../target", "\"target").as_bytes());
    for entry in std::fs::read_dir(from.join("scripts")).expect("it is there") {
        let path = entry.expect("it is read").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        project.write(&format!("scripts/{name}"), &std::fs::read(&path).expect("it is read"));
    }
    project
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
    let project = project();
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
