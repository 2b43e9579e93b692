//! The entries of heartbeats: taken by a batch run, acknowledged by it one by one, or ended with
//! it.

use super::ended;
use crate::ending::{EndStatus, Ending};
use crate::event::Event;
use crate::hold::Hold;
use crate::ids::{HostId, RunId};
use crate::message::{Message, Role};
use crate::run::{Lifecycle, Run};
use crate::status::StopReason;
use crate::time::Timestamp;

/// The events of an entry that a batch of this host takes; `None` if it does not wait
/// for one.
///
/// The ids of session and execution default to those of a run that is claimed.
#[must_use]
pub fn take(entry: &Run, batch: &RunId, host: &HostId, now: Timestamp) -> Option<Event> {
    let waits = entry.state.hold == Hold::Beat;
    match &entry.state.lifecycle {
        Lifecycle::Queued if waits => {
            let default = || format!("taskrun:{}:{}000000", entry.spec.id, now.0);
            Some(Event::Started {
                host: host.clone(),
                epoch: entry.state.epoch + 1,
                child_session_id: entry.spec.child_session_id.clone().unwrap_or_else(default),
                request_id: entry.spec.request_id.clone().unwrap_or_else(default),
                batch: Some(batch.clone()),
            })
        }
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Blocked { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => None,
    }
}

/// The outcome of an entry, as its batch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryOutcome<'a> {
    /// It is done, with this result.
    Done(&'a str),
    /// It failed, for this reason.
    Failed(&'a str),
}

/// The events of an entry that its batch worked on; empty if the batch has no such entry any more.
#[must_use]
pub fn acknowledge(entry: &Run, batch: &RunId, outcome: EntryOutcome<'_>) -> Vec<Event> {
    match &entry.state.lifecycle {
        Lifecycle::Running { execution } if execution.batch.as_ref() == Some(batch) => {
            match outcome {
                EntryOutcome::Done(result) => {
                    ended(entry, vec![said(result)], Ending::completed(StopReason::Done))
                }
                EntryOutcome::Failed(error) => {
                    ended(entry, Vec::new(), Ending::failed(StopReason::AgentError, error))
                }
            }
        }
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Blocked { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => Vec::new(),
    }
}

/// The events of an entry whose batch has ended without a word about it: the entry ends alike, with
/// the same result or the same error. `batch` is `None` where the batch was removed.
/// Empty if the entry is not open, or its batch is.
#[must_use]
pub fn end_with_batch(entry: &Run, batch: Option<&Run>) -> Vec<Event> {
    match &entry.state.lifecycle {
        Lifecycle::Running { execution } if execution.batch.is_some() => match batch {
            Some(batch) => match &batch.state.lifecycle {
                Lifecycle::Ended { ending, .. } => alike(entry, batch, ending),
                Lifecycle::Queued
                | Lifecycle::Running { .. }
                | Lifecycle::Blocked { .. }
                | Lifecycle::Canceling { .. }
                | Lifecycle::Finalizing { .. } => Vec::new(),
            },
            None => {
                let error = "the batch run that worked on it was removed";
                ended(entry, Vec::new(), Ending::failed(StopReason::AgentError, error))
            }
        },
        // It was canceled by itself, in the moment in which a host took it up to end it.
        Lifecycle::Canceling { by, .. } => ended(entry, Vec::new(), Ending::canceled(*by)),
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Blocked { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => Vec::new(),
    }
}

fn alike(entry: &Run, batch: &Run, ending: &Ending) -> Vec<Event> {
    match ending.status {
        EndStatus::Completed | EndStatus::Failed => {
            let result = batch.returned_text().or_else(|| batch.state.reply.result());
            let said = result.iter().map(|result| said(result)).collect();
            ended(entry, said, ending.clone())
        }
        EndStatus::Canceled => {
            // Nobody asked for the end of the entry itself.
            let asked = ending.stop_reason == StopReason::CanceledByOwner;
            let by = if asked { StopReason::CanceledByParent } else { ending.stop_reason };
            let requested = Event::CancelRequested { by, from: None, reason: None };
            ended(entry, vec![requested], Ending::canceled(by))
        }
    }
}

/// The result of an entry: a message of its agent, which the batch is a run of.
#[must_use]
pub fn said(result: &str) -> Event {
    let message = Message::text(Role::Assistant, result);
    Event::AssistantMessage { message, usage: None, model: None, streamed: false }
}
