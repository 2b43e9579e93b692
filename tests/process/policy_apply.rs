//! `policy apply`: a policy that is checked, and waited for until the hosts have it in force.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::project::{Project, Ran};

fn apply(project: &Project, more: &[&str]) -> Ran {
    project.run(&[&["policy", "apply", "-o", "json"][..], more].concat())
}

fn policy(limit: usize) -> String {
    format!(
        "[agent.worker]\ncomponent = \"components/worker.wasm\"\n\
         limits = {{ tool_calls = {limit} }}\n"
    )
}

/// A project with a host.
fn served() -> (Project, std::process::Child) {
    let project = Project::new();
    project.write("components/worker.wasm", taskrun_examples::SCRIPTED.bytes);
    project.write("taskrun.toml", policy(9).as_bytes());
    let host = project.start(&["host", "--idle-exit", "0"]);
    project.meets_host();
    (project, host)
}

fn host_of(report: &Value) -> &Value {
    let hosts = report["hosts"].as_array().expect("hosts");
    assert_eq!(hosts.len(), 1, "{report}");
    &hosts[0]
}

#[test]
fn a_policy_and_its_components_are_in_force_in_all_hosts_when_it_has_been_applied() {
    let (project, mut host) = served();
    let first = apply(&project, &[]);
    assert_eq!(first.code, 0, "{first:?}");
    let first = first.json();
    // Each time at once after the change: the host has not looked yet.
    project.write("taskrun.toml", policy(8).as_bytes());
    let second = apply(&project, &[]);
    assert_eq!(second.code, 0, "{second:?}");
    let second = second.json();
    assert_eq!((&second["behind"], &host_of(&second)["same_text"]), (&json!([]), &json!(true)));
    assert_eq!(host_of(&second)["digest"], second["digest"]);
    assert_ne!(second["digest"], first["digest"]);
    project.write("components/worker.wasm", taskrun_examples::BRIEFER.bytes);
    let third = apply(&project, &[]);
    assert_eq!(third.code, 2, "the prompts that it wants are not granted: {third:?}");
    project.write("components/worker.wasm", taskrun_examples::CHAT.bytes);
    let fourth = apply(&project, &[]);
    assert_eq!(fourth.code, 2, "it has no model: {fourth:?}");
    project.write("components/worker.wasm", taskrun_examples::FINALIZER.bytes);
    let fifth = apply(&project, &[]);
    assert_eq!(fifth.code, 0, "{fifth:?}");
    let fifth = fifth.json();
    assert_eq!(fifth["digest"], second["digest"], "the text is the same");
    assert_ne!(host_of(&fifth)["since"], host_of(&second)["since"], "the component is not");
    host.kill().expect("killed");
    host.wait().expect("gone");
}

#[test]
fn a_mistake_changes_nothing_and_a_host_that_does_not_take_it_up_is_named() {
    let (project, mut host) = served();
    let before = apply(&project, &[]).json();
    project.write("taskrun.toml", policy(8).replace("tool_calls", "tool_cals").as_bytes());
    let wrong = apply(&project, &[]);
    assert_eq!((wrong.code, &wrong.error()["code"]), (2, &json!("policy-invalid")), "{wrong:?}");
    let shown = project.run(&["policy", "show", "-o", "json"]).json();
    assert_eq!(host_of(&shown)["digest"], before["digest"]);
    project.write("taskrun.toml", policy(9).as_bytes());
    assert_eq!(apply(&project, &[]).code, 0);
    assert_eq!(project.signal_hosts(Signal::STOP), 1);
    project.write("components/worker.wasm", taskrun_examples::FINALIZER.bytes);
    let behind = apply(&project, &["--timeout", "300ms"]);
    assert_eq!((behind.code, &behind.error()["code"]), (124, &json!("wait-timed-out")));
    assert_eq!(behind.json()["behind"], json!([host.id()]), "{behind:?}");
    assert_eq!(project.signal_hosts(Signal::CONT), 1);
    assert_eq!(apply(&project, &[]).code, 0);
    host.kill().expect("killed");
    host.wait().expect("gone");
}

#[test]
fn where_no_host_lives_nothing_is_waited_for() {
    let project = Project::untouched();
    let applied = apply(&project, &[]);
    assert_eq!(applied.code, 0, "{applied:?}");
    assert_eq!((&applied.json()["hosts"], &applied.json()["behind"]), (&json!([]), &json!([])));
    assert!(!project.path().join(".taskrun").exists(), "looking makes no folder");
    let text = project.run(&["policy", "apply"]);
    assert!(text.stderr.contains("no host lives"), "{text:?}");
}

#[test]
fn a_text_that_is_another_one_when_it_is_applied_is_not_said_to_be_in_force() {
    let project = Project::new();
    let reply = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
    assert_eq!(project.run(&["run", "worker", &reply, "--wait"]).code, 0);
    project.end_hosts();
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("it is there");
    // The kernel has another text for each who reads it.
    let other = "[prompt.other]\nfile = \"/proc/sys/kernel/random/uuid\"\n";
    project.write("taskrun.toml", format!("{policy}\n{other}").as_bytes());
    let applied = apply(&project, &[]);
    assert_eq!((applied.code, &applied.error()["code"]), (124, &json!("wait-timed-out")));
    let told = applied.error()["message"].to_string();
    assert!(told.contains("was changed while it was applied"), "{told}");
}

/// As where the folder is another user's: root may write everything.
#[test]
fn a_policy_under_which_no_run_could_be_accepted_is_not_put_in_force() {
    let project = Project::new();
    let reply = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
    assert_eq!(project.run(&["run", "worker", &reply, "--wait"]).code, 0);
    project.end_hosts();
    let writes = project.path().join(".taskrun/blobs/tmp");
    std::fs::remove_dir_all(&writes).expect("removed");
    std::fs::write(&writes, "no folder").expect("written");
    let refused = apply(&project, &[]);
    assert_eq!(refused.code, 1, "{refused:?}");
    let told = refused.error()["message"].to_string();
    assert!(told.contains("agents cannot be kept") && told.contains("blobs/tmp"), "{told}");
    let components = project.run(&["doctor", "-o", "json"]).check("components");
    let components = components.expect("they are checked");
    assert_eq!(components["health"], "bad", "{components}");
    let told = components["detail"].to_string();
    assert!(told.contains("no more can be kept") && told.contains("blobs/tmp"), "{told}");
}
