//! Keys that are pressed when nobody asks for them: before a question is there, after somebody has
//! left, and while something else is shown.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun::clock::SystemClock;
use taskrun_journal::time::Clock;

use crate::chat::{asks, chat, project, says, script};
use crate::chat_meanwhile::exchange;
use crate::project::Project;
use crate::terminal::Terminal;

/// Times that something is tried which takes place in a time that the program gives.
const ATTEMPTS_MAX: usize = 5;
/// The time of two looks whether a run that is followed asks something.
const LOOKS: Duration = Duration::from_secs(1);

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
fn a_call_by_hand_is_consented_to_after_its_question_was_shown() {
    let project = Project::new();
    let call = ["tool", "call", "scripted/change", "{}", "--agent", "asking"];
    let mut terminal = Terminal::typed_ahead(&project, &call, "y\n");
    terminal.shows("y/n>", 1);
    terminal.types("n\n");
    assert_eq!(terminal.ends(), 4, "{}", terminal.seen());
    let mut terminal = Terminal::new(project.command(&call));
    terminal.shows("y/n>", 1);
    terminal.types("y\n");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
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
    // On a busy machine it may come up too late.
    let comes_up = (0..ATTEMPTS_MAX).any(|_| is_left_unasked());
    assert!(comes_up, "it never comes up in the time for a second Ctrl-C");
}

/// Leaves a run by Ctrl-C that begins and asks only then. False if it did so too late to be asked.
fn is_left_unasked() -> bool {
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
    assert_eq!(project.run(&["wait", &id]).code, 8);
    let clock = SystemClock::new();
    assert_eq!(terminal.ends(), 130, "{}", terminal.seen());
    assert!(!terminal.seen().contains("y/n>"), "{}", terminal.seen());
    clock.monotonic() >= LOOKS
}

#[test]
fn in_a_conversation_all_lines_of_before_a_question_are_set_aside() {
    let project = project();
    asking(&project, &["--session", "s"]);
    let args = ["chat", "s", "--agent", "asking"];
    // More than are read ahead.
    let lines: String = (100..200).map(|nth| format!("line {nth}\n")).collect();
    let mut terminal = Terminal::typed_ahead(&project, &args, &lines);
    terminal.shows("typed before the question: line 199\n", 1);
    terminal.shows("y/n>", 1);
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    terminal.shows("not said: line 199", 1);
    let seen = terminal.seen();
    assert_eq!(seen.matches("typed before the question: line 1").count(), 100, "{seen}");
    assert_eq!(seen.matches("not said: line 1").count(), 100, "{seen}");
}

#[test]
fn a_line_that_was_set_aside_is_shown_again_where_it_was_typed_and_in_no_file() {
    let project = project();
    let id = asking(&project, &["--session", "s"]);
    let args = ["chat", "s", "--agent", "asking"];
    let script = "exec \"$@\" 2>notes";
    let mut terminal = Terminal::typed_ahead_of(&project, script, &args, "y\n");
    let notes = || std::fs::read_to_string(project.path().join("notes")).unwrap_or_default();
    project.until("the line is set aside", || notes().contains("before the question: y\n"));
    terminal.types("n\n");
    is_said(&project, "y");
    assert_eq!(consents(&project, &id), [false]);
    assert!(!notes().contains("> y"), "{}", notes());
}

/// Waits until a line was said in the session.
fn is_said(project: &Project, line: &str) {
    project.until("the line is said", || {
        let runs = project.run(&["ps", "-a", "--session", "s", "-o", "json"]).json();
        runs["runs"].as_array().expect("runs").iter().any(|run| run["task"] == line)
    });
}

#[test]
fn in_a_conversation_a_line_of_before_a_question_is_said_after_it() {
    let project = project();
    let id = asking(&project, &["--session", "s"]);
    let args = ["chat", "s", "--agent", "asking"];
    // To end the input is no consent either.
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
    is_said(&project, "y");
}

#[test]
fn in_a_conversation_lines_that_nobody_heard_yet_are_told_as_it_is_left() {
    let project = project();
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    let works = script(&json!([[{ "sleep": 100_000 }, { "reply": "done" }]]));
    terminal.types(&format!("{works}\n"));
    terminal.types("first\n\nsecond\nlast\n");
    // A line that stands before one that was shown is there to be read.
    terminal.shows("last", 1);
    project.until("the lines are read", || terminal.is_read());
    terminal.types("\x03");
    assert_eq!(terminal.ends(), 130, "{}", terminal.seen());
    terminal.shows("not said: first\n", 1);
    terminal.shows("not said: second\n", 1);
    let seen = terminal.seen();
    assert!(!seen.lines().any(|line| line.ends_with("not said:")), "{seen}");
}

