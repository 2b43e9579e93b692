//! Open runs with which no host goes on: why not, by whatever command somebody looks.

use std::io::BufRead;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::project::Project;

const POLICY: &str = r#"[tool.scripted]
component = "components/scripted-tool.wasm"

[agent.lead]
component = "components/scripted.wasm"
tools = ["agent/leaf"]
limits = { call = "1h" }

[agent.leaf]
component = "components/scripted.wasm"
tools = ["scripted/*"]
ask = ["tool: scripted/change"]

[agent.patient]
component = "components/scripted.wasm"
heartbeat = { interval = "7d" }
"#;

fn project() -> Project {
    let project = Project::new();
    project.write("taskrun.toml", POLICY.as_bytes());
    project
}

fn call(name: &str, args: &Value) -> Value {
    json!([{ "call": { "id": "c", "name": name, "args": args } }])
}

/// The task of an agent that calls something and says something.
fn calls(name: &str, args: &Value) -> String {
    json!({ "steps": [call(name, args), [{ "reply": "done" }]] }).to_string()
}

/// The task of a run that needs consent.
fn changes() -> String {
    calls("scripted/change", &json!({}))
}

/// A run that waits for a consent.
fn asks(project: &Project) -> String {
    let id = project.run(&["run", "leaf", &changes(), "-d"]).id();
    project.reach(&id, "blocked");
    id
}

/// The check of `doctor` of this name.
fn check(project: &Project, name: &str) -> Option<Value> {
    project.run(&["doctor", "-o", "json"]).check(name)
}

/// The message of a wait that looks once, and for which no run has ended.
fn waits_once(project: &Project, id: &str) -> String {
    let waited = project.run(&["wait", id, "--timeout", "0s"]);
    assert_eq!(waited.code, 124, "{waited:?}");
    waited.error()["message"].as_str().expect("a message").to_owned()
}

#[test]
fn a_run_whose_agent_is_gone_is_said_to_go_on_by_no_command_while_a_host_lives() {
    let project = project();
    let service = project.start(&["host", "--service"]);
    project.meets_host();
    let id = asks(&project);
    let parent = calls("agent/leaf", &json!({ "request": changes() }));
    let parent = project.run(&["run", "lead", &parent, "-d"]).id();
    project.reach(&parent, "blocked");
    let child = project.run(&["ps", "--parent", &parent, "-o", "name"]).id();
    project.reach(&child, "blocked");
    project.write("taskrun.toml", POLICY.replace("leaf", "other").as_bytes());
    project.until("the host has taken the edit up", || {
        let doctor = project.run(&["doctor", "-o", "json"]).json();
        let agents = doctor["hosts"][0]["agents"].as_array().cloned().unwrap_or_default();
        agents.contains(&json!("other")) && !agents.contains(&json!("leaf"))
    });
    let false_words = |told: &str| {
        assert!(!told.contains("no host runs") && !told.contains("it goes on"), "{told}");
    };
    let listed = project.run(&["ps"]).said();
    false_words(&listed);
    assert!(
        listed.contains("the policy has no agent leaf; put it back, or end the run"),
        "{listed}"
    );
    let shown = project.run(&["get", &id]).said();
    false_words(&shown);
    assert!(shown.contains("the policy has no agent leaf: the run begins nothing"), "{shown}");
    assert!(!shown.contains("no host goes on"), "it is said once: {shown}");
    let doctor = project.run(&["doctor"]).said();
    false_words(&doctor);
    assert!(
        doctor.contains("leaf: not in the policy; 2 open runs of it begin nothing"),
        "{doctor}"
    );
    assert_eq!((check(&project, "due"), check(&project, "waiting")), (None, None));
    // Answered, they could go on at once.
    for one in [&id, &child] {
        let answered = project.run(&["answer", one, "--accept"]);
        assert_eq!(answered.stdout, format!("{one}  goes on once a host has agent leaf\n"));
        assert!(answered.stderr.contains(&format!("no host goes on with {one}")), "{answered:?}");
    }
    assert_eq!((check(&project, "due"), check(&project, "waiting")), (None, None));
    let why = "no host goes on with it, as the policy has no agent leaf";
    let waited = waits_once(&project, &id);
    assert!(waited.ends_with(why), "{waited}");
    let waited = waits_once(&project, &parent);
    assert!(waited.ends_with(&format!("it waits for {child}: {why}")), "{waited}");
    // Who waits for one above it is told while they wait.
    let mut waits = project.start(&["wait", &parent, "--timeout", "60s"]);
    let lines = std::io::BufReader::new(waits.stderr.take().expect("a pipe")).lines();
    let line = lines.map_while(Result::ok).next().unwrap_or_default();
    assert!(line.contains(&format!("no host goes on with {child}")), "{line}");
    project.write("taskrun.toml", POLICY.as_bytes());
    project.ends_by_itself(&id);
    assert_eq!(project.ends(waits).code, 0);
    assert_eq!(project.get(&parent)["result"], "done");
    assert_eq!(project.signal_hosts(Signal::TERM), 1);
    assert_eq!(project.ends(service).code, 0);
}

