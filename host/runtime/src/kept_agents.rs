//! The agents that are kept in a data directory, as far as this process knows of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use taskrun_policy::{AgentPolicy, Policy};
use taskrun_store::{BlobError, Blobs};
use tokio::time::Instant;

use crate::snapshot::{self, ComponentsError, Digests, KeepError};

/// Most agents whose components are remembered.
const AGENTS_MAX: usize = 1 << 10;
/// The time for which what was wanted counts as such without being marked again: far less than what
/// is removed is old.
const WANTED_FOR: Duration = Duration::from_secs(5 * 60);

/// The agents that are kept in a data directory, whose blobs are opened when one is wanted first. What
/// was found, kept or marked as wanted is remembered.
#[derive(Debug)]
pub struct KeptAgents {
    data_dir: PathBuf,
    blobs: OnceLock<Blobs>,
    /// The agents with these pins, as they were found.
    known: Mutex<HashMap<String, KnownAgent>>,
}

/// An agent that is kept.
#[derive(Clone, Debug)]
struct KnownAgent {
    /// The components, which never change.
    components: Arc<[blake3::Hash]>,
    /// The time at which they were marked as wanted last; `None` if they were not.
    wanted_at: Option<Instant>,
}

impl KeptAgents {
    /// Those of a data directory.
    #[must_use]
    pub fn new(data_dir: &Path) -> Arc<Self> {
        let (blobs, known) = (OnceLock::new(), Mutex::default());
        Arc::new(Self { data_dir: data_dir.to_owned(), blobs, known })
    }

    /// The data directory, in words.
    pub(crate) fn path(&self) -> String {
        self.data_dir.display().to_string()
    }

    /// The blobs, whose folder is made if it is not there.
    ///
    /// # Errors
    /// [`BlobError`].
    pub(crate) fn blobs(&self) -> Result<&Blobs, BlobError> {
        match self.blobs.get() {
            Some(blobs) => Ok(blobs),
            None => {
                let opened = Blobs::open(&self.data_dir)?;
                Ok(self.blobs.get_or_init(|| opened))
            }
        }
    }

    /// Keeps an agent of a policy with its components under its pin, and has it count as wanted now.
    ///
    /// # Errors
    /// [`KeepError`].
    pub(crate) fn keep(
        &self,
        policy: &Policy,
        (agent, pin): (&AgentPolicy, &str),
        digests: &Digests,
    ) -> Result<(), KeepError> {
        snapshot::keep(self.blobs()?, policy, (agent, pin), digests)?;
        let files = policy.files_of(agent);
        let components = files.into_iter().filter_map(|path| digests.get(path).copied()).collect();
        self.remember(pin, KnownAgent { components, wanted_at: Some(Instant::now()) });
        Ok(())
    }

    /// Says whether all is there that is kept of an agent, and has it count as wanted now.
    ///
    /// # Errors
    /// [`BlobError`].
    pub(crate) fn renew(&self, pin: &str) -> Result<bool, BlobError> {
        let blobs = self.blobs()?;
        let agent = match self.agent(blobs, pin) {
            Ok(agent) => agent,
            Err(ComponentsError::Gone | ComponentsError::Unreadable) => return Ok(false),
            Err(ComponentsError::Blobs(error)) => return Err(error),
        };
        // Marking what is young costs a look at the folders on the disk, for each run.
        if agent.wanted_at.is_some_and(|at| at.elapsed() < WANTED_FOR) {
            let are_there = agent.components.iter().all(|digest| blobs.path(digest).exists());
            return Ok(are_there && snapshot::is_there(blobs, pin)?);
        }
        let mut are_there = snapshot::renew(blobs, pin)?;
        for digest in agent.components.iter() {
            are_there = are_there && blobs.renew(digest)?;
        }
        if are_there && let Some(known) = self.known().get_mut(pin) {
            known.wanted_at = Some(Instant::now());
        }
        Ok(are_there)
    }

    fn agent(&self, blobs: &Blobs, pin: &str) -> Result<KnownAgent, ComponentsError> {
        if let Some(agent) = self.known().get(pin) {
            return Ok(agent.clone());
        }
        let components = snapshot::components(blobs, pin)?.into();
        let agent = KnownAgent { components, wanted_at: None };
        self.remember(pin, agent.clone());
        Ok(agent)
    }

    fn remember(&self, pin: &str, agent: KnownAgent) {
        let mut known = self.known();
        if known.len() >= AGENTS_MAX {
            known.clear();
        }
        known.insert(pin.to_owned(), agent);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, KnownAgent>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
