//! A host in the background that executes the runs of a policy, started where none lives.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use taskrun_journal::machine::decide::CRASHES_MAX;
use taskrun_journal::store::{Host, Hosts, StoreError};
use taskrun_policy::Policy;
use tokio::time::Instant;

use crate::log_file;
use crate::runtime::absolute;

/// Lines of a dead host's log that an error shows.
const LINES_SHOWN: usize = 12;
/// The number of times that a background host is started in a row, none of which stays, before that
/// is given up. Once more than a run may bring its host down: the last host records that the run
/// fails for that, so that the run is what is heard of.
const STARTS_MAX: u32 = CRASHES_MAX + 1;

/// A host that lived so long counts as one that does stay, whether it left by itself or was killed.
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
    /// The names of the subscribers of its policy, as it was read first or as a living host has it.
    subscribers: BTreeSet<String>,
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
    /// A host of a policy, which its program opens as it is then, among the hosts of a data directory.
    /// Nothing is started yet.
    #[must_use]
    pub fn new(
        command: HostCommand,
        data_dir: &Path,
        policy: &Policy,
        hosts: Arc<dyn Hosts>,
    ) -> Self {
        Self {
            command,
            data_dir: data_dir.to_owned(),
            policy: absolute(&policy.path).display().to_string(),
            subscribers: policy.subscribers.keys().cloned().collect(),
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

    /// Takes the subscribers of a host of its policy, if one of these is, as the policy was edited since.
    pub(crate) fn learn_from(&mut self, living: &[Host]) {
        if let Some(host) = living.iter().find(|host| host.policy == self.policy) {
            self.subscribers = BTreeSet::clone(&host.subscribers);
        }
    }

    /// True if it hands over to this subscriber.
    pub(crate) fn tells(&self, subscriber: &str) -> bool {
        self.subscribers.contains(subscriber)
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
                // It found another host at work, or was idle long enough; or it was killed, and
                // the next one continues what it executed. One that stayed for a while did its
                // work, and the time of what is wanted now has come since.
                Ok(Some(status)) if status.success() || status.code().is_none() => {
                    if self.started_at.is_some_and(|at| at.elapsed() >= STAYED) {
                        self.starts = 0;
                    }
                }
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

#[cfg(test)]
mod tests {
    use taskrun_journal::ids::HostId;
    use taskrun_journal::store::LEASE;
    use taskrun_journal::time::Timestamp;
    use taskrun_store::MemoryStore;

    use super::*;

    /// A host whose program does nothing, until it is killed.
    fn idle(data_dir: &Path) -> BackgroundHost {
        let command = HostCommand { program: "sleep".into(), args: vec!["60".into()] };
        let (hosts, path) = (Arc::new(MemoryStore::new()), Path::new("taskrun.toml"));
        let policy = "[agent.worker]\ncomponent = \"worker.wasm\"\n";
        let policy = Policy::parse(policy, path).expect("a valid policy");
        BackgroundHost::new(command, data_dir, &policy, hosts)
    }

    /// Kills the process that was started last.
    fn kill(host: &mut BackgroundHost) {
        let child = host.child.as_mut().expect("it was started");
        child.kill().expect("it can be killed");
        child.wait().expect("it has ended");
    }

    #[test]
    fn the_subscribers_of_an_edited_policy_are_those_of_its_living_host() {
        let data = tempfile::tempdir().expect("a folder");
        let mut host = idle(data.path());
        let living = |policy: &str, subscriber: &str| Host {
            id: HostId::new("h"),
            pid: 1,
            policy: policy.to_owned(),
            agents: Arc::default(),
            subscribers: Arc::new(BTreeSet::from([subscriber.to_owned()])),
            started_at: Timestamp(1),
            slots: 1,
            lease: LEASE,
        };
        let own = living(&host.policy, "webhook/new");
        host.learn_from(&[living("/other.toml", "webhook/other"), own]);
        host.learn_from(&[]);
        let told = ["webhook/new", "webhook/other"].map(|name| host.tells(name));
        assert_eq!(told, [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_stays_for_a_while_is_followed_by_another_however_often_one_is_killed() {
        let data = tempfile::tempdir().expect("a folder");
        let mut host = idle(data.path());
        for nth in 0..2 * STARTS_MAX {
            let started = host.attend_beside(&[]);
            started.unwrap_or_else(|error| panic!("start {nth}: {error}"));
            tokio::time::advance(STAYED).await;
            kill(&mut host);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_that_are_killed_at_once_are_given_up_after_a_run_would_have_failed_for_it() {
        let data = tempfile::tempdir().expect("a folder");
        let mut host = idle(data.path());
        for _ in 0..=CRASHES_MAX {
            host.attend_beside(&[]).expect("it is started");
            kill(&mut host);
        }
        let Err(BackgroundError::Died { how, .. }) = host.attend_beside(&[]) else {
            panic!("it is given up");
        };
        assert!(how.contains("does not stay"), "{how}");
    }
}