#[test]
fn a_run_whose_host_was_killed_is_said_to_have_lost_it() {
    let project = project();
    let blocks = json!({ "steps": [["block"]] }).to_string();
    let id = project.run(&["run", "leaf", &blocks, "-d"]).id();
    project.reach(&id, "running");
    assert!(project.kill_hosts_and_wait() > 0, "one executes it");
    let lost = format!("no host executes {id}: the one that did has died, or has given it back");
    for words in [&["ps"][..], &["get", &id]] {
        let told = project.run(words).said();
        assert!(told.contains(&lost) && !told.contains("is due"), "{told}");
    }
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

#[test]
fn a_wait_for_a_consent_is_said_to_end_with_a_call_that_is_declined() {
    let project = project();
    let id = asks(&project);
    project.kill_hosts_and_wait();
    let said = "due in 1d, no host runs; the call is declined when one runs then";
    for words in [&["ps"][..], &["get", &id]] {
        let told = project.run(words).said();
        assert!(told.contains(said), "{told}");
    }
    let shown = project.run(&["get", &id]).stdout;
    assert!(shown.contains("(due in 1d; the call is declined then)"), "{shown}");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

#[test]
fn an_entry_is_shown_with_its_heartbeat_and_with_the_lack_of_one() {
    let project = project();
    let id = project.run(&["run", "--heartbeat", "patient", "x"]).id();
    project.meets_host();
    let listed = project.run(&["ps"]);
    assert!(listed.stdout.contains("queued (heartbeat, due in "), "{listed:?}");
    let shown = project.run(&["get", &id]).stdout;
    let goes_on = shown.lines().find(|line| line.starts_with("goes on"));
    assert!(goes_on.is_some_and(|line| line.contains("(due in ")), "{shown}");
    let waited = waits_once(&project, &id);
    assert!(waited.contains("; the heartbeat of patient takes it, which is due in "), "{waited}");
    project.kill_hosts_and_wait();
    let said = format!("{id} waits for the heartbeat of patient, due in ");
    for words in [&["ps"][..], &["get", &id]] {
        let told = project.run(words).said();
        assert!(told.contains(&said) && told.contains(", no host runs; a host that"), "{told}");
        assert!(!told.contains("taskrun wait"), "{told}");
    }
    let due = check(&project, "due").expect("a check")["detail"].to_string();
    assert!(due.starts_with("\"1 run is due later, the next due in "), "{due}");
    // One of another agent leaves nobody who would take it.
    let heartless = POLICY.replace("heartbeat = { interval = \"7d\" }\n", "");
    project.write("taskrun.toml", heartless.as_bytes());
    let said = format!("agent patient has no heartbeat now: {id} waits until it has one again");
    for words in [&["ps"][..], &["get", &id], &["wait", &id, "--timeout", "0s"]] {
        let told = project.run(words).said();
        assert!(told.contains(&said) && !told.contains("it goes on"), "{told}");
    }
    let waited = waits_once(&project, &id);
    assert!(waited.ends_with("no heartbeat takes it, as agent patient has none now"), "{waited}");
    let doctor = project.run(&["doctor"]).said();
    let said = "patient: has no heartbeat now; 1 entry of it waits for one";
    assert!(doctor.contains(said), "{doctor}");
    assert_eq!(check(&project, "due"), None);
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

#[test]
fn a_run_is_shown_with_what_was_spent_beneath_it() {
    let project = project();
    let spends = json!({ "steps": [[{ "usage": [1, 2, 3] }, { "reply": "done" }]] }).to_string();
    let task = calls("agent/leaf", &json!({ "request": spends }));
    let id = project.run(&["run", "lead", &task, "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let shown = project.run(&["get", &id]).stdout;
    let beneath = shown.lines().find(|line| line.starts_with("beneath"));
    assert!(beneath.is_some_and(|line| line.ends_with("1 of 1 run ended, 3 tokens")), "{shown}");
}

#[test]
fn a_run_of_another_policy_file_is_not_said_to_have_lost_its_agent() {
    let project = project();
    project.write("other.toml", POLICY.replace("leaf", "far").as_bytes());
    let other = ["--config", "other.toml"];
    let far = |words: &[&str]| project.run(&[&other[..], words].concat());
    let id = far(&["run", "far", &changes(), "-d"]).id();
    project.reach(&id, "blocked");
    let denies = |said: &str| {
        for words in ["the policy has no agent", "not in the policy", "begins nothing"] {
            assert!(!said.contains(words), "{words}: {said}");
        }
    };
    // While a host of its policy lives, and when none does.
    for hosts in ["lives", "none"] {
        if hosts == "none" {
            assert!(project.kill_hosts_and_wait() > 0, "one executes it");
            let answered = project.run(&["answer", &id, "--accept"]);
            assert_eq!(answered.stdout, format!("{id}  goes on\n"));
        }
        for words in [&["get", &id][..], &["ps"], &["doctor"], &["policy", "check"]] {
            denies(&project.run(words).said());
        }
        assert_eq!(project.get(&id)["agent_change"], Value::Null);
    }
    let said = format!("no host executes {id}: none lives whose policy has its agent");
    for words in [&["ps"][..], &["get", &id]] {
        let told = project.run(words).said();
        assert!(told.contains(&said) && told.contains(&format!("taskrun wait {id}`")), "{told}");
    }
    denies(&waits_once(&project, &id));
    let waited = far(&["wait", &id]);
    assert_eq!(waited.code, 0, "{waited:?}");
    assert_eq!(project.get(&id)["result"], "done");
}

#[test]
fn a_run_that_no_host_ever_began_is_said_to_wait_for_one_once_it_is_not_new() {
    let project = project();
    let service = project.start(&["host", "--service", "--slots", "1"]);
    project.meets_host();
    let blocks = json!({ "steps": [["block"]] }).to_string();
    let first = project.run(&["run", "leaf", &blocks, "-d"]).id();
    project.reach(&first, "running");
    let queued = project.run(&["run", "leaf", &blocks, "-d"]).id();
    assert_eq!(project.kill_hosts_and_wait(), 1);
    project.ends(service);
    let said = format!("no host executes {queued}: none lives");
    project.until("get tells of it", || project.run(&["get", &queued]).stderr.contains(&said));
    assert_eq!(project.get(&queued)["status"], "queued");
    for id in [first, queued] {
        assert_eq!(project.run(&["cancel", &id]).code, 0);
    }
}
