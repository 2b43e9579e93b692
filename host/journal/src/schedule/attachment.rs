//! Runs that end with the run that started them.

use super::{hash, time_after};
use crate::event::EventRecord;
use crate::ids::RunId;
use crate::machine;
use crate::run::Run;
use crate::status::{Status, StopReason};
use crate::time::Timestamp;

/// True for a run that is canceled when `parent` ends.
#[must_use]
pub fn ends_with(run: &Run, parent: &RunId) -> bool {
    run.spec.attached && run.spec.parent_run_id.as_ref() == Some(parent)
}

/// An attached run after the one that started it ended at a time, and the events that say so, which
/// are not before what happened to it; `None` if it is on its way out already.
///
/// # Errors
/// Why the events do not fit, in words: the record is damaged.
pub fn canceled_with_parent(
    run: &Run,
    at: Timestamp,
) -> Result<Option<(Run, Vec<EventRecord>)>, String> {
    let at = time_after(&run.state, at);
    let events = machine::decide::cancel(run, StopReason::CanceledByParent, None);
    let (mut run, mut recorded) = (run.clone(), Vec::with_capacity(events.len()));
    for event in events {
        let seq = run.state.head + 1;
        let id = hash(&["ended with its parent", run.id().as_str(), &seq.to_string()]);
        let one = EventRecord { seq, id, at, event };
        run.state = machine::apply(run.state, &one).map_err(|error| error.to_string())?;
        recorded.push(one);
    }
    Ok((!recorded.is_empty()).then_some((run, recorded)))
}

/// True for the status of a run that may start others: it has not ended and is not about to.
#[must_use]
pub fn takes_children(status: Status) -> bool {
    match status {
        Status::Queued | Status::Running | Status::Blocked => true,
        Status::Canceling
        | Status::Finalizing
        | Status::Completed
        | Status::Failed
        | Status::Canceled => false,
    }
}
