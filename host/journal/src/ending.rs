//! Endings of runs.

use serde::{Deserialize, Serialize};

use crate::artifact::ArtifactRef;
use crate::status::StopReason;
use crate::stop::CallAbort;
use crate::text::cut;

/// An agent's word for an error of which its model declined to answer.
pub(crate) const MODEL_REFUSED: &str = "model-refused";
/// An agent's word for a task that it says it failed at.
pub(crate) const TASK_FAILED: &str = "task-failed";
/// The code of a run that ended as the host did not let its next round begin.
pub(crate) const ROUND_REFUSED: &str = "round_refused";
/// Most bytes of an agent's word for its error.
const CODE_BYTES_MAX: usize = 64;

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// One of the terminal ones.
    pub status: EndStatus,
    /// Why.
    pub stop_reason: StopReason,
    /// The error, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The agent's own word for the error, where the agent gave up with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The part of the host that gave the run up, where that was not for want of anything but the
    /// agent's own doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<EndedBy>,
    /// Of a cancellation, the reason in the words of whoever asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The way in which the component was stopped, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<CallAbort>,
    /// True if a limit cut the work short and the result is what there was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// The whole result, where it is longer than what is shown with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactRef>,
    /// The agent that has the conversation from here on, where it was handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_to: Option<String>,
}

/// A part of the host that gives up runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The one that leads runs from round to round: it asks agents for the results that they have to
    /// give, and hooks whether a round may begin.
    Orchestration,
}

/// The terminal statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndStatus {
    /// With an answer.
    Completed,
    /// Without an answer.
    Failed,
    /// Because somebody asked.
    Canceled,
}

impl Ending {
    /// An end with an answer.
    #[must_use]
    pub fn completed(stop_reason: StopReason) -> Self {
        Self {
            status: EndStatus::Completed,
            stop_reason,
            error: None,
            code: None,
            by: None,
            reason: None,
            failure: None,
            partial: false,
            artifact: None,
            handed_to: None,
        }
    }

    /// An end without an answer.
    #[must_use]
    pub fn failed(stop_reason: StopReason, error: impl Into<String>) -> Self {
        Self {
            status: EndStatus::Failed,
            stop_reason,
            error: Some(error.into()),
            code: None,
            by: None,
            reason: None,
            failure: None,
            partial: false,
            artifact: None,
            handed_to: None,
        }
    }

    /// An end because somebody asked.
    #[must_use]
    pub fn canceled(by: StopReason) -> Self {
        Self {
            status: EndStatus::Canceled,
            stop_reason: by,
            error: None,
            code: None,
            by: None,
            reason: None,
            failure: None,
            partial: false,
            artifact: None,
            handed_to: None,
        }
    }

    /// The same with the agent's word for its error, as far as it is one.
    #[must_use]
    pub(crate) fn coded(mut self, code: Option<&str>) -> Self {
        self.code = code.map(|code| cut(code, CODE_BYTES_MAX).to_owned());
        self
    }

    /// True if a model declined to answer: what it had half said is no answer then.
    #[must_use]
    pub(crate) fn is_refusal(&self) -> bool {
        self.status == EndStatus::Failed && self.code.as_deref() == Some(MODEL_REFUSED)
    }

    /// The same with the typed reason for which the component was stopped.
    #[must_use]
    pub fn because(mut self, failure: CallAbort) -> Self {
        self.failure = Some(failure);
        self
    }
}
