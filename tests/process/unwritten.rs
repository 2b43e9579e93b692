//! Output that cannot be written is an error; output that nobody reads is none.

use std::io::Read;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use crate::project::{Project, Ran};

/// Runs the program with a standard output for which there is no room.
fn run_into_full(project: &Project, args: &[&str]) -> Ran {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
    run_into(project, args, full.into())
}

/// Runs the program with a standard output that nobody reads.
pub(crate) fn run_into_closed(project: &Project, args: &[&str]) -> Ran {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    run_into(project, args, writer.into())
}

fn run_into(project: &Project, args: &[&str], stdout: Stdio) -> Ran {
    let mut command = project.command(args);
    let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().expect("starts");
    project.ends(child)
}

/// The text that a program is told of output that is lost.
fn lost() -> serde_json::Value {
    json!("standard output cannot be written: No space left on device (os error 28)")
}

fn tells_of_loss(ran: &Ran) {
    let error = ran.error();
    assert_eq!((ran.code, &error["code"]), (1, &json!("output")), "{ran:?}");
    assert_eq!(error["message"], lost(), "{ran:?}");
    assert!(ran.stderr.contains("error: standard output cannot be written\n"), "{ran:?}");
}

/// The task of a run that answers.
fn answers() -> String {
    json!({ "ops": [{ "reply": "It is 42." }] }).to_string()
}

#[test]
fn output_for_which_there_is_no_room_is_told() {
    let project = Project::new();
    let id = project.run(&["run", "worker", &answers(), "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let task = answers();
    let commands: [&[&str]; 10] = [
        &["ps", "-a", "-o", "json"],
        &["ps", "-a"],
        &["doctor"],
        &["get", &id, "--result"],
        &["transcript", &id, "-o", "json"],
        &["events", &id],
        &["run", "worker", &task, "--wait"],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
    ];
    for args in commands {
        tells_of_loss(&run_into_full(&project, args));
    }
}

#[test]
fn a_run_that_is_accepted_is_named_in_the_error_if_its_id_cannot_be_printed() {
    let project = Project::new();
    let ran = run_into_full(&project, &["run", "worker", &answers(), "-d"]);
    tells_of_loss(&ran);
    let error = ran.error();
    let id = error["run_id"].as_str().expect("an id");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains(id)), "{ran:?}");
    assert_eq!(project.run(&["wait", id]).code, 0);
}

#[test]
fn the_code_of_a_run_that_failed_stays_where_its_output_is_lost() {
    let project = Project::new();
    let task = json!({ "steps": [[{ "fail": { "code": "broken", "message": "it broke" } }]] });
    let task = task.to_string();
    let ran = run_into_full(&project, &["run", "worker", &task, "--wait", "-o", "json"]);
    assert_eq!((ran.code, &ran.error()["code"]), (5, &json!("run-failed")), "{ran:?}");
    assert!(ran.stderr.contains("error: standard output cannot be written\n"), "{ran:?}");
}

#[test]
fn following_a_run_ends_if_its_events_cannot_be_written() {
    let project = Project::new();
    let id = project.run(&["run", "spinner", "spin", "-d"]).id();
    project.reach(&id, "running");
    tells_of_loss(&run_into_full(&project, &["top"]));
    tells_of_loss(&run_into_full(&project, &["events", &id, "-f"]));
    tells_of_loss(&run_into_full(&project, &["events", "--session", "cli", "-f"]));
    let quiet = run_into_closed(&project, &["events", &id, "-f"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{quiet:?}");
    // So does one that has nothing to print.
    let silent: [&[&str]; 3] = [
        &["logs", &id, "-f"],
        &["events", &id, "-f", "--kind", "log"],
        &["events", "--session", "cli", "-f", "--kind", "log"],
    ];
    for args in silent {
        let quiet = run_into_closed(&project, args);
        assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{quiet:?}");
    }
    assert_eq!(project.get(&id)["status"], "running", "nothing was done to it");
}

#[test]
fn output_that_nobody_reads_is_no_error() {
    let project = Project::new();
    let id = project.run(&["run", "worker", &answers(), "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    for args in [&["ps", "-a", "-o", "json"][..], &["completions", "bash"], &["--help"]] {
        let quiet = run_into_closed(&project, args);
        assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{quiet:?}");
    }
}

#[test]
fn a_command_does_all_of_its_work_where_nobody_reads_its_output() {
    let project = Project::new();
    let task = json!({ "steps": [[{ "fail": { "code": "broken", "message": "it broke" } }]] });
    let task = task.to_string();
    let args = ["run", "worker", &task, "--wait", "-o", "json", "--record", "failed.taskrun"];
    let ran = run_into_closed(&project, &args);
    assert_eq!((ran.code, &ran.error()["code"]), (5, &json!("run-failed")), "{ran:?}");
    assert!(project.path().join("failed.taskrun").exists());
}

/// A program of the same shell line may have made the pipe one that does not block.
#[test]
fn output_into_a_pipe_that_does_not_block_is_whole_though_its_reader_is_late() {
    let project = Project::new();
    let text = "It is 42.\n".repeat(20_000);
    let task = json!({ "ops": [{ "reply": text.trim_end() }] }).to_string();
    project.write("task.json", task.as_bytes());
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe");
    let full = writer.try_clone().expect("a descriptor");
    let mut command = project.command(&["run", "worker", "@task.json", "--wait"]);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("starts");
    // It has the pipe, too.
    drop(command);
    project.until("there is no room for more", || {
        let mut polled = [PollFd::new(&full, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default())).expect("a pipe") == 0
    });
    drop(full);
    let mut printed = String::new();
    reader.read_to_string(&mut printed).expect("text");
    let ran = project.ends(child);
    assert_eq!(ran.code, 0, "{} bytes: {ran:?}", printed.len());
    assert!(printed == text, "{} of {} bytes", printed.len(), text.len());
}
