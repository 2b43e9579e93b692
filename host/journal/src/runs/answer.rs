//! Answers of the controller, each a type of its own.

use serde::{Deserialize, Serialize};

use crate::hold::Await;
use crate::ids::Seq;
use crate::media::Media;
use crate::message::{Labels, Usage};
use crate::status::{BlockedOn, Status, StopReason};
use crate::time::Timestamp;

/// An answer of the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunsAnswer {
    /// A run as it stands: to spawn, get and provide.
    Run(Box<RunInfo>),
    /// To list.
    Page(RunPage),
    /// To both kinds of cancel.
    Canceled(CancelOutcome),
    /// To pause and resume.
    Changed(ChangeOutcome),
    /// To wait.
    Waited(WaitOutcome),
    /// To subscribe.
    Events(EventPage),
    /// To the question whether runs may be awaited: they may.
    Awaitable,
    /// To the question for a conversation, as JSON.
    Transcript(String),
    /// To the question for a part of an answer.
    Output(OutputPart),
}

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunInfo>,
    /// The place at which the next page begins.
    pub next: Option<String>,
}

/// The outcome of a request to cancel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CancelOutcome {
    /// The run afterwards.
    pub run: Box<RunInfo>,
    /// True if the request changed anything about it.
    pub changed: bool,
    /// Its descendants that were canceled as well, the deepest first.
    pub descendants: Vec<String>,
}

/// The outcome of a request to pause or resume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeOutcome {
    /// The run afterwards.
    pub run: Box<RunInfo>,
    /// True if the request changed anything about it.
    pub changed: bool,
}

/// The outcome of a wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitOutcome {
    /// The run as it stands.
    pub run: Box<RunInfo>,
    /// True if it had not ended when the time was up.
    pub timed_out: bool,
}

/// A part of a run's events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventPage {
    /// The events, in order.
    pub events: Vec<EventInfo>,
    /// The position after which the next page begins.
    pub next_after: Seq,
    /// True if the run has ended and nothing follows.
    pub ended: bool,
}

/// A part of a run's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPart {
    /// The status of the run.
    pub status: Status,
    /// The part, at most [`super::OUTPUT_PART_BYTES_MAX`] bytes of whole characters; empty behind the
    /// end.
    pub text: String,
    /// The byte that it begins with: that which was asked for, or the beginning of that character.
    pub from: u64,
    /// Bytes of the whole answer; 0 while there is none.
    pub bytes: u64,
}

/// A run as one above it sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Its id.
    pub id: String,
    /// Run that started it.
    pub parent_run_id: String,
    /// Agent that does it.
    pub agent_name: String,
    /// Where it stands.
    pub status: Status,
    /// The thing that it waits for, while blocked.
    pub blocked_on: Option<BlockedOn>,
    /// Why it ended.
    pub stop_reason: Option<StopReason>,
    /// True if a limit cut the work short.
    pub partial: bool,
    /// The answer, at most [`crate::reply::RESULT_CHARS_MAX`] characters.
    pub result: Option<String>,
    /// True if `result` is cut.
    pub truncated: bool,
    /// The images of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Media>,
    /// The error.
    pub error: Option<String>,
    /// The questions that it asks while blocked.
    pub awaits: Vec<Await>,
    /// Plan steps that decided.
    pub turns: u32,
    /// Tokens consumed.
    pub usage: Usage,
    /// Keys and values to find it by.
    pub labels: Labels,
    /// Position of its last event.
    pub revision: Seq,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When the status last changed.
    pub updated_at: Timestamp,
    /// When its execution began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The rest of what is shown of a run, as a JSON object.
    pub details: String,
}

/// An event as a run above sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventInfo {
    /// Its position.
    pub seq: Seq,
    /// When it was recorded.
    pub at: Timestamp,
    /// [`crate::event::Event::kind`].
    pub kind: String,
    /// The fields of the event, as a JSON object.
    pub payload: String,
}

