//! Sees to it that somebody executes a run.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use taskrun_journal::store::Hosts;

use super::log_file;
use crate::context::{Books, Context};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::house::execution_digest;

/// Lines of a dead host's log that an error shows.
const LINES_SHOWN: usize = 12;
/// How often a background host is started before that is given up. More often than a run may bring
/// its host down before it fails for that, so that the run is what is heard of.
const STARTS_MAX: u32 = 5;

/// Starts a background host where there is none for a policy.
pub(crate) struct Attendant {
    policy: PathBuf,
    data_dir: PathBuf,
    store_max: Option<u64>,
    digest: String,
    hosts: Arc<dyn Hosts>,
    child: Option<Child>,
    log_begins: u64,
    starts: u32,
}

impl Attendant {
    /// For a policy file of this digest and the hosts of a data directory.
    #[must_use]
    pub(crate) fn new(
        policy: PathBuf,
        data_dir: PathBuf,
        store_max: Option<u64>,
        digest: &str,
        hosts: Arc<dyn Hosts>,
    ) -> Self {
        let digest = digest.to_owned();
        Self { policy, data_dir, store_max, digest, hosts, child: None, log_begins: 0, starts: 0 }
    }

    /// For the policy at hand, if there is one and it can be used.
    #[must_use]
    pub(crate) fn at_hand(context: &Context, books: &Books) -> Option<Self> {
        let file = context.policy_file().ok()??;
        let digest = execution_digest(&context.read_policy(&file).ok()?).ok()?;
        let data_dir = context.data_dir().ok()?;
        let store_max = context.globals.store_max;
        Some(Self::new(file, data_dir, store_max, &digest, Arc::clone(&books.hosts)))
    }

    /// Digest of the policy whose runs it cares for.
    #[must_use]
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// Starts a host if none lives and none is starting.
    ///
    /// # Errors
    /// If a host cannot be started, or died at once; then with the end of its log.
    pub(crate) async fn attend(&mut self) -> Outcome<()> {
        let hosts = self.hosts.hosts().await?;
        if hosts.iter().any(|host| host.policy_digest == self.digest) {
            return Ok(());
        }
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) => return Ok(()),
                // It found another host at work, or was idle long enough.
                Ok(Some(status)) if status.success() => {}
                // It was killed: what it executed is continued by the next one.
                Ok(Some(status)) if status.code().is_none() => {}
                Ok(Some(status)) => return Err(self.died(&status.to_string())),
                Err(error) => return Err(self.died(&error.to_string())),
            }
        }
        if self.starts >= STARTS_MAX {
            return Err(self.died("it was started several times and does not stay"));
        }
        self.start()
    }

    fn start(&mut self) -> Outcome<()> {
        let failed = |error: std::io::Error| {
            Failure::new(
                Exit::Unreachable,
                "host-start",
                "a host cannot be started in the background",
            )
            .because(&error)
            .hint("start one yourself in another terminal: `taskrun host`")
        };
        let program = std::env::current_exe().map_err(failed)?;
        let (log, begins) = log_file::open(&self.data_dir).map_err(failed)?;
        let child = Command::new(program)
            .arg("--config")
            .arg(&self.policy)
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(self.store_max.map(|bytes| format!("--store-max={bytes}B")))
            .args(["host", "--background"])
            // It must not keep a folder busy that somebody wants to remove.
            .current_dir(&self.data_dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            // Ctrl-C in this terminal is not meant for it.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        tracing::debug!(pid = child.id(), "background host started");
        self.child = Some(child);
        self.log_begins = begins;
        self.starts += 1;
        Ok(())
    }

    fn died(&self, how: &str) -> Box<Failure> {
        let log = log_file::path(&self.data_dir);
        let mut failure = Failure::new(
            Exit::Unreachable,
            "host-died",
            format!("the background host ended ({how}); the run waits for the next one"),
        );
        let tail = log_file::tail(&self.data_dir, self.log_begins, LINES_SHOWN);
        if !tail.is_empty() {
            failure.causes.push(format!("its log ends with:\n{}", tail.join("\n")));
        }
        failure.hint(format!(
            "see {}, or watch a host in another terminal: `taskrun host`",
            log.display()
        ))
    }
}
