//! The transaction that keeps a new run and takes runs for the host that accepted it.

use rusqlite::Connection;
use taskrun_journal::run::Run;
use taskrun_journal::store::{Claim, CreateOutcome};

use super::change::{self, WriteOutcome};
use super::create::NewRow;
use super::fault::Fault;
use super::locks::Locks;
use super::queue::Queue;

/// The fate of a new run, and the runs that were taken after it.
pub(crate) struct JointWrite {
    pub(crate) created: WriteOutcome<CreateOutcome>,
    pub(crate) claimed: WriteOutcome<Vec<Run>>,
}

impl JointWrite {
    /// Keeps the run, and if it is kept takes runs.
    pub(crate) fn create_and_claim(
        db: &Connection,
        locks: &Locks,
        row: &NewRow,
        claim: &Claim,
    ) -> Result<Self, Fault> {
        let mut created = row.create(db, locks)?;
        let claimed = match created.answer.is_new() {
            true => change::claim(db, claim)?,
            false => WriteOutcome::new(Vec::new(), 0, Queue::new(db)),
        };
        // The new run is no work for others if it is taken.
        created.stirred &= !claimed.answer.iter().any(|run| run.id() == row.run().id());
        Ok(Self { created, claimed })
    }
}
