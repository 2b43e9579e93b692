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

/// Checks that a host that takes a run up may give it another pin, if nothing of it turns out to be
/// under way: it is a task that no host has, and that is not on its way out.
///
/// # Errors
/// [`AdoptRefusal`].
pub fn check_adoptable(run: &Run) -> Result<(), AdoptRefusal> {
    match (&run.state.lifecycle, run.spec.class, &run.state.hold) {
        (
            Lifecycle::Canceling { .. } | Lifecycle::Finalizing { .. } | Lifecycle::Ended { .. },
            _,
            _,
        ) => Err(AdoptRefusal::Ended),
        (
            Lifecycle::Queued | Lifecycle::Running { .. } | Lifecycle::Blocked { .. },
            RunClass::Heartbeat,
            _,
        ) => Err(AdoptRefusal::Entry),
        (
            Lifecycle::Queued | Lifecycle::Running { .. } | Lifecycle::Blocked { .. },
            RunClass::Task,
            Hold::Host { .. },
        ) => Err(AdoptRefusal::UnderWay),
        (
            Lifecycle::Queued | Lifecycle::Running { .. } | Lifecycle::Blocked { .. },
            RunClass::Task,
            Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Runs { .. },
        ) => Ok(()),
    }
}

/// The events that a request to give a run this pin of its agent records; empty if it has that.
///
/// # Errors
/// [`AdoptRefusal`]. A run that nobody has is paused at once, and can then be given one whatever its
/// host left: the rest of a step that was cut off goes its own way, and a call begins again only
/// where a person says so.
pub fn adopt(run: &Run, to: &str, by: &str) -> Result<Vec<Event>, AdoptRefusal> {
    check_adoptable(run)?;
    match run.state.lifecycle {
        Lifecycle::Running { .. } => Err(AdoptRefusal::UnderWay),
        Lifecycle::Queued
        | Lifecycle::Blocked { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => Ok(adopted(run, to, by)),
    }
}

/// The events by which the host that has a run, and has nothing of it under way, gives it this pin
/// of its agent; empty if it has that.
#[must_use]
pub fn adopted(run: &Run, to: &str, by: &str) -> Vec<Event> {
    let (from, to, by) = (run.pin().to_owned(), to.to_owned(), by.to_owned());
    if from == to { Vec::new() } else { vec![Event::Adopted { from, to, by }] }
}
