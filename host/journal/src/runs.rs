//! Requests of a component about the runs beneath its own, and their answers.
//!
//! All of them can be serialised: the answers to a plan step are kept in the journal, and the same
//! request can be made in another process.

mod answer;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::answer::{
    CancelOutcome, ChangeOutcome, EventInfo, EventPage, OutputPart, RunInfo, RunPage, RunsAnswer,
    WaitOutcome,
};
use crate::delivery::DeliverySettings;
use crate::ids::Seq;
use crate::media::{MEDIA_MAX, Media};
use crate::message::Labels;
use crate::narrowing::Narrowing;
use crate::operation::Operation;
use crate::question::{Answer, AnswerRefusal};
use crate::spec::{KEY_BYTES_MAX, KEYS_MAX, RunClass};
use crate::status::Status;

/// Most bytes of one answer: as much as the result of a call.
pub const ANSWER_PAGE_BYTES_MAX: usize = 1 << 20;
/// Most bytes of all answers of one call together; a plan step's go into the journal.
pub const ANSWERS_BYTES_MAX: usize = 8 << 20;
/// Most events that are read at once.
pub const EVENTS_PAGE_MAX: u32 = 256;
/// Most bytes of an event's payload; a larger one is left out, as in a conversation.
pub const EVENT_PAYLOAD_BYTES_MAX: usize = 64 << 10;

/// Most bytes of a part of an answer: as many as a report has of it, and few enough that a model is
/// shown them whole however they are escaped.
pub const OUTPUT_PART_BYTES_MAX: usize = 8 << 10;

/// Most runs that one tool call waits for: their results have to fit into one answer.
pub const AWAITED_MAX: usize = 256;

/// Most runs that are started together: as many as a tree has unless its policy says otherwise.
pub const SPAWNED_MAX: usize = 64;

/// A question to the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "operation")]
pub enum RunsRequest {
    /// Start a run.
    Spawn(Box<ChildRequest>),
    /// Start runs, all or none. Only tools of the host ask it.
    SpawnAll {
        /// The requests, at most [`SPAWNED_MAX`].
        children: Vec<ChildRequest>,
    },
    /// List runs.
    List(RunsFilter),
    /// Show a run.
    Get {
        /// The run.
        id: String,
    },
    /// Cancel a run alone.
    Cancel {
        /// The run.
        id: String,
        /// In words, shown with the run.
        reason: Option<String>,
    },
    /// Cancel a run and everything beneath it.
    CancelTree {
        /// The run.
        id: String,
        /// In words, shown with the run.
        reason: Option<String>,
    },
    /// Pause a run alone.
    Pause {
        /// The run.
        id: String,
        /// In words, shown with the run.
        reason: Option<String>,
        /// When it goes on in any case.
        timeout_ms: Option<u64>,
    },
    /// End the pause of a run.
    Resume {
        /// The run.
        id: String,
        /// In words, for its journal.
        note: Option<String>,
    },
    /// Wait for the end of a run.
    Wait {
        /// The run.
        id: String,
        /// Zero looks once; `None` waits as long as may be.
        timeout_ms: Option<u64>,
    },
    /// Answer what a run asks.
    Provide {
        /// The run.
        id: String,
        /// The item that is answered; `None` the only open one.
        item: Option<String>,
        /// The answer.
        answer: Answer,
    },
    /// Read the last entries of a run's conversation. Only tools of the host ask it.
    Transcript {
        /// The run.
        id: String,
        /// At most so many.
        limit: u32,
    },
    /// Read a part of a run's answer. Only tools of the host ask it.
    Output {
        /// The run.
        id: String,
        /// The byte of the answer that the part begins with.
        from: u64,
    },
    /// Tell if the caller may wait for all of these runs. Only tools of the host ask it.
    CheckAwaited {
        /// The runs, at most [`AWAITED_MAX`].
        ids: Vec<String>,
    },
    /// Say that an entry of the batch that the caller is was worked on. Only tools of the host ask
    /// it.
    CompleteEntry {
        /// The entry.
        id: String,
        /// Its result, or the error with which it failed.
        result: String,
        /// True if it failed.
        failed: bool,
    },
    /// Read a run's events.
    Subscribe {
        /// The run.
        id: String,
        /// Those after this position.
        after: Seq,
        /// At most so many, and at most [`EVENTS_PAGE_MAX`].
        limit: u32,
        /// As for a wait.
        timeout_ms: Option<u64>,
    },
}

