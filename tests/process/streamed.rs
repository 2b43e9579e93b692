//! Answers that agents send in parts before they give them, as the program shows them.

use serde_json::{Value, json};

use crate::escapes::on_a_terminal;
use crate::project::Project;
use crate::terminal::Terminal;

/// A run that sends `parts` and then answers with `answer`, of which it says that it was streamed
/// or not; what waiting for it prints, and the mark of its last message.
fn shown(project: &Project, parts: &[&str], answer: &str, streamed: bool) -> [Value; 2] {
    let mut step: Vec<Value> = parts.iter().map(|part| json!({ "delta": part })).collect();
    step.push(json!({ "plan": { "final-response": answer, "streamed": streamed } }));
    let script = json!({ "ops": step }).to_string();
    let waited = project.run(&["run", "worker", &script, "--wait"]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let id = project.run(&["run", "worker", &script, "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let events = project.events(&id);
    let last = events.iter().rfind(|event| event["kind"] == "assistant_message");
    let is_marked = last.expect("a message").get("streamed").cloned().unwrap_or_default();
    [json!(waited.stdout), is_marked]
}

#[test]
fn l_008_an_answer_is_marked_as_streamed_if_its_parts_said_it_and_only_then() {
    let project = Project::new();
    for streamed in [true, false] {
        let same = shown(&project, &["It is ", "42."], "It is 42.", streamed);
        assert_eq!(same, [json!("It is 42.\n"), json!(true)]);
        let other = shown(&project, &["Checking..."], "42", streamed);
        assert_eq!(other, [json!("42\n"), Value::Null]);
        let longer = shown(&project, &["It is"], "It is 42.", streamed);
        assert_eq!(longer, [json!("It is 42.\n"), Value::Null]);
    }
}

#[test]
fn l_008_a_terminal_shows_an_answer_once_and_one_that_differs_too() {
    let project = Project::new();
    let table: [(&[&str], &str); 3] = [
        (&["It is ", "42."], "It is 42."),
        (&["Checking..."], "Checking...\n42"),
        (&["It is"], "It is 42."),
    ];
    for (parts, expected) in table {
        let mut step: Vec<Value> = parts.iter().map(|part| json!({ "delta": part })).collect();
        let answer = expected.lines().last().expect("a line");
        step.push(json!({ "plan": { "final-response": answer, "streamed": true } }));
        let script = json!({ "ops": step }).to_string();
        let shown = on_a_terminal(&project, &["run", "worker", &script, "-q"]);
        let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
        assert_eq!(lines.join("\n").trim(), expected, "{shown:?}");
    }
}

#[test]
fn the_events_of_a_run_say_a_text_once() {
    let project = Project::new();
    let script = json!({ "ops": [{ "delta": "It is 42." },
        { "plan": { "final-response": "It is 42.", "streamed": true } }] });
    let id = project.run(&["run", "worker", &script.to_string(), "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let listed = project.run(&["events", &id]);
    // The task has it once, too.
    let said = listed.stdout.lines().filter(|line| line.contains("assistant_"));
    let said: Vec<&str> = said.collect();
    assert_eq!(said.iter().filter(|line| line.contains("It is 42.")).count(), 1, "{said:?}");
    assert!(said.iter().any(|line| line.ends_with("(as streamed)")), "{said:?}");
}

#[test]
fn tokens_that_an_agent_reports_are_counted_by_their_kinds() {
    let project = Project::new();
    let script = json!({ "ops": [{ "usage": [40, 9, 49, 30, 5, 4] }, { "reply": "done" }] });
    let id = project.run(&["run", "worker", &script.to_string(), "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let run = project.get(&id);
    let counted = ["cached_tokens", "cache_write_tokens", "reasoning_tokens"];
    let counted = counted.map(|key| run["progress"][key].clone());
    assert_eq!(counted, [json!(30), json!(5), json!(4)], "{run}");
}

#[test]
fn all_events_of_a_run_that_waits_for_an_answer_are_shown_before_following_ends() {
    let project = Project::new();
    let policy = r#"
[tool.scripted]
component = "components/scripted-tool.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["scripted/*"]
limits = { tool_calls = 10_000 }
"#;
    project.write("taskrun.toml", policy.as_bytes());
    // More than are read at once, so that the end is known before the last of them.
    let calls =
        vec![json!({ "call": { "name": "scripted/lookup", "args": { "result": 1 } } }); 250];
    let mut steps = vec![Value::from(calls); 4];
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    steps.push(json!([{ "plan": { "await": [question] } }]));
    let script = json!({ "steps": steps }).to_string();
    let id = project.run(&["run", "worker", &script, "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 8);
    let all = project.events(&id).len();
    assert!(all > 2_000, "{all}");
    let followed = project.run(&["events", &id, "-f", "-o", "ndjson"]);
    assert_eq!((followed.code, followed.stdout.lines().count()), (8, all));
}

#[test]
fn ctrl_c_in_the_middle_of_a_large_answer_is_heard() {
    let project = Project::new();
    // Were each line drawn with all that follow, that would take longer than a signal is waited for.
    let answer: String = (0..10_000).map(|line| format!("line {line} of it\n")).collect();
    let call = json!({ "call": { "name": "scripted/lookup", "args": { "result": 1 } } });
    let script = json!({ "steps": [[{ "reply": answer }, call], ["block"]] }).to_string();
    project.write("task.json", script.as_bytes());
    let command = project.command(&["run", "worker", "@task.json"]);
    let mut terminal = Terminal::rewriting(command, 80, 24);
    terminal.shows("line 0 of it", 1);
    terminal.types("\x03");
    terminal.shows("the run goes on", 1);
    let runs = project.run(&["ps", "-o", "json"]).json();
    assert_eq!(runs["runs"][0]["status"], "running", "{runs}");
}
