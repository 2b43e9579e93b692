//! A conversation at a terminal: background runs, a question in place, a hand-over, an outcome that is
//! told at once, Ctrl-C, kill -9 and coming back.

use serde_json::{Value, json};
use taskrun_examples::CHAT;

use crate::project::{Project, Ran};
use crate::terminal::Terminal;

pub(crate) const LEAD: &str = "[agent.lead]\ncomponent = \"components/scripted.wasm\"\n\
                    members = [\"worker\"]\ntools = [\"host/task_runs\", \"host/ask_user\"]\n\
                    allow = [\"controller: *\"]\n";

/// An agent that answers with what it is told, and one that may hand a conversation to it.
const HANDS_OVER: &str = "[model.echo]\nprovider = \"echo\"\n\n\
                          [agent.second]\ncomponent = \"components/chat.wasm\"\n\
                          model = \"echo\"\n\n\
                          [agent.first]\ncomponent = \"components/scripted.wasm\"\n\
                          members = [\"second\"]\ntools = [\"host/transfer_to_agent\"]\n\
                          allow = [\"controller: *\", \"model: echo\"]\n";

pub(crate) fn project() -> Project {
    project_with(LEAD)
}

fn project_with(agents: &str) -> Project {
    let project = Project::new();
    let file = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&file).expect("there is one");
    project.write("components/chat.wasm", CHAT.bytes);
    project.write("taskrun.toml", format!("{policy}\n{agents}").as_bytes());
    project
}

pub(crate) fn script(steps: &Value) -> String {
    json!({ "steps": steps }).to_string()
}

fn call(id: &str, name: &str, args: &Value) -> Value {
    json!({ "call": { "id": id, "name": name, "args": args } })
}

pub(crate) fn says(text: &str) -> String {
    script(&json!([[{ "reply": text }]]))
}

/// The task of a run that asks before it answers.
pub(crate) fn asks(question: &str, answer: &str) -> String {
    let question = json!({ "clarification": { "id": "which", "question": question } });
    script(&json!([[{ "plan": { "await": [question] } }], [{ "reply": answer }]]))
}

/// A line that starts runs with these tasks.
pub(crate) fn starts(tasks: &[String]) -> String {
    let start = |(nth, task): (usize, &String)| {
        call(&format!("c{nth}"), "host/start_task_run", &json!({ "task": task }))
    };
    let calls: Vec<Value> = tasks.iter().enumerate().map(start).collect();
    script(&json!([calls, [{ "reply": "under way" }]]))
}

/// The lines that are just this.
pub(crate) fn lines(seen: &str, line: &str) -> usize {
    seen.lines().filter(|one| *one == line).count()
}

pub(crate) fn chat(project: &Project, args: &[&str]) -> Terminal {
    Terminal::new(project.command(&[&["chat", "s"], args].concat()))
}

#[test]
fn two_background_runs_a_question_in_place_and_every_line_once_over_ctrl_c_and_kill_9() {
    let project = project();
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    let tasks = [says("first"), asks("Which quarter?", "second")];
    terminal.types(&format!("{}\n", starts(&tasks)));
    terminal.shows("works in the background", 2);
    terminal.shows("\nWhich quarter?\n", 1);
    terminal.shows("\nunder way\n", 1);
    terminal.prompts();
    terminal.types("Q3\n");
    terminal.shows("has completed", 2);
    project.kill_hosts_and_wait();
    terminal.types(&format!("{}\n", says("heard")));
    terminal.shows("told of 2 background runs", 1);
    terminal.shows("\nheard\n>", 1);
    let seen = terminal.seen();
    for line in ["under way", "heard"] {
        assert_eq!(lines(&seen, line), 1, "{seen}");
    }
    // A line that asks, in the middle of which both the terminal and the host are gone.
    let asks = call("c1", "host/ask_user", &json!({ "question": "Which color?" }));
    terminal.types(&format!("{}\n", script(&json!([[asks], [{ "reply": "painted" }]]))));
    terminal.shows("\nWhich color?\n>", 1);
    terminal.types("\x03");
    assert_eq!(terminal.ends(), 130, "{}", terminal.seen());
    terminal.shows("what runs goes on", 1);
    project.kill_hosts_and_wait();

    let mut again = chat(&project, &[]);
    again.shows("\nWhich color?\n>", 1);
    again.types("blue\n");
    again.shows("\npainted\n", 1);
    let seen = again.seen();
    for line in ["under way", "heard", "painted"] {
        assert_eq!(lines(&seen, line), 1, "{seen}");
    }
    // The end of the input.
    again.types("\x04");
    assert_eq!(again.ends(), 0, "{}", again.seen());
    let pending = project.run(&["outbox", "ls", "-o", "json"]).json();
    assert_eq!(pending["reports"], json!([]));
}

