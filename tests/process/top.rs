//! `taskrun top` on a terminal and in a pipe. The terminal is read as a person sees it.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::project::Project;
use crate::terminal::Terminal;

/// A run that awaits this, and then ends.
fn asks(project: &Project, agent: &str, asked: Value) -> String {
    let script = json!({ "steps": [[{ "plan": { "await": [asked] } }], [{ "reply": "done" }]] });
    blocked(project, agent, &script)
}

fn asks_for(project: &Project, question: &str) -> String {
    asks(project, "worker", json!({ "clarification": { "id": "which", "question": question } }))
}

fn blocked(project: &Project, agent: &str, script: &Value) -> String {
    let id = project.run(&["run", agent, &script.to_string(), "-d"]).id();
    assert_eq!(project.run(&["wait", &id, "--for", "blocked"]).code, 8, "blocked");
    id
}

fn top(project: &Project) -> Terminal {
    Terminal::sized(project.command(&["top"]), 140, 24)
}

fn answers(project: &Project, id: &str) -> Vec<Value> {
    let events = project.events(id).into_iter();
    events
        .filter(|event| event["kind"] == "answered")
        .map(|event| event["answer"].clone())
        .collect()
}

/// True if the last line of the screen has a text in it.
fn last_line(text: &str) -> impl Fn(&[String]) -> bool {
    move |lines| lines.last().is_some_and(|line| line.contains(text))
}

/// Cancels the selected run.
fn cancels(terminal: &mut Terminal) {
    terminal.types("c");
    terminal.until("the question about it", last_line("any other key does not"));
    terminal.types("y");
    terminal.until("that it is canceled", last_line("canceled"));
}

#[test]
fn keys_look_answer_and_cancel_and_the_terminal_is_given_back() {
    let project = Project::new();
    let first = asks_for(&project, "Which quarter?");
    let mut terminal = top(&project);
    terminal.has("? Which quarter?");
    terminal.types("\r");
    terminal.has("plan_decided");
    terminal.types("q");
    terminal
        .until("the rows", |lines| last_line("q quit")(lines) && lines[3].contains(&first[..18]));
    terminal.types("a");
    terminal.until("the form", |lines| {
        lines.iter().any(|line| line == "Which quarter?") && lines[22] == ">"
    });
    terminal.cursor_is_at(22, 2);
    terminal.types("the forth\u{7f}\u{7f}\u{7f}urth");
    terminal.until("what is typed", |lines| lines[22] == "> the fourth");
    terminal.cursor_is_at(22, 12);
    terminal.types("\r");
    terminal.until("that it is answered", last_line("answered 0"));
    assert_eq!(project.run(&["wait", &first]).code, 0);
    assert_eq!(answers(&project, &first), [json!({ "text": "the fourth" })]);
    terminal.has("no open runs");

    let second = asks_for(&project, "And which year?");
    terminal.has("And which year?");
    terminal.types("p");
    terminal.until("that it is paused", last_line("paused"));
    terminal.types("r");
    terminal.until("that it is resumed", last_line("resumed"));
    // The second key comes before the question is there.
    terminal.types("cy");
    terminal.until("the question about it", last_line("any other key does not"));
    terminal.types("n");
    terminal.until("the keys", last_line("q quit"));
    assert_eq!(project.get(&second)["status"], "blocked");
    cancels(&mut terminal);
    assert_eq!(project.run(&["wait", &second]).code, 6);
    terminal.types("q");
    assert_eq!(terminal.ends(), 0);
    assert!(terminal.is_as_before());
}

#[test]
fn a_form_shows_its_choices_and_is_asked_again_until_it_fits() {
    let project = Project::new();
    let question = |id: &str, options: Value, several: bool| json!({ "id": id, "prompt": format!("Which {id}?"), "options": options, "allow-multiple": several });
    let colours = json!([["r", "red"], ["g", "green"]]);
    let asked = json!({ "questions": {
        "id": "form", "tool-name": "t", "tool-call-id": "c", "args": {},
        "questions": [question("colour", colours, false), question("name", json!([]), false)],
    }});
    let id = asks(&project, "worker", asked);
    let mut terminal = top(&project);
    terminal.has("1 to 1");
    terminal.types("a");
    terminal.until("its options", |lines| {
        ["Which colour?", "  1  red (r)", "  2  green (g)"]
            .iter()
            .all(|text| lines.iter().any(|line| line == text))
            && lines[22] == "1-2>"
    });
    terminal.types("3\r");
    terminal.has("! there is no option 3");
    terminal.types("2\r");
    terminal.until("the next one", |lines| {
        lines.iter().any(|line| line == "Which name?") && lines[22] == ">"
    });
    // Left, and taken up again from the beginning.
    terminal.types("x\u{1b}");
    terminal.until("that it was left", last_line("left unanswered"));
    assert!(answers(&project, &id).is_empty());
    terminal.types("a");
    terminal.until("the first one", |lines| lines[22] == "1-2>");
    terminal.types("r\r");
    terminal.until("the second one", |lines| lines[22] == ">");
    // Pasted, with a line break that would send half of it.
    terminal.types("\u{1b}[200~Ann\rof the 漢字\r\u{1b}[201~");
    terminal.until("what was pasted", |lines| lines[22] == "> Ann of the 漢字");
    terminal.cursor_is_at(22, 17);
    terminal.types("\r");
    terminal.until("that it is answered", last_line("answered 0"));
    let chosen = json!({ "choices": { "colour": ["r"], "name": ["Ann of the 漢字"] } });
    assert_eq!(answers(&project, &id), [chosen]);
}

