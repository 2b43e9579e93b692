//! A conversation at a terminal while something happens elsewhere: questions are settled, hosts die,
//! and the policy is edited.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::chat::{LEAD, asks, chat, lines, project, says, script, starts};
use crate::project::Project;
use crate::terminal::Terminal;

const SETTLED: &str = "is settled, and not asked any more";

/// Says a line that starts a run which asks, and gives the run when the question is open.
fn is_asked(project: &Project, terminal: &mut Terminal, question: &str) -> String {
    let answers = terminal.seen().matches("\nunder way\n").count();
    terminal.types(&format!("{}\n", starts(&[asks(question, "thanks")])));
    terminal.shows(&format!("\n{question}\n"), 1);
    terminal.shows("\nunder way\n", answers + 1);
    // What is typed before there is a prompt is no answer.
    terminal.prompts();
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    inbox["items"][0]["run_id"].as_str().expect("a run").to_owned()
}

/// Says a line, and waits for the answer to it.
pub(crate) fn exchange(terminal: &mut Terminal, text: &str) {
    terminal.prompts();
    terminal.types(&format!("{}\n", says(text)));
    terminal.shows(&format!("\n{text}\n>"), 1);
}

/// Has nobody write to the store for as long as this lives.
pub(crate) fn locked(project: &Project) -> rusqlite::Connection {
    let store = rusqlite::Connection::open(project.path().join(".taskrun/taskrun.db"));
    let store = store.expect("opens");
    store.execute_batch("BEGIN IMMEDIATE").expect("locks");
    store
}

/// The lines that are the answer to one that was typed before there was a prompt for it.
fn said_late(seen: &str) -> usize {
    seen.lines().filter(|line| line.trim_start_matches("> ") == "late").count()
}

#[test]
fn a_question_that_is_settled_elsewhere_is_left_and_the_next_line_is_said() {
    let project = project();
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    let id = is_asked(&project, &mut terminal, "Which quarter?");
    assert_eq!(project.run(&["answer", &id, "Q3"]).code, 0);
    // Nobody types for that.
    terminal.shows(SETTLED, 1);
    terminal.shows("has completed", 1);
    exchange(&mut terminal, "heard");
    let id = is_asked(&project, &mut terminal, "Which year?");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    terminal.shows(SETTLED, 2);
    exchange(&mut terminal, "again");
    // A line that is typed before the terminal knows that the question is settled.
    let id = is_asked(&project, &mut terminal, "Which month?");
    terminal.signal(Signal::STOP);
    assert_eq!(project.run(&["answer", &id, "May"]).code, 0);
    project.ends_by_itself(&id);
    terminal.types(&format!("{}\n", says("late")));
    terminal.signal(Signal::CONT);
    terminal.shows("late\n>", 1);
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    let seen = terminal.seen();
    for line in ["heard", "again"] {
        assert_eq!(lines(&seen, line), 1, "{seen}");
    }
    assert_eq!(said_late(&seen), 1, "{seen}");
}

