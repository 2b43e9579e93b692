//! The report that the end of a run gives rise to, and what becomes of those that it was told of.

use crate::delivery::{ATTEMPTS_MAX, DeadReason, Delivery, ReportState};
use crate::ending::EndStatus;
use crate::ids::RunId;
use crate::run::{Lifecycle, Run};
use crate::spec::RunSpec;
use crate::status::StopReason;
use crate::store::SessionKey;

/// A run that has ended and whose outcome is to be told, as far as the store has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportRequest {
    /// The delivery.
    pub delivery: Delivery,
    /// The run that asked to cancel it.
    pub canceled_from: Option<RunId>,
}

impl ReportRequest {
    /// The request of a run that has ended; `None` if nothing of it is to be told.
    #[must_use]
    pub fn of(run: &Run) -> Option<Self> {
        if !run.status().is_terminal() {
            return None;
        }
        let canceled_from = run.state.cancel.as_ref().and_then(|cancel| cancel.from.clone());
        Some(Self { delivery: run.spec.delivery.clone()?, canceled_from })
    }

    /// True if there is somebody to be told who does not know of it. `nearest` is the nearest open
    /// run above it.
    #[must_use]
    pub fn is_wanted(&self, nearest: Option<&RunId>, has_conversation: bool) -> bool {
        match nearest {
            Some(_) => nearest != self.canceled_from.as_ref(),
            // The run of the conversation that canceled it is above none of it.
            None => has_conversation && self.canceled_from.is_none(),
        }
    }
}

/// The session of a conversation to which the outcome of a run may come.
#[must_use]
pub fn conversation_key(spec: &RunSpec) -> Option<SessionKey> {
    let conversation = spec.delivery.as_ref()?.conversation.as_ref()?;
    Some(SessionKey {
        tenant: spec.tenant.clone(),
        owner_user_id: Some(spec.owner_user_id.clone()),
        parent_app_name: conversation.app.clone(),
        id: conversation.session.clone(),
    })
}

/// The consequence of a taker's end for the reports that it was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It completed, and decided something after it was told: they stand in its conversation.
    Delivered,
    /// It failed by itself.
    Failed,
    /// It was canceled, the host failed it, or it came to its end without having looked at them.
    Released,
}

impl Settlement {
    /// The settlement of the reports that a run was told of; `None` if it has not ended, or can have
    /// been told of none.
    #[must_use]
    pub fn of(run: &Run) -> Option<Self> {
        let Lifecycle::Ended { ending, .. } = &run.state.lifecycle else { return None };
        let state = &run.state;
        if state.told_at_turn.is_none() && !state.awaited_runs {
            return None;
        }
        let has_seen = state.told_at_turn.is_none_or(|turn| state.turns > turn);
        Some(match ending.status {
            EndStatus::Completed if has_seen => Self::Delivered,
            // An agent may have an error of its own for a cancellation.
            EndStatus::Failed if state.cancel.is_none() && !is_of_the_host(ending.stop_reason) => {
                Self::Failed
            }
            EndStatus::Completed | EndStatus::Failed | EndStatus::Canceled => Self::Released,
        })
    }

    /// The stage of a report after this, the number of its attempts, and the reason if it is a dead
    /// letter.
    #[must_use]
    pub fn settle(self, attempts: u32) -> (ReportState, u32, Option<DeadReason>) {
        match self {
            Self::Delivered => (ReportState::Delivered, attempts, None),
            Self::Released => (ReportState::Pending, attempts, None),
            Self::Failed if attempts + 1 >= ATTEMPTS_MAX => {
                (ReportState::Dead, attempts + 1, Some(DeadReason::Attempts))
            }
            Self::Failed => (ReportState::Pending, attempts + 1, None),
        }
    }
}

/// True for a failure that is none of the run's own.
fn is_of_the_host(reason: StopReason) -> bool {
    let of_the_host = [
        StopReason::HostShutdown,
        StopReason::LeaseLost,
        StopReason::InterruptedByRestart,
        StopReason::PersistFailed,
    ];
    of_the_host.contains(&reason)
}
