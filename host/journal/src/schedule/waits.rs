//! Waits for a host, for a heartbeat, for a time, and for the end of other runs.

use std::collections::BTreeSet;

use crate::hold::{Hold, Lane, WaitMode};
use crate::ids::RunId;
use crate::time::Timestamp;

/// The place of a run that no host has, as its hold says. `R` is the store's name for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitState<R> {
    /// Neither wanted nor waiting for anything that the store sees.
    Aside,
    /// Among the entries that wait for the heartbeat of their agent.
    Beat,
    /// In the queue, from a time on; zero for at once.
    Wanted {
        /// The lane.
        lane: Lane,
        /// The time before which no host takes it.
        from: Timestamp,
    },
    /// Behind other runs, until enough of them have ended.
    Behind {
        /// Those that have not ended.
        open: Vec<R>,
        /// The number of them that have to end.
        mode: WaitMode,
        /// The time from which on it is wanted in any case.
        until: Option<Timestamp>,
    },
}

impl<R> WaitState<R> {
    /// The place at the head of its lane, for a run whose wait is over.
    pub const RESUME: Self = Self::Wanted { lane: Lane::Resume, from: Timestamp(0) };

    /// The lane in which the run is wanted and the time from which on; `None` if it is not. While
    /// a run is behind others it is wanted from the time on that ends its wait, if it has one, and
    /// until then it is like any other run that is put off.
    #[must_use]
    pub fn wanted(&self) -> Option<(Lane, Timestamp)> {
        match self {
            Self::Aside | Self::Beat => None,
            Self::Wanted { lane, from } => Some((*lane, *from)),
            Self::Behind { until, .. } => until.map(|until| (Lane::Resume, until)),
        }
    }
}

/// The place to which a run comes with a hold. `open` finds those of some different runs that have
/// not ended; a run that the store does not know is none of them.
///
/// # Errors
/// Those of `open`.
pub fn place<R, E>(
    hold: &Hold,
    open: impl FnOnce(&BTreeSet<&RunId>) -> Result<Vec<R>, E>,
) -> Result<WaitState<R>, E> {
    match hold {
        Hold::Nobody | Hold::Host { .. } => Ok(WaitState::Aside),
        Hold::Beat => Ok(WaitState::Beat),
        Hold::Wanted { lane, not_before } => {
            Ok(WaitState::Wanted { lane: *lane, from: *not_before })
        }
        Hold::Runs { runs, mode, until } => {
            let all: BTreeSet<&RunId> = runs.iter().collect();
            let open = open(&all)?;
            // A wait for none is over.
            let is_over = match mode {
                WaitMode::All => open.is_empty(),
                WaitMode::Any => open.len() < all.len() || all.is_empty(),
            };
            match is_over {
                true => Ok(WaitState::RESUME),
                false => Ok(WaitState::Behind { open, mode: *mode, until: *until }),
            }
        }
    }
}

/// True for a wait that is over as one of the runs behind which it was has ended. `has_more` asks
/// for another one that has not.
///
/// # Errors
/// Those of `has_more`.
pub fn is_woken<E>(mode: WaitMode, has_more: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
    match mode {
        WaitMode::Any => Ok(true),
        WaitMode::All => Ok(!has_more()?),
    }
}
