//! Questions about reports, and changes of them that no journal gives rise to.

use crate::delivery::{Conversation, ReportState};
use crate::ids::RunId;
use crate::list::Scope;

/// The reports that are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportQuery {
    /// Those of the runs of a tree, by its first run, that are pending.
    Tree(RunId),
    /// Those that are pending and come to a conversation where no run above them is open.
    Conversation {
        /// Tenant of the runs.
        tenant: String,
        /// Owner of the runs.
        owner_user_id: String,
        /// The conversation.
        conversation: Conversation,
    },
    /// That of a run.
    Run(RunId),
    /// Those that are due, now or later.
    Due,
    /// Those that are due, now or later, and are told to conversations of this agent.
    DueTo(String),
    /// Those of the runs that a caller sees.
    Scope {
        /// The caller.
        scope: Scope,
        /// Only those at one of these stages.
        states: Vec<ReportState>,
    },
}

/// A change of a report by people, or by a host that is not to nudge for it or to tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReportChange {
    /// A dead letter is pending again, as if nobody had failed with it.
    Retry,
    /// One that is pending, or a dead letter, is forgotten.
    Drop,
    /// No host looks any more for one that is pending: it comes to the next run that is told.
    Quiet,
    /// One that is pending is a dead letter, as a hook of the host blocked it.
    Block,
}

impl ReportChange {
    /// True if it changes a report at this stage.
    #[must_use]
    pub fn applies_to(self, state: ReportState) -> bool {
        match (self, state) {
            (Self::Retry, ReportState::Dead)
            | (Self::Drop, ReportState::Pending | ReportState::Dead)
            | (Self::Quiet | Self::Block, ReportState::Pending) => true,
            (Self::Retry, ReportState::Pending | ReportState::Taken | ReportState::Delivered)
            | (Self::Drop, ReportState::Taken | ReportState::Delivered)
            | (
                Self::Quiet | Self::Block,
                ReportState::Taken | ReportState::Delivered | ReportState::Dead,
            ) => false,
        }
    }
}
