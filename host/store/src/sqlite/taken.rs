//! A new run that is taken as soon as it is kept.

use taskrun_journal::hold::Hold;
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::schedule;
use taskrun_journal::store::{Claim, NewRun};
use taskrun_journal::time::Timestamp;

use super::row::EventRow;
use super::run_row::MutableColumns;

/// A new run that its host takes in the transaction that keeps it: its record then, made ready outside
/// of the writing thread.
pub(crate) struct TakenRow {
    pub(crate) run: Run,
    pub(crate) mutable: MutableColumns,
    pub(crate) event: EventRow,
}

impl TakenRow {
    /// The row of a run that this claim may take if nothing stands before it; `None` for any other.
    pub(crate) fn new(new: &NewRun, claim: &Claim) -> Option<Self> {
        let (run, spec) = (&new.run, &new.run.spec);
        let Hold::Wanted { lane, not_before: Timestamp(0) } = run.state.hold else { return None };
        let has_room = claim.limit > 0 && claim.tree_slots > 0;
        let is_alone = spec.root_run_id == spec.id && !spec.serial;
        if !has_room || !is_alone || !claim.ready.includes(&Pins::of(run), lane) {
            return None;
        }
        let taken = schedule::claimed(run.clone(), &claim.host, claim.now);
        // The claim itself tells what is wrong with one that cannot be had.
        let (run, recorded) = taken.ok().flatten()?;
        let event = EventRow::new(run.id(), &recorded);
        Some(Self { mutable: MutableColumns::new(&run), event, run })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mutable.state.len() + self.event.bytes()
    }
}
