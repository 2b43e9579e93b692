//! Room in the journals of runs that others pause: what a run may have written to another one is
//! held to the same bound as what that writes itself.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::machine::decide;
use taskrun_journal::run::Run;
use taskrun_journal::store::StoreError;
use taskrun_policy::Limits;

use super::Controller;
use crate::error::ControllerError;
use crate::scan::PAGE;

/// Most journals whose sizes are known at once; with more they are read anew.
const SIZES_MAX: usize = 1_000;

/// The bytes of journals, each as far as it was read.
#[derive(Default)]
pub(super) struct JournalSizes(Mutex<HashMap<RunId, (Seq, u64)>>);

impl JournalSizes {
    fn get(&self, id: &RunId) -> (Seq, u64) {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(id).copied().unwrap_or_default()
    }

    fn put(&self, id: &RunId, size: (Seq, u64)) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= SIZES_MAX && !known.contains_key(id) {
            known.clear();
        }
        // Others may have read on meanwhile.
        let last = known.entry(id.clone()).or_default();
        *last = (*last).max(size);
    }
}

impl Controller {
    /// Refuses to let another run pause this one where its journal is full. It may be resumed all the
    /// same, which writes no more than the pauses before it, and canceled; and where a pause writes
    /// nothing no room is asked for.
    ///
    /// # Errors
    /// [`ControllerError::Limit`]; [`ControllerError::Storage`].
    pub(super) async fn check_journal_room(&self, run: &Run) -> Result<(), ControllerError> {
        let writes = decide::pause(run, "", None, None).is_ok_and(|events| !events.is_empty());
        if !writes {
            return Ok(());
        }
        let agent = self.agent_with(run.pin());
        let cap = match agent {
            Some(agent) => agent.limits.journal_bytes,
            None => Limits::default().journal_bytes,
        };
        match self.journal_bytes(run).await? >= cap {
            true => Err(ControllerError::Limit { kind: "journal", cap }),
            false => Ok(()),
        }
    }

    /// The bytes of a run's journal that its bound counts. What was read of it is not read again: a
    /// caller that gives up on a long one has its beginning read for the next.
    async fn journal_bytes(&self, run: &Run) -> Result<u64, StoreError> {
        let (store, sizes) = (&*self.0.parts.store, &self.0.journal_sizes);
        // A fold is kept with the end of a round, after which nothing before it counts.
        let fold = run.state.rounds.fold.as_ref().map_or(0, |fold| fold.seq);
        let (mut last, mut bytes) = sizes.get(run.id()).max((fold, 0));
        while last < run.state.head {
            let page = store.read(run.id(), last, PAGE).await?;
            let Some(end) = page.last() else { break };
            (last, bytes) = (end.seq, page.iter().fold(bytes, counted));
            sizes.put(run.id(), (last, bytes));
        }
        Ok(bytes)
    }
}

/// The bytes that count with one more event: what a round wrote is left behind at its end.
fn counted(bytes: u64, recorded: &EventRecord) -> u64 {
    match matches!(recorded.event, Event::RoundEnded { .. }) {
        true => 0,
        false => bytes.saturating_add(recorded.event.journal_bytes()),
    }
}