#[test]
fn consent_is_given_by_y_or_n() {
    let project = Project::new();
    let call = |id: &str| json!([{ "call": { "id": id, "name": "scripted/change", "args": {} } }]);
    let script = json!({ "steps": [call("one"), call("two"), [{ "reply": "done" }]] });
    let id = blocked(&project, "asking", &script);
    let mut terminal = top(&project);
    terminal.has("1 to 1");
    // Consent that is typed ahead is none.
    terminal.types("ay\r");
    terminal.until("the call", |lines| {
        lines.iter().any(|line| line.contains("scripted/change {}")) && lines[22] == "y/n>"
    });
    assert!(answers(&project, &id).is_empty());
    terminal.types("perhaps\r");
    terminal.has("! answer y or n");
    terminal.types("y\r");
    terminal.until("that it is answered", last_line("answered 0"));
    terminal.until("the next question", |lines| lines[3].contains("? "));
    terminal.types("a");
    terminal.until("the second call", |lines| lines[22] == "y/n>");
    terminal.types("n\r");
    terminal.until("that it is answered again", last_line("answered 0"));
    assert_eq!(project.run(&["wait", &id]).code, 0);
    assert_eq!(
        answers(&project, &id),
        [json!({ "confirmed": true }), json!({ "confirmed": false })]
    );
}

#[test]
fn an_answer_that_somebody_gave_meanwhile_is_told_and_nothing_is_lost() {
    let project = Project::new();
    let ask = |question: &str| {
        let asked = json!({ "clarification": { "id": "which", "question": question } });
        json!([{ "plan": { "await": [asked] } }])
    };
    let steps = json!([ask("Which quarter?"), ask("Which year?"), [{ "reply": "done" }]]);
    let id = blocked(&project, "worker", &json!({ "steps": steps }));
    let mut terminal = top(&project);
    terminal.has("? Which quarter?");
    terminal.types("a");
    terminal.until("the form", |lines| lines[22] == ">");
    assert_eq!(project.run(&["answer", &id, "Q1"]).code, 0);
    project.until("it asks again, by the same name", || {
        project.run(&["inbox"]).stdout.contains("Which year?")
    });
    terminal.types("Q2\r");
    terminal.until("the refusal", last_line("answered already"));
    assert_eq!(answers(&project, &id), [json!({ "text": "Q1" })]);
    // So is one to a question after which nothing is asked.
    terminal.types("a");
    terminal.until("the next form", |lines| {
        lines.iter().any(|line| line == "Which year?") && lines[22] == ">"
    });
    assert_eq!(project.run(&["answer", &id, "2026"]).code, 0);
    assert_eq!(project.run(&["wait", &id]).code, 0);
    terminal.types("2027\r");
    terminal.until("the refusal", last_line("answered already"));
    assert_eq!(answers(&project, &id), ["Q1", "2026"].map(|text| json!({ "text": text })));
}

#[test]
fn ctrl_c_and_signals_give_the_terminal_back() {
    let project = Project::new();
    asks_for(&project, "Which quarter?");
    for in_form in [false, true] {
        let mut pressed = top(&project);
        pressed.has("? Which quarter?");
        if in_form {
            pressed.types("a");
            pressed.until("the form", |lines| lines[22] == ">");
        }
        pressed.types("\u{3}");
        assert_eq!(pressed.ends(), 0);
        assert!(pressed.is_as_before());
    }
    for (signal, code) in [(Signal::TERM, 130), (Signal::HUP, 130), (Signal::INT, 0)] {
        let mut ended = top(&project);
        ended.has("? Which quarter?");
        ended.signal(signal);
        assert_eq!(ended.ends(), code);
        assert!(ended.is_as_before());
    }
}

