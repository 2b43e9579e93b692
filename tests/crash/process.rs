//! Host processes: the real program, started, stopped and killed.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use taskrun::clock::SystemClock;
use taskrun_journal::time::{Clock, Timestamp};

use crate::host::make_host;
use crate::point::CrashPoint;
use crate::project::Project;
use crate::terminal::{Terminal, forget_surroundings};

/// Runs that a host executes at once: more than there are, so that none waits for a slot.
const SLOTS: &str = "256";
/// The pause between two looks whether a process is gone.
const POLL: Duration = Duration::from_millis(10);

/// Copies of the program and of this test, which no build replaces meanwhile.
pub(crate) struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("taskrun-program-").tempdir()?;
        fs::copy(env!("CARGO_BIN_EXE_taskrun"), folder.path().join("taskrun"))?;
        fs::copy(std::env::current_exe()?, folder.path().join("host"))?;
        Ok(Self { folder })
    }

    /// The program itself.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("taskrun")
    }

    /// The same with a store that dies and takes notes.
    fn host(&self) -> PathBuf {
        self.folder.path().join("host")
    }

    /// The program as a person uses it on a project from elsewhere: so it starts no host.
    pub(crate) fn terminal(&self, project: &Project) -> Terminal {
        let folder = self.folder.path().to_owned();
        Terminal { program: self.path(), folder, data: project.data() }
    }
}

/// A host process; it does not outlive this.
pub(crate) struct Process {
    child: Child,
    /// When it was started.
    pub(crate) started: Timestamp,
    pub(crate) files: Files,
}

/// The lines that a process writes beside its work.
#[derive(Clone)]
pub(crate) struct Files {
    acknowledged: PathBuf,
    log: PathBuf,
}

impl Files {
    /// The answers of the store to it. One that died before it opened the file was told nothing.
    pub(crate) fn acknowledged(&self) -> String {
        fs::read_to_string(&self.acknowledged).unwrap_or_default()
    }

    /// Its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string())
    }
}

impl Process {
    /// Starts a host that stays until it is killed, and dies at a point if one is given.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn start(
        program: &Program,
        project: &Project,
        lease: Duration,
        at: Option<CrashPoint>,
    ) -> io::Result<Self> {
        let folder = project.path().join("log");
        let number = fs::read_dir(&folder)?.count();
        let log = folder.join(format!("host-{number:04}.log"));
        let acknowledged = project.path().join(format!("acknowledged-{number:04}"));
        let mut command = Command::new(program.host());
        command.arg("--config").arg(project.policy()).arg("--data-dir").arg(project.data());
        command.args(["host", "--idle-exit", "0", "--slots", SLOTS, "--lease"]);
        command.arg(format!("{}ms", lease.as_millis()));
        forget_surroundings(&mut command);
        make_host(&mut command, at, &acknowledged);
        let started = SystemClock::new().now();
        let stderr = File::create(&log)?;
        command.current_dir(project.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(stderr).spawn()?;
        Ok(Self { child, started, files: Files { acknowledged, log } })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        kill_process(Pid::from_child(&self.child), signal).map_err(io::Error::from)
    }

    /// Stops it as it is; [`Self::go_on`] lets it go on.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// # Errors
    /// If it is gone.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Tells it to hand over what it executes, and to end.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) fn end(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Kills it; returns when it is gone.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub(crate) fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// Waits until it is gone by itself, at most so long.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub(crate) async fn gone_within(
        &mut self,
        longest: Duration,
    ) -> io::Result<Option<ExitStatus>> {
        let end = tokio::time::Instant::now() + longest;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if tokio::time::Instant::now() >= end {
                return Ok(None);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone; there is nobody to tell.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
