//! What a run is: what was asked for, how it stands, and how that is shown.

mod failures;
mod hold;
mod pause;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::artifact::ArtifactRef;
use crate::event::Seq;
use crate::history::History;
use crate::ids::{HostId, RunId};
use crate::memory::{FactPlace, MemoryScope, OwnSession};
use crate::message::{Labels, Message, Usage};
use crate::metrics::Metrics;
use crate::narrow::{Ancestor, Narrowing};
use crate::ports::call::CallFailure;
use crate::progress::{Progress, Reply};
use crate::status::{BlockedOn, Status, StopReason};
use crate::time::Timestamp;

pub use failures::{Failures, MISTAKES_IN_A_ROW_MAX, REFUSED_BATCHES_MAX};
pub use hold::{Await, Hold, Lane, Wait, WaitMode};
pub use pause::{INBOX_BYTES_MAX, INBOX_MESSAGES_MAX, Inbox, Pause, PauseEnd};
pub use view::{PauseView, RunView};

/// Most characters of a result that are shown with its run; the whole text is an artifact then.
pub const RESULT_CHARS_MAX: usize = 4_000;
/// Most characters of a summary.
pub const SUMMARY_CHARS_MAX: usize = 240;

/// What was asked for, as accepted. Never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Id of the run.
    pub id: RunId,
    /// Tenant it belongs to.
    pub tenant: String,
    /// Who asked.
    pub owner_user_id: String,
    /// Session from which it was asked.
    pub parent_session_id: String,
    /// Application from which it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_app_name: Option<String>,
    /// Application it runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_name: Option<String>,
    /// Session of the run, where the caller fixed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// Name of its execution, where the caller fixed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Agent that does it.
    pub agent_name: String,
    /// Digest of that agent's component.
    pub agent_digest: String,
    /// Digest of the policy under which it was accepted; only hosts with the same one take it.
    pub policy_digest: String,
    /// The task, trimmed.
    pub task: String,
    /// How long it may run; waiting in the queue does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// State given to the component: the caller's keys with the host's over them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub envelope: BTreeMap<String, String>,
    /// Messages put before the task; not part of any stored conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_messages: Vec<Message>,
    /// What people call it, see [`crate::name`]; while it is open no other run of the same place
    /// has this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Keys and values to find it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Keys and values that are shown with it.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub metadata: Labels,
    /// Run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// Tool call of that run which this one is: its end is the call's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tool_call_id: Option<String>,
    /// Whether it is cancelled when the run that started it ends, however that ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// First run of its tree.
    pub root_run_id: RunId,
    /// Session from which that was asked for, where it is another one than this run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_session_id: Option<String>,
    /// Runs above it.
    pub depth: u32,
    /// What the request took away from what the agent may do.
    #[serde(default, skip_serializing_if = "Narrowing::is_empty")]
    pub narrow: Narrowing,
    /// The runs above it, the root first: it may do nothing that one of their agents may not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<Ancestor>,
    /// Higher ones first.
    pub priority: i32,
    /// Whether the run is continued after the death of its host; otherwise it fails then.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub durable: bool,
    /// Whether the agent has a finalizer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finalizer: bool,
    /// Whether it begins only when no earlier serial run of its parent session is open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serial: bool,
    /// Where the random numbers of its plan steps come from, so that a step that runs again is
    /// given the same; 32 hexadecimal digits.
    #[serde(default)]
    pub seed: String,
    /// Of which earlier runs of its session it is told.
    #[serde(default, skip_serializing_if = "History::is_none")]
    pub history: History,
    /// By whom it is begun.
    #[serde(default, skip_serializing_if = "RunClass::is_task")]
    pub class: RunClass,
    /// The entries that it works on, if it is the batch run of a heartbeat.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<RunId>,
    /// When it was accepted.
    pub created_at: Timestamp,
}

/// By whom a run is begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunClass {
    /// By the first host with a free slot.
    #[default]
    Task,
    /// By the heartbeat of its agent, which takes it into a batch with others: an entry. No host
    /// executes it itself and it takes no slot; the batch run works on it.
    Heartbeat,
}

impl RunClass {
    /// Whether it is the usual one, which is not written down.
    #[must_use]
    pub fn is_task(&self) -> bool {
        match self {
            Self::Task => true,
            Self::Heartbeat => false,
        }
    }
}

impl RunSpec {
    /// Whether it was asked for from a session, or the first run of its tree was.
    #[must_use]
    pub fn is_in_session(&self, id: &str) -> bool {
        self.parent_session_id == id || self.root_session_id.as_deref() == Some(id)
    }

    /// Where the facts of a scope are for it: those of a session are those of its whole tree.
    #[must_use]
    pub fn fact_place(&self, scope: MemoryScope) -> FactPlace {
        let session = match scope {
            MemoryScope::Session => {
                let session = self.root_session_id.as_ref().unwrap_or(&self.parent_session_id);
                // A one-shot run has none: its tree remembers for itself.
                let id = match session.is_empty() {
                    true => self.root_run_id.to_string(),
                    false => session.clone(),
                };
                Some(OwnSession { owner_user_id: self.owner_user_id.clone(), id })
            }
            MemoryScope::Tenant => None,
        };
        FactPlace { tenant: self.tenant.clone(), session }
    }
}

