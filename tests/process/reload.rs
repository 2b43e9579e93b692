//! Signals to a host: at SIGHUP it looks at its policy at once, at others it ends.

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::json;

use crate::error_lines::ErrorLines;
use crate::project::Project;

fn log(project: &Project) -> String {
    std::fs::read_to_string(project.path().join(".taskrun/host.log")).unwrap_or_default()
}

fn policy(project: &Project) -> String {
    std::fs::read_to_string(project.path().join("taskrun.toml")).expect("there is one")
}

/// Puts another policy in the place of the one before, in one moment.
fn replace(project: &Project, policy: &str) {
    project.write("taskrun.toml.new", policy.as_bytes());
    let (new, file) = ("taskrun.toml.new", "taskrun.toml");
    std::fs::rename(project.path().join(new), project.path().join(file)).expect("renamed");
}

/// A run that waits for an answer, and a host that lives, as another run keeps it busy.
fn waits(project: &Project) -> String {
    let busy = json!({ "steps": [["block"]] }).to_string();
    let busy = project.run(&["run", "worker", &busy, "-d"]).id();
    project.reach(&busy, "running");
    let clarification = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let steps = json!([[{ "plan": { "await": [clarification] } }], [{ "reply": "thanks" }]]);
    let id = project.run(&["run", "worker", &json!({ "steps": steps }).to_string(), "-d"]).id();
    project.reach(&id, "blocked");
    id
}

#[test]
fn sighup_has_a_host_take_up_a_policy_that_never_comes_to_rest() {
    let project = Project::new();
    waits(&project);
    let before = policy(&project);
    let edit = |number: u32| replace(&project, &format!("{before}# {number}\n"));
    edit(0);
    let hosts = project.hosts();
    assert_eq!(project.signal_hosts(Signal::HUP), 1);
    // By itself it waits until the file has stood for a moment.
    let mut number = 0;
    let taken_up = std::cell::RefCell::new(&mut number);
    project.until("the policy is in force", || {
        let mut number = taken_up.borrow_mut();
        **number += 1;
        edit(**number);
        let told = log(&project);
        told.contains("asked by SIGHUP") && told.contains("the policy is in force")
    });
    assert_eq!(project.hosts(), hosts, "the same host goes on");
}

#[test]
fn sighup_with_a_mistake_in_the_policy_tells_its_place_and_changes_nothing() {
    let project = Project::new();
    let id = waits(&project);
    let before = policy(&project);
    let line = before.lines().count() + 3;
    let broken = "[agent.broken]\ncomponent = \"components/scripted.wasm\"\n\
                  limits = { stepp = \"1s\" }\n";
    replace(&project, &format!("{before}{broken}"));
    let hosts = project.hosts();
    assert_eq!(project.signal_hosts(Signal::HUP), 1);
    let place = format!("taskrun.toml:{line}:12: ");
    project.until("the mistake is in the log", || log(&project).contains(&place));
    let told = log(&project);
    let at = told.lines().find(|line| line.contains(&place)).unwrap_or_default();
    assert!(at.contains("cannot be used") && at.contains("stepp"), "{at}");
    assert!(!told.contains("the policy is in force"), "{told}");
    assert_eq!(project.hosts(), hosts, "the same host goes on");
    replace(&project, &before);
    assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
    assert_eq!(project.ends_by_itself(&id)["result"], "thanks");
}

#[test]
fn the_log_names_the_models_that_an_edit_changed() {
    let project = Project::new();
    let with = |models: &str| format!("{models}\n{}", policy(&project));
    let kept = "[model.kept]\nprovider = \"echo\"\n[model.gone]\nprovider = \"echo\"\n";
    let (before, after) = (with(kept), with(&kept.replace("gone", "added")));
    replace(&project, &before);
    waits(&project);
    replace(&project, &after);
    project.until("the policy is in force", || log(&project).contains("the policy is in force"));
    let told = log(&project);
    let line = told.lines().find(|line| line.contains("the policy is in force"));
    assert!(line.is_some_and(|line| line.contains("models=\"added,gone\"")), "{told}");
}

#[test]
fn the_log_names_an_agent_whose_rounds_an_edit_lowered() {
    let project = Project::new();
    let before = policy(&project);
    let within = |rounds: u32| {
        format!(
            "{before}[agent.scout]\ncomponent = \"components/scripted.wasm\"\n\
             autonomous = {{ rounds = {rounds} }}\n"
        )
    };
    replace(&project, &within(8));
    waits(&project);
    replace(&project, &within(3));
    project.until("the policy is in force", || log(&project).contains("the policy is in force"));
    let told = log(&project);
    let line = told.lines().find(|line| line.contains("the policy is in force"));
    assert!(line.is_some_and(|line| line.contains("changed=\"scout\"")), "{told}");
}

