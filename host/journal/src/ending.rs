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
/// The error of a run whose work could not be recorded, for guests and models.
const UNWRITTEN: &str = "the journal cannot be written";
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
    /// The error for guests and models, where the one for people names a place of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
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

/// A failure of the host that ends a run, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFault {
    /// For people.
    error: String,
    /// For guests and models, where the first names a place of the host.
    told: Option<String>,
}

impl HostFault {
    /// A failure that guests and models are told of in words of their own.
    #[must_use]
    pub fn told(error: String, told: String) -> Self {
        Self { told: Some(told).filter(|told| *told != error), error }
    }
}

impl From<String> for HostFault {
    fn from(error: String) -> Self {
        Self { error, told: None }
    }
}

impl From<&str> for HostFault {
    fn from(error: &str) -> Self {
        error.to_owned().into()
    }
}

impl From<HostFault> for Ending {
    fn from(fault: HostFault) -> Self {
        let HostFault { error, told } = fault;
        Self { told, ..Self::failed(StopReason::AgentError, error) }
    }
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
            told: None,
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
            told: None,
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
            told: None,
            code: None,
            by: None,
            reason: None,
            failure: None,
            partial: false,
            artifact: None,
            handed_to: None,
        }
    }

    /// The error as guests and models are told it: it names no place of the host.
    #[must_use]
    pub fn told(&self) -> Option<&str> {
        let error = self.error.as_deref()?;
        // A store names its file.
        let unwritten = (self.stop_reason == StopReason::PersistFailed).then_some(UNWRITTEN);
        Some(self.told.as_deref().or(unwritten).unwrap_or(error))
    }

    /// The ending as guests see it.
    #[must_use]
    pub fn for_guests(&self) -> Self {
        Self { error: self.told().map(str::to_owned), told: None, ..self.clone() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_told_of_an_error_without_the_places_of_the_host_that_people_are_told() {
        let (people, guests) = ("does not load: /w/t.toml:3:1", "does not load");
        let both = Ending::from(HostFault::told(people.to_owned(), guests.to_owned()));
        assert_eq!((both.error.as_deref(), both.told()), (Some(people), Some(guests)));
        let alone = Ending::from(HostFault::from(guests));
        assert_eq!(both.for_guests(), alone);
        let same = Ending::from(HostFault::told(guests.to_owned(), guests.to_owned()));
        assert_eq!(same, alone);
        assert_eq!((&same.told, same.told()), (&None, Some(guests)));
        let unwritten = Ending::failed(StopReason::PersistFailed, "the store /w/t.db is full");
        assert_eq!(unwritten.told(), Some(UNWRITTEN));
        assert_eq!(Ending::completed(StopReason::FinalResponse).told(), None);
    }
}
