//! The program as the benchmarks start it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A command of a program in a folder with a policy.
pub(crate) fn command(program: &Path, folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["--config", "taskrun.toml", "--data-dir", ".taskrun"]).args(args);
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped());
    for name in ["TASKRUN_OUTPUT", "TASKRUN_LOG", "TASKRUN_LOG_FORMAT", "TASKRUN_SLOTS"] {
        command.env_remove(name);
    }
    command
}

/// A host of the policy in a folder, that stays; returned once it executes runs.
pub(crate) fn host(program: &Path, folder: &Path) -> Child {
    let mut host = command(program, folder, &["host", "--idle-exit", "0s"]);
    let mut host = host.stderr(Stdio::piped()).spawn().expect("it starts");
    let said = host.stderr.take().expect("it is piped");
    let mut lines = BufReader::new(said).lines();
    let ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains("executing runs"));
    assert!(ready, "the host ended before it was ready");
    // It would wait at a pipe that nobody reads.
    std::thread::spawn(move || lines.for_each(drop));
    host
}
