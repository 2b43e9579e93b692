//! Runs are accepted only while what they need is kept, and nothing of that is removed meanwhile.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use taskrun_journal::layer::Layer;
use taskrun_journal::pin::{Pins, has_digest};
use taskrun_journal::store::{BatchOutcome, CreateOutcome, NewBatch, NewRun, Store, StoreError};
use taskrun_store::{BlobError, BlobHold, Blobs};

use crate::problem::chain;
use crate::snapshot::{self, ComponentsError};

/// Most agents whose components are remembered.
const AGENTS_MAX: usize = 1 << 10;

/// Keeps an agent anew.
pub(crate) trait KeepAgain: Send + Sync {
    /// Keeps the agent with this pin, if there is one; says whether it is kept now.
    fn keep_again(&self, pin: &str) -> bool;
}

/// A store before which the blobs of each run are held until it is accepted. Of those each counts
/// as wanted then.
pub(crate) struct KeptStore {
    behind: Arc<dyn Store>,
    kept: Arc<Kept>,
}

/// What is kept in a data directory.
struct Kept {
    data_dir: PathBuf,
    blobs: OnceLock<Blobs>,
    /// The components of agents with these pins, which never change.
    components: Mutex<HashMap<String, Arc<[blake3::Hash]>>>,
    again: Option<Arc<dyn KeepAgain>>,
}

impl KeptStore {
    /// Before the store of a data directory.
    pub(crate) fn new(
        behind: Arc<dyn Store>,
        data_dir: &Path,
        again: Option<Arc<dyn KeepAgain>>,
    ) -> Self {
        let (blobs, components) = (OnceLock::new(), Mutex::default());
        let kept = Kept { data_dir: data_dir.to_owned(), blobs, components, again };
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
        let held = blobs.hold().map_err(|error| self.failed(&error))?;
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
        if !snapshot::renew(blobs, pin)? {
            return Ok(false);
        }
        let components = match self.components(blobs, pin) {
            Ok(components) => components,
            Err(ComponentsError::Gone | ComponentsError::Unreadable) => return Ok(false),
            Err(ComponentsError::Blobs(error)) => return Err(error),
        };
        for digest in components.iter() {
            if !blobs.renew(digest)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn components(&self, blobs: &Blobs, pin: &str) -> Result<Arc<[blake3::Hash]>, ComponentsError> {
        let all = || self.components.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(components) = all().get(pin) {
            return Ok(Arc::clone(components));
        }
        let components: Arc<[blake3::Hash]> = snapshot::components(blobs, pin)?.into();
        let mut all = all();
        if all.len() >= AGENTS_MAX {
            all.clear();
        }
        all.insert(pin.to_owned(), Arc::clone(&components));
        Ok(components)
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
        let _held = self.hold(Pins::of(&run.run.spec)).await?;
        self.behind.create(run).await
    }

    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        let _held = self.hold(Pins::of(&batch.run.run.spec)).await?;
        self.behind.batch(batch).await
    }
}

#[cfg(test)]
mod tests;
