//! Questions that only people or systems outside can answer, and the answers that fit them.

mod bytes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::Bounds;
use crate::status::BlockedOn;
use crate::time::Timestamp;
use crate::tool::ToolOutcome;
/// Begins the id of the question whether a tool may be called.
pub const CONFIRM: &str = "confirm:";

/// Most bytes of one answer, as it becomes part of the conversation.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Something that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The question.
    pub what: AwaitItem,
    /// Tool call that the answer completes, where a tool asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// When nobody is waited for any more; `None` waits for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The answer that is taken then; `None` for [`Answer::TimedOut`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Answer>,
}

/// An answer from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Free text, for a clarification.
    Text(String),
    /// For each question of a form the ids of its options, or the text.
    Choices(BTreeMap<String, Vec<String>>),
    /// The results of tools outside, by the id of the call.
    Results(BTreeMap<String, ExternalResult>),
    /// True if something may be done.
    Confirmed(bool),
    /// The same for this call of a tool and all further ones of the same function in the run.
    ConfirmedForRun(bool),
    /// Nobody answered in time.
    TimedOut,
    /// The host refused, as nobody is there who answers; the reason.
    Refused(String),
}

/// The result of a tool call that was executed outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalResult {
    /// The outcome.
    #[serde(flatten)]
    pub outcome: ToolOutcome,
    /// The part of a larger result that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

impl From<ToolOutcome> for ExternalResult {
    fn from(outcome: ToolOutcome) -> Self {
        Self { outcome, bounds: None }
    }
}

/// An answer that does not fit what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AnswerMismatch(String);

/// Something that is asked, and what becomes of it if nobody answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The question.
    pub what: AwaitItem,
    /// The time for which an answer is waited for; `None` for ever.
    pub timeout: Option<Duration>,
    /// The answer that is taken when that time is over.
    pub default: Option<Answer>,
}

/// Something only somebody outside can give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum AwaitItem {
    /// A free-text question.
    Clarification {
        /// Unique among the run's awaits.
        id: String,
        /// The question.
        question: String,
        /// Fields that the answer supplies.
        missing_fields: Vec<String>,
        /// Only tool to be used with the answer.
        restrict_to_tool: Option<String>,
        /// Arguments that would have been accepted, as JSON.
        example_input: Option<String>,
        /// The question as it is put to a model.
        clarifying_prompt: Option<String>,
    },
    /// A form; its answers are the result of one tool call.
    Questions {
        /// Unique among the run's awaits.
        id: String,
        /// Tool that asks.
        tool_name: String,
        /// Call that the answers complete.
        tool_call_id: String,
        /// The call's arguments, as JSON.
        payload: String,
        /// Heading of the form.
        title: Option<String>,
        /// The fields.
        questions: Vec<Question>,
    },
    /// Tool calls that somebody outside executes.
    ExternalTools {
        /// Unique among the run's awaits.
        id: String,
        /// The calls.
        items: Vec<ExternalTool>,
    },
    /// Consent to a tool call. Only the host asks this.
    Confirmation {
        /// Unique among the run's awaits.
        id: String,
        /// The question.
        question: String,
        /// Tool to be called.
        tool_name: String,
        /// Its call.
        tool_call_id: String,
        /// The call's arguments, as JSON.
        payload: String,
        /// Digest of the code that is called, where the answer may be for further runs too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
        /// Path of the policy file that the run is of, where the answer may be for others too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<String>,
    },
}

/// One field of a form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Unique in its form.
    pub id: String,
    /// The question.
    pub prompt: String,
    /// Id and label of each choice; empty for free text.
    pub options: Vec<(String, String)>,
    /// True if several choices may be taken.
    pub allow_multiple: bool,
}

/// A tool call for somebody outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalTool {
    /// Name of the tool.
    pub name: String,
    /// Pairs it with its answer.
    pub tool_call_id: String,
    /// The arguments, as JSON.
    pub payload: String,
}

/// Why a run does not take an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum AnswerRefusal {
    /// Nothing of that name was asked.
    #[error("nothing of that name is asked")]
    UnknownItem,
    /// It was answered.
    #[error("it is answered already")]
    Answered,
    /// The run has ended.
    #[error("the run has ended")]
    Ended,
}

impl Item {
    /// Something that is asked at this time.
    #[must_use]
    pub fn asked(ask: Ask, now: Timestamp) -> Self {
        let Ask { what, timeout, default } = ask;
        Self { what, tool_call_id: None, until: timeout.map(|timeout| now.plus(timeout)), default }
    }

    /// The answer when its time is over and nobody gave one.
    #[must_use]
    pub fn answer_by_default(&self) -> Answer {
        self.default.clone().unwrap_or(Answer::TimedOut)
    }

    /// Its id, unique in its run.
    #[must_use]
    pub fn id(&self) -> &str {
        self.what.id()
    }

