//! Calls that the host aborts, and the causes for which it stops one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The cause for which the host stops a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// The run was canceled.
    Canceled,
    /// The run's own time-out passed.
    RunTimeout,
    /// The host is being shut down.
    Shutdown,
    /// A plan step did something else than when it ran before.
    Diverged,
    /// The run's journal has as many bytes as it may.
    JournalFull,
    /// The host gives the run back, to be taken up by another one.
    HandOver,
    /// A rule was taken away under which it had something open.
    Denied,
    /// A model is not to be asked for a while, and the step waits for that without an instance.
    PushedBack,
    /// The host could not renew its lease, and another one has the run.
    LeaseLost,
}

impl fmt::Display for StopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Canceled => "the run was canceled",
            Self::RunTimeout => "the run's time-out passed",
            Self::Shutdown => "the host is shutting down",
            Self::JournalFull => "the run's journal is full",
            Self::Diverged => "it did something else than when it ran before",
            Self::HandOver => "the host gives the run to another one",
            Self::Denied => "a rule was taken away under which it had files open",
            Self::PushedBack => "a model is not to be asked for a while",
            Self::LeaseLost => "the host lost its lease",
        })
    }
}

/// The reason that the host aborted a call, which then has no answer of the component's own: a
/// failure that a tool reports is a [`ToolFailure`](crate::tool::ToolFailure). Nothing in here
/// speaks of the host's insides; details for the operator go to the host's log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum CallAbort {
    /// The component wanted more memory than it may have.
    #[error("stopped: memory limit of {limit_bytes} bytes")]
    Memory {
        /// The limit.
        limit_bytes: u64,
    },
    /// The component wanted more memory than the host has left for all guests together, which is no
    /// fault of its own: the same call may be served a moment later.
    #[error("stopped: the host has no more memory for guests at the moment")]
    Unavailable,
    /// The call took longer than it may.
    #[error("stopped: deadline of {limit_ms} ms exceeded")]
    Deadline {
        /// The limit.
        limit_ms: u64,
    },
    /// The component's stack overflowed.
    #[error("stopped: stack overflow")]
    Stack,
    /// The component met another of its limits.
    #[error("stopped: limit on {what} ({limit})")]
    Limit {
        /// The name of the limit.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The component trapped.
    #[error("trapped: {code}")]
    Trap {
        /// WebAssembly's name of the trap.
        code: String,
    },
    /// The component did something that its interface forbids.
    #[error("contract violated: {detail}")]
    Contract {
        /// The violation, in words.
        detail: String,
    },
    /// The host stopped the call for a cause outside of it.
    #[error("stopped: {cause}")]
    Stopped {
        /// The cause.
        cause: StopCause,
    },
    /// The host itself failed.
    #[error("internal error of the host")]
    Internal,
}

impl CallAbort {
    /// The word for programs.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "memory",
            Self::Unavailable => "unavailable",
            Self::Deadline { .. } => "deadline",
            Self::Stack => "stack",
            Self::Limit { .. } => "limit",
            Self::Trap { .. } => "trap",
            Self::Contract { .. } => "contract",
            Self::Stopped { .. } => "stopped",
            Self::Internal => "internal",
        }
    }
}
