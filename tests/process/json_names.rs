//! One thing has one name in the JSON of all commands.

use serde_json::{Value, json};

use crate::project::Project;

/// Names that a thing had in some commands, each with the one that it has in all of them.
const DROPPED: [(&str, &str); 4] =
    [("agent", "agent_name"), ("run", "run_id"), ("tool", "tool_name"), ("took_ms", "duration_ms")];

/// Keys of what has a form of its own, such as the events of journals, or is written by others.
const OF_OTHERS: [&str; 6] =
    ["events", "input_schema", "labels", "metadata", "output_schema", "result"];

/// The place of the first thing that has a name which was dropped, if one has. An object may have
/// it: `taskrun tree` shows a whole `run`.
fn dropped_name(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let path = format!("{path}/{key}");
            let dropped = DROPPED.iter().find(|(name, _)| *name == key.as_str());
            match dropped.filter(|_| !value.is_object()) {
                Some((_, other)) => Some(format!("{path} is {other} in other commands")),
                None if OF_OTHERS.contains(&key.as_str()) => None,
                None => dropped_name(value, &path),
            }
        }),
        Value::Array(all) => all.iter().find_map(|one| dropped_name(one, path)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

#[test]
fn a_name_that_was_dropped_is_found() {
    let told = json!({ "runs": [{ "agent_name": "worker", "run": { "id": "r", "agent": "a" } }] });
    let fault = dropped_name(&told, "told");
    assert_eq!(fault.as_deref(), Some("told/runs/run/agent is agent_name in other commands"));
    assert_eq!(dropped_name(&json!({ "labels": { "agent": "a" } }), "told"), None);
}

/// A project with a run that asks, one that was asked for a consent and has ended, a fact, and a
/// file of the second run; and the ids of both.
fn project() -> (Project, String, String) {
    let project = Project::new();
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("readable");
    let policy = format!("{policy}[model.quick]\nprovider = \"echo\"\n");
    project.write("taskrun.toml", policy.as_bytes());
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let asks = json!({ "steps": [[{ "plan": { "await": [question] } }]] }).to_string();
    let open = project.run(&["run", "worker", &asks, "-d"]).id();
    let call = json!({ "call": { "id": "a", "name": "scripted/change", "args": {} } });
    let calls = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let done = project.run(&["run", "asking", &calls, "-d", "--session", "s"]).id();
    assert_eq!(project.run(&["wait", &done]).code, 8, "it asks for consent");
    let words: [&[&str]; 5] = [
        &["answer", &done, "--accept", "--always"],
        &["wait", &done],
        &["memory", "put", "key", "text"],
        &["session", "create", "s"],
        &["export", &done, "run.taskrun"],
    ];
    for words in words {
        let ran = project.run(words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
    }
    project.reach(&open, "blocked");
    (project, open, done)
}

/// The JSON of a command, whose exit code says what it is about.
fn told(project: &Project, words: &[&str]) -> Value {
    let told = project.run(&[words, &["-o", "json"]].concat()).json();
    assert_eq!(told["v"], 1, "{words:?}: {told}");
    assert_eq!(dropped_name(&told, &words.join(" ")), None, "{told}");
    told
}

#[test]
fn one_thing_has_one_name_in_the_json_of_all_commands() {
    let (project, open, done) = project();
    let pins = project.run(&["agent", "versions", "worker", "-o", "name"]).stdout;
    let pin = pins.lines().next().expect("a version");
    let about = ["--cap", "tool", "--arg", "name=scripted/change"];
    let explain = [&["policy", "explain", "--run", &done][..], &about].concat();
    // The second list has what has to be there, under the name that it has.
    let commands: [(&[&str], &[&str]); 36] = [
        (&["run", "worker", "done", "--wait"], &["/id", "/agent_name", "/duration_ms"]),
        (&["ps", "-a"], &["/runs/0/agent_name"]),
        (&["top"], &["/runs/0/agent_name"]),
        (&["get", &done], &["/id", "/agent_name", "/duration_ms"]),
        (
            &["get", &done, "--calls"],
            &["/calls/0/tool_call_id", "/calls/0/tool_name", "/calls/0/duration_ms"],
        ),
        (&["tree", &done], &["/run/id", "/run/agent_name"]),
        (&["wait", &done], &["/runs/0/agent_name"]),
        (&["events", "--session", "s"], &["/events/0/run_id", "/next_after"]),
        (&["events", &done], &["/events/0/run_id"]),
        (&["logs", &done], &["/lines"]),
        (&["transcript", &done], &["/id"]),
        (&["inbox"], &["/items/0/run_id", "/items/0/agent_name"]),
        (&["consents"], &["/consents/0/agent_name", "/consents/0/tool_name"]),
        (&["outbox", "ls"], &["/reports"]),
        (&["session", "show", "s"], &["/id"]),
        (&["memory", "ls", "--limit", "1"], &["/facts/0/key"]),
        (&["memory", "get", "key"], &["/key"]),
        (&["gc", "--dry-run"], &["/runs"]),
        (&["export", &done, "again.taskrun"], &["/run_id"]),
        (&["replay", "run.taskrun"], &["/run_id"]),
        (&["agent", "ls"], &["/agents/0/name"]),
        (&["agent", "show", "asking"], &["/name"]),
        (&["agent", "check", "asking"], &["/agents/0/name"]),
        (&["agent", "versions"], &["/versions/0/agent_name"]),
        (&["agent", "diff", "worker", pin], &["/agent_name"]),
        (&["tool", "ls"], &["/tools/0/name"]),
        (&["tool", "show", "scripted", "--agent", "worker"], &["/functions/0/name"]),
        (
            &["tool", "call", "scripted/lookup", "{}", "--agent", "worker"],
            &["/tool_name", "/agent_name"],
        ),
        (&["model", "ls"], &["/models/0/name"]),
        (&["model", "test", "quick"], &["/name", "/duration_ms"]),
        (&["inspect", "components/scripted.wasm"], &["/component"]),
        (&["policy", "check"], &["/agents/0/name"]),
        (&["policy", "apply"], &["/revision"]),
        (&["policy", "show"], &["/in_force/revision"]),
        (&explain[..], &["/run_id", "/agent_name"]),
        (&["doctor"], &["/checks/0/name"]),
    ];
    for (words, wanted) in commands {
        let told = told(&project, words);
        for pointer in wanted {
            assert!(told.pointer(pointer).is_some(), "{words:?} tells no {pointer}: {told}");
        }
    }
    for words in [["pause", &open], ["adopt", &open], ["resume", &open], ["cancel", &open]] {
        let told = told(&project, &words);
        assert_eq!(told["runs"][0]["id"], open.as_str(), "{told}");
    }
}

#[test]
fn the_objects_of_rounds_name_their_run_as_all_others_do() {
    let project = Project::new();
    let steps = json!({ "steps": [[{ "reply": "One." }]] }).to_string();
    let words = ["run", "reader", &steps, "--autonomous", "--rounds", "1", "-o", "ndjson"];
    let ran = project.run(&words);
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [round, run] = &lines[..] else { panic!("{ran:?}") };
    assert_eq!((&round["round"], &round["run_id"]), (&json!(1), &run["id"]), "{ran:?}");
    for line in &lines {
        assert_eq!(dropped_name(line, "run --autonomous"), None, "{line}");
    }
}
