//! The delivery of a run's outcome: where it is told when nobody waited for it, and the reports that
//! a store keeps until somebody was told.

use serde::{Deserialize, Serialize};

use crate::ids::RunId;

/// The number of takers that may fail by themselves before a report is a dead letter.
pub const ATTEMPTS_MAX: u32 = 3;

/// The delivery of a run's outcome, as it was settled when the run was accepted.
///
/// The nearest run above it that is open is told, before its next plan step. Where none is, the next
/// run of the conversation is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The runs above it, the nearest first.
    pub above: Vec<RunId>,
    /// The conversation of the first run of its tree; `None` if that takes part in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Conversation>,
}

/// The runs of one agent that continue a session: those of the tenant and the owner of the run whose
/// outcome is delivered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Conversation {
    /// Session from which they are asked for.
    pub session: String,
    /// Application from which they are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Their agent.
    pub agent: String,
}

/// The stage of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportState {
    /// Nobody was told.
    Pending,
    /// A run was told that has not ended, or has waited for this end. If it completes the report is
    /// delivered, otherwise it is pending again.
    Taken,
    /// It stands in a conversation.
    Delivered,
    /// Nobody is told any more: see [`Report::reason`].
    Dead,
}

impl ReportState {
    /// Every one, in the order of a report's life.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Taken, Self::Delivered, Self::Dead];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Taken => "taken",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

/// The report of a run's outcome: an index over journals, made in the transaction in which the run
/// ends and changed in those in which somebody is told or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The run that ended.
    pub run: RunId,
    /// Its place in the order of the ends.
    pub place: u64,
    /// Its stage.
    pub state: ReportState,
    /// Takers that failed by themselves.
    pub attempts: u32,
    /// The run that was told.
    pub taken_by: Option<RunId>,
    /// The reason why it is a dead letter.
    pub reason: Option<DeadReason>,
}

/// The reason why nobody is told of an outcome any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// Each of [`ATTEMPTS_MAX`] runs that were told failed by itself.
    Attempts,
    /// The session of its conversation was ended.
    SessionEnded,
}

impl DeadReason {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Attempts, Self::SessionEnded];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::SessionEnded => "session_ended",
        }
    }
}

/// The reports of runs that an append tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportsTaken {
    /// The run is told of them now: each is to be pending, or nothing of the append is kept.
    Told(Vec<RunId>),
    /// The run has waited for the ends of these: reports among them that are pending are taken, too.
    Awaited(Vec<RunId>),
}
