//! `doctor --check` about the runs that need what is damaged or missing.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::project::Project;

fn question() -> Value {
    json!([{ "plan": { "await": [{ "clarification": { "id": "which", "question": "Which?" } }] } }])
}

fn waits(project: &Project, agent: &str, steps: &[Value]) -> String {
    let id = project.run(&["run", agent, &json!({ "steps": steps }).to_string(), "-d"]).id();
    project.reach(&id, "blocked");
    id
}

/// The place at which the component of this file is kept.
fn kept(project: &Project, component: &str) -> PathBuf {
    let bytes = std::fs::read(project.path().join(component)).expect("readable");
    let digest = blake3::hash(&bytes).to_hex();
    project.path().join(".taskrun/blobs").join(&digest[..2]).join(&digest[2..])
}

/// The check of the needs of open runs, as a tenant is told of it, and the exit code.
fn needs(project: &Project, tenant: &str) -> (i32, Value) {
    let ran = project.run(&["doctor", "--check", "-o", "json", "--tenant", tenant]);
    (ran.code, ran.check("open runs").unwrap_or_else(|| panic!("{ran:?}")))
}

fn ids(needs: &Value) -> Vec<&str> {
    let runs = needs["unmet"]["runs"].as_array().expect("runs");
    runs.iter().map(|run| run["run_id"].as_str().expect("an id")).collect()
}

#[test]
fn doctor_names_the_runs_that_need_a_component_that_is_missing_or_damaged() {
    let project = Project::new();
    let needs_it = waits(&project, "worker", &[question()]);
    let task = json!({ "steps": [question()] }).to_string();
    let other = project.run(&["run", "spinner", &task, "-d"]).id();
    project.kill_hosts_and_wait();
    let (code, good) = needs(&project, "default");
    assert_eq!((code, &good["health"]), (0, &json!("good")), "{good}");
    let blob = kept(&project, "components/scripted.wasm");
    let bytes = std::fs::read(&blob).expect("kept");
    for kind in ["missing", "damaged"] {
        match kind {
            "missing" => std::fs::remove_file(&blob).expect("removed"),
            _ => std::fs::write(&blob, b"other bytes").expect("written"),
        }
        let (code, bad) = needs(&project, "default");
        assert_eq!((code, &bad["health"]), (1, &json!("bad")), "{kind}: {bad}");
        assert_eq!(ids(&bad), [&needs_it], "{kind}: {bad}");
        let run = &bad["unmet"]["runs"][0];
        assert_eq!((&run["agent_name"], &run["status"]), (&json!("worker"), &json!("blocked")));
        let fault = &run["pins"][0]["faults"][0];
        assert_eq!((&fault["kind"], &fault["path"]), (&json!(kind), &json!(blob)), "{bad}");
        let text = project.run(&["doctor", "--check"]).stdout;
        let line = text.lines().find(|line| line.contains(&needs_it)).unwrap_or_default();
        assert!(line.contains(&format!(" is {kind}")), "{text}");
        assert!(!text.contains(&other), "{text}");
    }
    std::fs::write(&blob, bytes).expect("written");
    assert_eq!(needs(&project, "default"), (0, good));
    // It reads no bytes where all is not to be checked.
    let quick = project.run(&["doctor", "-o", "json"]).json();
    assert!(!quick.to_string().contains("open runs"), "{quick}");
}

#[test]
fn doctor_names_the_first_runs_of_which_the_policy_is_gone_and_counts_the_others() {
    let project = Project::new();
    let runs: Vec<String> = (0..12).map(|_| waits(&project, "worker", &[question()])).collect();
    project.kill_hosts_and_wait();
    let pins = project.path().join(".taskrun/blobs/pins");
    for entry in std::fs::read_dir(pins).expect("a folder") {
        std::fs::remove_file(entry.expect("read").path()).expect("removed");
    }
    let (code, bad) = needs(&project, "default");
    assert_eq!((code, ids(&bad).len(), &bad["unmet"]["more_runs"]), (1, 10, &json!(2)), "{bad}");
    assert!(ids(&bad).iter().all(|id| runs.iter().any(|run| run == id)), "{bad}");
    let fault = &bad["unmet"]["runs"][0]["pins"][0]["faults"][0];
    assert_eq!(fault["kind"], "policy", "{bad}");
    assert!(fault["detail"].as_str().is_some_and(|text| text.contains("is not kept here")));
    assert_eq!(bad["unmet"]["pins_of_others"], json!([]));
    let text = project.run(&["doctor", "--check"]).stdout;
    assert!(text.contains("12 open runs need") && text.contains("and 2 more"), "{text}");
    // Another tenant is told that something is at fault, and of no run.
    let (code, bad) = needs(&project, "other");
    assert_eq!((code, ids(&bad).len(), &bad["unmet"]["more_runs"]), (1, 0, &json!(0)), "{bad}");
    let pin = bad["unmet"]["pins_of_others"][0]["pin"].as_str().expect("a pin");
    assert!(pin.starts_with("worker@blake3:"), "{bad}");
}

#[test]
fn doctor_names_a_run_beneath_one_whose_policy_cannot_be_read() {
    let project = Project::new();
    let boss = "[agent.boss]\ncomponent = \"components/scripted.wasm\"\n\
                tools = [\"agent/child\"]\n\
                [agent.child]\ncomponent = \"components/scripted.wasm\"\n";
    project.write("taskrun.toml", boss.as_bytes());
    let task = json!({ "steps": [question()] }).to_string();
    let call = json!({ "call": { "id": "c", "name": "agent/child", "args": { "task": task } } });
    let boss = waits(&project, "boss", &[json!([call])]);
    let open = project.run(&["ps", "-o", "name"]).stdout;
    let child = open.lines().find(|id| *id != boss).expect("a child").to_owned();
    project.reach(&child, "blocked");
    project.kill_hosts_and_wait();
    let pins = project.path().join(".taskrun/blobs/pins");
    for entry in std::fs::read_dir(pins).expect("a folder") {
        let path = entry.expect("read").path();
        let before = std::fs::read(&path).expect("readable");
        std::fs::write(&path, "{}").expect("written");
        let (code, bad) = needs(&project, "default");
        let first = bad["unmet"]["runs"][0]["pins"][0]["pin"].as_str().expect("a pin").to_owned();
        let mut named = ids(&bad);
        named.sort_unstable();
        let mut expected = match first.starts_with("boss@") {
            true => vec![boss.as_str(), child.as_str()],
            false => vec![child.as_str()],
        };
        expected.sort_unstable();
        assert_eq!((code, named), (1, expected), "{bad}");
        std::fs::write(&path, before).expect("written");
    }
    assert_eq!(needs(&project, "default").0, 0);
}
