//! Runs: the request, the state, and the view that is shown of both.

mod failures;
mod returned;
mod view;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::artifact::ArtifactRef;
use crate::autonomy::Schedule;
use crate::ending::{EndStatus, Ending};
use crate::hold::{Await, Hold};
use crate::ids::{HostId, RunId, Seq};
use crate::message::{Labels, Usage};
use crate::metrics::Metrics;
use crate::pause::{Inbox, Pause};
use crate::progress::Progress;
use crate::reply::Reply;
use crate::rounds::Rounds;
use crate::spec::RunSpec;
use crate::status::{BlockedOn, Status, StopReason};
use crate::time::Timestamp;

pub use failures::{Failures, MISTAKES_IN_A_ROW_MAX};
pub use view::{PauseView, RunView, summary};

/// Most positions that are kept of those at which a run was told of other runs.
pub(crate) const REPORTED_AT_MAX: usize = 16;
/// Most characters of a summary.
pub const SUMMARY_CHARS_MAX: usize = 240;

pub(crate) fn is_no_usage(usage: &Usage) -> bool {
    *usage == Usage::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_zero_ms(number: &u64) -> bool {
    *number == 0
}

/// One execution of a run by a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    /// The host that has it, or had it last.
    pub host: HostId,
    /// Session of the run.
    pub child_session_id: String,
    /// Names this execution in logs of others.
    pub request_id: String,
    /// When it began.
    pub started_at: Timestamp,
    /// The batch run that works on it, if it is an entry of a heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<RunId>,
}

/// Where a run stands, with exactly what belongs to that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum Lifecycle {
    /// Waits for a slot.
    Queued,
    /// A host executes it.
    Running {
        /// The execution.
        execution: Execution,
    },
    /// Waits for somebody, without a slot.
    Blocked {
        /// The execution.
        execution: Execution,
        /// The thing that it waits for.
        on: BlockedOn,
    },
    /// Its cancellation is recorded; the guest may still be there.
    Canceling {
        /// The execution; `None` if it never began.
        execution: Option<Execution>,
        /// The origin of the cancellation.
        by: StopReason,
        /// In words, from whoever asked.
        reason: Option<String>,
    },
    /// The guest is gone; the outcome is fixed.
    Finalizing {
        /// The execution; `None` if it never began.
        execution: Option<Execution>,
        /// The outcome.
        ending: Ending,
        /// True once the agent's finalizer has begun.
        finalizer_began: bool,
    },
    /// It ended.
    Ended {
        /// The execution; `None` if it never began.
        execution: Option<Execution>,
        /// The outcome.
        ending: Ending,
        /// When.
        finished_at: Timestamp,
    },
}

/// The wait of a run that a host holds, as far as its journal says. The death of that host is not
/// put down to the run then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldWait {
    /// For nothing: a step or a call is under way, or is about to be.
    #[default]
    Nothing,
    /// For a model.
    Model,
    /// For a time, before it tries a plan step again.
    Until(Timestamp),
}

impl HeldWait {
    fn is_none(&self) -> bool {
        *self == Self::Nothing
    }

    /// True if it still waits at a time.
    #[must_use]
    pub(crate) fn lasts(self, now: Timestamp) -> bool {
        match self {
            Self::Nothing => false,
            Self::Model => true,
            Self::Until(until) => now < until,
        }
    }
}

/// A request to cancel a run, as its fold keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// The run that asked; `None` for a person, and where the run ended with its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<RunId>,
}

/// A stretch of running time of which no event has said yet how long it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncountedTime {
    /// When it began.
    pub from: Timestamp,
    /// When the last event in it was recorded.
    pub until: Timestamp,
}

/// The hosts that died with a run. One that died while the run only waited is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crashes {
    /// Those since the last decided plan step.
    pub in_a_row: u32,
    /// All of them.
    pub total: u32,
}

