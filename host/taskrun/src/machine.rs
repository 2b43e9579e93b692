//! The state machine of a run: [`apply`] folds one event, and the functions of [`decide`] say
//! what to record. All of them are pure and total.

pub mod decide;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::event::{Event, Recorded};
use crate::ids::HostId;
use crate::progress::{Progress, Reply};
use crate::run::{Ending, Execution, Lifecycle, Run, RunState};
use crate::status::{BlockedOn, Status, StopReason};
use crate::time::Timestamp;

/// An event that cannot happen to a run in its status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {event:?} at position {seq} cannot happen to a run that is {status}")]
pub struct IllegalTransition {
    /// Status of the run.
    pub status: Status,
    /// Kind of the event.
    pub event: &'static str,
    /// Where it was to stand.
    pub seq: u64,
}

/// A first event that is not [`Event::Queued`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a journal begins with the event \"queued\" at position 1, not with {event:?} at {seq}")]
pub struct IllegalBeginning {
    /// Kind of the event.
    pub event: &'static str,
    /// Where it stands.
    pub seq: u64,
}

/// The run after its first event.
///
/// # Errors
/// [`IllegalBeginning`] if that is any but [`Event::Queued`] at position 1.
pub fn begin(recorded: &Recorded) -> Result<Run, IllegalBeginning> {
    let (Event::Queued { spec }, 1) = (&recorded.event, recorded.seq) else {
        return Err(IllegalBeginning { event: recorded.event.kind(), seq: recorded.seq });
    };
    Ok(Run {
        spec: Arc::new(spec.as_ref().clone()),
        state: RunState {
            lifecycle: Lifecycle::Queued,
            head: 1,
            epoch: 0,
            updated_at: recorded.at,
            progress: Progress::default(),
            reply: Reply::default(),
            turns: 0,
            tool_calls: 0,
            metadata: crate::message::Labels::new(),
        },
    })
}

/// The state after one more event.
///
/// # Errors
/// [`IllegalTransition`] if the event is not the next one or cannot happen in this status; the
/// state is then lost, as a fold that went wrong is of no use.
pub fn apply(mut state: RunState, recorded: &Recorded) -> Result<RunState, IllegalTransition> {
    let status = state.lifecycle.status();
    let illegal = || IllegalTransition { status, event: recorded.event.kind(), seq: recorded.seq };
    if recorded.seq != state.head + 1 {
        return Err(illegal());
    }
    let (lifecycle, moved) = step(state.lifecycle, recorded).ok_or_else(illegal)?;
    state.lifecycle = lifecycle;
    state.head = recorded.seq;
    if moved {
        state.updated_at = recorded.at;
    }
    state.progress.count(recorded);
    state.reply.count(&recorded.event);
    match &recorded.event {
        Event::Started { epoch, .. } => state.epoch = *epoch,
        Event::PlanDecided { turn, .. } => state.turns = *turn,
        Event::ToolCallScheduled { .. } => state.tool_calls += 1,
        Event::Finished { metadata } => state.metadata.extend(metadata.clone()),
        Event::Queued { .. }
        | Event::AssistantChunk { .. }
        | Event::AssistantMessage { .. }
        | Event::ToolCallArgsDelta { .. }
        | Event::ThinkingBlock { .. }
        | Event::PlannerNote { .. }
        | Event::Usage { .. }
        | Event::ToolResult { .. }
        | Event::PolicyDecision { .. }
        | Event::Log { .. }
        | Event::FinalizeRequested { .. }
        | Event::Blocked { .. }
        | Event::Unblocked
        | Event::CancelRequested { .. }
        | Event::Finalizing { .. } => {}
    }
    Ok(state)
}

/// What an event means for the status of a run.
enum Meaning<'a> {
    /// The agent's work; changes no status.
    Work,
    /// A tool call begins; work that a cancellation forbids.
    Effect,
    Queued,
    Started {
        host: &'a HostId,
        session: &'a str,
        request: &'a str,
    },
    Blocked {
        on: BlockedOn,
    },
    Unblocked,
    CancelRequested {
        by: StopReason,
        reason: Option<&'a str>,
    },
    Finalizing {
        ending: &'a Ending,
    },
    Finished,
}

fn meaning(event: &Event) -> Meaning<'_> {
    match event {
        Event::AssistantChunk { .. }
        | Event::AssistantMessage { .. }
        | Event::ToolCallArgsDelta { .. }
        | Event::ThinkingBlock { .. }
        | Event::PlannerNote { .. }
        | Event::Usage { .. }
        | Event::ToolResult { .. }
        | Event::PolicyDecision { .. }
        | Event::Log { .. }
        | Event::PlanDecided { .. }
        | Event::FinalizeRequested { .. } => Meaning::Work,
        Event::ToolCallScheduled { .. } => Meaning::Effect,
        Event::Queued { .. } => Meaning::Queued,
        Event::Started { host, child_session_id, request_id, .. } => {
            Meaning::Started { host, session: child_session_id, request: request_id }
        }
        Event::Blocked { on } => Meaning::Blocked { on: *on },
        Event::Unblocked => Meaning::Unblocked,
        Event::CancelRequested { by, reason } => {
            Meaning::CancelRequested { by: *by, reason: reason.as_deref() }
        }
        Event::Finalizing { ending } => Meaning::Finalizing { ending },
        Event::Finished { .. } => Meaning::Finished,
    }
}

