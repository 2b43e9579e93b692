//! The one writer for requests about runs, whoever holds them.

use std::sync::Arc;

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::run::Run;

use super::Controller;
use crate::driver::Halt;
use crate::error::ControllerError;

/// The effect of a request on the journal of a run.
pub(super) struct Effect {
    /// The run afterwards.
    pub(super) run: Run,
    /// The events of the request; none if it changed nothing.
    pub(super) events: Arc<[EventRecord]>,
}

impl Effect {
    /// True if the request changed anything.
    pub(super) fn has_changed(&self) -> bool {
        !self.events.is_empty()
    }
}

impl Controller {
    /// Records what `decide` says about a run as it stands, and returns when that is durable. Where
    /// the run changes in this moment, also into other hands, it is read and `decide` asked again.
    ///
    /// # Errors
    /// The refusal of `decide`, with nothing recorded; [`ControllerError::NotFound`] if the run was
    /// removed; [`ControllerError::Inconsistent`]; [`ControllerError::Storage`].
    pub(super) async fn record(
        &self,
        mut run: Run,
        mut decide: impl FnMut(&Run) -> Result<Vec<Event>, ControllerError> + Send,
    ) -> Result<Effect, ControllerError> {
        let id = run.id().clone();
        loop {
            let mut refusal = None;
            let mut journal = self.journal(run);
            let written = journal.commit(|run| {
                let decided = decide(run);
                refusal = None;
                decided.unwrap_or_else(|error| {
                    refusal = Some(error);
                    Vec::new()
                })
            });
            let written = written.await;
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            match written {
                Ok(written) => {
                    let (run, events) = (journal.run().clone(), written.into_records());
                    return Ok(Effect { run, events });
                }
                // It changed hands in this moment, or another process ended it.
                Err(Halt::Fenced | Halt::Stopped(_) | Halt::Blocked | Halt::Cycle) => {
                    let found = self.0.parts.store.get(&id).await?;
                    run = found.ok_or_else(|| ControllerError::NotFound { id: id.to_string() })?;
                }
                Err(Halt::Store(error) | Halt::Read(error)) => return Err(error.into()),
                Err(Halt::Inconsistent(detail)) => {
                    return Err(ControllerError::Inconsistent { id, detail });
                }
            }
        }
    }
}
