//! Refusals and failures of the controller.

use taskrun_journal::ids::RunId;
use taskrun_journal::question::AnswerRefusal;
use taskrun_journal::runs::RunsError;
use taskrun_journal::store::StoreError;
use taskrun_policy::NarrowingError;

use crate::agents::LoadFault;

/// Code of a journal that contradicts itself.
const INCONSISTENT: &str = "journal-inconsistent";

/// Why an operation of the controller was refused or failed. Nothing has changed then, except
/// perhaps after [`StoreError::Unknown`].
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// No such run, or none that the caller may see; the two are not told apart.
    #[error("run not found: {id}")]
    NotFound {
        /// The id that was asked for.
        id: String,
    },
    /// The run refers to no artifact of that name.
    #[error("run {id} has no such artifact")]
    NoArtifact {
        /// The run.
        id: RunId,
    },
    /// The id is taken, or the idempotency key belongs to another request.
    #[error("run already exists: {id}")]
    AlreadyExists {
        /// The run that has it.
        id: RunId,
    },
    /// An open run of the same place has the name.
    #[error("the name {name} belongs to run {id}, which has not ended")]
    NameTaken {
        /// The name.
        name: String,
        /// The run that has it.
        id: RunId,
    },
    /// The run cannot be continued while it is open, nor can another one of its agent be autonomous in
    /// its conversation.
    #[error("run {id} is open; {holder} has it{}", .waits.map_or("", LockedWait::words))]
    Locked {
        /// The run.
        id: RunId,
        /// The host that executes it, or `nobody` while none does.
        holder: String,
        /// The thing that it waits for, where no host has it for that.
        waits: Option<LockedWait>,
    },
    /// [`crate::controller::Controller::start`] was not called.
    #[error("the controller is not started")]
    NotStarted,
    /// The controller is shutting down.
    #[error("the controller is closed")]
    Closed,
    /// Part of the request cannot be accepted.
    #[error("{reason}")]
    Invalid {
        /// Which part.
        field: &'static str,
        /// The fault of it.
        reason: String,
    },
    /// Part of the request cannot be checked, as the agent does not load.
    #[error("agent {agent} does not load: {why}")]
    NotLoaded {
        /// The agent.
        agent: String,
        /// The fault, of which a run that asks is told no place of the host.
        why: LoadFault,
    },
    /// The caller may not do this.
    #[error("{reason}")]
    Forbidden {
        /// Which rule says so.
        reason: String,
    },
    /// A bound was met; nothing was accepted.
    #[error("limit met: {kind} ({cap})")]
    Limit {
        /// Which: `queue`, `tree`, `depth`, `slots`, `inbox`, `inbox-bytes`, `journal` or
        /// `consents`.
        kind: &'static str,
        /// The bound.
        cap: u64,
    },
    /// The session has ended: nothing is started in it any more.
    #[error("the session has ended: {id}")]
    SessionEnded {
        /// The session.
        id: String,
    },
    /// The run that was to start another one has ended, or is about to.
    #[error("the parent run has ended: {id}")]
    ParentEnded {
        /// The run.
        id: String,
    },
    /// The run has ended, or is on its way out: it is neither paused nor resumed and hears nothing.
    #[error("run {id} has ended, or is about to")]
    RunEnded {
        /// The run.
        id: RunId,
    },
    /// A step or a call of the run may be under way, or was when its host died.
    #[error("run {id} is under way")]
    UnderWay {
        /// The run.
        id: RunId,
    },
    /// The run does not wait for such an answer.
    #[error("run {id} takes no such answer: {why}")]
    NotAwaitable {
        /// The run.
        id: RunId,
        /// Why not.
        why: AnswerRefusal,
    },
    /// The batch run does not work on this run, or not any more.
    #[error("run {id} cannot be completed as an entry: {why}")]
    NotAnEntry {
        /// The run.
        id: RunId,
        /// Why not.
        why: NotAnEntry,
    },
    /// The journal of the run contradicts itself, or what was to be added to it. Nothing was.
    #[error("the journal of run {id} is inconsistent: {detail}")]
    Inconsistent {
        /// The run.
        id: RunId,
        /// The contradiction.
        detail: String,
    },
    /// The store failed or refused.
    #[error("the store failed")]
    Storage(#[from] StoreError),
}

