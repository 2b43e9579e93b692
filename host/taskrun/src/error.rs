//! What the controller answers when it cannot do what it was asked.

use crate::ids::RunId;
use crate::ports::store::StoreError;

/// Why an operation of the controller was refused or failed. Nothing has changed then, except
/// perhaps after [`StoreError::Unknown`].
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// No such run, or none that the caller may see; the two are not told apart.
    #[error("run not found: {id}")]
    NotFound {
        /// What was asked for.
        id: String,
    },
    /// The id is taken, or the idempotency key belongs to another request.
    #[error("run already exists: {id}")]
    AlreadyExists {
        /// The run that has it.
        id: RunId,
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
        /// What is wrong with it.
        reason: String,
    },
    /// The caller may not do this.
    #[error("{reason}")]
    Forbidden {
        /// Which rule says so.
        reason: String,
    },
    /// The store failed or refused.
    #[error("the store failed")]
    Storage(#[from] StoreError),
}

impl ControllerError {
    /// The word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not-found",
            Self::AlreadyExists { .. } => "already-exists",
            Self::NotStarted => "not-started",
            Self::Closed => "closed",
            Self::Invalid { .. } => "invalid",
            Self::Forbidden { .. } => "forbidden",
            Self::Storage(error) => error.code(),
        }
    }
}
