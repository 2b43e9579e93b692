//! Runs are accepted, and given another pin, only while what they need is kept, and nothing of that
//! is removed meanwhile.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::event::Event;
use taskrun_journal::layer::Layer;
use taskrun_journal::pin::{Pins, has_digest};
use taskrun_journal::store::{
    Append, AppendOutcome, BatchOutcome, CreateOutcome, NewBatch, NewRun, Store, StoreError,
};
use taskrun_store::{BlobError, BlobHold, Blobs};
use tokio::time::Instant;

use crate::problem::chain;
use crate::snapshot::{self, ComponentsError};

/// Most agents whose components are remembered.
const AGENTS_MAX: usize = 1 << 10;
/// Longest that an acceptance waits until others have removed components.
const HOLD_WAIT: Duration = Duration::from_secs(10);
/// The time for which what was wanted counts as such without being marked again: far less than what
/// is removed is old.
const WANTED_FOR: Duration = Duration::from_secs(5 * 60);

/// Keeps an agent anew.
pub(crate) trait KeepAgain: Send + Sync {
    /// Keeps the agent with this pin, if there is one; says whether it is kept now.
    fn keep_again(&self, pin: &str) -> bool;
}

/// A store before which the blobs of each run are held until it is accepted, or has another pin. Of
/// those each counts as wanted then.
pub(crate) struct KeptStore {
    behind: Arc<dyn Store>,
    kept: Arc<Kept>,
}

/// The blobs of a data directory, and the agents that were found in them.
struct Kept {
    data_dir: PathBuf,
    blobs: OnceLock<Blobs>,
    /// The agents with these pins, as they were found.
    known: Mutex<HashMap<String, KnownAgent>>,
    again: Option<Arc<dyn KeepAgain>>,
}

/// An agent that is kept.
#[derive(Clone)]
struct KnownAgent {
    /// The components, which never change.
    components: Arc<[blake3::Hash]>,
    /// When they were marked as wanted last; `None` if they were not.
    wanted_at: Option<Instant>,
}

impl KeptStore {
    /// Before the store of a data directory.
    pub(crate) fn new(
        behind: Arc<dyn Store>,
        data_dir: &Path,
        again: Option<Arc<dyn KeepAgain>>,
    ) -> Self {
        let (blobs, known) = (OnceLock::new(), Mutex::default());
        let kept = Kept { data_dir: data_dir.to_owned(), blobs, known, again };
        Self { behind, kept: Arc::new(kept) }
    }

    async fn hold(&self, pins: Pins) -> Result<BlobHold, StoreError> {
        let kept = Arc::clone(&self.kept);
        let held = tokio::task::spawn_blocking(move || kept.hold(&pins)).await;
        held.unwrap_or_else(|_| Err(self.kept.refused("internal error of the host; see its log")))
    }
}

impl Kept {
    /// Holds the blobs of a run with these pins.
    fn hold(&self, pins: &Pins) -> Result<BlobHold, StoreError> {
        let blobs = self.blobs().map_err(|error| self.failed(&error))?;
        let held = blobs.hold(HOLD_WAIT).map_err(|error| self.failed(&error))?;
        let removed = "components have been being removed for seconds; end that program";
        let held = held.ok_or_else(|| self.refused(removed))?;
        for pin in pins.all().filter(|pin| has_digest(pin)) {
            let is_kept = |pin| self.renew(blobs, pin).map_err(|error| self.failed(&error));
            let again = |pin| self.again.as_ref().is_some_and(|again| again.keep_again(pin));
            let is_there = is_kept(pin)? || (again(pin) && is_kept(pin)?);
            // Of runs above it nothing was removed, as they are open: what is gone of them keeps
            // nobody from being accepted that needs it no more than they do.
            if !is_there && pin == pins.own() {
                let why = format!("what is kept of {pin} is gone; start it again");
                return Err(self.refused(&why));
            }
        }
        Ok(held)
    }

    fn blobs(&self) -> Result<&Blobs, BlobError> {
        match self.blobs.get() {
            Some(blobs) => Ok(blobs),
            None => {
                let opened = Blobs::open(&self.data_dir)?;
                Ok(self.blobs.get_or_init(|| opened))
            }
        }
    }

    /// Says whether all is there that is kept of an agent, and has it count as wanted now.
    fn renew(&self, blobs: &Blobs, pin: &str) -> Result<bool, BlobError> {
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

    fn known(&self) -> MutexGuard<'_, HashMap<String, KnownAgent>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn agent(&self, blobs: &Blobs, pin: &str) -> Result<KnownAgent, ComponentsError> {
        if let Some(agent) = self.known().get(pin) {
            return Ok(agent.clone());
        }
        let components = snapshot::components(blobs, pin)?.into();
        let agent = KnownAgent { components, wanted_at: None };
        let mut known = self.known();
        if known.len() >= AGENTS_MAX {
            known.clear();
        }
        known.insert(pin.to_owned(), agent.clone());
        Ok(agent)
    }

    fn failed(&self, error: &BlobError) -> StoreError {
        let is_full = matches!(error, BlobError::Io { source, .. }
            if source.kind() == std::io::ErrorKind::StorageFull);
        let path = self.data_dir.display().to_string();
        match is_full {
            true => StoreError::Full { path },
            false => StoreError::Unavailable { path, detail: chain(error).join(": ") },
        }
    }

    fn refused(&self, detail: &str) -> StoreError {
        let path = self.data_dir.display().to_string();
        StoreError::Refused { path, detail: detail.to_owned() }
    }
}

#[async_trait]
impl Layer for KeptStore {
    fn behind(&self) -> &dyn Store {
        &*self.behind
    }

    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError> {
        let _held = self.hold(Pins::of(&run.run)).await?;
        self.behind.create(run).await
    }

    async fn create_all(&self, runs: Vec<NewRun>) -> Result<Vec<CreateOutcome>, StoreError> {
        let mut held = Vec::with_capacity(runs.len());
        for run in &runs {
            held.push(self.hold(Pins::of(&run.run)).await?);
        }
        self.behind.create_all(runs).await
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        let gives_pin = append.events.iter().any(|one| matches!(one.event, Event::Adopted { .. }));
        let _held = match gives_pin {
            true => Some(self.hold(Pins::of(&append.run)).await?),
            false => None,
        };
        self.behind.append(append).await
    }

    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        let _held = self.hold(Pins::of(&batch.run.run)).await?;
        self.behind.batch(batch).await
    }
}

#[cfg(test)]
mod tests;