#[test]
fn a_conversation_that_is_handed_over_goes_on_with_the_other_agent_over_kill_9_and_coming_back() {
    let project = project_with(HANDS_OVER);
    let mut terminal = chat(&project, &["--agent", "first"]);
    terminal.shows(">", 1);
    let hands_over = call("c1", "host/transfer_to_agent", &json!({ "agent": "second" }));
    // The other one is shown the line, and says it again.
    let line = script(&json!([[hands_over], [{ "reply": "it is never said" }]]));
    terminal.types(&format!("{line}\n"));
    terminal.shows("second has the conversation\n>", 1);
    // As it was typed, and as it was said; a long one is broken where the screen ends.
    let times = |seen: &str| seen.replace('\n', "").matches(&line).count();
    assert_eq!(times(&terminal.seen()), 2, "{}", terminal.seen());
    project.kill_hosts_and_wait();
    terminal.types("Who are you?\n");
    terminal.shows("\nWho are you?\n>", 1);
    terminal.types("\x03");
    assert_eq!(terminal.ends(), 130, "{}", terminal.seen());
    let seen = terminal.seen();
    assert_eq!(lines(&seen, "Who are you?"), 1, "{seen}");
    terminal.shows("`taskrun chat s` speaks with second again", 1);

    let mut again = chat(&project, &[]);
    again.shows("\nWho are you?\n>", 1);
    let seen = again.seen();
    for line in ["Who are you?", "> Who are you?"] {
        assert_eq!(lines(&seen, line), 1, "{line}: {seen}");
    }
    assert_eq!(times(&seen), 2, "{seen}");
    again.types("And now?\n");
    again.shows("\nAnd now?\n>", 1);
    again.types("\x04");
    assert_eq!(again.ends(), 0, "{}", again.seen());
    let seen = again.seen();
    assert_eq!(lines(&seen, "And now?"), 1, "{seen}");
    assert!(!seen.contains("\nit is never said"), "{seen}");
    let runs = project.run(&["ps", "-a", "--session", "s", "-o", "json"]).json();
    let spoke = |run: &&Value| ["Who are you?", "And now?"].map(Value::from).contains(&run["task"]);
    let spoke: Vec<_> = runs["runs"].as_array().expect("runs").iter().filter(spoke).collect();
    assert_eq!(spoke.len(), 2, "{runs}");
    assert!(spoke.iter().all(|run| run["agent_name"] == "second"), "{runs}");
}

