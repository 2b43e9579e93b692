//! Giving a run another form of its agent.

use crate::event::Event;
use crate::hold::Hold;
use crate::run::{Lifecycle, Run};
use crate::spec::RunClass;

/// Why a run is not given another pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdoptRefusal {
    /// It has ended, or is on its way out.
    Ended,
    /// It is an entry of a heartbeat, which is pinned to nothing.
    Entry,
    /// A step or a call of it may be under way, or was when its host died.
    UnderWay,
}

/// The events that a request to give a run this pin of its agent records; empty if it has that.
///
/// # Errors
/// [`AdoptRefusal`]. A run that nobody has is paused at once, and can then be given one whatever its
/// host left: the rest of a step that was cut off goes its own way, and a call begins again only
/// where a person says so.
pub fn adopt(run: &Run, to: &str, by: &str) -> Result<Vec<Event>, AdoptRefusal> {
    match (&run.state.lifecycle, run.spec.class) {
        (
            Lifecycle::Canceling { .. } | Lifecycle::Finalizing { .. } | Lifecycle::Ended { .. },
            _,
        ) => Err(AdoptRefusal::Ended),
        (
            Lifecycle::Queued | Lifecycle::Running { .. } | Lifecycle::Blocked { .. },
            RunClass::Heartbeat,
        ) => Err(AdoptRefusal::Entry),
        (Lifecycle::Running { .. }, RunClass::Task) => Err(AdoptRefusal::UnderWay),
        (Lifecycle::Queued | Lifecycle::Blocked { .. }, RunClass::Task) => match &run.state.hold {
            Hold::Host { .. } => Err(AdoptRefusal::UnderWay),
            Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Runs { .. } => {
                Ok(adopted(run, to, by))
            }
        },
    }
}

/// The events by which the host that has a run, and has nothing of it under way, gives it this pin
/// of its agent; empty if it has that.
#[must_use]
pub fn adopted(run: &Run, to: &str, by: &str) -> Vec<Event> {
    let (from, to, by) = (run.pin().to_owned(), to.to_owned(), by.to_owned());
    if from == to { Vec::new() } else { vec![Event::Adopted { from, to, by }] }
}
