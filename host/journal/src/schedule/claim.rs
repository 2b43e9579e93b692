//! The claim of a run by a host.

use super::{hash, time_after};
use crate::event::EventRecord;
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
/// then one that waits for its finalizer alone, which needs none. `None` ends the claim.
///
/// # Errors
/// Those of the store.
pub fn next_claimed<R, E>(
    claim: &Claim,
    taken: ClaimCounts,
    first: impl FnOnce() -> Result<Option<R>, E>,
    first_finalizer: impl FnOnce() -> Result<Option<R>, E>,
) -> Result<Option<NextRun<R>>, E> {
    if taken.runs < claim.limit
        && let Some(run) = first()?
    {
        return Ok(Some(NextRun { run, is_finalizer: false }));
    }
    if taken.finalizers >= claim.finalizers {
        return Ok(None);
    }
    Ok(first_finalizer()?.map(|run| NextRun { run, is_finalizer: true }))
}

/// The runs that a claim has taken so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClaimCounts {
    /// All of them.
    pub runs: usize,
    /// Those that were taken beyond the free slots.
    pub finalizers: usize,
}

/// The run that a claim takes next.
#[derive(Clone, Copy, Debug)]
pub struct NextRun<R> {
    /// The store's name for it.
    pub run: R,
    /// It is taken beyond the free slots.
    pub is_finalizer: bool,
}