impl RunsAnswer {
    /// About how many bytes it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Run(run)
            | Self::Waited(WaitOutcome { run, .. })
            | Self::Changed(ChangeOutcome { run, .. }) => run.bytes(),
            Self::Canceled(CancelOutcome { run, descendants, .. }) => {
                run.bytes() + descendants.iter().map(String::len).sum::<usize>()
            }
            Self::Page(page) => page.runs.iter().map(RunInfo::bytes).sum(),
            Self::Events(page) => page.events.iter().map(EventInfo::bytes).sum(),
            Self::Awaitable => 0,
            Self::Transcript(text) => text.len(),
            Self::Output(part) => part.text.len(),
        }
    }
}

impl From<RunInfo> for RunsAnswer {
    fn from(run: RunInfo) -> Self {
        Self::Run(Box::new(run))
    }
}

/// An answer of another kind than is wanted is given back.
impl TryFrom<RunsAnswer> for RunInfo {
    type Error = RunsAnswer;

    fn try_from(answer: RunsAnswer) -> Result<Self, RunsAnswer> {
        let RunsAnswer::Run(run) = answer else { return Err(answer) };
        Ok(*run)
    }
}

impl TryFrom<RunsAnswer> for RunPage {
    type Error = RunsAnswer;

    fn try_from(answer: RunsAnswer) -> Result<Self, RunsAnswer> {
        let RunsAnswer::Page(page) = answer else { return Err(answer) };
        Ok(page)
    }
}

impl TryFrom<RunsAnswer> for CancelOutcome {
    type Error = RunsAnswer;

    fn try_from(answer: RunsAnswer) -> Result<Self, RunsAnswer> {
        let RunsAnswer::Canceled(outcome) = answer else { return Err(answer) };
        Ok(outcome)
    }
}

impl TryFrom<RunsAnswer> for ChangeOutcome {
    type Error = RunsAnswer;

    fn try_from(answer: RunsAnswer) -> Result<Self, RunsAnswer> {
        let RunsAnswer::Changed(outcome) = answer else { return Err(answer) };
        Ok(outcome)
    }
}

impl TryFrom<RunsAnswer> for WaitOutcome {
    type Error = RunsAnswer;

    fn try_from(answer: RunsAnswer) -> Result<Self, RunsAnswer> {
        let RunsAnswer::Waited(outcome) = answer else { return Err(answer) };
        Ok(outcome)
    }
}

impl TryFrom<RunsAnswer> for EventPage {
    type Error = RunsAnswer;

    fn try_from(answer: RunsAnswer) -> Result<Self, RunsAnswer> {
        let RunsAnswer::Events(page) = answer else { return Err(answer) };
        Ok(page)
    }
}

impl TryFrom<RunsAnswer> for () {
    type Error = RunsAnswer;

    fn try_from(answer: RunsAnswer) -> Result<Self, RunsAnswer> {
        let RunsAnswer::Awaitable = answer else { return Err(answer) };
        Ok(())
    }
}

impl TryFrom<RunsAnswer> for String {
    type Error = RunsAnswer;

    fn try_from(answer: RunsAnswer) -> Result<Self, RunsAnswer> {
        let RunsAnswer::Transcript(text) = answer else { return Err(answer) };
        Ok(text)
    }
}

impl TryFrom<RunsAnswer> for OutputPart {
    type Error = RunsAnswer;

    fn try_from(answer: RunsAnswer) -> Result<Self, RunsAnswer> {
        let RunsAnswer::Output(part) = answer else { return Err(answer) };
        Ok(part)
    }
}

/// Bytes of what stands in every record beside its texts.
const RECORD_BYTES: usize = 256;
/// Bytes of the name of an image, with its type and its size.
const IMAGE_BYTES: usize = 128;

impl RunInfo {
    /// About how many bytes it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        let awaits: usize = self.awaits.iter().map(|one| one.id.len() + one.prompt.len()).sum();
        let texts = [&self.result, &self.error].into_iter().flatten().map(String::len);
        let images = self.images.len() * IMAGE_BYTES;
        RECORD_BYTES + labels + awaits + images + self.details.len() + texts.sum::<usize>()
    }
}

impl EventInfo {
    /// About how many bytes it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        RECORD_BYTES / 4 + self.payload.len()
    }
}
