//! A project for the program.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use taskrun_examples::{CHAT, WORKSPACE};

/// A project in a folder of its own, whose hosts end with it.
pub(crate) struct Project {
    folder: tempfile::TempDir,
}

impl Project {
    pub(crate) fn new(policy: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).expect("written");
        };
        write("chat.wasm", CHAT.bytes);
        write("workspace.wasm", WORKSPACE.bytes);
        std::fs::create_dir(folder.path().join("docs")).expect("made");
        write("docs/a.md", b"Apples are kept in the cellar.\n");
        write("taskrun.toml", policy.as_bytes());
        Self { folder }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskrun"));
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env_clear();
        command.env("TASKRUN_CONFIG", self.folder.path());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("starts")
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[args, &["-o", "json"]].concat());
        serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// Kills every host, as a machine that loses its power would.
    pub(crate) fn kill_hosts(&self) {
        let hosts = self.json(&["doctor"])["hosts"].as_array().cloned().unwrap_or_default();
        for pid in hosts.iter().filter_map(|host| host["pid"].as_i64()) {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            let pid = pid.expect("a process");
            // One that ended by itself meanwhile has ended.
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
        }
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        self.kill_hosts();
    }
}
