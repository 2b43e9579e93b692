//! Keys that are pressed when nobody asks for them: before a question is there, after somebody has
//! left, and while something else is shown.

use serde_json::{Value, json};

use crate::chat::{asks, chat, project, says, script};
use crate::chat_meanwhile::exchange;
use crate::project::Project;
use crate::terminal::Terminal;

/// The task of a run that asks for consent to so many calls.
fn calls(ids: &[&str]) -> String {
    let call = |id: &&str| json!([{ "call": { "id": id, "name": "scripted/change", "args": {} } }]);
    let mut steps: Vec<Value> = ids.iter().map(call).collect();
    steps.push(json!([{ "reply": "thanks" }]));
    script(&Value::from(steps))
}

/// A run that asks for consent to one call.
fn asking(project: &Project, options: &[&str]) -> String {
    let id = project.run(&[&["run", "asking", &calls(&["a"]), "-d"], options].concat()).id();
    assert_eq!(project.run(&["wait", &id]).code, 8);
    id
}

/// The consents and refusals that were recorded, by what was said.
fn consents(project: &Project, id: &str) -> Vec<bool> {
    let events = project.events(id);
    let consents = events.iter().filter(|event| event["kind"] == "tool_authorization");
    consents.map(|event| event["approved"].as_bool().expect("it is one")).collect()
}

#[test]
fn keys_that_were_pressed_before_a_question_was_shown_consent_to_nothing() {
    let project = Project::new();
    let script = calls(&["a", "b"]);
    let mut terminal = Terminal::typed_ahead(&project, &["run", "asking", &script], "y\ny\n");
    terminal.shows("y/n>", 1);
    // The second is pressed while the other question is not there yet.
    terminal.types("y\ny\n");
    terminal.shows("y/n>", 2);
    terminal.types("n\n");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    let id = project.run(&["ps", "-a", "-o", "name"]).id();
    assert_eq!(consents(&project, &id), [true, false]);

    let project = Project::new();
    let id = asking(&project, &[]);
    let mut terminal = Terminal::typed_ahead(&project, &["answer", "@last"], "y\n");
    terminal.shows("y/n>", 1);
    terminal.types("n\n");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    project.ends_by_itself(&id);
    assert_eq!(consents(&project, &id), [false]);
}

#[test]
fn after_ctrl_c_at_a_question_nothing_that_is_typed_is_the_answer() {
    let project = Project::new();
    let mut terminal = Terminal::new(project.command(&["run", "asking", &calls(&["a"])]));
    terminal.shows("y/n>", 1);
    terminal.types("\x03");
    terminal.shows("the run goes on", 1);
    // Whoever types that speaks to the shell.
    terminal.types("y\n");
    assert_eq!(terminal.ends(), 130, "{}", terminal.seen());
    let id = project.run(&["ps", "-a", "-o", "name"]).id();
    terminal.shows(&format!("`taskrun cancel {id}`"), 1);
    assert_eq!(project.get(&id)["status"], "blocked");
    assert!(project.events(&id).iter().all(|event| event["kind"] != "answered"));
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    assert_eq!(inbox["items"].as_array().map(Vec::len), Some(1), "{inbox}");
}

#[test]
fn who_has_pressed_ctrl_c_is_asked_nothing_that_comes_up_then() {
    let project = Project::new();
    let serial = ["--session", "s", "--serial"];
    let (first, second) = (asks("Which quarter?", "thanks"), calls(&["a"]));
    let before = project.run(&[&["run", "worker", &first, "-d"], &serial[..]].concat()).id();
    assert_eq!(project.run(&["wait", &before]).code, 8);
    let command = [&["run", "asking", &second], &serial[..]].concat();
    let mut terminal = Terminal::new(project.command(&command));
    terminal.shows("run ", 1);
    // It is followed when it shows what the run is told.
    let id = project.run(&["ps", "--agent", "asking", "-o", "name"]).id();
    assert_eq!(project.run(&["inject", &id, "look here"]).code, 0);
    terminal.shows("look here", 1);
    terminal.types("\x03");
    terminal.shows("Ctrl-C again cancels it", 1);
    // It begins by that, and asks.
    assert_eq!(project.run(&["answer", &before, "Q3"]).code, 0);
    assert_eq!(terminal.ends(), 130, "{}", terminal.seen());
    assert!(!terminal.seen().contains("y/n>"), "{}", terminal.seen());
}

#[test]
fn in_a_conversation_a_line_of_before_a_question_is_said_after_it() {
    let project = project();
    let id = asking(&project, &["--session", "s"]);
    let args = ["chat", "s", "--agent", "asking"];
    // Whoever ends the input consents to nothing either.
    let mut terminal = Terminal::typed_ahead(&project, &args, "y\n\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    terminal.shows("not said: y", 1);
    let mut terminal = Terminal::typed_ahead(&project, &args, "y\n");
    terminal.shows("said after the answer, as it was typed before the question: y", 1);
    terminal.shows("y/n>", 1);
    assert_eq!(project.get(&id)["status"], "blocked");
    terminal.types("n\n");
    terminal.shows("\nthanks\n> y\n", 1);
    assert_eq!(consents(&project, &id), [false]);
    project.until("the line is said", || {
        let runs = project.run(&["ps", "-a", "--session", "s", "-o", "json"]).json();
        runs["runs"].as_array().expect("runs").iter().any(|run| run["task"] == "y")
    });
}

#[test]
fn in_a_conversation_a_line_that_was_begun_before_a_question_is_not_sent() {
    let project = project();
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    terminal.types("y");
    terminal.shows("> y", 1);
    let id = asking(&project, &["--session", "s", "--no-history"]);
    terminal.shows("not sent: y\ny/n>", 1);
    terminal.types("n\n");
    terminal.shows("has completed", 1);
    assert!(!terminal.seen().contains("answer y or n"), "{}", terminal.seen());
    assert_eq!(consents(&project, &id), [false]);
    exchange(&mut terminal, "heard");
}

#[test]
fn what_is_typed_of_a_line_stays_to_be_seen_as_it_stays_to_be_sent() {
    let project = project();
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    let line = says("whole");
    let (begun, rest) = line.split_at(9);
    terminal.types(begun);
    terminal.shows(&format!("> {begun}"), 1);
    let other = says("other");
    project.run(&["run", "worker", &other, "--session", "s", "--no-history", "-d"]).id();
    terminal.shows(&format!("has completed\n> {begun}\n"), 1);
    terminal.types(&format!("{rest}\n"));
    terminal.shows(&format!("> {line}\n"), 1);
    terminal.shows("\nwhole\n>", 1);
    // It may be discarded, and by the same key the conversation is left.
    terminal.types("nothing");
    terminal.shows("> nothing", 1);
    terminal.types("\x04\x04");
    exchange(&mut terminal, "heard");
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
}
