//! What to record, given how a run stands. Nothing here touches anything.

use crate::event::Event;
use crate::ids::HostId;
use crate::ports::call::{CallFailure, StopCause};
use crate::ports::planner::{PlannerError, TerminationReason};
use crate::run::{EndStatus, Ending, Lifecycle, Run};
use crate::status::StopReason;
use crate::time::Timestamp;

/// What a host that has a free slot records to take a run; `None` if it is not to be had.
///
/// The ids of session and execution default to `taskrun:RUN:NANOSECONDS`.
#[must_use]
pub fn claim(run: &Run, host: &HostId, now: Timestamp) -> Option<Event> {
    match &run.state.lifecycle {
        Lifecycle::Queued => {
            let default = || format!("taskrun:{}:{}000000", run.spec.id, now.0);
            Some(Event::Started {
                host: host.clone(),
                epoch: run.state.epoch + 1,
                child_session_id: run.spec.child_session_id.clone().unwrap_or_else(default),
                request_id: run.spec.request_id.clone().unwrap_or_else(default),
            })
        }
        Lifecycle::Running { .. }
        | Lifecycle::Blocked { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => None,
    }
}

/// What a request to cancel records; empty if it changes nothing.
///
/// A run that is already on its way out keeps its way. One that never began ends at once,
/// without being executed.
#[must_use]
pub fn cancel(run: &Run, by: StopReason, reason: Option<String>) -> Vec<Event> {
    match &run.state.lifecycle {
        Lifecycle::Queued => vec![
            Event::CancelRequested { by, reason },
            Event::Finalizing { ending: Ending::canceled(by) },
            finished(),
        ],
        Lifecycle::Running { .. } | Lifecycle::Blocked { .. } => {
            vec![Event::CancelRequested { by, reason }]
        }
        Lifecycle::Canceling { .. } | Lifecycle::Finalizing { .. } | Lifecycle::Ended { .. } => {
            Vec::new()
        }
    }
}

/// What another process records for a run whose host died: the run fails, as nothing says how
/// far its guest came.
#[must_use]
pub fn interrupt(run: &Run) -> Vec<Event> {
    match &run.state.lifecycle {
        Lifecycle::Running { .. } => vec![Event::Finalizing { ending: interrupted() }, finished()],
        Lifecycle::Canceling { by, .. } => {
            vec![Event::Finalizing { ending: Ending::canceled(*by) }, finished()]
        }
        Lifecycle::Finalizing { .. } => vec![finished()],
        Lifecycle::Queued | Lifecycle::Blocked { .. } | Lifecycle::Ended { .. } => Vec::new(),
    }
}

/// What the host that executes a run records when the work came to its end; `pending` are events
/// of the work that are still to be written.
#[must_use]
pub fn end(run: &Run, pending: &[Event], outcome: Outcome) -> Vec<Event> {
    let mut reply = run.state.reply.clone();
    pending.iter().for_each(|event| reply.count(event));
    let mut ending = ending(run, outcome);
    // An answer without any text is none.
    if ending.status == EndStatus::Completed && reply.result().is_none() {
        let reason = if ending.partial { ending.stop_reason } else { StopReason::AgentError };
        ending = Ending::failed(reason, "empty output");
    }
    let mut events = pending.to_vec();
    events.extend([Event::Finalizing { ending }, finished()]);
    events
}

fn finished() -> Event {
    Event::Finished { metadata: crate::message::Labels::new() }
}

fn interrupted() -> Ending {
    Ending::failed(StopReason::InterruptedByRestart, "interrupted by previous runtime restart")
}

/// How the work on a run came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The planner answered.
    Answered(StopReason),
    /// A limit was met and the planner answered when it was asked for its last word, or there is
    /// at least some text.
    Partial(TerminationReason),
    /// A limit was met, and there is nothing to show.
    Exhausted(TerminationReason),
    /// The agent returned an error.
    Error(PlannerError),
    /// The planner decided what is not allowed.
    Refused(String),
    /// The component was stopped or broke its contract.
    Failed(CallFailure),
    /// The store refused a record of the work.
    PersistFailed(String),
    /// The host cannot execute it, or made a mistake.
    HostFailed(String),
}

