//! Hosts that were told to end, and what is accepted while they hand over what they execute.

use rustix::process::Signal;

use crate::project::Project;

/// The host is busy with a run that does not stop when it is told to end, and another one executes
/// what is accepted then: nothing but the acceptance starts it.
fn another_host_executes_what_is_accepted(project: &Project) {
    let busy = project.run(&["run", "spinner", "spin", "-d"]).id();
    project.reach(&busy, "running");
    assert_eq!(project.signal_hosts(Signal::TERM), 1);
    project.until("it tells that it leaves", || {
        project.run(&["policy", "show"]).stdout.contains("it hands its runs over and ends")
    });
    let id = project.run(&["run", "worker", "x", "-d"]).id();
    assert_eq!(project.ends_by_itself(&id)["status"], "completed");
}

#[test]
fn what_is_accepted_while_a_host_in_the_background_leaves_is_executed() {
    another_host_executes_what_is_accepted(&Project::new());
}

#[test]
fn what_is_accepted_while_a_service_leaves_is_executed() {
    let project = Project::new();
    let service = project.start(&["host", "--service"]);
    project.meets_host();
    another_host_executes_what_is_accepted(&project);
    project.ends(service);
}

#[test]
fn doctor_tells_of_runs_that_wait_for_a_host_where_none_lives() {
    let project = Project::new();
    let id = project.run(&["run", "spinner", "spin", "-d"]).id();
    project.reach(&id, "running");
    project.kill_hosts_and_wait();
    // Whoever looks frees it, and starts nothing.
    assert_eq!(project.run(&["ps"]).code, 0);
    project.until("doctor tells of it", || {
        project
            .run(&["doctor"])
            .stdout
            .contains("1 run waits for a host, and none that lives executes it")
    });
}
