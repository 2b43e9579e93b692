//! The report that the end of a run gives rise to, and what becomes of those that it was told of.

use std::time::Duration;

use super::hash;
use crate::delivery::{ATTEMPT_PAUSES, ATTEMPTS_MAX, DeadReason, Delivery, HOPS_MAX, ReportState};
use crate::ending::{EndStatus, Ending};
use crate::ids::RunId;
use crate::run::{Lifecycle, Run};
use crate::spec::RunSpec;
use crate::status::StopReason;
use crate::store::SessionKey;
use crate::time::Timestamp;

/// A run that has ended and whose outcome is to be told, as far as the store has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportRequest {
    /// The delivery.
    pub delivery: Delivery,
    /// The run that asked to cancel it.
    pub canceled_from: Option<RunId>,
    /// The time after which a host is to look whether it nudges, once no run above is open; `None`
    /// where nobody is nudged. A cancellation starts no work, and nudges start each other
    /// [`HOPS_MAX`] times at most.
    pub delay: Option<Duration>,
}

impl ReportRequest {
    /// The request of a run that has ended; `None` if nothing of it is to be told.
    #[must_use]
    pub fn of(run: &Run) -> Option<Self> {
        let Lifecycle::Ended { ending, .. } = &run.state.lifecycle else { return None };
        let canceled_from = run.state.cancel.as_ref().and_then(|cancel| cancel.from.clone());
        let is_canceled = ending.status == EndStatus::Canceled;
        let delivery = run.spec.delivery.clone()?;
        let delay = delay_of(&run.spec).filter(|_| !is_canceled);
        Some(Self { delivery, canceled_from, delay })
    }

    /// True if there is somebody to be told who does not know of it, or there may be. `nearest` is the
    /// nearest open run above it, and its conversation is open unless its session has ended.
    #[must_use]
    pub fn is_wanted(&self, nearest: Option<&RunId>, has_open_conversation: bool) -> bool {
        let Delivery { above, conversation, .. } = &self.delivery;
        match (nearest, conversation) {
            (Some(_), _) => nearest != self.canceled_from.as_ref(),
            // The run of the conversation that canceled it is above none of it.
            (None, Some(_)) => has_open_conversation && self.canceled_from.is_none(),
            // Another run may continue one above it.
            (None, None) => !above.is_empty() && self.canceled_from.is_none(),
        }
    }
}

/// The time after which a host looks whether it nudges for the outcome of a run; `None` if nobody is
/// nudged for it.
#[must_use]
pub fn delay_of(spec: &RunSpec) -> Option<Duration> {
    let delivery = spec.delivery.as_ref()?;
    let may_nudge = delivery.conversation.is_some() && spec.hops < HOPS_MAX;
    delivery.strategy.delay().filter(|_| may_nudge)
}

/// The run whose report is withdrawn when this one is accepted, if nobody was told by then: this one
/// continues it and tells where both have come to.
#[must_use]
pub fn withdrawn(spec: &RunSpec) -> Option<&RunId> {
    let continued = spec.continues.as_ref().filter(|_| spec.delivery.is_some())?;
    Some(&continued.run)
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
    /// The host failed it.
    Released,
    /// It was canceled, or came to its end without having looked at them: they wait for the next run
    /// that looks, and nobody is nudged.
    Left,
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
            EndStatus::Failed => Self::of_failure(run, ending),
            EndStatus::Completed | EndStatus::Canceled => Self::Left,
        })
    }

    /// The settlement after a failure. An agent may have an error of its own for a cancellation.
    fn of_failure(run: &Run, ending: &Ending) -> Self {
        match (run.state.cancel.is_some(), is_of_the_host(ending.stop_reason)) {
            (true, _) => Self::Left,
            (false, true) => Self::Released,
            (false, false) => Self::Failed,
        }
    }

    /// A report after this, which had so many attempts.
    #[must_use]
    pub fn settle(self, run: &RunId, attempts: u32) -> Settled {
        let pending = |attempts, pause| Settled {
            state: ReportState::Pending,
            attempts,
            reason: None,
            pause,
        };
        let over = |state, attempts, reason| Settled { state, attempts, reason, pause: None };
        match self {
            Self::Delivered => over(ReportState::Delivered, attempts, None),
            Self::Left => pending(attempts, None),
            Self::Released => pending(attempts, Some(Duration::ZERO)),
            Self::Failed if attempts + 1 >= ATTEMPTS_MAX => {
                over(ReportState::Dead, attempts + 1, Some(DeadReason::Attempts))
            }
            Self::Failed => pending(attempts + 1, Some(pause_after(run, attempts + 1))),
        }
    }
}

/// A report after its taker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Its stage.
    pub state: ReportState,
    /// Takers that failed by themselves.
    pub attempts: u32,
    /// The reason if it is a dead letter.
    pub reason: Option<DeadReason>,
    /// The pause after which a host looks for it again, if it nudges for it at all; `None` if it
    /// does not any more.
    pub pause: Option<Duration>,
}

/// When a host is to look at a pending report above which no run is open; `delay` is that of
/// [`ReportRequest::delay`].
#[must_use]
pub fn due(at: Timestamp, delay: Option<Duration>, pause: Option<Duration>) -> Option<Timestamp> {
    Some(at.plus(delay?.max(pause?)))
}

/// The pause after an attempt, a quarter longer at most, so that what failed together does not come
/// again together.
fn pause_after(run: &RunId, attempts: u32) -> Duration {
    let nth = usize::try_from(attempts).unwrap_or(usize::MAX).clamp(1, ATTEMPT_PAUSES.len());
    let pause = ATTEMPT_PAUSES[nth - 1];
    let jitter = hash(&["attempt", run.as_str(), &attempts.to_string()]) % 256;
    pause + pause * u32::try_from(jitter).unwrap_or_default() / 1024
}

/// The consequence of a run's end for pending reports that waited for it: those beneath it, and, if
/// it is a nudge, those for which it was started and of which it was not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Succession {
    /// For those beneath it, once none above them is open.
    pub beneath: Settlement,
    /// For those for which it was started.
    pub nudged: Settlement,
}

impl Succession {
    /// The succession of a run; `None` if it has not ended. [`Settlement::Released`] makes somebody
    /// look at once, [`Settlement::Left`] nobody.
    #[must_use]
    pub fn of(run: &Run) -> Option<Self> {
        let Lifecycle::Ended { ending, .. } = &run.state.lifecycle else { return None };
        let is_canceled = ending.status == EndStatus::Canceled || run.state.cancel.is_some();
        let beneath = if is_canceled { Settlement::Left } else { Settlement::Released };
        let nudged = match ending.status {
            // There was no room for all of them.
            EndStatus::Completed if run.state.told_at_turn.is_some() => Settlement::Released,
            EndStatus::Failed => Settlement::of_failure(run, ending),
            EndStatus::Completed | EndStatus::Canceled => Settlement::Left,
        };
        Some(Self { beneath, nudged })
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