/// How a run ends, from facts: what the journal says was asked, and how the work came to its
/// end. Never from texts.
///
/// A cancellation that is in the journal wins over a guest that was stopped, and over one that
/// went on to answer: what was not recorded before the request does not count. An error that the
/// agent itself returned stays an error.
#[must_use]
pub fn ending(run: &Run, outcome: Outcome) -> Ending {
    let canceled_by = match &run.state.lifecycle {
        Lifecycle::Canceling { by, .. } => Some(*by),
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Blocked { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => None,
    };
    let natural = natural_ending(run, outcome);
    match canceled_by {
        Some(by) if natural.stop_reason != StopReason::AgentError => Ending::canceled(by),
        Some(_) | None => natural,
    }
}

fn natural_ending(run: &Run, outcome: Outcome) -> Ending {
    match outcome {
        Outcome::Answered(reason) => Ending::completed(reason),
        Outcome::Partial(reason) => {
            Ending { partial: true, ..Ending::completed(stop_reason(reason)) }
        }
        Outcome::Exhausted(reason) => Ending::failed(stop_reason(reason), exhausted_text(reason)),
        Outcome::Error(error) => {
            let mut text = error.message;
            for cause in error.causes {
                text.push_str(": ");
                text.push_str(&cause);
            }
            Ending::failed(StopReason::AgentError, text)
        }
        Outcome::Refused(detail) => Ending::failed(StopReason::PlannerError, detail),
        Outcome::Failed(failure) => failed(run, failure),
        Outcome::PersistFailed(detail) => Ending::failed(StopReason::PersistFailed, detail),
        Outcome::HostFailed(detail) => Ending::failed(StopReason::AgentError, detail),
    }
}

fn failed(run: &Run, failure: CallFailure) -> Ending {
    let agent = &run.spec.agent_name;
    match &failure {
        CallFailure::Stopped { cause } => match cause {
            StopCause::Canceled => Ending::canceled(StopReason::CanceledByOwner),
            StopCause::RunTimeout => Ending::failed(
                StopReason::RunTimeout,
                format!(
                    "deadline exceeded: the run may take {} ms",
                    run.spec.timeout_ms.unwrap_or_default()
                ),
            ),
            StopCause::Shutdown => Ending::canceled(StopReason::HostShutdown),
        },
        CallFailure::Deadline { limit_ms } => Ending::failed(
            StopReason::TurnTimeout,
            format!("deadline exceeded: a plan step of agent {agent} may take {limit_ms} ms"),
        )
        .because(failure),
        CallFailure::Contract { .. } => {
            Ending::failed(StopReason::ContractViolation, format!("agent {agent}: {failure}"))
                .because(failure)
        }
        CallFailure::Memory { .. }
        | CallFailure::Stack
        | CallFailure::Limit { .. }
        | CallFailure::Trap { .. }
        | CallFailure::Internal => {
            Ending::failed(StopReason::AgentTrap, format!("agent {agent}: {failure}"))
                .because(failure)
        }
    }
}

/// The stop reason that belongs to a limit.
#[must_use]
pub fn stop_reason(reason: TerminationReason) -> StopReason {
    match reason {
        TerminationReason::TimeBudget => StopReason::Wallclock,
        TerminationReason::ToolCap => StopReason::ToolCap,
        TerminationReason::FailureCap => StopReason::FailureCap,
        TerminationReason::TurnCap => StopReason::MaxTurns,
        TerminationReason::TokenCap => StopReason::MaxTokens,
        TerminationReason::CostCap => StopReason::MaxCost,
    }
}

fn exhausted_text(reason: TerminationReason) -> &'static str {
    match reason {
        TerminationReason::TimeBudget => "time budget exceeded",
        TerminationReason::ToolCap => "tool call cap exceeded",
        TerminationReason::FailureCap => "consecutive failed tool call cap exceeded",
        TerminationReason::TurnCap => "turn cap exceeded",
        TerminationReason::TokenCap => "token budget exceeded",
        TerminationReason::CostCap => "cost budget exceeded",
    }
}