/// A request for a run beneath the caller's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChildRequest {
    /// Agent to do it.
    pub agent_name: String,
    /// The task.
    pub task: String,
    /// Images that belong to it, of those that the caller's run may name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Media>,
    /// The time that it may run.
    pub timeout_ms: Option<u64>,
    /// Keys and values to find it by.
    pub labels: Labels,
    /// Keys and values that are shown with it.
    pub metadata: Labels,
    /// State for its component.
    pub envelope: BTreeMap<String, String>,
    /// Makes a repeated request harmless. What the port is given always has one.
    pub key: Option<String>,
    /// By whom it is begun; only the host says so.
    #[serde(default, skip_serializing_if = "RunClass::is_task")]
    pub class: RunClass,
    /// Put before the task; only the host gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The tool call that the run is, which then ends with the caller's; only the host says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tool_call_id: Option<String>,
    /// The name that people know it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The rights and means that are taken away from its agent.
    #[serde(default, skip_serializing_if = "Narrowing::is_empty")]
    pub narrow: Narrowing,
    /// True if it ends with the caller's, however that ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// The delivery of its outcome, where that is another than its caller's policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySettings>,
    /// True if its session is named after that of the caller; only the host says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_room: bool,
    /// The channels of the caller's run that it is given, by their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub share_channels: Vec<String>,
    /// True if the caller's conversation is handed over to it, with the caller's task; only the host
    /// says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hands_over: bool,
    /// True if whoever asks is shown the run as it was accepted, also where the request is a repeated one
    /// and the run has gone on since; only the host says so. It is no part of what is asked.
    #[serde(skip)]
    pub as_accepted: bool,
}

/// The choice of runs in a listing. Empty fields admit everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunsFilter {
    /// One of these statuses.
    pub status: Vec<Status>,
    /// This agent.
    pub agent_name: Option<String>,
    /// Started by this run.
    pub parent_run_id: Option<String>,
    /// All of these labels.
    pub labels: Labels,
    /// After this place in the listing.
    pub cursor: Option<String>,
    /// The run that was accepted last comes first, instead of the one that was changed last; only
    /// tools of the host ask so, for one page.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newest_first: bool,
    /// At most so many; [`crate::list::PAGE_DEFAULT`] if `None`, and at most
    /// [`crate::list::PAGE_MAX`].
    pub limit: Option<u32>,
}

/// Why a request was not met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "error")]
pub enum RunsError {
    /// No such run beneath the caller's, or no such image that its run may name.
    #[error("run not found: {id}")]
    NotFound {
        /// The run that was asked for, or the name of the image.
        id: String,
    },
    /// The key belongs to another request, or the name to another open run.
    #[error("run already exists: {id}")]
    AlreadyExists {
        /// The run that has it.
        id: String,
    },
    /// The call belongs to no run.
    #[error("there is no controller here")]
    NotStarted,
    /// No work is accepted any more.
    #[error("no work is accepted any more")]
    Closed,
    /// The session from which children are started has ended.
    #[error("the session has ended")]
    SessionEnded,
    /// Part of the request cannot be accepted.
    #[error("{reason}")]
    Invalid {
        /// Which part.
        field: String,
        /// The fault, in words.
        reason: String,
    },
    /// The caller may not do this.
    #[error("{reason}")]
    Forbidden {
        /// Which rule says so.
        reason: String,
    },
    /// A bound was met.
    #[error("limit met: {kind} ({cap})")]
    Limit {
        /// Which.
        kind: String,
        /// The bound.
        cap: u64,
    },
    /// The run does not wait for such an answer.
    #[error("the run takes no such answer: {why}")]
    NotAwaitable {
        /// Why not.
        why: AnswerRefusal,
    },
    /// The wait would never end: the run is the caller's own, or one above it.
    #[error("cycle: the run waits for the one that asks")]
    Cycle {
        /// The run that was asked for.
        id: String,
    },
    /// The caller's run is being stopped.
    #[error("the run is being stopped")]
    Canceled,
    /// The store failed.
    #[error("the store failed: {code}")]
    Storage {
        /// The word for programs.
        code: String,
        /// True if the same may be possible later.
        passing: bool,
    },
}

