//! The setback of a run: its last plan step that failed, or was put off, as its journal tells it.
//! An agent is told less of the reason than operators are, and the run's record has its words.

use std::time::Duration;

use serde::Serialize;
use taskrun::controller::Client;
use taskrun_journal::completion::ModelError;
use taskrun_journal::event::{Event, EventRecord, HostAnswer};
use taskrun_journal::ids::RunId;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::status::{BlockedOn, StopReason};
use taskrun_journal::time::{Timestamp, rfc3339};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::escape::excerpt;
use crate::output::human;
use crate::shell;

/// Events at the end of a journal that are looked at: between a model's last answer and the end of
/// its run there are few beside the lines that the agent logs.
const EVENTS_MAX: u64 = 100;
/// Events read at once.
const PAGE: usize = 100;
/// Characters of an error that are shown.
const ERROR_CHARS_MAX: usize = 500;
/// The time that the store has for it after a wait was too short: longer than one that another
/// program has locked is waited for.
const READ_WITHIN: Duration = Duration::from_secs(15);

/// The reason for which a run is not further, or has failed, beside its agent's words.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Setback {
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<StepWait>,
    /// Of a run that ended for another reason before its step was tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_attempt: Option<FailedAttempt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_error: Option<ModelFailure>,
}

/// An attempt at a step that no other one followed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct FailedAttempt {
    failed: u32,
    error: String,
}

/// The wait of a run for the next attempt at its step.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "for")]
enum StepWait {
    /// A model's provider wants a pause.
    Model {
        model: String,
        #[serde(serialize_with = "rfc3339::serialize")]
        until: Timestamp,
        error: String,
    },
    /// The last attempt failed in a way that may pass.
    Attempt {
        failed: u32,
        #[serde(serialize_with = "rfc3339::serialize")]
        until: Timestamp,
        error: String,
    },
}

/// The last answer of a model, which was an error.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ModelFailure {
    /// Its name in the policy, which journals of earlier programs do not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    error: String,
    /// True if a test of the model may meet it as well.
    #[serde(skip)]
    is_of_provider: bool,
    /// True if its context window has no room for the question.
    #[serde(skip)]
    is_of_window: bool,
    /// True once an attempt failed after it: the next one that fails has other reasons.
    #[serde(skip)]
    is_of_earlier: bool,
}

impl Setback {
    /// The setback of a run as it was read; `None` if it has none, or its journal tells it no more.
    ///
    /// # Errors
    /// Those of reading the journal.
    pub(crate) async fn of(client: &Client, run: &Run) -> Outcome<Option<Self>> {
        if !is_set_back(run) {
            return Ok(None);
        }
        let (head, mut setback) = (run.state.head, Self::default());
        let mut after = head.saturating_sub(EVENTS_MAX);
        while after < head {
            let events = client.events(run.id().as_str(), after, PAGE).await?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            events.iter().for_each(|recorded| setback.push(recorded));
        }
        if let Some(ending) = run.ending() {
            setback.end(is_of_step(ending.stop_reason));
        }
        Ok(Some(setback).filter(|setback| *setback != Self::default()))
    }

    /// Takes the next event into account.
    fn push(&mut self, recorded: &EventRecord) {
        let event = &recorded.event;
        if let Event::HostAnswered { model, answer, .. } = event {
            if let HostAnswer::Model(_) = &**answer {
                self.model_error = answer.model_error().map(|error| ModelFailure {
                    model: model.clone(),
                    error: error.in_full(),
                    is_of_provider: is_of_provider(error),
                    is_of_window: matches!(error, ModelError::ContextWindow(_)),
                    is_of_earlier: false,
                });
            }
        } else if let Event::StepFailed { attempt, error, retry_after_ms, .. } = event {
            let until = recorded.at.plus(Duration::from_millis(*retry_after_ms));
            let (failed, error) = (*attempt, error.clone());
            let own = self.model_error.take().filter(|failure| !failure.is_of_earlier);
            self.model_error = own.map(|own| ModelFailure { is_of_earlier: true, ..own });
            self.waits = Some(StepWait::Attempt { failed, until, error });
        } else if let Event::PushedBack { model, until, reason, said, .. } = event {
            let said = said.as_deref().map(|said| format!(": {said}")).unwrap_or_default();
            let (model, error) = (model.clone(), format!("{reason}{said}"));
            // Errors before were given to the step, which went on.
            let waits = Some(StepWait::Model { model, until: *until, error });
            *self = Self { waits, ..Self::default() };
        } else if let Event::Resumed { .. } = event {
            // The model is asked again. An attempt that failed stays the last one.
            self.waits = self.waits.take().filter(|wait| matches!(wait, StepWait::Attempt { .. }));
        } else if let Event::TurnSkipped { .. } = event {
            self.waits = None;
        } else if let Event::PlanDecided { .. } | Event::RoundEnded { .. } = event {
            *self = Self::default();
        }
    }