/// A line of so many bytes, which an agent answers.
fn line_of(bytes: usize) -> String {
    says(&"x".repeat(bytes - says("").len()))
}

/// The note about a line of which a terminal leaves a part out.
const CUT_OFF: &str = "a terminal gives at most 4,095 bytes of a line; `taskrun";

#[test]
fn in_a_conversation_a_line_that_the_terminal_cuts_off_is_not_said() {
    let project = project();
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    terminal.types(&format!("{}\n", line_of(5_000)));
    terminal.shows(&format!("{CUT_OFF} run lead @FILE --session s`"), 1);
    terminal.prompts();
    let whole = line_of(4_000);
    terminal.types(&format!("{whole}\n"));
    is_said(&project, &whole);
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    let runs = project.run(&["ps", "-a", "--session", "s", "-o", "json"]).json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1), "{runs}");
    assert_eq!(terminal.seen().matches(CUT_OFF).count(), 1, "{}", terminal.seen());
}

#[test]
fn in_a_conversation_an_answer_that_the_terminal_cuts_off_is_asked_for_again() {
    let project = project();
    let id = asking(&project, &["--session", "s"]);
    let mut terminal = chat(&project, &["--agent", "asking"]);
    terminal.shows("y/n>", 1);
    terminal.types(&format!("{}\n", "x".repeat(5_000)));
    terminal.shows(&format!("{CUT_OFF} answer {id} "), 1);
    terminal.prompts();
    terminal.types("n\n");
    terminal.shows("\nthanks\n>", 1);
    assert!(!terminal.seen().contains("answer y or n"), "{}", terminal.seen());
    assert_eq!(consents(&project, &id), [false]);
}

#[test]
fn an_answer_that_the_terminal_cuts_off_or_that_is_no_text_is_asked_for_again() {
    let project = Project::new();
    let task = asks("Which quarter?", "thanks");
    let mut terminal = Terminal::new(project.command(&["run", "worker", &task]));
    terminal.prompts();
    let id = project.run(&["ps", "-a", "-o", "name"]).id();
    terminal.types(&format!("{}\n", "x".repeat(5_000)));
    terminal.shows(&format!("{CUT_OFF} answer {id} which @FILE`"), 1);
    terminal.sends(b"f\xfcr\n");
    terminal.shows("! the line is no UTF-8", 1);
    let whole = "y".repeat(4_000);
    terminal.types(&format!("{whole}\n"));
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    let events = project.events(&id);
    let answers = events.iter().filter(|event| event["kind"] == "answered");
    let answers: Vec<String> = answers.map(Value::to_string).collect();
    assert!(answers.len() == 1 && answers[0].contains(&format!("\"{whole}\"")), "{answers:?}");
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

#[test]
fn a_begun_line_of_several_rows_is_moved_as_a_whole() {
    let project = project();
    let mut terminal =
        Terminal::rewriting(project.command(&["chat", "s", "--agent", "lead"]), 80, 30);
    terminal.shows(">", 1);
    let rows = [format!("> {}", "x".repeat(78)), "x".repeat(22)];
    terminal.types(&"x".repeat(100));
    terminal.has(&rows[1]);
    let other = says("other");
    project.run(&["run", "worker", &other, "--session", "s", "--no-history", "-d"]).id();
    terminal.has("has completed");
    terminal.until("the line below what was shown, once", |lines| {
        let shown: Vec<&String> = lines.iter().filter(|line| !line.is_empty()).collect();
        let begun = shown.iter().filter(|line| line.contains("xxxx")).count();
        begun == rows.len() && shown.ends_with(&[&rows[0], &rows[1]])
    });
}

#[test]
fn a_background_run_that_begins_while_the_agent_works_is_told_in_a_line_of_its_own() {
    let project = project();
    let mut terminal =
        Terminal::rewriting(project.command(&["chat", "s", "--agent", "lead"]), 120, 30);
    terminal.shows(">", 1);
    let start = json!({ "id": "c", "name": "host/start_task_run", "args": { "task": says("x") } });
    // The spinner is drawn before the run begins.
    let works = script(&json!([[{ "sleep": 1_000 }, { "call": start }], [{ "reply": "thanks" }]]));
    terminal.types(&format!("{works}\n"));
    let lines = terminal.has("works in the background");
    let note = lines.iter().find(|line| line.contains("works in the background"));
    assert!(note.is_some_and(|note| note.starts_with("· ")), "{lines:#?}");
}
