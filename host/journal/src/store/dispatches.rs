//! The port to dispatches: taking those that are due, and what became of them.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::{ReportChange, StoreError};
use crate::dispatch::{AttemptOutcome, Dispatch, DispatchState};
use crate::ids::{HostId, RunId};
use crate::list::Scope;
use crate::time::Timestamp;

/// The dispatches of a store, which makes them itself
/// ([`crate::schedule::Change::Dispatch`], and at the acceptance of a run).
#[async_trait]
pub trait Dispatches: Send + Sync {
    /// The earliest time at which one for these subscribers can be taken; zero for one whose host has
    /// died, and for one that is due later after `now` than it would be by its pause
    /// ([`crate::dispatch::is_overlong`]). `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn next_dispatch(
        &self,
        subscribers: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError>;

    /// Takes those of a subscriber that are due, or whose host has died, or that were put off
    /// before the clock was set back, the one that was due first before the others; each is given
    /// to one host. From then on they are due for others at [`DispatchClaim::until`], and so is one
    /// that a host took before the clock was set back.
    ///
    /// # Errors
    /// [`StoreError`]; some may then be taken only after [`StoreError::Unknown`].
    async fn take_dispatches(&self, claim: DispatchClaim) -> Result<Vec<Dispatch>, StoreError>;

    /// Keeps the outcome of an attempt. False if the host has it no more; one that was delivered is
    /// so in any case, if it is still there and open.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn settle_dispatch(
        &self,
        number: u64,
        host: &HostId,
        outcome: AttemptOutcome,
    ) -> Result<bool, StoreError>;

    /// Dispatches after a number, in the order in which they were made, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn dispatches(
        &self,
        query: &DispatchQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Dispatch>, StoreError>;

    /// Changes a dispatch. False if there is none of that number, or none to which that applies
    /// ([`ReportChange::applies_to_dispatch`]). One that is tried again is due at once.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn change_dispatch(&self, number: u64, change: ReportChange) -> Result<bool, StoreError>;

    /// Forgets the dispatches of the runs that a caller sees that are still to be handed over; says how
    /// many.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn forget_dispatches(&self, scope: &Scope) -> Result<u64, StoreError>;

    /// Returns when there may be one to take that was not there before. May return early; never
    /// later than a second after the fact.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    async fn dispatched(&self);
}

/// A wish for dispatches of one subscriber.
#[derive(Clone, Debug)]
pub struct DispatchClaim {
    /// The host.
    pub host: HostId,
    /// The subscriber.
    pub subscriber: String,
    /// The time until which they may be due.
    pub now: Timestamp,
    /// The time at which they are due again for others.
    pub until: Timestamp,
    /// Most to take.
    pub limit: usize,
}

/// The dispatches that are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DispatchQuery {
    /// Those of a run.
    Run(RunId),
    /// Those of the runs that a caller sees.
    Scope {
        /// The caller.
        scope: Scope,
        /// Only those at one of these stages.
        states: Vec<DispatchState>,
    },
}

impl ReportChange {
    /// True if it changes a dispatch at this stage.
    #[must_use]
    pub fn applies_to_dispatch(self, state: DispatchState) -> bool {
        match (self, state) {
            (Self::Retry, DispatchState::Dead)
            | (Self::Drop, DispatchState::Pending | DispatchState::Dead) => true,
            (
                Self::Retry,
                DispatchState::Pending | DispatchState::Taken | DispatchState::Delivered,
            )
            | (Self::Drop, DispatchState::Taken | DispatchState::Delivered)
            | (
                Self::Quiet | Self::Block,
                DispatchState::Pending
                | DispatchState::Taken
                | DispatchState::Delivered
                | DispatchState::Dead,
            ) => false,
        }
    }
}