    /// Holds an answer to what was asked.
    ///
    /// # Errors
    /// The misfit, for the person that gave the answer.
    pub fn check(&self, answer: &Answer) -> Result<(), AnswerMismatch> {
        let no = |text: String| Err(AnswerMismatch(text));
        if answer.bytes() > ANSWER_BYTES_MAX {
            return no(format!("the answer has more than {ANSWER_BYTES_MAX} bytes"));
        }
        match (&self.what, answer) {
            (AwaitItem::Clarification { .. }, Answer::Text(text)) => match text.trim() {
                "" => no("the answer is empty".to_owned()),
                _ => Ok(()),
            },
            (AwaitItem::Questions { questions, .. }, Answer::Choices(given)) => {
                let known: BTreeSet<&str> = questions.iter().map(|q| q.id.as_str()).collect();
                if let Some(unknown) = given.keys().find(|id| !known.contains(id.as_str())) {
                    return no(format!("there is no question {unknown:?}"));
                }
                questions.iter().try_for_each(|question| {
                    let chosen = given.get(&question.id).map_or(&[][..], Vec::as_slice);
                    question.check(chosen).map_err(AnswerMismatch)
                })
            }
            (AwaitItem::ExternalTools { items, .. }, Answer::Results(results)) => {
                let wanted: BTreeSet<&str> =
                    items.iter().map(|item| item.tool_call_id.as_str()).collect();
                let given: BTreeSet<&str> = results.keys().map(String::as_str).collect();
                if wanted == given {
                    return results
                        .iter()
                        .try_for_each(|(id, result)| result.check(id))
                        .map_err(AnswerMismatch);
                }
                let list = |set: BTreeSet<&str>| set.into_iter().collect::<Vec<_>>().join(", ");
                no(format!("results are needed for {}, given were {}", list(wanted), list(given)))
            }
            (AwaitItem::Confirmation { .. }, Answer::Confirmed(_)) => Ok(()),
            (AwaitItem::Confirmation { id, .. }, Answer::ConfirmedForRun(_)) => {
                match id.starts_with(CONFIRM) {
                    true => Ok(()),
                    false => no("this can be confirmed once, and not for the run".to_owned()),
                }
            }
            (what, Answer::TimedOut | Answer::Refused(_)) => {
                no(format!("{} can only be answered", what.word()))
            }
            (
                what @ (AwaitItem::Clarification { .. }
                | AwaitItem::Questions { .. }
                | AwaitItem::ExternalTools { .. }
                | AwaitItem::Confirmation { .. }),
                Answer::Text(_)
                | Answer::Choices(_)
                | Answer::Results(_)
                | Answer::Confirmed(_)
                | Answer::ConfirmedForRun(_),
            ) => no(format!("{} needs another kind of answer", what.word())),
        }
    }
}

impl ExternalResult {
    /// A result from outside is held to what one from inside is.
    fn check(&self, id: &str) -> Result<(), String> {
        match (&self.outcome, &self.bounds) {
            (ToolOutcome::Value(value), bounds) => {
                crate::json::check(value)
                    .map_err(|problem| format!("the result of {id} is not JSON: {problem}"))?;
                match bounds.as_ref().is_none_or(Bounds::says_how_to_go_on) {
                    true => Ok(()),
                    false => Err(format!(
                        "the result of {id} is truncated and does not say how to go on"
                    )),
                }
            }
            (ToolOutcome::Failure(_), None) => Ok(()),
            (ToolOutcome::Failure(_), Some(_)) => {
                Err(format!("the result of {id} is a failure, of which there is no part"))
            }
        }
    }
}

impl Question {
    fn check(&self, chosen: &[String]) -> Result<(), String> {
        let id = &self.id;
        match chosen {
            [] => return Err(format!("question {id:?} is not answered")),
            [_] => {}
            [..] if self.allow_multiple => {}
            [..] => return Err(format!("question {id:?} takes one answer")),
        }
        let known = |one: &String| self.options.iter().any(|(option, _)| option == one);
        match chosen.iter().find(|one| !self.options.is_empty() && !known(one)) {
            Some(unknown) => {
                let options: Vec<_> = self.options.iter().map(|(id, _)| id.as_str()).collect();
                let options = options.join(", ");
                Err(format!("question {id:?} has no option {unknown:?}; it has: {options}"))
            }
            None => Ok(()),
        }
    }
}

impl AwaitItem {
    /// Its id, unique in its run.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Clarification { id, .. }
            | Self::Questions { id, .. }
            | Self::ExternalTools { id, .. }
            | Self::Confirmation { id, .. } => id,
        }
    }

    /// Its kind, for people.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Clarification { .. } => "a clarification",
            Self::Questions { .. } => "a form",
            Self::ExternalTools { .. } => "an external tool call",
            Self::Confirmation { .. } => "a confirmation",
        }
    }

    /// The question, in a line.
    #[must_use]
    pub fn prompt(&self) -> String {
        match self {
            Self::Clarification { question, .. } | Self::Confirmation { question, .. } => {
                question.clone()
            }
            Self::Questions { title, questions, .. } => match title {
                Some(title) => title.clone(),
                None => {
                    let prompts: Vec<_> = questions.iter().map(|q| q.prompt.as_str()).collect();
                    prompts.join("; ")
                }
            },
            Self::ExternalTools { items, .. } => {
                let names: Vec<_> = items.iter().map(|item| item.name.as_str()).collect();
                names.join(", ")
            }
        }
    }

    /// The thing that a run is blocked on while this is open.
    #[must_use]
    pub fn blocks(&self) -> BlockedOn {
        match self {
            Self::Clarification { .. } | Self::Questions { .. } => BlockedOn::Input,
            Self::ExternalTools { .. } => BlockedOn::ExternalTools,
            Self::Confirmation { .. } => BlockedOn::Confirmation,
        }
    }
}

impl From<AwaitItem> for Ask {
    /// Waited for until somebody answers.
    fn from(what: AwaitItem) -> Self {
        Self { what, timeout: None, default: None }
    }
}

#[cfg(test)]
mod tests;