#[test]
fn a_confirmation_that_is_settled_elsewhere_is_left_and_the_line_typed_for_it_is_said() {
    let project = project();
    let mut terminal = chat(&project, &["--agent", "asking"]);
    terminal.shows(">", 1);
    let call = json!({ "call": { "id": "a", "name": "scripted/change", "args": {} } });
    terminal.types(&format!("{}\n", script(&json!([[call], [{ "reply": "changed" }]]))));
    terminal.shows("y/n>", 1);
    // It is open, and this is no answer to it.
    terminal.types("perhaps\n");
    terminal.shows("! answer y or n", 1);
    terminal.shows("y/n>", 2);
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    let id = inbox["items"][0]["run_id"].as_str().expect("a run");
    terminal.signal(Signal::STOP);
    let answered = project.run(&["answer", id, "--accept"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    project.ends_by_itself(id);
    terminal.types(&format!("{}\n", says("late")));
    terminal.signal(Signal::CONT);
    terminal.shows("late\n>", 1);
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    let seen = terminal.seen();
    assert_eq!(seen.matches(SETTLED).count(), 1, "{seen}");
    assert_eq!(seen.matches("answer y or n").count(), 1, "{seen}");
    assert_eq!((lines(&seen, "changed"), said_late(&seen)), (1, 1), "{seen}");
}

#[test]
fn a_question_whose_answer_cannot_be_recorded_is_asked_again_and_then_answered() {
    let project = project();
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    let id = is_asked(&project, &mut terminal, "Which quarter?");
    let locked = locked(&project);
    terminal.types("Q3\n");
    terminal.shows("\nWhich quarter?\n", 2);
    drop(locked);
    terminal.prompts();
    terminal.types("Q4\n");
    terminal.shows("has completed", 1);
    terminal.prompts();
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    assert!(!terminal.seen().contains(SETTLED), "{}", terminal.seen());
    let events = project.events(&id);
    let answers = events.iter().filter(|event| event["kind"] == "answered");
    let answers: Vec<String> = answers.map(ToString::to_string).collect();
    assert!(answers.len() == 1 && answers[0].contains("Q4"), "{answers:?}");
}

#[test]
fn a_run_of_a_host_that_is_killed_is_gone_on_with_while_a_question_is_open() {
    let project = project();
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    let works = script(&json!([[{ "sleep": 2_000 }, { "reply": "first" }]]));
    terminal.types(&format!("{}\n", starts(&[works, asks("Which quarter?", "second")])));
    terminal.shows("\nWhich quarter?\n", 1);
    terminal.shows("\nunder way\n", 1);
    assert!(project.kill_hosts() > 0, "one executes it");
    terminal.shows("has completed", 1);
    terminal.prompts();
    terminal.types("Q3\n");
    terminal.shows("has completed", 2);
}

#[test]
fn an_edit_of_the_policy_is_in_force_for_the_next_line_and_one_with_a_mistake_changes_nothing() {
    let project = project();
    let file = project.path().join("taskrun.toml");
    let before = std::fs::read_to_string(file).expect("there is one");
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    exchange(&mut terminal, "one");
    project.write("taskrun.toml", format!("{before}no policy\n").as_bytes());
    exchange(&mut terminal, "two");
    exchange(&mut terminal, "three");
    let seen = terminal.seen();
    let told = seen.lines().filter(|line| line.contains("the policy stays as it was")).count();
    assert_eq!(told, 1, "{seen}");
    let edited = format!("{before}limits = {{ tool_calls = 7 }}\n");
    project.write("taskrun.toml", edited.as_bytes());
    exchange(&mut terminal, "four");
    let versions = project.run(&["agent", "versions", "lead", "-o", "json"]).json();
    let versions = versions["versions"].as_array().expect("versions");
    let of = |is_current: bool| {
        let found = versions.iter().find(|version| version["current"] == is_current);
        found.map(|version| &version["runs"])
    };
    assert_eq!([of(true), of(false)], [Some(&json!(1)), Some(&json!(3))], "{versions:?}");
    // The line is refused, and the next one is not.
    project.write("taskrun.toml", before.replace(LEAD, "").as_bytes());
    terminal.types(&format!("{}\n", says("five")));
    terminal.shows("the line is not said: there is no agent \"lead\" in taskrun.toml", 1);
    project.write("taskrun.toml", edited.as_bytes());
    exchange(&mut terminal, "six");
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    let runs = project.run(&["ps", "-a", "--session", "s", "-o", "json"]).json();
    let said = runs["runs"].as_array().expect("runs").iter().map(|run| &run["result"]);
    let mut said: Vec<&Value> = said.collect();
    said.sort_by_key(|result| result.to_string());
    assert_eq!(said, ["four", "one", "six", "three", "two"], "{runs}");
}
