//! The transaction that keeps a new run and takes runs for the host that accepted it.

use rusqlite::Connection;
use taskrun_journal::run::Run;
use taskrun_journal::store::{Claim, CreateOutcome};

use super::change::{self, WriteOutcome};
use super::create::NewRow;
use super::fault::Fault;
use super::locks::Locks;
use super::queue::Queue;
use super::taken::TakenRow;

/// The fate of a new run, and the runs that were taken after it.
pub(crate) struct JointWrite {
    pub(crate) created: WriteOutcome<CreateOutcome>,
    pub(crate) claimed: WriteOutcome<Vec<Run>>,
}

impl JointWrite {
    /// Keeps the run, and if it is kept takes runs. If it is the only one to take, it is written once, as
    /// it stands when it is taken.
    pub(crate) fn create_and_claim(
        db: &Connection,
        locks: &Locks,
        (row, taken): (&NewRow, Option<&TakenRow>),
        claim: &Claim,
    ) -> Result<Self, Fault> {
        let queue = Queue::new(db);
        let tree = match row.admit(&queue, locks)? {
            Ok(tree) => tree,
            Err(refused) => {
                let claimed = WriteOutcome::new(Vec::new(), 0, Queue::new(db));
                return Ok(Self { created: WriteOutcome::new(refused, 0, queue), claimed });
            }
        };
        // The look of a claim may find work for others.
        let looked = Queue::new(db);
        if let Some(taken) = taken.filter(|_| tree.is_unknown())
            && looked.is_idle(claim)?
        {
            let last = row.keep_all(&queue, &tree, Some(taken))?;
            let runs = vec![taken.run.clone()];
            let claimed = WriteOutcome::new(runs, last.taken, looked);
            let created = WriteOutcome::new(CreateOutcome::New, last.accepted, queue);
            return Ok(Self { created, claimed });
        }
        let place = row.keep_all(&queue, &tree, None)?.accepted;
        let mut created = WriteOutcome::new(CreateOutcome::New, place, queue);
        let mut claimed = change::claim(db, claim)?;
        claimed.stirred |= looked.stirred();
        // The new run is no work for others if it is taken.
        created.stirred &= !claimed.answer.iter().any(|run| run.id() == row.run().id());
        Ok(Self { created, claimed })
    }
}