impl RunsError {
    /// True if the same may be possible later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Storage { passing: true, .. })
    }
}

impl RunsRequest {
    /// The name in policies.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Self::Spawn(_) | Self::SpawnAll { .. } => Operation::Spawn,
            Self::List(_) => Operation::List,
            Self::Get { .. } | Self::Output { .. } => Operation::Get,
            Self::Cancel { .. } => Operation::Cancel,
            Self::CancelTree { .. } => Operation::CancelTree,
            Self::Pause { .. } => Operation::Pause,
            Self::Resume { .. } => Operation::Resume,
            Self::Wait { .. } | Self::CheckAwaited { .. } => Operation::Wait,
            Self::Provide { .. } => Operation::Provide,
            Self::Subscribe { .. } | Self::Transcript { .. } => Operation::Subscribe,
            Self::CompleteEntry { .. } => Operation::Provide,
        }
    }

    /// Holds what the controller does not bound itself to its bounds.
    ///
    /// # Errors
    /// [`RunsError::Invalid`].
    pub fn check(&self) -> Result<(), RunsError> {
        let short = |field: &str, text: Option<&String>| match text {
            Some(text) if text.len() > KEY_BYTES_MAX => {
                let reason = format!("{field} has more than {KEY_BYTES_MAX} bytes");
                Err(RunsError::Invalid { field: field.to_owned(), reason })
            }
            Some(_) | None => Ok(()),
        };
        match self {
            Self::Spawn(child) if child.images.len() > MEDIA_MAX => Err(RunsError::Invalid {
                field: "images".to_owned(),
                reason: format!("a task has more than {MEDIA_MAX} images"),
            }),
            Self::Spawn(child) => short("key", child.key.as_ref()),
            Self::SpawnAll { children } if children.len() > SPAWNED_MAX => {
                Err(RunsError::Invalid {
                    field: "tasks".to_owned(),
                    reason: format!("more than {SPAWNED_MAX} runs are started at once"),
                })
            }
            Self::SpawnAll { children } => {
                children.iter().try_for_each(|child| short("key", child.key.as_ref()))
            }
            Self::List(filter) => {
                short("agent_name", filter.agent_name.as_ref())?;
                short("parent_run_id", filter.parent_run_id.as_ref())?;
                short("cursor", filter.cursor.as_ref())?;
                let many = |field: &str| {
                    let reason = format!("{field} have more than {KEYS_MAX} entries");
                    Err(RunsError::Invalid { field: field.to_owned(), reason })
                };
                match (filter.labels.len() > KEYS_MAX, filter.status.len() > KEYS_MAX) {
                    (true, _) => many("labels"),
                    (false, true) => many("status"),
                    (false, false) => Ok(()),
                }
            }
            Self::CheckAwaited { ids } if ids.len() > AWAITED_MAX => Err(RunsError::Invalid {
                field: "task_ids".to_owned(),
                reason: format!("more than {AWAITED_MAX} are awaited"),
            }),
            Self::CheckAwaited { ids } => ids.iter().try_for_each(|id| short("id", Some(id))),
            Self::Provide { id, item, .. } => {
                short("id", Some(id))?;
                short("item", item.as_ref())
            }
            Self::Get { id }
            | Self::Cancel { id, .. }
            | Self::CancelTree { id, .. }
            | Self::Pause { id, .. }
            | Self::Resume { id, .. }
            | Self::Wait { id, .. }
            | Self::Transcript { id, .. }
            | Self::Output { id, .. }
            | Self::CompleteEntry { id, .. }
            | Self::Subscribe { id, .. } => short("id", Some(id)),
        }
    }
}