#[test]
fn an_outcome_that_is_delivered_at_once_is_told_in_place_once_and_nobody_types_for_it() {
    let prompt = says("noted");
    let delivery = format!("delivery = {{ strategy = \"immediate\", prompt = {prompt:?} }}\n");
    let project = project_with(&format!("{LEAD}{delivery}"));
    let mut terminal = chat(&project, &["--agent", "lead"]);
    terminal.shows(">", 1);
    terminal.types(&format!("{}\n", starts(&[asks("Which quarter?", "12 pages")])));
    terminal.shows("\nWhich quarter?\n", 1);
    terminal.shows("\nunder way\n", 1);
    // Another host has to tell it.
    project.kill_hosts_and_wait();
    terminal.prompts();
    terminal.types("Q3\n");
    terminal.shows("has completed", 1);
    terminal.shows("told of 1 background run", 1);
    terminal.shows("\nnoted\n>", 1);
    let seen = terminal.seen();
    for line in ["under way", "noted"] {
        assert_eq!(lines(&seen, line), 1, "{seen}");
    }
    let pending = project.run(&["outbox", "ls", "-o", "json"]).json();
    assert_eq!(pending["reports"], json!([]));
    project.kill_hosts_and_wait();
    // It is part of what was said, and not told again.
    terminal.types(&format!("{}\n", says("heard")));
    terminal.shows("\nheard\n>", 1);
    terminal.types("\x03");
    assert_eq!(terminal.ends(), 130, "{}", terminal.seen());
    assert_eq!(lines(&terminal.seen(), "noted"), 1, "{}", terminal.seen());

    let mut again = chat(&project, &[]);
    again.shows("\nheard\n>", 1);
    again.types("\x04");
    assert_eq!(again.ends(), 0, "{}", again.seen());
    let seen = again.seen();
    for line in ["under way", "noted", "heard"] {
        assert_eq!(lines(&seen, line), 1, "{seen}");
    }
    assert!(!seen.contains(&format!("> {prompt}")), "nobody typed it: {seen}");
}

#[test]
fn what_is_piped_in_is_said_line_by_line_and_who_has_the_conversation_is_known_again() {
    let project = project();
    let nobody = project.run(&["chat", "s"]);
    assert_eq!(nobody.code, 2, "{nobody:?}");
    assert!(nobody.stderr.contains("--agent"), "{nobody:?}");
    let unknown = project.run(&["chat", "s", "--agent", "leed"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.stderr.contains("lead"), "{unknown:?}");
    let json = project.run(&["chat", "s", "--agent", "lead", "-o", "json"]);
    assert_eq!(json.code, 2, "{json:?}");
    project.write("said", format!("{}\n\n{}\n", says("one"), says("two")).as_bytes());
    let said = std::fs::File::open(project.path().join("said")).expect("it is there");
    let ran = project.command(&["chat", "s", "--agent", "lead"]).stdin(said).output();
    let ran = ran.expect("starts");
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "one\ntwo\n", "{ran:?}");
    let again = project.run(&["chat", "s"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.stdout.ends_with("\ntwo\n"), "{again:?}");
    assert!(again.stderr.contains("speaks with lead"), "{again:?}");
}

#[test]
fn a_pipe_is_given_an_answer_as_it_is() {
    let project = project();
    for text in ["a\tb  \n\n  \u{200d}\u{200c}c", "\u{1b}[1mx"] {
        project.write("said", format!("{}\n", says(text)).as_bytes());
        let said = std::fs::File::open(project.path().join("said")).expect("it is there");
        let ran = project.command(&["chat", "s", "--agent", "lead"]).stdin(said).output();
        let ran = Ran::from(ran.expect("starts"));
        assert_eq!(ran.code, 0, "{ran:?}");
        let result = project.run(&["get", "@last", "--result"]);
        assert_eq!((result.code, result.stdout), (0, format!("{text}\n")));
        let last = ran.stdout.get(ran.stdout.len().saturating_sub(text.len() + 1)..);
        assert_eq!(last, Some(format!("{text}\n").as_str()), "{ran:?}");
    }
    let again = project.run(&["chat", "s"]);
    assert!(again.stdout.ends_with("\n\u{1b}[1mx\n"), "{again:?}");
}

#[test]
fn a_line_that_is_too_long_starts_no_run_says_why_and_the_next_one_is_said() {
    let project = project();
    let long = "x".repeat(300_000);
    project.write("said", format!("{long}\n{}\n", says("two")).as_bytes());
    let said = std::fs::File::open(project.path().join("said")).expect("it is there");
    let ran = project.command(&["chat", "s", "--agent", "lead"]).stdin(said).output();
    let ran = Ran::from(ran.expect("starts"));
    assert_eq!((ran.code, ran.stdout.as_str()), (2, "two\n"), "{ran:?}");
    assert_eq!(ran.error()["code"], "too-long", "{ran:?}");
    assert!(ran.stderr.contains("the task has more than 262144 bytes"), "{ran:?}");
    let runs = project.run(&["ps", "-a", "-o", "name"]);
    assert_eq!((runs.code, runs.stdout.lines().count()), (0, 1), "{runs:?}");
}

#[test]
fn a_line_that_is_too_long_for_an_answer_leaves_no_other_line_to_be_the_answer() {
    let project = project();
    let long = "x".repeat(300_000);
    let lines = [asks("Which?", "thanks"), long, says("two")];
    project.write("said", format!("{}\n", lines.join("\n")).as_bytes());
    let said = std::fs::File::open(project.path().join("said")).expect("it is there");
    let ran = project.command(&["chat", "s", "--agent", "lead"]).stdin(said).output();
    let ran = Ran::from(ran.expect("starts"));
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
    assert_eq!(ran.error()["code"], "too-long", "{ran:?}");
    let runs = project.run(&["ps", "-a", "-o", "json"]).json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1), "{runs}");
    assert_eq!(runs["runs"][0]["status"], "blocked", "it asks: {runs}");
}

