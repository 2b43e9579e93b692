//! The claim of a run by a host.

use super::{hash, time_after};
use crate::event::EventRecord;
use crate::hold::Lane;
use crate::ids::HostId;
use crate::machine;
use crate::run::Run;
use crate::store::Claim;
use crate::time::Timestamp;

/// The run after it was claimed and the event that says so; `None` if it is not to be had. It is claimed
/// at a time that is not before that of what happened to it, whenever the claim was made.
///
/// # Errors
/// Why the event does not fit, in words: the record is damaged.
pub fn claimed(
    run: Run,
    host: &HostId,
    now: Timestamp,
) -> Result<Option<(Run, EventRecord)>, String> {
    let at = time_after(&run.state, now);
    let Some(event) = machine::decide::claim(&run, host, at) else { return Ok(None) };
    let seq = run.state.head + 1;
    let id = hash(&["claim", host.as_str(), run.id().as_str(), &seq.to_string()]);
    let recorded = EventRecord { seq, id, at, event };
    let state = machine::apply(run.state, &recorded).map_err(|error| error.to_string())?;
    Ok(Some((Run { spec: run.spec, state }, recorded)))
}

/// The run that a claim takes next: the first one of the queue while the host has free slots, and
/// then one that waits for its finalizer alone, which needs none. Where it is the turn of new work
/// the first run of the queue is one that never was executed, if there is one. `None` ends the
/// claim. `first` gives the first run of the queue from a lane on.
///
/// # Errors
/// Those of the store.
pub fn next_claimed<R, E>(
    claim: &Claim,
    taken: ClaimCounts,
    first: impl Fn(Lane) -> Result<Option<R>, E>,
    first_finalizer: impl FnOnce() -> Result<Option<R>, E>,
) -> Result<Option<NextRun<R>>, E> {
    if taken.runs < claim.limit {
        let fresh = if is_fresh_turn(taken.resumes) { first(Lane::Fresh)? } else { None };
        let run = match fresh {
            None => first(Lane::Resume)?,
            fresh => fresh,
        };
        if let Some(run) = run {
            return Ok(Some(NextRun { run, is_finalizer: false }));
        }
    }
    if taken.finalizers >= claim.finalizers {
        return Ok(None);
    }
    Ok(first_finalizer()?.map(|run| NextRun { run, is_finalizer: true }))
}

/// Runs that were executed before, and that a host takes in a row while others wait that never were.
/// Those that wake up each second, or go on round after round, would keep new work waiting for ever
/// otherwise; and one of five is little beside what is to come to its end.
pub const RESUMES_IN_A_ROW: usize = 4;

/// True if the next run is one that was never executed, after so many in a row that were.
fn is_fresh_turn(resumes: usize) -> bool {
    resumes >= RESUMES_IN_A_ROW
}

/// The number of runs in a row that a host took and that were executed before, after it took this
/// one in a slot; `before` is that before it. With the turn of new work it begins anew, whether or
/// not there was any.
#[must_use]
pub fn resumes_in_a_row(before: usize, taken: &Run) -> usize {
    // The first execution has the first epoch.
    match taken.state.epoch {
        0 | 1 => 0,
        _ if is_fresh_turn(before) => 1,
        _ => before + 1,
    }
}

/// The runs that a claim has taken so far.
#[derive(Clone, Copy, Debug)]
pub struct ClaimCounts {
    /// All of them.
    pub(super) runs: usize,
    /// Those that were taken beyond the free slots.
    pub(super) finalizers: usize,
    /// Those in a row that were executed before, with the ones before the claim.
    pub(super) resumes: usize,
}

impl ClaimCounts {
    /// A claim has taken none yet.
    #[must_use]
    pub fn new(claim: &Claim) -> Self {
        Self { runs: 0, finalizers: 0, resumes: claim.resumes }
    }

    /// Counts a run that it took.
    pub fn add(&mut self, taken: &Run, is_finalizer: bool) {
        self.runs += 1;
        match is_finalizer {
            true => self.finalizers += 1,
            false => self.resumes = resumes_in_a_row(self.resumes, taken),
        }
    }
}

/// The run that a claim takes next.
#[derive(Clone, Copy, Debug)]
pub struct NextRun<R> {
    /// The store's name for it.
    pub run: R,
    /// It is taken beyond the free slots.
    pub is_finalizer: bool,
}
