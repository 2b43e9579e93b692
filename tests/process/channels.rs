//! Channels and the terminal of a session, by the real program.

use serde_json::{Value, json};

use crate::project::Project;
use crate::terminal::Terminal;
use crate::unwritten::run_into_closed;

const POLICY: &str = "[agent.lead]\ncomponent = \"components/scripted.wasm\"\n\
                      members = [\"worker\", \"teller\"]\ntools = [\"host/delegate_task\"]\n\
                      allow = [\"controller: *\"]\nchannels = [\"post\", \"vault\"]\n\
                      [agent.teller]\ncomponent = \"components/scripted.wasm\"\n\
                      subscribers = [\"terminal\"]\n\
                      [channel.post]\nto = \"file/post\"\naccess = \"read-only\"\n\
                      [channel.vault]\nto = \"file/vault\"\nhidden = true\n\
                      [file.post]\npath = \"post.jsonl\"\ninclude_result = true\n\
                      [file.vault]\npath = \"vault.jsonl\"\ninclude_result = true\n";

fn project() -> Project {
    let project = Project::new();
    let file = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&file).expect("there is one");
    project.write("taskrun.toml", format!("{policy}\n{POLICY}").as_bytes());
    project
}

fn script(steps: &Value) -> String {
    json!({ "steps": steps }).to_string()
}

fn says(text: &str) -> String {
    script(&json!([[{ "reply": text }]]))
}

/// A line that delegates tasks, each with the channels that the room has.
fn delegates(tasks: &[(&str, String, Value)]) -> String {
    let call = |(nth, (agent, task, shared)): (usize, &(&str, String, Value))| {
        let args = json!({ "agent": agent, "task": task, "share_channels": shared });
        json!({ "call": { "id": format!("c{nth}"), "name": "host/delegate_task", "args": args } })
    };
    let calls: Vec<Value> = tasks.iter().enumerate().map(call).collect();
    script(&json!([calls, [{ "reply": "under way" }]]))
}

fn open(project: &Project) -> Terminal {
    let terminal = Terminal::new(project.command(&["chat", "s", "--agent", "lead"]));
    terminal.shows(">", 1);
    terminal
}

/// The runs of an agent.
fn runs_of(project: &Project, agent: &str) -> Vec<Value> {
    let shown = project.run(&["ps", "-a", "--agent", agent, "-o", "json"]).json();
    shown["runs"].as_array().expect("runs").clone()
}

/// The results that a file was told, by the agents of the runs.
fn told(project: &Project, file: &str) -> Vec<(String, String)> {
    let lines = std::fs::read_to_string(project.path().join(file)).unwrap_or_default();
    let told = lines.lines().map(|line| {
        let news: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(news["type"], "on_task_completed");
        let text = |key: &str| news["data"][key].as_str().expect("a text").to_owned();
        (text("agent_name"), text("result"))
    });
    let mut told: Vec<_> = told.collect();
    told.sort();
    told.dedup();
    told
}

fn pair(agent: &str, result: &str) -> (String, String) {
    (agent.to_owned(), result.to_owned())
}

#[test]
fn rs_10_what_a_child_says_over_a_shared_channel_is_told_there_and_shown_in_the_chat() {
    let project = project();
    let mut terminal = open(&project);
    let tasks = [
        ("worker", says("over post"), json!(["post"])),
        ("worker", says("over vault"), json!(["vault"])),
        ("worker", says("over none"), json!([])),
    ];
    terminal.types(&format!("{}\n", delegates(&tasks)));
    terminal.shows("has completed", 3);
    terminal.shows("said over post:\nover post\n", 1);
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    let seen = terminal.seen();
    let lines = |line: &str| seen.lines().filter(|one| *one == line).count();
    assert_eq!((lines("over post"), lines("over vault"), lines("over none")), (1, 0, 0), "{seen}");
    let bound = |task: &str| {
        let all = runs_of(&project, "worker");
        let run = all.iter().find(|run| run["result"] == task).expect("it ran").clone();
        project.get(run["id"].as_str().expect("an id")).get("channels").cloned()
    };
    let post = json!([{ "name": "post", "to": "file/post", "access": "read-only" }]);
    assert_eq!(bound("over post"), Some(post));
    let vault = json!([{ "name": "vault", "to": "file/vault", "hidden": true }]);
    assert_eq!(bound("over vault"), Some(vault));
    assert_eq!(bound("over none"), None);
    let own = pair("lead", "under way");
    for (file, said) in [("post.jsonl", "over post"), ("vault.jsonl", "over vault")] {
        let expected = [own.clone(), pair("worker", said)];
        project.until("all is told", || told(&project, file).len() == expected.len());
        assert_eq!(told(&project, file), expected, "{file}");
    }
}

#[test]
fn a_terminal_is_told_once_of_what_ended_while_it_was_closed() {
    let project = project();
    let mut terminal = open(&project);
    let question = json!({ "clarification": { "id": "which", "question": "Which quarter?" } });
    let asks = script(&json!([[{ "plan": { "await": [question] } }], [{ "reply": "in Q3" }]]));
    terminal.types(&format!("{}\n", delegates(&[("teller", asks, json!([]))])));
    terminal.shows("\nWhich quarter?\n", 1);
    terminal.types("\x03");
    assert_eq!(terminal.ends(), 130, "{}", terminal.seen());
    let teller = runs_of(&project, "teller")[0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(project.run(&["answer", &teller, "Q3"]).code, 0);
    assert_eq!(project.ends_by_itself(&teller)["status"], "completed");
    let is_pending = || {
        let rows = project.run(&["outbox", "show", &teller, "-o", "json"]).json().to_string();
        assert!(rows.contains("terminal/") && rows.contains("pending"), "{rows}");
    };
    is_pending();
    // Where nobody reads what is shown, nobody was told.
    let unread = run_into_closed(&project, &["chat", "s"]);
    assert_eq!(unread.code, 0, "{unread:?}");
    is_pending();
    for times in [1, 0] {
        let mut again = Terminal::new(project.command(&["chat", "s"]));
        again.shows(">", 1);
        again.shows("\nunder way\n", 1);
        again.types("\x04");
        assert_eq!(again.ends(), 0, "{}", again.seen());
        let seen = again.seen();
        assert_eq!(seen.matches(&format!("teller {teller}: completed")).count(), times, "{seen}");
        assert_eq!(seen.lines().filter(|line| *line == "in Q3").count(), times, "{seen}");
    }
}

#[test]
fn people_are_heard_over_a_channel_that_is_open_to_them() {
    let project = project();
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let asks = script(&json!([[{ "plan": { "await": [question] } }], [{ "reply": "done" }]]));
    let id = project.run(&["run", "lead", &asks, "-d"]).id();
    project.reach(&id, "blocked");
    let heard = project.run(&["inject", &id, "look here", "--channel", "vault"]);
    assert_eq!(heard.code, 0, "{heard:?}");
    let refused = project.run(&["inject", &id, "look here", "--channel", "post"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.stderr.contains("read-only"), "{refused:?}");
    let hint = refused.error()["hint"].as_str().unwrap_or_default().to_owned();
    assert!(hint.starts_with("`access` of [channel.post] in the policy says so"), "{hint}");
    assert!(hint.contains(&format!("`taskrun inject {id} TEXT`")), "{hint}");
    let unknown = project.run(&["run", "lead", &says("x"), "-d", "--channel", "phone"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.stderr.contains("post, vault"), "{unknown:?}");
    let shown = project.run(&["get", &id]);
    assert!(shown.stdout.contains("post to file/post (read-only)"), "{shown:?}");
}