    /// Takes the end of the run into account: it waits for nothing any more. Where its step failed,
    /// `is_of_step`, its record has the error of the last attempt.
    fn end(&mut self, is_of_step: bool) {
        match self.waits.take() {
            Some(StepWait::Model { model, error, .. }) => {
                self.model_error = Some(ModelFailure {
                    model: Some(model),
                    error,
                    is_of_provider: true,
                    is_of_window: false,
                    is_of_earlier: false,
                });
            }
            Some(StepWait::Attempt { failed, error, .. }) if !is_of_step => {
                self.last_attempt = Some(FailedAttempt { failed, error });
            }
            Some(StepWait::Attempt { .. }) | None => {}
        }
    }

    /// Its lines among the details of a run.
    pub(crate) fn details(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let waits = self.waits.as_ref().map(|wait| match wait {
            StepWait::Model { .. } => ("waits for", wait.text(now)),
            StepWait::Attempt { .. } => ("last attempt", wait.text(now)),
        });
        let last = self.last_attempt.as_ref().map(|last| ("last attempt", last.text()));
        let error = self.model_error.as_ref().map(|failure| ("model error", failure.text()));
        waits.into_iter().chain(last).chain(error).collect()
    }

    /// The command that asks the model alone, where that may show the error again.
    fn test_command(&self) -> Option<String> {
        let failure = self.model_error.as_ref().filter(|failure| failure.is_of_provider);
        let name = match &self.waits {
            Some(StepWait::Model { model, .. }) => model,
            Some(StepWait::Attempt { .. }) | None => failure?.model.as_ref()?,
        };
        Some(format!("`taskrun model test {}`", shell::argument(name, "MODEL")))
    }

    /// The advice beside what is shown of the run.
    pub(crate) fn advice(&self) -> Option<String> {
        let of_window = self.model_error.as_ref().filter(|failure| failure.is_of_window);
        of_window.map(ModelFailure::advice_on_window).or_else(|| {
            self.test_command().map(|command| format!("ask the model alone with {command}"))
        })
    }

    /// The error of the model and [`Self::advice`], in one line.
    pub(crate) fn told(&self) -> Option<String> {
        let told = self.model_error.as_ref().map(|failure| format!("model {}", failure.text()));
        let told: Vec<String> = told.into_iter().chain(self.advice()).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// Tells it in the failure of a command that waited for the run: among the causes behind the
    /// words of the agent, and where the run has ended as the hint.
    fn tell(&self, failure: &mut Failure, now: Timestamp, has_ended: bool) {
        let waits = self.waits.as_ref().map(|wait| match wait {
            StepWait::Model { .. } => format!("it waits for {}", wait.text(now)),
            StepWait::Attempt { failed, .. } => format!("attempt {failed} {}", wait.text(now)),
        });
        let last = self.last_attempt.as_ref();
        let last = last.map(|last| format!("attempt {} {}", last.failed, last.text()));
        let error = self.model_error.as_ref().map(|failure| format!("model {}", failure.text()));
        let behind = failure.causes.split_off(failure.causes.len().min(1));
        failure.causes.extend(waits.into_iter().chain(last).chain(error).chain(behind));
        if let Some(advice) = self.advice().filter(|_| has_ended) {
            failure.hint = Some(advice);
        }
    }
}

impl FailedAttempt {
    /// Its end, in words that follow on its name.
    fn text(&self) -> String {
        format!("failed: {}", excerpt(&self.error, ERROR_CHARS_MAX))
    }
}

impl StepWait {
    /// The wait in words, which follow on the name of what is waited for.
    fn text(&self, now: Timestamp) -> String {
        match self {
            Self::Model { model, until, error } => {
                let error = excerpt(error, ERROR_CHARS_MAX);
                let (model, due) = (excerpt(model, ERROR_CHARS_MAX), human::due(*until, now));
                format!("model {model} until {until} ({due}): {error}")
            }
            Self::Attempt { failed: _, until, error } => {
                let error = excerpt(error, ERROR_CHARS_MAX);
                match *until > now {
                    true => format!("failed, again in {}: {error}", human::ahead(until.since(now))),
                    false => format!("failed: {error}"),
                }
            }
        }
    }
}

impl ModelFailure {
    /// The model and its error.
    fn text(&self) -> String {
        let error = excerpt(&self.error, ERROR_CHARS_MAX);
        match &self.model {
            Some(model) => format!("{}: {error}", excerpt(model, ERROR_CHARS_MAX)),
            None => error,
        }
    }

