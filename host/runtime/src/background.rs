//! A host in the background that executes the runs of a policy, started where none lives.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use taskrun_journal::store::{Host, Hosts, StoreError};
use tokio::time::Instant;

use crate::log_file;
use crate::runtime::absolute;

/// Lines of a dead host's log that an error shows.
const LINES_SHOWN: usize = 12;
/// The number of times that a background host is started before that is given up. More often than a
/// run may bring its host down before it fails for that, so that the run is what is heard of.
const STARTS_MAX: u32 = 5;

/// A host that stayed so long and left by itself counts as one that does stay.
const STAYED: std::time::Duration = std::time::Duration::from_secs(5);

/// The command that starts a host in the background. Its program opens a
/// [`Runtime`](crate::Runtime) with [`Options::background`](crate::Options::background) on the same
/// policy and data directory.
#[derive(Clone, Debug)]
pub struct HostCommand {
    /// The program that is started.
    pub program: PathBuf,
    /// The program's arguments.
    pub args: Vec<OsString>,
}

/// Starts a background host where there is none for a policy.
pub struct BackgroundHost {
    command: HostCommand,
    data_dir: PathBuf,
    policy: String,
    hosts: Arc<dyn Hosts>,
    child: Option<Child>,
    log_begins: u64,
    starts: u32,
    started_at: Option<Instant>,
}

/// The reason that no background host executes runs.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// The hosts that live cannot be listed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A process cannot be started, or its log cannot be opened.
    #[error("a host cannot be started in the background")]
    Start(#[source] std::io::Error),
    /// The host that was started ended.
    #[error("the background host ended ({how}); the run waits for the next one")]
    Died {
        /// The end of the host, in the words of the operating system.
        how: String,
        /// The host's log.
        log: PathBuf,
        /// The last lines that it wrote there.
        tail: Vec<String>,
    },
}

impl BackgroundHost {
    /// A host of a policy file, among the hosts of a data directory. Nothing is started yet.
    #[must_use]
    pub fn new(
        command: HostCommand,
        data_dir: &Path,
        policy: &Path,
        hosts: Arc<dyn Hosts>,
    ) -> Self {
        Self {
            command,
            data_dir: data_dir.to_owned(),
            policy: absolute(policy).display().to_string(),
            hosts,
            child: None,
            log_begins: 0,
            starts: 0,
            started_at: None,
        }
    }

    /// True if none of these is a host of its policy.
    pub(crate) fn is_missing(&self, living: &[Host]) -> bool {
        living.iter().all(|host| host.policy != self.policy)
    }

    /// Starts a host if none lives and none is starting.
    ///
    /// # Errors
    /// [`BackgroundError`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: a host is started after the last wait.
    pub async fn attend(&mut self) -> Result<(), BackgroundError> {
        let hosts = self.hosts.hosts().await?;
        self.attend_beside(&hosts)
    }

    /// The same, where these hosts were found to live just now.
    ///
    /// # Errors
    /// [`BackgroundError`].
    pub fn attend_beside(&mut self, living: &[Host]) -> Result<(), BackgroundError> {
        if !self.is_missing(living) {
            return Ok(());
        }
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) => return Ok(()),
                // It found another host at work, or was idle long enough. One that stayed for a
                // while did its work, and the time of what is wanted now has come since.
                Ok(Some(status)) if status.success() => {
                    if self.started_at.is_some_and(|at| at.elapsed() >= STAYED) {
                        self.starts = 0;
                    }
                }
                // It was killed: what it executed is continued by the next one.
                Ok(Some(status)) if status.code().is_none() => {}
                Ok(Some(status)) => return Err(self.died(&status.to_string())),
                Err(error) => return Err(self.died(&error.to_string())),
            }
        }
        if self.starts >= STARTS_MAX {
            return Err(self.died("it was started several times and does not stay"));
        }
        self.start().map_err(BackgroundError::Start)
    }

    fn start(&mut self) -> std::io::Result<()> {
        let (log, begins) = log_file::open(&self.data_dir)?;
        let child = Command::new(&self.command.program)
            .args(&self.command.args)
            // It must not keep a folder busy that somebody wants to remove.
            .current_dir(&self.data_dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C in this terminal is not meant for it.
            .process_group(0)
            .spawn()?;
        tracing::debug!(pid = child.id(), "background host started");
        self.child = Some(child);
        self.log_begins = begins;
        self.starts += 1;
        self.started_at = Some(Instant::now());
        Ok(())
    }

    fn died(&self, how: &str) -> BackgroundError {
        BackgroundError::Died {
            how: how.to_owned(),
            log: log_file::path(&self.data_dir),
            tail: log_file::tail(&self.data_dir, self.log_begins, LINES_SHOWN),
        }
    }
}