#[test]
fn a_screen_of_another_size_shows_as_much_as_it_has_room_for() {
    let project = Project::new();
    for number in 0..6 {
        asks_for(&project, &format!("Which of {number}?"));
    }
    let mut terminal = Terminal::sized(project.command(&["top"]), 20, 3);
    terminal.until("that it is too small", |lines| lines[0].starts_with("too small"));
    terminal.resize(80, 8);
    terminal.until("four rows", |lines| {
        lines[0].contains("open runs 1 to 4, and more")
            && lines[3].contains("blocked")
            && lines[6].contains("Which of 2?")
            && lines[7].contains("q quit")
    });
    terminal.types("n");
    terminal.until("the next page", |lines| {
        lines[0].contains("open runs 5 to 6") && lines[4].contains("Which of 0?")
    });
    terminal.types("b");
    terminal.until("the first page", |lines| lines[0].contains("1 to 4"));
    terminal.resize(140, 24);
    terminal.until("all of them", |lines| {
        lines[0].contains("open runs 1 to 6") && lines[8].contains("Which of 0?")
    });
    terminal.resize(39, 24);
    terminal.until("that it is too narrow", |lines| lines[0].starts_with("too small"));
    terminal.types("q");
    assert_eq!(terminal.ends(), 0);
    assert!(terminal.is_as_before());
    // One that does not say how large it is.
    let mut unknown = Terminal::new(project.command(&["top"]));
    unknown.types("q");
    assert_eq!(unknown.ends(), 0);
    assert!(unknown.is_as_before());
}

#[test]
fn a_call_is_shown_while_it_is_under_way_and_a_host_that_dies_beside_changes_nothing() {
    let project = Project::new();
    let call =
        json!({ "call": { "id": "c", "name": "scripted/lookup", "args": { "sleep_ms": 30_000 } } });
    let script = json!({ "steps": [[call], [{ "reply": "done" }]] });
    let id = project.run(&["run", "worker", &script.to_string(), "-d"]).id();
    let mut terminal = top(&project);
    let is_under_way =
        |lines: &[String]| lines[3].contains("running") && lines[3].contains("scripted/lookup");
    terminal.until("the call", is_under_way);
    assert_eq!(project.kill_hosts_and_wait(), 1);
    // It lives, and looks on at what is not executed any more.
    terminal.types("\r");
    terminal.has("tool_call_scheduled");
    terminal.types("q");
    terminal.until("the row", |lines| lines[3].contains(&id[..18]));
    cancels(&mut terminal);
    assert_eq!(project.run(&["wait", &id]).code, 6);
    terminal.has("no open runs");
    terminal.types("q");
    assert_eq!(terminal.ends(), 0);
    assert!(terminal.is_as_before());
}

#[test]
fn texts_of_guests_move_no_cursor_on_any_page() {
    let project = Project::new();
    let hostile = "a\u{1b}[2J\u{1b}[H\u{9b}1;1H\u{1b}]0;owned\u{7}\u{202e}漢字\u{1b}[?1049l";
    asks_for(&project, hostile);
    let mut terminal = top(&project);
    let shown = "a\\u{1b}[2J\\u{1b}[H\\u{9b}1;1H\\u{1b}]0;owned\\u{7}\\u{202e}漢字";
    let is_framed = |lines: &[String]| lines[0].starts_with("taskrun top  open runs 1 to 1");
    let has = |lines: &[String]| lines.iter().any(|line| line.contains(shown));
    terminal.until("the row", |lines| is_framed(lines) && has(lines) && last_line("q quit")(lines));
    terminal.types("\r");
    terminal.until("the run", |lines| is_framed(lines) && has(lines) && last_line("q back")(lines));
    terminal.types("a");
    terminal.until("the form", |lines| {
        is_framed(lines) && lines[2].starts_with(shown) && last_line("⏎ send")(lines)
    });
    terminal.types("\u{3}");
    assert_eq!(terminal.ends(), 0);
    assert!(terminal.is_as_before());
}

#[test]
fn without_a_screen_it_prints_the_open_runs_once() {
    let project = Project::new();
    let open = asks_for(&project, "Which quarter?");
    let ended = project.run(&["run", "worker", "said", "--wait"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let ran = project.run(&["top"]);
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((ran.code, lines.len()), (0, 1), "{ran:?}");
    assert_eq!((&lines[0]["id"], &lines[0]["status"]), (&json!(open), &json!("blocked")));
    assert!(ran.stderr.contains("the open runs once"), "{ran:?}");
    // So it is on a terminal, where a form of output is asked for.
    let mut terminal = Terminal::sized(project.command(&["top", "-o", "name"]), 140, 24);
    assert_eq!(terminal.ends(), 0);
    terminal.until("the id alone", |lines| lines.contains(&open));
}
