//! The program as people and scripts use it on a project, where any of it may be killed.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::Program;
use crate::project::Project;
use crate::terminal::forget_surroundings;

/// The program on a project.
pub(crate) struct Commands {
    program: PathBuf,
    folder: PathBuf,
    policy: PathBuf,
    data: PathBuf,
}

/// A command under way; it does not outlive this.
pub(crate) struct Running {
    pub(crate) child: Option<Child>,
    /// Its first word.
    pub(crate) name: String,
    /// The run that it asks for.
    pub(crate) run: Option<String>,
}

impl Commands {
    pub(crate) fn new(program: &Program, project: &Project) -> Self {
        Self {
            program: program.path(),
            folder: project.path().to_owned(),
            policy: project.policy(),
            data: project.data(),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(&self.policy).arg("--data-dir").arg(&self.data).args(args);
        forget_surroundings(&mut command);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    /// The output of a command that came to its end.
    pub(crate) fn said(&self, args: &[&str]) -> io::Result<Output> {
        self.command(args).output()
    }

    pub(crate) fn start(&self, args: &[&str], run: Option<String>) -> io::Result<Running> {
        let mut command = self.command(args);
        if args[0] == "host" {
            let log = self.folder.join("log/host.log");
            let log = File::options().create(true).append(true).open(log)?;
            command.stdout(Stdio::null()).stderr(log);
        } else {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        Ok(Running { child: Some(command.spawn()?), name: args[0].to_owned(), run })
    }

    /// Ends the hosts that terminals started.
    pub(crate) fn end_hosts(&self) {
        let Ok(listed) = self.said(&["doctor", "-o", "json"]) else { return };
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let pids = listed["hosts"].as_array().into_iter().flatten();
        let pids = pids.filter_map(|host| i32::try_from(host["pid"].as_i64()?).ok());
        for pid in pids.filter_map(Pid::from_raw) {
            // One that ended by itself meanwhile has ended.
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

impl Running {
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// True if it was killed, or ended by itself.
    pub(crate) fn has_ended(&mut self) -> io::Result<bool> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?.is_some()),
            None => Ok(true),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may be gone; there is nobody to tell.
            child.kill().ok();
            child.wait().ok();
        }
    }
}