/// The part of a run that changes: the fold of its journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Where it stands.
    #[serde(flatten)]
    pub lifecycle: Lifecycle,
    /// The host that has it, or the condition under which one may.
    pub hold: Hold,
    /// The pause that lies over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// The pin that it was given after it was accepted; `None` if it has that of its request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    /// The messages that no turn was shown yet.
    #[serde(default, skip_serializing_if = "Inbox::is_empty")]
    pub inbox: Inbox,
    /// Position of the last event.
    pub head: Seq,
    /// The number of times that the run changed hands. A host that writes under another one is
    /// refused.
    pub epoch: u64,
    /// The time that it has been running, as last recorded; waiting does not count.
    #[serde(default)]
    pub ran_ms: u64,
    /// Running time that `ran_ms` does not have yet; `None` while nobody executes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncounted: Option<UncountedTime>,
    /// Hosts that died with it.
    #[serde(default)]
    pub crashes: Crashes,
    /// Its wait while a host holds it.
    #[serde(default, skip_serializing_if = "HeldWait::is_none")]
    pub held_wait: HeldWait,
    /// Attempts at the present plan step that failed.
    #[serde(default)]
    pub failed_attempts: u32,
    /// The time for which it was put off in all, as models were not to be asked.
    #[serde(default, skip_serializing_if = "is_zero_ms")]
    pub pushed_back_ms: u64,
    /// Turns that were skipped since the last decided plan step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u32,
    /// The questions that it asks of the outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<Await>,
    /// Tokens of the plan step under way. They are counted when it ends, or when the run does.
    #[serde(default, skip_serializing_if = "is_no_usage")]
    pub step_usage: Usage,
    /// When the status last changed.
    pub updated_at: Timestamp,
    /// The positions at which it was told of the outcomes of other runs, the last ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reported_at: Vec<Seq>,
    /// The turns that it had when it was told of them last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_at_turn: Option<u32>,
    /// True if it has waited for runs, as the journal says, and may have been given their outcomes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaited_runs: bool,
    /// The request to cancel it that is on record, however it ended then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelRequest>,
    /// Counts of what happened.
    pub progress: Progress,
    /// The answer so far.
    pub reply: Reply,
    /// Plan steps that decided, and turns that were skipped.
    pub turns: u32,
    /// Tool calls that began.
    pub tool_calls: u32,
    /// Tool calls that failed in a row.
    #[serde(default, skip_serializing_if = "Failures::none")]
    pub failures: Failures,
    /// Its rounds, where it goes on by itself, and what it said of itself.
    #[serde(default, skip_serializing_if = "Rounds::is_none")]
    pub rounds: Rounds,
    /// Metadata that a finalizer added.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub metadata: Labels,
    /// The metrics of its components.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
}

/// A run: what was asked for and how it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The request.
    pub spec: Arc<RunSpec>,
    /// The state.
    pub state: RunState,
}

impl Run {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &RunId {
        &self.spec.id
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.state.lifecycle.status()
    }

    /// Its pin in force: that of its request, or the one that it was given since.
    #[must_use]
    pub fn pin(&self) -> &str {
        self.state.pin.as_deref().unwrap_or(&self.spec.pin)
    }

    /// The execution that it is in or was in.
    #[must_use]
    pub fn execution(&self) -> Option<&Execution> {
        self.state.lifecycle.execution()
    }

    /// The whole result, once the outcome is fixed and if it is too long to be shown with the run.
    #[must_use]
    pub fn artifact(&self) -> Option<&ArtifactRef> {
        self.ending().and_then(|ending| ending.artifact.as_ref())
    }

    /// Its outcome, once that is fixed.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        match &self.state.lifecycle {
            Lifecycle::Finalizing { ending, .. } | Lifecycle::Ended { ending, .. } => Some(ending),
            Lifecycle::Queued
            | Lifecycle::Running { .. }
            | Lifecycle::Blocked { .. }
            | Lifecycle::Canceling { .. } => None,
        }
    }

    /// The reason for which it ended, once it has.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.ending().filter(|_| self.status().is_terminal()).map(|ending| ending.stop_reason)
    }

    /// The wake-up until which it is deferred, or for which it ended.
    #[must_use]
    pub fn next_wake(&self) -> Option<&Schedule> {
        match &self.state.lifecycle {
            Lifecycle::Blocked { .. } => self.state.rounds.due.as_ref(),
            Lifecycle::Ended { ending, .. } if ending.stop_reason == StopReason::Deferred => {
                self.state.rounds.scheduled.as_ref()
            }
            Lifecycle::Queued
            | Lifecycle::Running { .. }
            | Lifecycle::Canceling { .. }
            | Lifecycle::Finalizing { .. }
            | Lifecycle::Ended { .. } => None,
        }
    }

    /// Why it is being canceled or was, in the words of whoever asked for it.
    #[must_use]
    pub fn cancel_reason(&self) -> Option<&str> {
        match &self.state.lifecycle {
            Lifecycle::Canceling { reason, .. } => reason.as_deref(),
            Lifecycle::Finalizing { ending, .. } | Lifecycle::Ended { ending, .. } => {
                ending.reason.as_deref()
            }
            Lifecycle::Queued | Lifecycle::Running { .. } | Lifecycle::Blocked { .. } => None,
        }
    }
}

impl Lifecycle {
    /// The status that is shown.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Queued => Status::Queued,
            Self::Running { .. } => Status::Running,
            Self::Blocked { .. } => Status::Blocked,
            Self::Canceling { .. } => Status::Canceling,
            Self::Finalizing { .. } => Status::Finalizing,
            Self::Ended { ending, .. } => match ending.status {
                EndStatus::Completed => Status::Completed,
                EndStatus::Failed => Status::Failed,
                EndStatus::Canceled => Status::Canceled,
            },
        }
    }

    /// The execution that the run is in or was in.
    #[must_use]
    pub(crate) fn execution(&self) -> Option<&Execution> {
        match self {
            Self::Queued => None,
            Self::Running { execution } | Self::Blocked { execution, .. } => Some(execution),
            Self::Canceling { execution, .. }
            | Self::Finalizing { execution, .. }
            | Self::Ended { execution, .. } => execution.as_ref(),
        }
    }
}
