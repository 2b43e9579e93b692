//! The tools of the host by the real program: a person is asked, a run is awaited, and the host dies
//! in between.

use serde_json::{Value, json};
use taskrun_examples::CHAT;
use taskrun_tests::provider::{Provider, Reply};
use tokio::runtime::Runtime;

use crate::project::Project;

/// A script that calls one tool and then says that it is done.
fn calls(name: &str, arguments: &Value) -> String {
    let call = json!({ "call": { "id": "c1", "name": name, "args": arguments } });
    json!({ "steps": [[call], [{ "reply": "all is said" }]] }).to_string()
}

/// The value that the tool gave in a run that has ended.
fn result(project: &Project, id: &str) -> Value {
    let events = project.events(id);
    let result = events.iter().find(|event| event["kind"] == "tool_result").expect("one");
    let value = result["output"]["outcome"]["value"].as_str();
    let value = value.unwrap_or_else(|| panic!("no value: {result}"));
    serde_json::from_str(value).expect("JSON")
}

#[test]
fn ws_16_a_question_of_a_tool_is_answered_from_another_terminal_after_a_kill_9() {
    let project = Project::new();
    // It has `members`, and so the tools of tasks that need no rule.
    let question = json!({ "question": "Should I use JWT or session-based auth?" });
    let id = project.run(&["run", "worker", &calls("host/ask_user", &question), "-d"]).id();
    project.reach(&id, "blocked");
    project.kill_hosts_and_wait();
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    assert_eq!(inbox["items"][0]["prompt"], question["question"], "{inbox}");
    let answered = project.run(&["answer", &id, "JWT"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    assert_eq!(project.ends_by_itself(&id)["status"], "completed");
    assert_eq!(result(&project, &id), json!("JWT"));
}

#[test]
fn t_068_a_sync_start_waits_over_a_kill_9_and_gives_the_run_as_it_has_ended() {
    let project = Project::new();
    let file = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&file).expect("there is one");
    let lead = "[agent.lead]\ncomponent = \"components/scripted.wasm\"\nmembers = [\"worker\"]\n\
                tools = [\"host/task_runs\"]\nallow = [\"controller: *\"]\n";
    project.write("taskrun.toml", format!("{policy}\n{lead}").as_bytes());
    let task = calls("host/ask_user", &json!({ "question": "Which?" }));
    let start = json!({ "task": task, "mode": "sync" });
    let id = project.run(&["run", "lead", &calls("host/start_task_run", &start), "-d"]).id();
    project.reach(&id, "blocked");
    let tree = project.run(&["tree", &id, "-o", "json"]).json().to_string();
    let shown = project.run(&["ps", "--agent", "worker", "-o", "json"]).json();
    let child = shown["runs"][0]["id"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned();
    assert!(tree.contains(&child), "{tree}");
    project.reach(&child, "blocked");
    project.kill_hosts_and_wait();
    assert_eq!(project.run(&["answer", &child, "this one"]).code, 0);
    assert_eq!(project.ends_by_itself(&id)["result"], "all is said");
    let told = result(&project, &id);
    assert_eq!((&told["id"], &told["status"]), (&json!(child), &json!("completed")));
    assert_eq!((&told["result"], &told["created_by"]), (&json!("all is said"), &json!("lead")));
    let shown = project.run(&["agent", "show", "lead"]).stdout;
    let asks = shown.lines().find(|line| line.starts_with("controller")).expect("a row");
    assert!(asks.contains("tools of the host") && asks.contains("by rule"), "{shown}");
    // A tool of which no rule speaks is a mistake of the policy, with its place and what to add.
    let broken = policy + &lead.replace("controller: *", "controller: spawn");
    project.write("taskrun.toml", broken.as_bytes());
    let refused = project.run(&["policy", "check"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("\"controller: wait\""), "{refused:?}");
}

#[test]
fn ws_17_outside_of_a_run_nobody_is_asked() {
    let project = Project::new();
    let called = project.run(&["tool", "call", "host/ask_user", r#"{"question":"Which?"}"#]);
    assert_eq!((called.code, &called.error()["code"]), (2, &json!("no-run")), "{called:?}");
    let text = "ask_user can only be called from within a task context";
    assert!(called.stderr.contains(text), "{called:?}");
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    assert_eq!(inbox["items"], json!([]), "nothing is blocked");
}

#[test]
fn t_073_without_a_controller_a_tool_of_task_runs_says_so() {
    let project = Project::new();
    let arguments = r#"{"task":"x","agent_name":"worker"}"#;
    let called = project.run(&["tool", "call", "host/start_task_run", arguments]);
    assert_eq!((called.code, &called.error()["code"]), (2, &json!("no-run")), "{called:?}");
    let runs = project.run(&["ps", "-a", "-o", "json"]).json();
    assert_eq!(runs["runs"], json!([]), "nothing is started");
}

#[test]
fn a_tool_of_the_host_is_explained_with_the_entry_that_gives_it() {
    let project = Project::new();
    let explain = |name: &str| {
        let name = format!("name={name}");
        let words = ["policy", "explain", "--agent", "worker", "--cap", "tool", "--arg", &name];
        project.run(&words)
    };
    let follows = explain("host/ask_user");
    assert_eq!(follows.code, 0, "{follows:?}");
    assert!(follows.stdout.contains("it has `members`"), "{follows:?}");
    let missing = explain("host/start_task_run");
    assert_eq!(missing.code, 4, "{missing:?}");
    assert!(missing.stdout.contains("not among its `tools`"), "{missing:?}");
    let unknown = explain("host/start_task");
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.stderr.contains("did you mean host/"), "{unknown:?}");
}

#[test]
fn m_13_the_command_line_bounds_a_tree_of_runs() {
    let project = Project::new();
    let file = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&file).expect("there is one");
    let lead = "[agent.lead]\ncomponent = \"components/scripted.wasm\"\nmembers = [\"worker\"]\n\
                tools = [\"host/task_runs\"]\nallow = [\"controller: *\"]\n\
                tree = { depth = 2, runs = 9, slots = 3 }\n";
    project.write("taskrun.toml", format!("{policy}\n{lead}").as_bytes());
    let start = calls("host/start_task_run", &json!({ "task": calls("none/none", &json!({})) }));
    let bounds = |id: &str| project.events(id)[0]["spec"]["tree"].clone();
    let id = project.run(&["run", "lead", &start, "-d"]).id();
    assert_eq!(project.ends_by_itself(&id)["status"], "completed");
    assert_eq!(bounds(&id), json!({ "depth": 2, "runs": 9, "slots": 3 }));
    let tree = ["--tree", "depth=0,slots=64"];
    let id = project.run(&["run", "lead", &start, "-d", tree[0], tree[1]]).id();
    assert_eq!(project.ends_by_itself(&id)["status"], "completed");
    assert_eq!(bounds(&id), json!({ "depth": 0, "runs": 9, "slots": 3 }));
    let events = project.events(&id);
    let refused = events.iter().find(|event| event["kind"] == "tool_result").expect("one");
    assert!(refused.to_string().contains("nested task runs are not supported"), "{refused}");
    for (wrong, says) in [
        ("depth", "known"),
        ("slots=x", "no number"),
        ("slots=1,slots=2", "twice"),
        ("up=1", "known"),
        ("depth=99", "0 to 8"),
    ] {
        let refused = project.run(&["run", "lead", "x", "--tree", wrong]);
        assert_eq!(refused.code, 2, "{wrong}: {refused:?}");
        assert!(wrong == "depth" || refused.stderr.contains(says), "{wrong}: {refused:?}");
    }
}

/// The answer of a provider.
fn says(text: &str) -> Reply {
    let text = json!({ "choices": [{ "index": 0, "delta": { "content": text } }] });
    let stop = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
    Reply::events(&[text, stop])
}

#[test]
fn a_host_tells_models_what_members_are_for_as_the_policy_says_it_now() {
    let runtime = Runtime::new().expect("a runtime");
    let provider = runtime.block_on(Provider::start([says("One."), says("Two.")]));
    let project = Project::new();
    project.write("components/chat.wasm", CHAT.bytes);
    let policy = |words: &str| {
        format!(
            r#"[model.default]
provider = "openai-chat"
model = "m-1"
base_url = "{}"

[agent.lead]
component = "components/chat.wasm"
model = "default"
members = ["worker"]
allow = ["controller: *"]

[agent.worker]
component = "components/scripted.wasm"
description = "{words}"
"#,
            provider.base_url()
        )
    };
    let words = ["Helps with sums.", "Helps with words."];
    project.write("taskrun.toml", policy(words[0]).as_bytes());
    // The host lives as long as this run.
    let busy = json!({ "steps": [["block"]] }).to_string();
    let busy = project.run(&["run", "worker", &busy, "-d"]).id();
    project.reach(&busy, "running");
    let hosts = project.hosts();
    for words in words {
        project.write("taskrun.toml", policy(words).as_bytes());
        let ran = project.run(&["run", "lead", "Hello.", "--wait"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert_eq!(project.hosts(), hosts, "the same host goes on");
    let asked = provider.asked();
    assert_eq!(asked.len(), words.len());
    for (asked, words) in asked.iter().zip(words) {
        let tools = asked.body["tools"].to_string();
        assert!(tools.contains(&format!("The agent, one of: worker ({words}).")), "{tools}");
    }
    project.run(&["cancel", &busy]);
}