fn yes() -> bool {
    true
}

fn is_no_usage(usage: &Usage) -> bool {
    *usage == Usage::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_yes(durable: &bool) -> bool {
    *durable
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
        /// What it waits for.
        on: BlockedOn,
    },
    /// Its cancellation is recorded; the guest may still be there.
    Canceling {
        /// The execution; `None` if it never began.
        execution: Option<Execution>,
        /// Who cancelled.
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
        /// Whether the agent's finalizer has begun.
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

/// How a run ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// One of the terminal ones.
    pub status: EndStatus,
    /// Why.
    pub stop_reason: StopReason,
    /// What went wrong, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of a cancellation, the reason in the words of whoever asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How the component was stopped, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<CallFailure>,
    /// Whether a limit cut the work short and the result is what there was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// The whole result, where it is longer than what is shown with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactRef>,
}

/// The terminal statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndStatus {
    /// With an answer.
    Completed,
    /// Without an answer.
    Failed,
    /// Because somebody asked.
    Canceled,
}

impl Ending {
    /// An end with an answer.
    #[must_use]
    pub fn completed(stop_reason: StopReason) -> Self {
        Self {
            status: EndStatus::Completed,
            stop_reason,
            error: None,
            reason: None,
            failure: None,
            partial: false,
            artifact: None,
        }
    }

    /// An end without an answer.
    #[must_use]
    pub fn failed(stop_reason: StopReason, error: impl Into<String>) -> Self {
        Self {
            status: EndStatus::Failed,
            stop_reason,
            error: Some(error.into()),
            reason: None,
            failure: None,
            partial: false,
            artifact: None,
        }
    }

    /// An end because somebody asked.
    #[must_use]
    pub fn canceled(by: StopReason) -> Self {
        Self {
            status: EndStatus::Canceled,
            stop_reason: by,
            error: None,
            reason: None,
            failure: None,
            partial: false,
            artifact: None,
        }
    }

    /// The same with the typed reason for which the component was stopped.
    #[must_use]
    pub fn because(mut self, failure: CallFailure) -> Self {
        self.failure = Some(failure);
        self
    }
}

/// What a run waits for while a host holds it, as far as its journal says. The death of that host is
/// not put down to it then.
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

    /// Whether it still waits at a time.
    #[must_use]
    pub fn lasts(self, now: Timestamp) -> bool {
        match self {
            Self::Nothing => false,
            Self::Model => true,
            Self::Until(until) => now < until,
        }
    }
}

/// A stretch of running time of which no event has said yet how long it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uncounted {
    /// When it began.
    pub from: Timestamp,
    /// When the last event in it was recorded.
    pub until: Timestamp,
}

/// What changes in a run: the fold of its journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Where it stands.
    #[serde(flatten)]
    pub lifecycle: Lifecycle,
    /// Who has it, or may have it.
    pub hold: Hold,
    /// The pause that lies over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// What it was told and no turn was shown.
    #[serde(default, skip_serializing_if = "Inbox::is_empty")]
    pub inbox: Inbox,
    /// Position of the last event.
    pub head: Seq,
    /// How often the run changed hands. Who writes under another number is refused.
    pub epoch: u64,
    /// How long it has been running, as last recorded; waiting does not count.
    #[serde(default)]
    pub ran_ms: u64,
    /// Running time that `ran_ms` does not have yet; `None` while nobody executes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncounted: Option<Uncounted>,
    /// Hosts that died with it since its last decided plan step, and in all. One that died while
    /// the run only waited is not counted.
    #[serde(default)]
    pub crashes: (u32, u32),
    /// What the run waits for while a host holds it.
    #[serde(default, skip_serializing_if = "HeldWait::is_none")]
    pub held_wait: HeldWait,
    /// Attempts at the present plan step that failed.
    #[serde(default)]
    pub failed_attempts: u32,
    /// Turns that were skipped since the last decided plan step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u32,
    /// What is asked of the outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<Await>,
    /// Tokens of the plan step under way. They are counted when it ends, or when the run does.
    #[serde(default, skip_serializing_if = "is_no_usage")]
    pub step_usage: Usage,
    /// When the status last changed.
    pub updated_at: Timestamp,
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
    /// Metadata that a finalizer added.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub metadata: Labels,
    /// What its components counted and measured.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
}

/// A run: what was asked for and how it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What was asked for.
    pub spec: Arc<RunSpec>,
    /// How it stands.
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
    pub fn execution(&self) -> Option<&Execution> {
        match self {
            Self::Queued => None,
            Self::Running { execution } | Self::Blocked { execution, .. } => Some(execution),
            Self::Canceling { execution, .. }
            | Self::Finalizing { execution, .. }
            | Self::Ended { execution, .. } => execution.as_ref(),
        }
    }
}