/// The next place in life and whether it is another one; `None` if the event cannot happen.
fn step(lifecycle: Lifecycle, recorded: &Recorded) -> Option<(Lifecycle, bool)> {
    let meaning = meaning(&recorded.event);
    let next = match lifecycle {
        Lifecycle::Queued => from_queued(&meaning, recorded.at),
        Lifecycle::Running { execution } => return from_running(execution, &meaning),
        Lifecycle::Blocked { execution, .. } => from_blocked(execution, &meaning),
        Lifecycle::Canceling { execution, by, reason } => {
            return from_canceling((execution, by, reason), &meaning);
        }
        Lifecycle::Finalizing { execution, ending } => match meaning {
            Meaning::Finished => {
                Some(Lifecycle::Ended { execution, ending, finished_at: recorded.at })
            }
            Meaning::Work
            | Meaning::Effect
            | Meaning::Queued
            | Meaning::Started { .. }
            | Meaning::Blocked { .. }
            | Meaning::Unblocked
            | Meaning::CancelRequested { .. }
            | Meaning::Finalizing { .. } => None,
        },
        Lifecycle::Ended { .. } => None,
    };
    next.map(|next| (next, true))
}

fn from_queued(meaning: &Meaning<'_>, at: Timestamp) -> Option<Lifecycle> {
    match meaning {
        Meaning::Started { host, session, request } => {
            let execution = Execution {
                host: (*host).clone(),
                child_session_id: (*session).to_owned(),
                request_id: (*request).to_owned(),
                started_at: at,
            };
            Some(Lifecycle::Running { execution })
        }
        Meaning::CancelRequested { by, reason } => {
            let reason = reason.map(str::to_owned);
            Some(Lifecycle::Canceling { execution: None, by: *by, reason })
        }
        Meaning::Work
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Blocked { .. }
        | Meaning::Unblocked
        | Meaning::Finalizing { .. }
        | Meaning::Finished => None,
    }
}

fn from_running(execution: Execution, meaning: &Meaning<'_>) -> Option<(Lifecycle, bool)> {
    match meaning {
        Meaning::Work | Meaning::Effect => Some((Lifecycle::Running { execution }, false)),
        Meaning::Blocked { on } => Some((Lifecycle::Blocked { execution, on: *on }, true)),
        Meaning::CancelRequested { by, reason } => {
            let reason = reason.map(str::to_owned);
            let execution = Some(execution);
            Some((Lifecycle::Canceling { execution, by: *by, reason }, true))
        }
        Meaning::Finalizing { ending } => {
            let ending = (*ending).clone();
            Some((Lifecycle::Finalizing { execution: Some(execution), ending }, true))
        }
        Meaning::Queued | Meaning::Started { .. } | Meaning::Unblocked | Meaning::Finished => None,
    }
}

fn from_blocked(execution: Execution, meaning: &Meaning<'_>) -> Option<Lifecycle> {
    match meaning {
        Meaning::Unblocked => Some(Lifecycle::Running { execution }),
        Meaning::CancelRequested { by, reason } => {
            let reason = reason.map(str::to_owned);
            Some(Lifecycle::Canceling { execution: Some(execution), by: *by, reason })
        }
        Meaning::Work
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Started { .. }
        | Meaning::Blocked { .. }
        | Meaning::Finalizing { .. }
        | Meaning::Finished => None,
    }
}

fn from_canceling(
    (execution, by, reason): (Option<Execution>, StopReason, Option<String>),
    meaning: &Meaning<'_>,
) -> Option<(Lifecycle, bool)> {
    match meaning {
        // A call that is on its way out still reports what it did, and begins nothing.
        Meaning::Work if execution.is_some() => {
            Some((Lifecycle::Canceling { execution, by, reason }, false))
        }
        Meaning::Finalizing { ending } => {
            Some((Lifecycle::Finalizing { execution, ending: (*ending).clone() }, true))
        }
        Meaning::Work
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Started { .. }
        | Meaning::Blocked { .. }
        | Meaning::Unblocked
        | Meaning::CancelRequested { .. }
        | Meaning::Finished => None,
    }
}

/// The run that a whole journal tells.
///
/// # Errors
/// What is wrong with the journal, in words: it is empty, has gaps, or tells what cannot be.
pub fn fold<'a>(journal: impl IntoIterator<Item = &'a Recorded>) -> Result<Run, String> {
    let mut journal = journal.into_iter();
    let first = journal.next().ok_or("the journal is empty")?;
    let mut run = begin(first).map_err(|error| error.to_string())?;
    for recorded in journal {
        run.state = apply(run.state, recorded).map_err(|error| error.to_string())?;
    }
    Ok(run)
}