#[test]
fn a_conversation_is_of_its_own_session_whatever_other_commands_are_told() {
    let project = project();
    project.write("said", format!("{}\n", says("one")).as_bytes());
    let chat = |more: &[&str]| {
        let mut command = project.command(&[&["chat", "s", "--agent", "lead"], more].concat());
        let said = std::fs::File::open(project.path().join("said")).expect("it is there");
        command.env("TASKRUN_SESSION", "other").stdin(said);
        Ran::from(command.output().expect("starts"))
    };
    let (by_variable, named) = (chat(&[]), chat(&["--session", "s"]));
    assert_eq!((by_variable.code, by_variable.stdout.as_str()), (0, "one\n"), "{by_variable:?}");
    assert_eq!(named.code, 0, "{named:?}");
    let other = chat(&["--session", "other"]);
    assert_eq!((other.code, &other.error()["code"]), (2, &json!("usage")), "{other:?}");
    assert!(other.stderr.contains("the session is the argument of chat"), "{other:?}");
    assert_eq!(project.run(&["session", "end", "s"]).code, 0);
    let ended = project.run(&["chat", "s", "--agent", "lead"]);
    assert_eq!((ended.code, &ended.error()["code"]), (2, &json!("session-ended")), "{ended:?}");
    assert!(ended.stderr.contains("`taskrun chat OTHER --agent NAME`"), "{ended:?}");
}

#[test]
fn an_image_goes_with_the_next_line_and_one_that_cannot_be_shown_is_refused_in_place() {
    let project = project();
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    project.write("cat.png", png);
    project.write("words.png", b"words");
    let lines = ["/image words.png", "/image cat.png", &says("one"), "/images", &says("two")];
    project.write("said", lines.join("\n").as_bytes());
    let said = std::fs::File::open(project.path().join("said")).expect("it is there");
    let ran = project.command(&["chat", "s", "--agent", "lead"]).stdin(said).output();
    let ran = ran.expect("starts");
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    // A word that only begins alike is said.
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "one\n/images\ntwo\n", "{ran:?}");
    let notes = String::from_utf8_lossy(&ran.stderr);
    assert!(notes.contains("words.png cannot be shown to a model"), "{notes}");
    assert!(notes.contains("cat.png goes with the next line"), "{notes}");
    let runs = project.run(&["ps", "-a", "-o", "json"]).json();
    let runs = runs["runs"].as_array().expect("runs");
    let mut images: Vec<_> = runs.iter().map(|run| (&run["result"], &run["images"][0])).collect();
    images.sort_by_key(|(result, _)| result.to_string());
    let results: Vec<_> = images.iter().map(|(result, _)| *result).collect();
    assert_eq!(results, ["/images", "one", "two"]);
    assert_eq!(images[1].1["media_type"], "image/png");
    assert!(images[0].1.is_null() && images[2].1.is_null(), "{images:?}");
}
