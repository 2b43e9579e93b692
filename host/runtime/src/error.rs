//! The errors of opening a runtime.

use std::path::PathBuf;

use taskrun::error::ControllerError;
use taskrun_engine::AgentError;
use taskrun_journal::store::StoreError;

use crate::loader::LoaderError;
use crate::policy_file::PolicyLoadError;

/// The reason that a runtime does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// One of the [`Options`](crate::Options) is out of its bounds.
    #[error("the option `{name}` cannot be used: {reason}")]
    Option {
        /// The name of its field.
        name: &'static str,
        /// The reason, and what to take instead.
        reason: &'static str,
    },
    /// The policy cannot be read, or something in it is wrong.
    #[error("the policy cannot be used")]
    Policy(#[from] PolicyLoadError),
    /// The store cannot be used.
    #[error("the store cannot be used")]
    Store(#[from] StoreError),
    /// The engine or a model cannot be set up.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// An agent does not load, and with it the runtime: as each is to be loaded first, or as there
    /// is no other one.
    #[error("an agent cannot be used")]
    Agent(#[from] AgentError),
    /// Another background host executes runs of the policy.
    #[error("another background host executes runs of this policy")]
    Executed,
    /// A process holds the lock of background hosts that is none which executes runs, and none that
    /// is known to stand still.
    #[error(
        "another process holds {path}, as a background host of this policy, and neither executes runs \
         nor ends",
        path = .path.display()
    )]
    Standstill {
        /// The lock file.
        path: PathBuf,
    },
    /// The lock of background hosts cannot be taken.
    #[error("cannot lock {path}", path = .path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The words of the operating system.
        source: std::io::Error,
    },
    /// The layer before the store cannot be set up.
    #[error("the layer before the store cannot be set up")]
    Layer(#[source] std::io::Error),
    /// The controller does not start.
    #[error("the controller does not start")]
    Controller(#[from] ControllerError),
}
