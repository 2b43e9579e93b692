//! The log of a host: a reader that takes nothing stops nothing, and a file of it stays short.

use std::fs::OpenOptions;
use std::io::{ErrorKind, PipeReader, PipeWriter, Write};
use std::process::Stdio;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use serde_json::json;
use taskrun_tests::receiver::Receiver;

use crate::project::Project;
use crate::webhooks::{says, told_by};

/// Larger than a log may be.
const LONG: usize = 1_150_000;

/// A pipe without room, and its reader, who takes nothing.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let flags = fcntl_getfl(&writer).expect("its flags");
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("they are set");
    // First in pages, then what is left of the last one.
    for piece in [&[b'.'; 4096][..], b"."] {
        let refused = loop {
            if let Err(error) = writer.write_all(piece) {
                break error;
            }
        };
        assert_eq!(refused.kind(), ErrorKind::WouldBlock, "{refused}");
    }
    fcntl_setfl(&writer, flags).expect("they are set");
    (reader, writer)
}

/// Adds lines to the log of background hosts until it is too long.
fn grow(project: &Project, last: &str) {
    let log = project.path().join(".taskrun/host.log");
    let mut log = OpenOptions::new().create(true).append(true).open(log).expect("it opens");
    let lines = "an earlier line\n".repeat(LONG / 16);
    writeln!(log, "{lines}{last}").expect("written");
}

fn log(project: &Project, name: &str) -> String {
    std::fs::read_to_string(project.path().join(".taskrun").join(name)).unwrap_or_default()
}

/// A run that keeps a host busy until it is killed.
fn keeps_busy(project: &Project) {
    let task = json!({ "steps": [["block"]] }).to_string();
    let id = project.run(&["run", "worker", &task, "-d"]).id();
    project.reach(&id, "running");
}

#[test]
fn a_host_whose_stderr_nobody_reads_executes_runs_and_ends_when_it_is_told_to() {
    let (project, receiver) = (Project::new(), Receiver::start(|_| 500));
    told_by(&project, &receiver, "");
    let (reader, writer) = full_pipe();
    let mut command = project.command(&["-v", "host", "--service"]);
    let host = command.stdout(Stdio::null()).stderr(writer).spawn().expect("it starts");
    // The writing end that this process has.
    drop(command);
    project.meets_host();
    let task = says("done");
    for _ in 0..5 {
        let id = project.run(&["run", "told", &task, "-d"]).id();
        assert_eq!(project.ends_by_itself(&id)["status"], "completed");
        project.until("the webhook refuses it", || {
            let shown = project.run(&["outbox", "show", &id, "-o", "json"]);
            shown.code == 0 && shown.json()["dispatches"][0]["error"] == "it answered 500"
        });
    }
    let pid = i32::try_from(host.id()).expect("a process");
    Project::signal(&[pid], Signal::TERM);
    let ended = project.ends(host);
    assert_eq!(ended.code, 0, "{ended:?}");
    drop(reader);
}

#[test]
fn the_last_words_of_a_long_log_are_there_after_the_next_host_has_started() {
    let project = Project::new();
    keeps_busy(&project);
    assert_eq!(project.kill_hosts_and_wait(), 1);
    grow(&project, "the last words");
    let id = project.run(&["run", "worker", &says("done"), "-d"]).id();
    assert_eq!(project.ends_by_itself(&id)["status"], "completed");
    assert!(log(&project, "host.log.1").ends_with("the last words\n"));
    project.until("it has begun", || log(&project, "host.log").contains("host begins"));
    assert!(!log(&project, "host.log").contains("an earlier line"));
}

#[test]
fn a_log_that_becomes_too_long_while_its_host_lives_goes_on_in_another_file() {
    let project = Project::new();
    keeps_busy(&project);
    project.until("it has begun", || log(&project, "host.log").contains("host begins"));
    grow(&project, "the last of these");
    assert_eq!(project.signal_hosts(Signal::HUP), 1);
    project.until("it is put aside", || log(&project, "host.log.1").contains("the last of these"));
    assert!(log(&project, "host.log.1").contains("host begins"));
    assert_eq!(project.signal_hosts(Signal::HUP), 1);
    project.until("it goes on", || log(&project, "host.log").contains("asked by SIGHUP"));
    assert!(!log(&project, "host.log").contains("an earlier line"));
}
