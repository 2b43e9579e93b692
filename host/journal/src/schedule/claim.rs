//! The claim of a run by a host.

use super::hash;
use crate::event::Recorded;
use crate::ids::HostId;
use crate::machine;
use crate::run::Run;
use crate::time::Timestamp;

/// The run after it was claimed and the event that says so; `None` if it is not to be had.
///
/// # Errors
/// Why the event does not fit, in words: the record is damaged.
pub fn claimed(run: Run, host: &HostId, now: Timestamp) -> Result<Option<(Run, Recorded)>, String> {
    let Some(event) = machine::decide::claim(&run, host, now) else { return Ok(None) };
    let seq = run.state.head + 1;
    let id = hash(&["claim", host.as_str(), run.id().as_str(), &seq.to_string()]);
    let recorded = Recorded { seq, id, at: now, event };
    let state = machine::apply(run.state, &recorded).map_err(|error| error.to_string())?;
    Ok(Some((Run { spec: run.spec, state }, recorded)))
}
