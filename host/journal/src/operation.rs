//! Operations of the interface `controller`, as rules name them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An operation of the interface `controller`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Start runs.
    Spawn,
    /// List runs.
    List,
    /// Look at one run.
    Get,
    /// Cancel a run alone.
    Cancel,
    /// Cancel a run and everything beneath it.
    CancelTree,
    /// Pause a run.
    Pause,
    /// Resume a run that is paused.
    Resume,
    /// Wait for runs, within a call or between two plan steps.
    Wait,
    /// Answer what runs ask.
    Provide,
    /// Read the events of runs.
    Subscribe,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 10] = [
        Self::Spawn,
        Self::List,
        Self::Get,
        Self::Cancel,
        Self::CancelTree,
        Self::Pause,
        Self::Resume,
        Self::Wait,
        Self::Provide,
        Self::Subscribe,
    ];

    /// Its word in a policy, which is also the name of its function in the WIT.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spawn => "spawn",
            Self::List => "list",
            Self::Get => "get",
            Self::Cancel => "cancel",
            Self::CancelTree => "cancel-tree",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Wait => "wait",
            Self::Provide => "provide",
            Self::Subscribe => "subscribe",
        }
    }
}

/// Prints its word in a policy.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