/// Why a batch run cannot complete an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnEntry {
    /// The batch never had it.
    #[error("it is none of this batch")]
    OfThisBatch,
    /// No host executes the batch yet.
    #[error("the batch has not begun")]
    BatchNotBegun,
    /// The batch has ended or is about to; its entries end with it.
    #[error("the batch has ended")]
    BatchEnded,
    /// The entry has ended or is about to.
    #[error("it has ended")]
    Ended,
}

/// The reason for which no host has a run that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockedWait {
    /// It is paused.
    Paused,
    /// It is deferred until a wake-up of its own.
    Deferred,
    /// It waits for an answer.
    Asking,
}

impl LockedWait {
    fn words(self) -> &'static str {
        match self {
            Self::Paused => ": it is paused",
            Self::Deferred => ": it is deferred",
            Self::Asking => ": it waits for an answer",
        }
    }
}

impl ControllerError {
    /// The word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } | Self::NoArtifact { .. } => "not-found",
            Self::AlreadyExists { .. } => "already-exists",
            Self::NameTaken { .. } => "name-taken",
            Self::Locked { .. } => "locked",
            Self::NotStarted => "not-started",
            Self::Closed => "closed",
            Self::Invalid { .. } | Self::NotLoaded { .. } => "invalid",
            Self::Forbidden { .. } => "forbidden",
            Self::Limit { .. } => "limit",
            Self::SessionEnded { .. } => "session-ended",
            Self::ParentEnded { .. } => "parent-ended",
            Self::RunEnded { .. } => "run-ended",
            Self::UnderWay { .. } => "under-way",
            Self::NotAwaitable { .. } => "not-awaitable",
            Self::NotAnEntry { .. } => "not-an-entry",
            Self::Inconsistent { .. } => INCONSISTENT,
            Self::Storage(error) => error.code(),
        }
    }
}

impl From<NarrowingError> for ControllerError {
    fn from(NarrowingError { field, reason }: NarrowingError) -> Self {
        Self::Invalid { field, reason }
    }
}

/// The names that are known where another one was given, in words for the error about that.
pub(crate) fn tell_known<'n>(names: impl IntoIterator<Item = &'n String>) -> String {
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    match names.is_empty() {
        true => "there is none".to_owned(),
        false => format!("known are: {}", names.join(", ")),
    }
}

impl From<ControllerError> for RunsError {
    fn from(error: ControllerError) -> Self {
        match error {
            ControllerError::NotFound { id } => Self::NotFound { id },
            ControllerError::AlreadyExists { id } | ControllerError::NameTaken { id, .. } => {
                Self::AlreadyExists { id: id.to_string() }
            }
            // No guest asks for these.
            ControllerError::NoArtifact { id } => Self::NotFound { id: id.to_string() },
            ControllerError::NotAnEntry { why: NotAnEntry::Ended, .. } => Self::Invalid {
                field: "task_id".to_owned(),
                reason: "the task has ended".to_owned(),
            },
            ControllerError::NotAnEntry { id, .. }
            | ControllerError::UnderWay { id }
            | ControllerError::Locked { id, .. } => Self::NotFound { id: id.to_string() },
            ControllerError::NotStarted => Self::NotStarted,
            ControllerError::Closed => Self::Closed,
            ControllerError::Invalid { field, reason } => {
                Self::Invalid { field: field.to_owned(), reason }
            }
            ControllerError::NotLoaded { agent, why } => Self::Invalid {
                field: "agent_name".to_owned(),
                reason: format!("agent {agent} does not load: {}", why.for_guest()),
            },
            ControllerError::Forbidden { reason } => Self::Forbidden { reason },
            ControllerError::Limit { kind, cap } => Self::Limit { kind: kind.to_owned(), cap },
            ControllerError::SessionEnded { .. } => Self::SessionEnded,
            // The only parent there is here is the caller's own run.
            ControllerError::ParentEnded { .. } => Self::Canceled,
            ControllerError::RunEnded { .. } => Self::NotAwaitable { why: AnswerRefusal::Ended },
            ControllerError::NotAwaitable { why, .. } => Self::NotAwaitable { why },
            ControllerError::Inconsistent { .. } => {
                Self::Storage { code: INCONSISTENT.to_owned(), passing: false }
            }
            ControllerError::Storage(error) => {
                Self::Storage { code: error.code().to_owned(), passing: error.is_passing() }
            }
        }
    }
}
