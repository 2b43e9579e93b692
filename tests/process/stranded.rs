//! Open runs with which no host goes on: why not, by whatever command somebody looks.

use std::io::BufRead;
use std::process::Child;

use rustix::process::Signal;
use serde_json::{Value, json};
use taskrun_examples::SCRIPTED;

use crate::error_lines::ErrorLines;
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
    let answers = |one: &str| {
        let answered = project.run(&["answer", one, "--accept"]);
        assert_eq!(answered.stdout, format!("{one}  goes on once a host has agent leaf\n"));
        assert!(answered.stderr.contains(&format!("no host goes on with {one}")), "{answered:?}");
    };
    answers(&child);
    // The other one is listed before it, and is in the inbox as long as it asks.
    assert_eq!(project.run(&["inject", &id, "look here"]).code, 0);
    let listed = project.run(&["ps"]);
    assert!(listed.stderr.contains(&format!("no host goes on with {child}: ")), "{listed:?}");
    answers(&id);
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
fn an_entry_whose_agent_does_not_load_is_said_to_wait_for_its_component() {
    let project = Project::new();
    let component = "components/patient.wasm";
    let policy = POLICY.replace("scripted.wasm\"\nheartbeat", "patient.wasm\"\nheartbeat");
    project.write(component, SCRIPTED.bytes);
    project.write("taskrun.toml", policy.as_bytes());
    let service = project.start(&["host", "--service"]);
    project.meets_host();
    let id = project.run(&["run", "--heartbeat", "patient", "said"]).id();
    project.write(component, b"no component");
    let told = "agent patient does not load: ";
    let is_told = || project.run(&["get", &id]).stderr.contains(told);
    project.until("the host tells of it", is_told);
    // So does one that begins with it.
    assert_eq!(project.signal_hosts(Signal::TERM), 1);
    assert_eq!(project.ends(service).code, 0);
    let service = project.start(&["host", "--service"]);
    project.until("the next host tells of it", is_told);
    let waits = format!("{id} waits until it does: see `taskrun agent check patient`");
    for words in [&["ps"][..], &["get", &id], &["wait", &id, "--timeout", "0s"]] {
        let said = project.run(words).said();
        let is_whole = [told, component, &waits].iter().all(|part| said.contains(part));
        assert!(is_whole && !said.contains("due in "), "{said}");
    }
    let waited = waits_once(&project, &id);
    let none = "; no heartbeat takes it, as agent patient does not load: ";
    assert!(waited.contains(none) && waited.contains(component), "{waited}");
    let hosts = check(&project, "hosts").expect("a check");
    let detail = hosts["detail"].as_str().expect("a text");
    let why = detail.lines().find(|line| line.starts_with(told)).unwrap_or_default();
    assert!(detail.contains("; without agent patient, which does not load\n"), "{hosts}");
    assert!(hosts["health"] == "note" && why.contains(component), "{hosts}");
    assert!(hosts["hint"].to_string().contains("`taskrun agent check`"), "{hosts}");
    let shown = project.run(&["policy", "show", "-o", "json"]).json();
    assert_eq!(shown["hosts"][0]["left_out"][0]["agent_name"], "patient", "{shown}");
    project.write(component, SCRIPTED.bytes);
    let is_due = || project.run(&["get", &id]).stdout.contains("(due in ");
    project.until("its heartbeat is told again", is_due);
    let hosts = check(&project, "hosts").expect("a check");
    assert_eq!((&hosts["health"], &hosts["hint"]), (&json!("good"), &Value::Null), "{hosts}");
    let soon = policy.replace("{ interval = \"7d\" }", "{ interval = \"1s\", prompt = \"Do:\" }");
    project.write("taskrun.toml", soon.as_bytes());
    assert_eq!(project.ends_by_itself(&id)["status"], "completed");
    assert_eq!(project.signal_hosts(Signal::TERM), 1);
    assert_eq!(project.ends(service).code, 0);
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

/// A run, one beneath it that needs a host of the policy at hand, and the host of another policy,
/// which has the agent of the one and not that of the other.
fn lead_of_another_host(project: &Project) -> (String, String, Child) {
    project.write("other.toml", POLICY.replace("leaf", "far").as_bytes());
    let task = calls("agent/leaf", &json!({ "request": changes() }));
    let lead = project.run(&["run", "lead", &task, "-d"]).id();
    project.reach(&lead, "blocked");
    let leaf = project.run(&["ps", "--parent", &lead, "-o", "name"]).id();
    project.reach(&leaf, "blocked");
    project.kill_hosts_and_wait();
    let other = ["--config", "other.toml"];
    let service = project.start(&[&other[..], &["host", "--service"]].concat());
    project.meets_host();
    let answered = project.run(&[&other[..], &["answer", &leaf, "--accept"]].concat());
    assert_eq!(answered.code, 0, "{answered:?}");
    (lead, leaf, service)
}

#[test]
fn a_wait_starts_the_host_that_a_run_beneath_needs_while_the_one_above_has_one() {
    let project = project();
    let (lead, leaf, service) = lead_of_another_host(&project);
    let waited = project.run(&["wait", &lead, "--timeout", "60s"]);
    assert_eq!(waited.code, 0, "{waited:?}");
    assert!(!waited.stderr.contains("no host executes"), "{waited:?}");
    assert_eq!(project.get(&leaf)["result"], "done");
    project.end_hosts();
    assert_eq!(project.ends(service).code, 0);
}

#[test]
fn a_wait_goes_on_while_the_host_that_a_run_beneath_needs_cannot_be_started() {
    let project = project();
    let (lead, leaf, service) = lead_of_another_host(&project);
    // No host begins in the background without its log.
    let log = project.path().join(".taskrun/host.log");
    std::fs::remove_file(&log).expect("there was one");
    std::fs::create_dir(&log).expect("a folder");
    let mut waiting = project.start(&["wait", &lead]);
    let said = format!("no host executes {leaf}, and no host is started: ");
    ErrorLines::of(&mut waiting).until(&said);
    std::fs::remove_dir(&log).expect("nobody writes there");
    let waited = project.ends(waiting);
    assert_eq!(waited.code, 0, "{waited:?}");
    assert_eq!(project.get(&leaf)["result"], "done");
    project.end_hosts();
    assert_eq!(project.ends(service).code, 0);
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
