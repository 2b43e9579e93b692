//! The lanes of the queue.

use crate::hold::{Hold, Lane};
use crate::time::Timestamp;

/// In which lane a run is wanted and from when on; `None` if it is not. `waits` says whether too
/// few of the runs that it waits for have ended; it is then wanted when its time comes, if it has
/// one, and until then it is like any other run that is put off.
#[must_use]
pub fn wanted(hold: &Hold, waits: bool) -> Option<(Lane, Timestamp)> {
    match hold {
        Hold::Nobody | Hold::Beat | Hold::Host { .. } => None,
        Hold::Wanted { lane, not_before } => Some((*lane, *not_before)),
        Hold::Runs { until, .. } if waits => until.map(|until| (Lane::Resume, until)),
        Hold::Runs { .. } => Some((Lane::Resume, Timestamp(0))),
    }
}
