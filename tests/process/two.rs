//! Two processes on one data directory, and terminals that die.

use crate::project::Project;

fn spin(project: &Project) -> String {
    project.run(&["run", "spinner", "spin", "-d"]).id()
}

#[test]
fn a_run_started_in_one_process_is_seen_waited_for_and_cancelled_in_another() {
    let project = Project::new();
    let id = spin(&project);
    project.reach(&id, "running");
    let listed = project.run(&["ps", "-o", "json"]).json();
    assert_eq!(listed["v"], 1);
    assert_eq!(listed["runs"][0]["id"], id.as_str());
    assert_eq!(listed["runs"][0]["status"], "running");
    let waited = project.run(&["wait", &id, "--timeout", "200ms"]);
    assert_eq!(waited.code, 124, "{waited:?}");
    let waiting = project.start(&["wait", &id]);
    let canceled = project.run(&["cancel", &id, "--reason", "enough"]);
    assert_eq!(canceled.code, 0, "{canceled:?}");
    let waited = waiting.wait_with_output().expect("ends");
    assert_eq!(waited.status.code(), Some(6), "{waited:?}");
    assert_eq!(project.get(&id)["status"], "canceled");
}

#[test]
fn a_waiter_in_another_process_gets_the_answer() {
    let project = Project::new();
    let question = "Where are apples kept?";
    let id = project.run(&["run", "readonly_researcher", question, "-d"]).id();
    let waited = project.run(&["wait", &id]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let run = project.get(&id);
    assert_eq!(run["status"], "completed");
    let result = run["result"].as_str().expect("a result");
    assert!(result.contains("docs/a.md:3"), "{result}");
    let direct = project.run(&["run", "readonly_researcher", question, "--wait"]);
    assert_eq!(direct.code, 0, "{direct:?}");
    assert!(direct.stdout.contains("docs/a.md:3"), "{direct:?}");
}

#[test]
fn kill_9_of_the_terminal_does_not_hurt_the_run() {
    let project = Project::new();
    let mut child = project.start(&["run", "spinner", "spin", "--wait"]);
    let id = loop {
        let runs = project.run(&["ps", "-o", "json"]).json();
        if runs["runs"][0]["status"] == "running" {
            break runs["runs"][0]["id"].as_str().expect("an id").to_owned();
        }
    };
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert_eq!(project.get(&id)["status"], "running");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    assert_eq!(project.run(&["wait", &id]).code, 6);
}