    /// The advice where there is no room for the question.
    fn advice_on_window(&self) -> String {
        let model = excerpt(self.model.as_deref().unwrap_or("NAME"), ERROR_CHARS_MAX);
        format!(
            "state `context_tokens` of [model.{model}] in the policy, the tokens of its window: \
             conversations are kept within it, and instructions and task are to have room in it"
        )
    }
}

/// The failure of a command that waited for a run, with the setback of that. Where it cannot be
/// read, the failure is the one that there was.
pub(crate) async fn with_setback(
    mut failure: Box<Failure>,
    (client, run): (&Client, &Run),
    now: Timestamp,
) -> Box<Failure> {
    // One that needs an answer from outside goes on with that alone.
    if failure.exit != Exit::Blocked
        && let Ok(Some(setback)) = Setback::of(client, run).await
    {
        let has_ended = run.ending().is_some() && run.next_wake().is_none();
        setback.tell(&mut failure, now, has_ended);
    }
    failure
}

/// The failure of a wait that was too short, with the setback of the run. A store that hangs does
/// not make the wait much longer.
pub(crate) async fn with_setback_of(
    failure: Box<Failure>,
    (client, id): (&Client, &RunId),
    now: Timestamp,
) -> Box<Failure> {
    let without = failure.clone();
    let told = async {
        let Ok(run) = client.get(id.as_str()).await else { return failure };
        with_setback(failure, (client, &run), now).await
    };
    tokio::time::timeout(READ_WITHIN, told).await.unwrap_or(without)
}

/// True if the record of a run tells that its journal may have a setback.
fn is_set_back(run: &Run) -> bool {
    match run.ending() {
        Some(ending) => {
            let reason = ending.stop_reason;
            run.state.failed_attempts > 0 || is_of_step(reason) || is_while_it_lasts(reason)
        }
        None => {
            let on_time =
                matches!(run.state.lifecycle, Lifecycle::Blocked { on: BlockedOn::Schedule, .. });
            on_time || run.state.failed_attempts > 0
        }
    }
}

/// True for the end of a run whose step failed.
fn is_of_step(reason: StopReason) -> bool {
    matches!(reason, StopReason::AgentError | StopReason::RetryAborted | StopReason::RateLimited)
}

/// True for the end of a run that may have met it while a model did not answer.
fn is_while_it_lasts(reason: StopReason) -> bool {
    matches!(
        reason,
        StopReason::Wallclock
            | StopReason::RunTimeout
            | StopReason::TurnTimeout
            | StopReason::CanceledByOwner
            | StopReason::CanceledByParent
    )
}

/// True for an error of a model's provider, and not of the question, its run or its agent.
fn is_of_provider(error: &ModelError) -> bool {
    match error {
        ModelError::RateLimited { .. }
        | ModelError::NoQuota(_)
        | ModelError::Unavailable(_)
        | ModelError::Unauthorized(_)
        | ModelError::Overloaded { .. }
        | ModelError::Unreachable(_)
        | ModelError::InvalidRequest(_)
        | ModelError::CutOff
        | ModelError::Malformed(_)
        | ModelError::Timeout
        | ModelError::Other(_) => true,
        ModelError::Denied(_)
        | ModelError::UnknownModel(_)
        | ModelError::NotFound(_)
        | ModelError::ContextWindow(_)
        | ModelError::Refused(_)
        | ModelError::Misfit(_)
        | ModelError::TooLarge(_)
        | ModelError::Budget(_)
        | ModelError::Canceled => false,
    }
}

#[cfg(test)]
mod tests;
