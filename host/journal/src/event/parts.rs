//! The values that events hold.

use serde::{Deserialize, Serialize};

use crate::completion::{Chunk, Completion, ModelError};
use crate::fact::{Fact, MemoryError};
use crate::hold::WaitMode;
use crate::ids::RunId;
use crate::message::Usage;
use crate::operation::Operation;
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
    /// A call before it in the turn said that the run is done.
    Done,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepPrefix {
    /// Events that the step had emitted.
    pub events: u32,
    /// Times that it had been told the time.
    pub readings: u32,
    /// Requests that it had made itself to files, servers and the host's account.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub outside: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde wants")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The form of the result of a call that waited for runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunsReport {
    /// A list of `{"run_id","status","result","error"}`, one for each run.
    #[default]
    List,
    /// A list of `{"task_id","status","result","error"}`, one for each run.
    Tasks,
    /// The one run that was waited for, as `get_task_run` shows it.
    Run,
    /// The one run that was waited for, as `spawn_agent` shows it.
    Subagent,
}

impl RunsReport {
    /// True if it is the usual one, which is not written down.
    #[must_use]
    pub(crate) fn is_list(&self) -> bool {
        match self {
            Self::List => true,
            Self::Tasks | Self::Run | Self::Subagent => false,
        }
    }
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
        /// The form of the result.
        #[serde(default, skip_serializing_if = "RunsReport::is_list")]
        report: RunsReport,
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

/// An answer, or the reason for which there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T, E> {
    /// The answer.
    Given(T),
    /// Why there is none.
    Error(E),
}

impl<T, E> From<Result<T, E>> for Reply<T, E> {
    fn from(result: Result<T, E>) -> Self {
        result.map_or_else(Self::Error, Self::Given)
    }
}

impl<T, E> From<Reply<T, E>> for Result<T, E> {
    fn from(reply: Reply<T, E>) -> Self {
        match reply {
            Reply::Given(answer) => Ok(answer),
            Reply::Error(error) => Err(error),
        }
    }
}

/// The answer of memory, by the kind of question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryAnswer {
    /// To the question for the fact of a key.
    Get(Reply<Option<Fact>, MemoryError>),
    /// To the question for facts with words of a query.
    Search(Reply<Vec<Fact>, MemoryError>),
}

/// The answer to a question of a plan step, by the one who was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostAnswer {
    /// That of a model.
    Model(ModelAnswer),
    /// That of the controller.
    Controller {
        /// The operation that was asked for.
        operation: Operation,
        /// The answer.
        reply: Reply<RunsAnswer, RunsError>,
    },
    /// That of memory.
    Memory(MemoryAnswer),
}

impl HostAnswer {
    /// The question that it answers, in a word or two.
    #[must_use]
    pub fn question(&self) -> String {
        match self {
            Self::Model(_) => "model".to_owned(),
            Self::Controller { operation, .. } => format!("controller {operation}"),
            Self::Memory(MemoryAnswer::Get(_)) => "memory get".to_owned(),
            Self::Memory(MemoryAnswer::Search(_)) => "memory search".to_owned(),
        }
    }

    /// The reason for which a model gave no answer, or not the whole of it.
    #[must_use]
    pub fn model_error(&self) -> Option<&ModelError> {
        match self {
            Self::Model(ModelAnswer::Error(error) | ModelAnswer::Broken(_, error)) => Some(error),
            Self::Model(ModelAnswer::Whole(_) | ModelAnswer::Parts(_))
            | Self::Controller { .. }
            | Self::Memory(_) => None,
        }
    }

    /// The run for the end of which was waited, if it has ended.
    #[must_use]
    pub fn has_waited_for(&self) -> Option<&str> {
        match self {
            Self::Controller { reply: Reply::Given(RunsAnswer::Waited(waited)), .. } => {
                waited.run.status.is_terminal().then_some(waited.run.id.as_str())
            }
            Self::Model(_) | Self::Controller { .. } | Self::Memory(_) => None,
        }
    }

    /// True if the question was given up as the call was stopped: that is no answer to keep.
    #[must_use]
    pub fn is_canceled(&self) -> bool {
        match self {
            Self::Model(_) => self.model_error() == Some(&ModelError::Canceled),
            Self::Controller { reply, .. } => *reply == Reply::Error(RunsError::Canceled),
            Self::Memory(MemoryAnswer::Get(reply)) => *reply == Reply::Error(MemoryError::Canceled),
            Self::Memory(MemoryAnswer::Search(reply)) => {
                *reply == Reply::Error(MemoryError::Canceled)
            }
        }
    }

    /// Tokens consumed for it, as far as a provider said.
    #[must_use]
    pub(crate) fn usage(&self) -> Usage {
        match self {
            Self::Model(answer) => answer.usage(),
            Self::Controller { .. } | Self::Memory(_) => Usage::default(),
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

impl DecisionKind {
    /// The word of the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ToolCalls => "tool_calls",
            Self::FinalResponse => "final_response",
            Self::FinalToolResult => "final_tool_result",
            Self::Await => "await",
        }
    }
}

impl ModelAnswer {
    /// Tokens consumed for it, as far as the provider said.
    #[must_use]
    pub(crate) fn usage(&self) -> Usage {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::RunPage;

    fn answers() -> Vec<(&'static str, HostAnswer)> {
        let page = RunsAnswer::Page(RunPage { runs: Vec::new(), next: None });
        let asked = |operation, reply| HostAnswer::Controller { operation, reply };
        let full = MemoryError::Limit { kind: "k".to_owned(), cap: 1 };
        vec![
            ("model", HostAnswer::Model(ModelAnswer::Error(ModelError::Timeout))),
            ("controller list", asked(Operation::List, Reply::Given(page))),
            (
                "controller cancel-tree",
                asked(Operation::CancelTree, Reply::Error(RunsError::Closed)),
            ),
            ("memory get", HostAnswer::Memory(MemoryAnswer::Get(Reply::Given(None)))),
            ("memory get", HostAnswer::Memory(MemoryAnswer::Get(Reply::Error(full.clone())))),
            ("memory search", HostAnswer::Memory(MemoryAnswer::Search(Reply::Given(Vec::new())))),
            ("memory search", HostAnswer::Memory(MemoryAnswer::Search(Reply::Error(full)))),
        ]
    }

    #[test]
    fn an_answer_is_read_as_it_was_written_and_names_its_question() {
        for (question, answer) in answers() {
            let text = serde_json::to_string(&answer).expect("plain data");
            assert_eq!(serde_json::from_str::<HostAnswer>(&text).expect(&text), answer);
            assert_eq!(answer.question(), question);
        }
    }

    #[test]
    fn what_is_given_up_as_a_call_stops_is_no_answer() {
        let spent = vec![vec![Chunk::Usage(Usage { total_tokens: 1, ..Usage::default() })]];
        let canceled = [
            HostAnswer::Model(ModelAnswer::Error(ModelError::Canceled)),
            HostAnswer::Model(ModelAnswer::Broken(spent, ModelError::Canceled)),
            HostAnswer::Controller {
                operation: Operation::Get,
                reply: Reply::Error(RunsError::Canceled),
            },
            HostAnswer::Memory(MemoryAnswer::Get(Reply::Error(MemoryError::Canceled))),
            HostAnswer::Memory(MemoryAnswer::Search(Reply::Error(MemoryError::Canceled))),
        ];
        assert!(canceled.iter().all(HostAnswer::is_canceled), "{canceled:?}");
        assert!(answers().iter().all(|(_, answer)| !answer.is_canceled()));
    }
}
