//! The values that events hold.

use serde::{Deserialize, Serialize};

use crate::completion::{Chunk, Completion, ModelError};
use crate::fact::{Fact, MemoryError};
use crate::hold::WaitMode;
use crate::ids::RunId;
use crate::message::Usage;
use crate::runs::{RunsAnswer, RunsError};
use crate::time::Timestamp;

/// Why the host answers a tool call itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The agent has no tool of that name.
    Unavailable,
    /// The arguments do not fit the tool's schema.
    Arguments,
    /// No calls were left.
    Cap,
    /// The policy does not allow it.
    Denied,
    /// A person did not consent to it.
    Declined,
    /// The end of the run overtook it.
    Finalized,
    /// Its host died.
    Interrupted,
}

/// A time that a plan step was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// The time.
    pub at: Timestamp,
    /// Times in a row that the step was told it.
    pub times: u32,
}

/// The beginning of a plan step that stays valid when the step is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepPrefix {
    /// Events that the step had emitted.
    pub events: u32,
    /// Times that it had been told the time.
    pub readings: u32,
}

/// The things that a parked tool call waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "for")]
pub enum CallWait {
    /// Other runs; the result is how they ended, in this order.
    Runs {
        /// The runs.
        runs: Vec<RunId>,
        /// The number of them that have to end.
        mode: WaitMode,
        /// When the wait is over in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// The run that was started for it; the result is what that gives.
    Child {
        /// The run.
        run: RunId,
    },
    /// An answer; the result is its text.
    Answer {
        /// Id of the item that was asked.
        item: String,
    },
}

/// The answer of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelAnswer {
    /// The whole at once.
    Whole(Box<Completion>),
    /// In parts, as they were handed over.
    Parts(Vec<Vec<Chunk>>),
    /// In parts that ended with an error.
    Broken(Vec<Vec<Chunk>>, ModelError),
    /// Not at all.
    Error(ModelError),
}

/// The answer of the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerAnswer {
    /// The answer to the request.
    Given(RunsAnswer),
    /// Why not.
    Error(RunsError),
}

impl From<Result<RunsAnswer, RunsError>> for ControllerAnswer {
    fn from(answer: Result<RunsAnswer, RunsError>) -> Self {
        answer.map_or_else(Self::Error, Self::Given)
    }
}

impl From<ControllerAnswer> for Result<RunsAnswer, RunsError> {
    fn from(answer: ControllerAnswer) -> Self {
        match answer {
            ControllerAnswer::Given(given) => Ok(given),
            ControllerAnswer::Error(error) => Err(error),
        }
    }
}

/// The answer of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryAnswer {
    /// The facts that were found.
    Given(Vec<Fact>),
    /// Why there is no answer.
    Error(MemoryError),
}

impl From<Result<Vec<Fact>, MemoryError>> for MemoryAnswer {
    fn from(answer: Result<Vec<Fact>, MemoryError>) -> Self {
        answer.map_or_else(Self::Error, Self::Given)
    }
}

impl From<MemoryAnswer> for Result<Vec<Fact>, MemoryError> {
    fn from(answer: MemoryAnswer) -> Self {
        match answer {
            MemoryAnswer::Given(facts) => Ok(facts),
            MemoryAnswer::Error(error) => Err(error),
        }
    }
}

/// The decision of a plan step, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// Tools are to be called.
    ToolCalls,
    /// The run has its answer.
    FinalResponse,
    /// The run has the result of the tool call that it is.
    FinalToolResult,
    /// The run waits for somebody.
    Await,
}

impl ModelAnswer {
    /// Tokens consumed for it, as far as the provider said.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match self {
            Self::Whole(completion) => completion.usage,
            Self::Parts(batches) | Self::Broken(batches, _) => batches
                .iter()
                .flatten()
                .filter_map(|chunk| match chunk {
                    Chunk::Usage(usage) => Some(*usage),
                    Chunk::Text(_)
                    | Chunk::Thinking(_)
                    | Chunk::ToolCallDelta { .. }
                    | Chunk::ToolCall(_)
                    | Chunk::Stop { .. } => None,
                })
                .fold(Usage::default(), Usage::plus),
            Self::Error(_) => Usage::default(),
        }
    }
}

/// The reason for which a template was taken that is not the prompt's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverrideReason {
    /// The session that asked for the run.
    Session,
    /// The labels of the run.
    Labels,
}