#[test]
fn a_policy_that_could_not_be_opened_for_a_moment_is_in_force_soon() {
    let project = Project::new();
    waits(&project);
    let hosts = project.hosts();
    let host = Pid::from_raw(hosts[0]).expect("a process");
    // Nothing is opened meanwhile, and what is open stays so.
    let none = Rlimit { current: Some(3), maximum: Some(1_024) };
    let limit = prlimit(Some(host), Resource::Nofile, none).expect("limited");
    replace(&project, &format!("{}# Later.\n", policy(&project)));
    project.until("it cannot be opened", || {
        let told = log(&project);
        told.contains("cannot be used") && told.contains("Too many open files")
    });
    let back = Rlimit { maximum: none.maximum, ..limit };
    prlimit(Some(host), Resource::Nofile, Rlimit { current: back.maximum, ..back })
        .expect("limited");
    project.until("the policy is in force", || log(&project).contains("the policy is in force"));
    let told = log(&project);
    assert_eq!(told.matches("cannot be used").count(), 1, "it is told once: {told}");
    assert_eq!(project.hosts(), hosts, "the same host goes on");
}

#[test]
fn a_run_of_an_agent_that_a_host_has_yet_to_take_up_is_not_said_to_be_executed_by_none() {
    let project = Project::new();
    waits(&project);
    let task = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
    // A host that is slow to look is said to execute nothing, and rightly.
    let mut silent = 0;
    for number in 0..5 {
        let agent = format!("[agent.fresh{number}]\ncomponent = \"components/scripted.wasm\"\n");
        replace(&project, &format!("{}{agent}", policy(&project)));
        let ran = project.run(&["run", &format!("fresh{number}"), &task, "--wait"]);
        assert_eq!((ran.code, ran.stdout.trim()), (0, "done"), "{ran:?}");
        silent += u32::from(!ran.stderr.contains("no host executes"));
    }
    assert!(silent >= 3, "{silent} of 5");
}

#[test]
fn a_host_in_a_terminal_says_that_it_has_taken_up_the_policy_at_sighup() {
    let project = Project::new();
    let mut host = project.start(&["host", "--idle-exit", "30s"]);
    let lines = ErrorLines::of(&mut host);
    lines.until("executing runs of");
    let before = policy(&project);
    replace(&project, &format!("{before}# A comment.\n"));
    kill_process(Pid::from_child(&host), Signal::HUP).expect("it lives");
    lines.until("the policy is in force as it is now");
    kill_process(Pid::from_child(&host), Signal::TERM).expect("it lives");
    assert_eq!(project.ends(host).code, 0);
}

#[test]
fn a_host_in_a_terminal_says_which_agents_an_edit_took_away() {
    let project = Project::new();
    let mut host = project.start(&["host", "--idle-exit", "60s"]);
    let lines = ErrorLines::of(&mut host);
    lines.until("executing runs of");
    replace(&project, &policy(&project).replace("[agent.fragile]", "[agent.sturdy]"));
    lines.until("added=\"sturdy\" gone=\"fragile\"");
    kill_process(Pid::from_child(&host), Signal::TERM).expect("it lives");
    assert_eq!(project.ends(host).code, 0);
}

/// It is told several times, as it is a matter of chance how much of it has begun then.
#[test]
fn a_host_that_is_told_to_end_in_the_moment_in_which_it_begins_ends_in_order() {
    let project = Project::new();
    for _ in 0..10 {
        let mut host = project.start(&["host", "--idle-exit", "30s"]);
        ErrorLines::of(&mut host).until("executing runs of");
        kill_process(Pid::from_child(&host), Signal::TERM).expect("it lives");
        assert_eq!(project.ends(host).code, 0);
    }
}

#[test]
fn ctrl_c_once_more_ends_a_host_that_hands_over() {
    let project = Project::new();
    let task = r#"{"steps":[[{"sleep":5000},{"reply":"done"}]]}"#;
    let mut host = project.start(&["-v", "host", "--idle-exit", "30s"]);
    let lines = ErrorLines::of(&mut host);
    lines.until("executing runs of");
    let id = project.run(&["run", "worker", task, "-d"]).id();
    project.reach(&id, "running");
    let pid = Pid::from_child(&host);
    kill_process(pid, Signal::INT).expect("it lives");
    lines.until("host ends");
    kill_process(pid, Signal::INT).expect("it waits for the step");
    // It would wait for the step otherwise, and end in order.
    assert_eq!(project.ends(host).code, 130);
}
