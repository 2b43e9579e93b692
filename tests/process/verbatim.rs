//! Texts of people and guests that have the name of the working directory in them: they are shown as
//! they are. Paths of the program itself are shown from there.

use serde_json::json;

use crate::project::Project;

/// The folder of a project within an address.
fn about(project: &Project) -> String {
    let folder = project.path().canonicalize().expect("a path");
    format!("h:{}/x", folder.display())
}

#[test]
fn a_text_that_names_the_working_directory_is_shown_as_it_is() {
    let project = Project::new();
    let text = about(&project);
    // A line of a journal is cut where it is long.
    let begin: String = text.chars().take(100).collect();
    let done = project.run(&["run", "readonly_researcher", &text, "--session", "s", "-d"]).id();
    assert_eq!(project.run(&["wait", &done]).code, 0);
    let question = json!({ "clarification": { "id": "which", "question": text } });
    let script = json!({ "steps": [[{ "plan": { "await": [question] } }]] }).to_string();
    let asks = project.run(&["run", "worker", &script, "-d"]).id();
    assert_eq!(project.run(&["wait", &asks, "--for", "blocked"]).code, 8);
    let fails = json!({ "steps": [[{ "err": text }]] }).to_string();
    let commands: [(&[&str], i32); 6] = [
        (&["events", &done, "--kind", "queued"], 0),
        (&["events", "--session", "s", "--kind", "queued"], 0),
        (&["events", &asks, "--kind", "asked"], 0),
        (&["wait", &asks], 8),
        (&["answer", &asks], 2),
        (&["run", "fragile", &fails, "--wait"], 5),
    ];
    for (command, code) in commands {
        let ran = project.run(command);
        assert_eq!(ran.code, code, "{ran:?}");
        // Programs are told the same in a line of their own.
        let shown = [ran.stdout.as_str(), &ran.stderr].concat();
        let times = shown.lines().filter(|line| !line.starts_with('{') && line.contains(&begin));
        assert_eq!(times.count(), 1, "{command:?}: {ran:?}");
    }
}

#[test]
fn a_path_that_a_guest_names_is_shown_as_it_is() {
    let project = Project::new();
    let folder = project.path().canonicalize().expect("a path");
    let text = format!("see {}/a.md", folder.display());
    let fails = json!({ "steps": [[{ "err": text }]] }).to_string();
    let ran = project.run(&["run", "fragile", &fails, "--wait"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    let shown = |line: &str| line.starts_with("  caused by:") && line.contains(&text);
    assert!(ran.stderr.lines().any(shown), "{ran:?}");
    let question = json!({ "clarification": { "id": "which", "question": text } });
    let script = json!({ "steps": [[{ "plan": { "await": [question] } }]] }).to_string();
    let ran = project.run(&["run", "worker", &script, "--wait"]);
    assert_eq!(ran.code, 8, "{ran:?}");
    assert!(ran.stderr.lines().any(shown), "{ran:?}");
}

#[test]
fn the_place_of_a_rule_is_shown_from_the_working_directory() {
    let project = Project::new();
    let call = json!({ "call": {
        "id": "a", "name": "workspace/read", "args": { "path": "notes/a.md" },
    }});
    let script = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let id = project.run(&["run", "reader", &script, "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let events = project.run(&["events", &id, "--kind", "policy_decision"]).stdout;
    assert!(events.contains("(taskrun.toml:"), "{events}");
}
