//! What every store checks and derives alike.

use taskrun::event::{Recorded, Seq};
use taskrun::ids::HostId;
use taskrun::machine;
use taskrun::ports::store::{Append, NewRun};
use taskrun::run::{Lifecycle, Run};
use taskrun::time::Timestamp;

/// # Panics
/// If the journal does not begin at 1 or does not end where the record says: a bug of the caller
/// that would be kept for ever.
pub(crate) fn check_new(new: &NewRun) {
    check_journal(0, &new.events, &new.run);
}

/// # Panics
/// If the events do not follow `expected_head` or do not end where the record says.
pub(crate) fn check_append(append: &Append) {
    check_journal(append.expected_head, &append.events, &append.run);
}

fn check_journal(head: Seq, events: &[Recorded], run: &Run) {
    let in_order = (head + 1..).zip(events).all(|(seq, recorded)| recorded.seq == seq);
    assert!(in_order, "events of run {} do not follow position {head}", run.id());
    let end = head + events.len() as u64;
    assert!(
        run.state.head == end,
        "record of run {} ends at {} and its journal at {end}",
        run.id(),
        run.state.head
    );
}

/// The host that a dead process would leave the run to be freed from: the run is neither queued
/// nor blocked nor ended. A cancellation of a run that never began is held by nobody.
pub(crate) fn holder(lifecycle: &Lifecycle) -> Option<&HostId> {
    match lifecycle {
        Lifecycle::Queued | Lifecycle::Blocked { .. } | Lifecycle::Ended { .. } => None,
        Lifecycle::Running { execution } => Some(&execution.host),
        Lifecycle::Canceling { execution, .. } | Lifecycle::Finalizing { execution, .. } => {
            execution.as_ref().map(|execution| &execution.host)
        }
    }
}

/// The run after it was claimed and the event that says so; `None` if it is not to be had.
///
/// # Errors
/// Why the event does not fit, in words: the record is damaged.
pub(crate) fn claimed(
    run: Run,
    host: &HostId,
    now: Timestamp,
) -> Result<Option<(Run, Recorded)>, String> {
    let Some(event) = machine::decide::claim(&run, host, now) else { return Ok(None) };
    let seq = run.state.head + 1;
    let id = hash(&["claim", host.as_str(), run.id().as_str(), &seq.to_string()]);
    let recorded = Recorded { seq, id, at: now, event };
    let state = machine::apply(run.state, &recorded).map_err(|error| error.to_string())?;
    Ok(Some((Run { spec: run.spec, state }, recorded)))
}

/// A number for a list of texts, the same on every machine and in every version.
pub(crate) fn hash(parts: &[&str]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}
