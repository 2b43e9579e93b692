//! The queue: which wanted run is taken first.

use std::cmp::Reverse;

use crate::hold::Lane;
use crate::spec::RunSpec;

/// Lane, priority and order of acceptance of a wanted run; the smaller one is taken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Runs that were executed before come first.
    pub lane: Lane,
    /// The higher priority comes first.
    pub priority: Reverse<i32>,
    /// The number that the store gave to the run when it was accepted.
    pub number: u64,
}

impl Rank {
    /// The rank before which there is none.
    pub const FIRST: Self = Self::first_of(Lane::Resume);

    /// The rank before which there is none in a lane.
    #[must_use]
    pub const fn first_of(lane: Lane) -> Self {
        Self { lane, priority: Reverse(i32::MAX), number: u64::MIN }
    }

    /// The rank of a run in a lane.
    #[must_use]
    pub fn of(spec: &RunSpec, lane: Lane, number: u64) -> Self {
        Self { lane, priority: Reverse(spec.priority), number }
    }
}
