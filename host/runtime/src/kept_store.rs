//! Runs are accepted, and given another pin, only while what they need is kept, and nothing of that
//! is removed meanwhile.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::event::Event;
use taskrun_journal::layer::Layer;
use taskrun_journal::pin::{Pins, has_digest};
use taskrun_journal::store::{
    Append, AppendOutcome, BatchOutcome, Claim, CreateOutcome, JointOutcome, NewBatch, NewRun,
    Store, StoreError,
};
use taskrun_store::{BlobError, BlobHold};

use crate::kept_agents::KeptAgents;
use crate::problem::{chain, io_kind};

/// Longest that an acceptance waits until others have removed components.
const HOLD_WAIT: Duration = Duration::from_secs(10);

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

/// The agents that are kept in a data directory, and who keeps one anew.
struct Kept {
    agents: Arc<KeptAgents>,
    again: Option<Arc<dyn KeepAgain>>,
}

impl KeptStore {
    /// Before the store of a data directory, in which these agents are kept. Nobody keeps one anew in a
    /// process that executes nothing.
    pub(crate) fn new(
        behind: Arc<dyn Store>,
        agents: Arc<KeptAgents>,
        again: Option<Arc<dyn KeepAgain>>,
    ) -> Self {
        Self { behind, kept: Arc::new(Kept { agents, again }) }
    }

    async fn hold(&self, pins: Pins) -> Result<BlobHold, StoreError> {
        // Such a process accepts one run after the other, and has found or kept their agents on the same
        // thread just now: a few looks do not pay for another one. A host's threads have others to serve.
        if self.kept.again.is_none()
            && let Some(held) = self.kept.try_hold(&pins)?
        {
            return Ok(held);
        }
        self.apart(move |kept| kept.hold(&pins)).await
    }

    async fn try_hold(&self, pins: Pins) -> Result<Option<BlobHold>, StoreError> {
        self.apart(move |kept| kept.try_hold(&pins)).await
    }

    /// Does something on a thread that may block.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Kept) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let kept = Arc::clone(&self.kept);
        let done = tokio::task::spawn_blocking(move || work(&kept)).await;
        done.unwrap_or_else(|_| Err(self.kept.refused("internal error of the host; see its log")))
    }
}

impl Kept {
    /// Holds the blobs of a run with these pins, if nobody removes any and all of them are there.
    fn try_hold(&self, pins: &Pins) -> Result<Option<BlobHold>, StoreError> {
        let blobs = self.agents.blobs().map_err(|error| self.failed(&error))?;
        let held = blobs.hold(Duration::ZERO).map_err(|error| self.failed(&error))?;
        let Some(held) = held else { return Ok(None) };
        for pin in pins.all().filter(|pin| has_digest(pin)) {
            if !self.agents.renew(pin).map_err(|error| self.failed(&error))? {
                return Ok(None);
            }
        }
        Ok(Some(held))
    }

    /// Holds the blobs of a run with these pins.
    fn hold(&self, pins: &Pins) -> Result<BlobHold, StoreError> {
        let blobs = self.agents.blobs().map_err(|error| self.failed(&error))?;
        let held = blobs.hold(HOLD_WAIT).map_err(|error| self.failed(&error))?;
        let removed = "components have been being removed for seconds; end that program";
        let held = held.ok_or_else(|| self.refused(removed))?;
        for pin in pins.all().filter(|pin| has_digest(pin)) {
            let is_kept = |pin| self.agents.renew(pin).map_err(|error| self.failed(&error));
            let again = |pin| self.again.as_ref().is_some_and(|again| again.keep_again(pin));
            let renewed = is_kept(pin);
            // What is another user's, and cannot be marked as wanted, is written anew, too.
            let is_there = matches!(renewed, Ok(true)) || (again(pin) && is_kept(pin)?);
            // Of runs above it nothing was removed, as they are open: what is gone of them keeps
            // nobody from being accepted that needs it no more than they do.
            if !is_there && pin == pins.own() {
                renewed?;
                let why = format!("what is kept of {pin} is gone; start it again");
                return Err(self.refused(&why));
            }
        }
        Ok(held)
    }

    fn failed(&self, error: &BlobError) -> StoreError {
        let (path, detail) = (self.agents.path(), chain(error).join(": "));
        let kind = io_kind(error);
        let is = |kinds: [ErrorKind; 2]| kind.is_some_and(|kind| kinds.contains(&kind));
        if is([ErrorKind::StorageFull, ErrorKind::QuotaExceeded]) {
            StoreError::Full { path }
        } else if is([ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem]) {
            StoreError::ReadOnly { path, detail }
        } else {
            StoreError::Unavailable { path, detail }
        }
    }

    fn refused(&self, detail: &str) -> StoreError {
        StoreError::Refused { path: self.agents.path(), detail: detail.to_owned() }
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

    async fn create_and_claim(
        &self,
        run: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        // What must not be done beside a claim waits meanwhile.
        match self.try_hold(Pins::of(&run.run)).await? {
            Some(_held) => self.behind.create_and_claim(run, claim).await,
            None => Ok(JointOutcome::Busy(Box::new(run))),
        }
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
