//! The history of its session that a run is told.

use serde::{Deserialize, Serialize};

/// Most messages of earlier runs that a run is told: the task and the answer of the last twenty.
/// Enough to know what was talked about; what has to be kept for longer belongs into memory.
pub const HISTORY_MESSAGES_MAX: usize = 40;
/// Most bytes of them together: about 16,000 tokens, a small part of what a plan step may be given.
pub const HISTORY_BYTES_MAX: usize = 64 << 10;
/// Most bytes of one of them; a longer one is cut, so that one long answer does not push all others
/// out.
pub const HISTORY_MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Of which earlier runs of its session a run is told: of those that are completed when it first
/// begins, and are told of such runs themselves. They have the same tenant, owner and application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// Of none, and no later run is told of this one.
    #[default]
    None,
    /// Of those of its own agent.
    Agent,
    /// Of those of all agents.
    Session,
}

impl History {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::None, Self::Agent, Self::Session];

    /// Its word in a policy.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Agent => "agent",
            Self::Session => "session",
        }
    }

    /// True if it is the one that is not written down.
    #[must_use]
    pub fn is_none(&self) -> bool {
        match self {
            Self::None => true,
            Self::Agent | Self::Session => false,
        }
    }
}
