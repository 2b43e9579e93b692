//! Nothing is lost by a `kill -9` between every two of: components are kept, the run is accepted, the
//! policy is switched, components are removed. Each process is held at such a place by a lock that it
//! waits for, or dies before the change may count.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::kept::{GC, grow_old};
use crate::project::Project;

/// A project whose agent has another component and another limit in each version.
pub(super) fn project() -> Project {
    let project = Project::new();
    version(&project, 1);
    // It makes the folder and the locks.
    let ran = project.run(&["run", "worker", &says("warm"), "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    project
}

pub(super) fn says(text: &str) -> String {
    json!({ "steps": [[{ "reply": text }]] }).to_string()
}

/// The component of a version: with a section that nobody reads.
pub(super) fn component(number: u8) -> Vec<u8> {
    [taskrun_examples::SCRIPTED.bytes, &[0, 2, 1, b'0' + number]].concat()
}

pub(super) fn version(project: &Project, number: u8) {
    project.write(&format!("components/own-{number}.wasm"), &component(number));
    let policy = format!(
        "[agent.worker]\ncomponent = \"components/own-{number}.wasm\"\n\
         limits = {{ tool_calls = {number} }}\n"
    );
    project.write("taskrun.toml", policy.as_bytes());
}

/// A run that waits for an answer.
pub(super) fn waits(project: &Project) -> String {
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let steps = json!([[{ "plan": { "await": [question] } }], [{ "reply": "thanks" }]]);
    let task = json!({ "steps": steps }).to_string();
    let id = project.run(&["run", "worker", &task, "-d"]).id();
    project.reach(&id, "blocked");
    id
}

/// The run goes on as the version that it was accepted with, and so does one that begins now.
pub(super) fn goes_on(project: &Project, id: &str, accepted_with: u8) {
    let answered = project.run(&["answer", id, "the third one"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let run = project.ends_by_itself(id);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("thanks")), "{run}");
    is_of(project, id, accepted_with);
    let ran = project.run(&["run", "worker", &says("later"), "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "later"), "{ran:?}");
}

/// The digests in the journal are those of this version, and it is what ran.
fn is_of(project: &Project, id: &str, number: u8) {
    let digest = format!("blake3:{}", blake3::hash(&component(number)).to_hex());
    let events = project.events(id);
    assert_eq!(events[0]["spec"]["agent_digest"], json!(digest), "{:#?}", events[0]);
}

fn kept_pins(project: &Project) -> BTreeSet<PathBuf> {
    let pins = std::fs::read_dir(project.path().join(".taskrun/blobs/pins")).expect("a folder");
    pins.map(|pin| pin.expect("read").path()).collect()
}

fn lock(project: &Project, name: &str) -> File {
    let path = project.path().join(".taskrun/blobs").join(name);
    File::options().write(true).open(path).expect("it is there")
}

fn log(project: &Project) -> String {
    std::fs::read_to_string(project.path().join(".taskrun/host.log")).unwrap_or_default()
}

pub(super) fn kept_components(project: &Project) -> [bool; 2] {
    [1, 2].map(|number| {
        let hex = blake3::hash(&component(number)).to_hex().to_string();
        project.path().join(".taskrun/blobs").join(&hex[..2]).join(&hex[2..]).exists()
    })
}

#[test]
fn a_terminal_that_dies_between_keeping_an_agent_and_accepting_its_run_leaves_nothing_behind() {
    // The last thing that is kept is the policy: it may have died before that, too.
    for is_policy_kept in [true, false] {
        dies_before_the_acceptance(is_policy_kept);
    }
}

fn dies_before_the_acceptance(is_policy_kept: bool) {
    let project = project();
    let waiting = waits(&project);
    version(&project, 2);
    let before = kept_pins(&project);
    // Who accepts a run passes this gate after the agent is kept.
    let gate = lock(&project, "gate");
    gate.lock().expect("locked");
    let mut terminal = project.start(&["run", "worker", &says("lost"), "-d", "--id", "lost"]);
    project.until("the agent is kept", || kept_pins(&project).len() > before.len());
    terminal.kill().expect("killed");
    terminal.wait().expect("gone");
    gate.unlock().expect("unlocked");
    assert_ne!(project.run(&["get", "lost"]).code, 0, "it was not accepted");
    if !is_policy_kept {
        let kept = kept_pins(&project);
        let kept: Vec<_> = kept.difference(&before).collect();
        let [pin] = kept[..] else { panic!("{kept:?}") };
        std::fs::remove_file(pin).expect("removed");
        assert_eq!(kept_components(&project), [true, true]);
    }
    // The same is accepted when it is asked for again.
    let again = project.run(&["run", "worker", &says("found"), "--id", "lost", "--wait"]);
    assert_eq!((again.code, again.stdout.trim()), (0, "found"), "{again:?}");
    is_of(&project, "lost", 2);
    goes_on(&project, &waiting, 1);
}

#[test]
fn a_host_that_dies_between_an_acceptance_and_the_switch_strands_no_run() {
    let project = project();
    let id = waits(&project);
    let switched = log(&project).matches("the policy is in force").count();
    let hosts = project.hosts();
    assert!(!hosts.is_empty());
    version(&project, 2);
    // A change has to stand for a while before it counts.
    for pid in hosts.into_iter().filter_map(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it lives");
    }
    project.until("it is gone", || project.hosts().is_empty());
    assert_eq!(log(&project).matches("the policy is in force").count(), switched);
    goes_on(&project, &id, 1);
}

#[test]
fn a_host_that_dies_after_the_switch_strands_no_run() {
    let project = project();
    let id = waits(&project);
    let switched = log(&project).matches("the policy is in force").count();
    version(&project, 2);
    let is_switched = || log(&project).matches("the policy is in force").count() > switched;
    project.until("the policy is switched", is_switched);
    assert_ne!(project.kill_hosts_and_wait(), 0);
    goes_on(&project, &id, 1);
}

#[test]
fn a_removal_that_dies_between_the_switch_and_the_first_component_takes_nothing_and_holds_nobody() {
    let project = project();
    let id = waits(&project);
    version(&project, 2);
    let ran = project.run(&["run", "worker", &says("two"), "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    project.end_hosts();
    grow_old(&project);
    assert_eq!(kept_components(&project), [true, true]);
    let held = lock(&project, "lock");
    held.lock_shared().expect("locked");
    let mut gc = project.start(&GC);
    let gate = lock(&project, "gate");
    // It has the gate, and waits for the lock behind it.
    while gate.try_lock_shared().is_ok() {
        gate.unlock().expect("unlocked");
        let ended = gc.try_wait().expect("a child");
        assert!(ended.is_none(), "it has not waited: {ended:?}");
    }
    gc.kill().expect("killed");
    gc.wait().expect("gone");
    held.unlock().expect("unlocked");
    assert_eq!(kept_components(&project), [true, true]);
    goes_on(&project, &id, 1);
}

#[test]
fn a_host_that_dies_after_a_removal_finds_all_that_its_open_runs_need() {
    let project = project();
    let id = waits(&project);
    version(&project, 2);
    // Accepted and ended long ago, as far as the removal can tell.
    let ran = project.run(&["run", "worker", &says("two"), "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_ne!(project.kill_hosts_and_wait(), 0);
    version(&project, 3);
    grow_old(&project);
    let removed = project.run(&GC);
    let components: Value = removed.json()["components"].clone();
    assert_eq!((removed.code, &components["count"]), (0, &json!(1)), "{removed:?}");
    assert_eq!(kept_components(&project), [true, false], "an open run needs the first");
    goes_on(&project, &id, 1);
}
