//! Decisions: the events to record, given the state of a run. Nothing here touches anything.

mod adopt;
mod entry;
mod pause;

use std::time::Duration;

use crate::ending::{EndStatus, EndedBy, Ending, HostFault, ROUND_REFUSED, TASK_FAILED};
use crate::event::Event;
use crate::hold::{Hold, Wait};
use crate::ids::{HostId, RunId};
use crate::message::{Message, Role};
use crate::pause::PauseEnd;
use crate::plan::{PlannerError, TerminationReason};
use crate::run::{Crashes, Lifecycle, Run};
use crate::status::{BlockedOn, Status, StopReason};
use crate::stop::{CallAbort, StopCause};
use crate::time::{Timestamp, millis};

pub use adopt::{AdoptRefusal, adopt, adopted, check_adoptable};
pub use entry::{EntryOutcome, acknowledge, end_with_batch, said, take};
pub use pause::{PauseRefusal, inject, over, pause, resume, wake};

/// A run fails after so many hosts in a row died with it, without a plan step decided between:
/// one that kills its host must not kill them all.
pub const CRASHES_IN_A_ROW_MAX: u32 = 3;
/// And after so many in all.
pub const CRASHES_MAX: u32 = 10;
/// First and longest pause before a run of a dead host is taken up again.
const CRASH_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The event with which a host that has a free slot takes a run; `None` if it is not to be had.
///
/// The ids of session and execution default to `taskrun:RUN:NANOSECONDS`.
#[must_use]
pub fn claim(run: &Run, host: &HostId, now: Timestamp) -> Option<Event> {
    let epoch = run.state.epoch + 1;
    match (&run.state.lifecycle, &run.state.hold) {
        (_, Hold::Host { .. } | Hold::Nobody | Hold::Beat) | (Lifecycle::Ended { .. }, _) => None,
        (Lifecycle::Queued, _) => {
            let default = || format!("taskrun:{}:{}000000", run.spec.id, now.0);
            Some(Event::Started {
                host: host.clone(),
                epoch,
                child_session_id: run.spec.child_session_id.clone().unwrap_or_else(default),
                request_id: run.spec.request_id.clone().unwrap_or_else(default),
                batch: None,
            })
        }
        (
            Lifecycle::Running { .. }
            | Lifecycle::Blocked { .. }
            | Lifecycle::Canceling { .. }
            | Lifecycle::Finalizing { .. },
            Hold::Wanted { .. } | Hold::Runs { .. },
        ) => Some(Event::Resumed { host: host.clone(), epoch }),
    }
}

/// The events that a request to cancel records; empty if it changes nothing.
///
/// A run that is already on its way out keeps its way. One that nobody executes ends at once, or
/// as soon as its finalizer was heard.
#[must_use]
pub fn cancel(run: &Run, by: StopReason, reason: Option<String>) -> Vec<Event> {
    cancel_from(run, by, None, reason)
}

/// The same where a run asks.
#[must_use]
pub fn cancel_from(
    run: &Run,
    by: StopReason,
    from: Option<&RunId>,
    reason: Option<String>,
) -> Vec<Event> {
    let requested = Event::CancelRequested { by, from: from.cloned(), reason };
    match &run.state.lifecycle {
        Lifecycle::Queued | Lifecycle::Running { .. } | Lifecycle::Blocked { .. } => {
            match run.state.hold {
                Hold::Host { .. } => {
                    let mut events = pause::ends(run, PauseEnd::Canceled);
                    events.push(requested);
                    events
                }
                Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Runs { .. } => {
                    ended(run, vec![requested], Ending::canceled(by))
                }
            }
        }
        Lifecycle::Canceling { .. } | Lifecycle::Finalizing { .. } | Lifecycle::Ended { .. } => {
            Vec::new()
        }
    }
}

/// The events with the end after them, which no pause outlasts; the last one is left out where a
/// finalizer is to be heard.
fn ended(run: &Run, events: Vec<Event>, ending: Ending) -> Vec<Event> {
    let why = match ending.status {
        EndStatus::Canceled => PauseEnd::Canceled,
        EndStatus::Completed | EndStatus::Failed => PauseEnd::Ended,
    };
    let mut all = pause::ends(run, why);
    all.extend(events);
    all.push(Event::Finalizing { ending });
    let mut events = all;
    if !run.spec.finalizer {
        events.push(finished());
    }
    events
}

/// The events that another process records for a run whose host is gone, and that host itself for
/// one that it lost from sight: the run is wanted again, after a pause that grows with the number
/// of hosts that died with it. Empty if nobody holds it.
///
/// It fails if it is not to be continued, or if too many hosts died. One that was being canceled
/// ends so: its guest is gone. `heard` is the last sign of life of that host; until then, or until
/// the last event if that was later, the run is taken to have been running.
#[must_use]
pub fn lose(run: &Run, now: Timestamp, heard: Option<Timestamp>) -> Vec<Event> {
    let Hold::Host { host } = &run.state.hold else { return Vec::new() };
    let Crashes { in_a_row, total } = run.state.crashes;
    // The fold counts no death while a run only waited; what it had before stands.
    let counts = u32::from(!run.state.held_wait.lasts(now));
    let pause = CRASH_PAUSE.0.saturating_mul(1 << in_a_row.min(16)).min(CRASH_PAUSE.1);
    let lost = |pause: Duration| Event::Lost {
        host: host.clone(),
        epoch: run.state.epoch + 1,
        not_before: if pause.is_zero() { Timestamp(0) } else { now.plus(pause) },
        crashed: true,
        ran_ms: run.state.ran_ms.saturating_add(uncounted_ms(run, heard)),
    };
    match &run.state.lifecycle {
        Lifecycle::Running { .. } if !run.spec.durable => {
            ended(run, vec![lost(Duration::ZERO)], interrupted())
        }
        // The host that has just died counts.
        Lifecycle::Running { .. }
            if in_a_row + counts >= CRASHES_IN_A_ROW_MAX || total + counts >= CRASHES_MAX =>
        {
            let times = total + 1;
            let mut ending = interrupted();
            ending.error = ending.error.map(|text| format!("{text}, {times} times"));
            ended(run, vec![lost(Duration::ZERO)], ending)
        }
        Lifecycle::Running { .. } => vec![lost(pause)],
        Lifecycle::Canceling { by, .. } => {
            ended(run, vec![lost(Duration::ZERO)], Ending::canceled(*by))
        }
        Lifecycle::Finalizing { finalizer_began, .. } if run.spec.finalizer && !finalizer_began => {
            vec![lost(pause)]
        }
        Lifecycle::Finalizing { .. } => vec![lost(Duration::ZERO), finalizer_was_cut_off(run)],
        Lifecycle::Queued | Lifecycle::Blocked { .. } | Lifecycle::Ended { .. } => Vec::new(),
    }
}

fn uncounted_ms(run: &Run, heard: Option<Timestamp>) -> u64 {
    run.state.uncounted.map_or(0, |stretch| {
        let until = heard.map_or(stretch.until, |heard| heard.max(stretch.until));
        millis(until.since(stretch.from))
    })
}

/// The events with which a host gives back a run that it stopped executing; empty if it does not
/// hold it.
///
/// One that was being canceled ends so: its guest is gone. One that is paused waits from here on.
#[must_use]
pub fn release(run: &Run, ran_ms: u64, not_before: Timestamp) -> Vec<Event> {
    let Hold::Host { host } = &run.state.hold else { return Vec::new() };
    let released = Event::Lost {
        host: host.clone(),
        epoch: run.state.epoch + 1,
        not_before,
        crashed: false,
        ran_ms,
    };
    match &run.state.lifecycle {
        Lifecycle::Running { .. } if run.state.pause.is_some() => {
            vec![Event::Blocked { on: BlockedOn::Pause, wait: Wait::Word, ran_ms }]
        }
        Lifecycle::Running { .. } | Lifecycle::Finalizing { .. } => vec![released],
        Lifecycle::Canceling { by, .. } => ended(run, vec![released], Ending::canceled(*by)),
        Lifecycle::Queued | Lifecycle::Blocked { .. } | Lifecycle::Ended { .. } => Vec::new(),
    }
}

fn finalizer_was_cut_off(run: &Run) -> Event {
    let error = "the host died while the finalizer was under way";
    Event::Finished {
        metadata: crate::message::Labels::new(),
        finalizer_error: run.spec.finalizer.then(|| error.to_owned()),
    }
}

/// The events with which the host that executes a run records its end; `pending` are events
/// of the work that are still to be written.
#[must_use]
pub fn end(run: &Run, pending: &[Event], outcome: Outcome) -> Vec<Event> {
    let mut reply = run.state.reply.clone();
    pending.iter().for_each(|event| reply.count(event));
    let mut ending = ending(run, outcome);
    let mut pending = pending.to_vec();
    // Whoever is done and says nothing else has said that.
    if ending.stop_reason == StopReason::Done
        && reply.result().is_none()
        && let Some(done) = &run.state.rounds.done
    {
        let message = Message::text(Role::Assistant, done.detail.clone());
        let said = Event::AssistantMessage { message, usage: None, model: None, streamed: false };
        reply.count(&said);
        pending.push(said);
    }
    // An answer without any text is none, unless there was nothing to say.
    let is_silent = ending.stop_reason == StopReason::Deferred
        || run.spec.is_nudge()
            && run.state.turns == 0
            && ending.stop_reason == StopReason::NaturalEnd;
    if ending.status == EndStatus::Completed && reply.result().is_none() && !is_silent {
        let reason = if ending.partial { ending.stop_reason } else { StopReason::AgentError };
        ending = Ending::failed(reason, "empty output");
    }
    match run.status() {
        // A finalizer was asked for by whoever fixed the outcome.
        Status::Finalizing => Vec::new(),
        Status::Queued
        | Status::Running
        | Status::Blocked
        | Status::Canceling
        | Status::Completed
        | Status::Failed
        | Status::Canceled => ended(run, pending, ending),
    }
}

fn finished() -> Event {
    Event::Finished { metadata: crate::message::Labels::new(), finalizer_error: None }
}

fn interrupted() -> Ending {
    Ending::failed(StopReason::InterruptedByRestart, "interrupted by previous runtime restart")
}

/// The way in which the work on a run came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The planner answered.
    Answered(StopReason),
    /// It was started so that it is told of outcomes, and others know of all of them.
    NothingToTell,
    /// Another agent answered, which has the conversation from here on.
    HandedOver {
        /// That agent.
        agent_name: String,
    },
    /// A round ended, and the next one is for the run that continues it.
    Deferred,
    /// A limit was met and the planner answered when it was asked for its last word, or there is
    /// at least some text.
    Partial(TerminationReason),
    /// A limit was met, and there is nothing to show.
    Exhausted {
        /// The limit.
        reason: TerminationReason,
        /// Its number, and whose it is, in words, where that is known.
        bound: Option<String>,
    },
    /// The agent returned an error.
    Error(PlannerError),
    /// A plan step failed in a way that may pass, too often.
    RetryAborted {
        /// Attempts at it.
        attempts: u32,
        /// Turns just before this one that were skipped for the same reason.
        skipped: u32,
        /// The error of the last attempt.
        error: String,
        /// The way in which the host aborted that, if it did.
        failure: Option<CallAbort>,
    },
    /// A plan step failed as a model was not to be asked for longer than the run may wait.
    OutOfPatience {
        /// The error of the step.
        error: String,
    },
    /// The run has to give a result, and did not when it was asked so often.
    NoResult {
        /// The number of times, the task itself included.
        attempts: u32,
    },
    /// The host did not let the next round begin.
    RoundRefused(String),
    /// The planner decided what is not allowed.
    Refused(String),
    /// The component was stopped or broke its contract.
    Failed(CallAbort),
    /// The run worked in one round for longer than it may.
    RoundOver {
        /// The time of a round.
        limit_ms: u64,
    },
    /// The store refused a record of the work.
    PersistFailed(String),
    /// The host cannot execute it, or made a mistake.
    HostFailed(HostFault),
}

/// The ending of a run, from facts: what the journal says was asked, and how the work came to its
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
    match (canceled_by, outcome) {
        (Some(_), outcome @ Outcome::Error(_)) | (None, outcome) => natural_ending(run, outcome),
        (
            Some(by),
            Outcome::Answered(_)
            | Outcome::NothingToTell
            | Outcome::HandedOver { .. }
            | Outcome::Deferred
            | Outcome::Partial(_)
            | Outcome::Exhausted { .. }
            | Outcome::RetryAborted { .. }
            | Outcome::OutOfPatience { .. }
            | Outcome::NoResult { .. }
            | Outcome::RoundRefused(_)
            | Outcome::Refused(_)
            | Outcome::Failed(_)
            | Outcome::RoundOver { .. }
            | Outcome::PersistFailed(_)
            | Outcome::HostFailed(_),
        ) => Ending::canceled(by),
    }
}

fn natural_ending(run: &Run, outcome: Outcome) -> Ending {
    match outcome {
        Outcome::Answered(StopReason::Done) => {
            match run.state.rounds.done.as_ref().and_then(|done| done.failed.clone()) {
                Some(why) => Ending::failed(StopReason::AgentError, why).coded(Some(TASK_FAILED)),
                None => Ending::completed(StopReason::Done),
            }
        }
        Outcome::Answered(reason) => Ending::completed(reason),
        Outcome::NothingToTell => Ending::completed(StopReason::NaturalEnd),
        Outcome::HandedOver { agent_name } => {
            Ending { handed_to: Some(agent_name), ..Ending::completed(StopReason::TerminalTool) }
        }
        Outcome::Deferred => Ending { partial: true, ..Ending::completed(StopReason::Deferred) },
        Outcome::Partial(reason) => {
            Ending { partial: true, ..Ending::completed(stop_reason(reason)) }
        }
        Outcome::Exhausted { reason, bound } => {
            Ending::failed(stop_reason(reason), reason.exceeded(bound.as_deref()))
        }
        Outcome::Error(error) => {
            let mut text = error.message;
            for cause in error.causes {
                text.push_str(": ");
                text.push_str(&cause);
            }
            let reason = aborted(run, StopReason::AgentError);
            Ending::failed(reason, text).coded(error.code.as_deref())
        }
        Outcome::RetryAborted { attempts, skipped, error, failure } => {
            let mut after = counted(attempts, "attempt");
            if skipped > 0 {
                after = format!("{} and {after}", counted(skipped, "skipped turn"));
            }
            let text = format!("gave up after {after}: {error}");
            Ending { failure, ..Ending::failed(StopReason::RetryAborted, text) }
        }
        Outcome::OutOfPatience { error } => Ending::failed(StopReason::RateLimited, error),
        Outcome::NoResult { attempts } => {
            let attempts = counted(attempts, "attempt");
            let code = format!("no_structured_result_after_{}", attempts.replace(' ', "_"));
            let text = format!("no structured result after {attempts}");
            let by = Some(EndedBy::Orchestration);
            Ending { by, ..Ending::failed(StopReason::AgentError, text) }.coded(Some(&code))
        }
        Outcome::RoundRefused(why) => {
            let by = Some(EndedBy::Orchestration);
            Ending { by, ..Ending::failed(StopReason::RetryAborted, why) }
                .coded(Some(ROUND_REFUSED))
        }
        Outcome::Refused(detail) => Ending::failed(StopReason::PlannerError, detail),
        Outcome::Failed(failure) => failed(run, failure),
        Outcome::RoundOver { limit_ms } => late(run, "round", limit_ms),
        Outcome::PersistFailed(detail) => Ending::failed(StopReason::PersistFailed, detail),
        Outcome::HostFailed(fault) => fault.into(),
    }
}

/// The reason of a run for which a failed step is not tried again: one that goes on by itself is given
/// up by its failure policy, also by one that says nothing of such a failure.
fn aborted(run: &Run, otherwise: StopReason) -> StopReason {
    if run.spec.autonomy.is_some() { StopReason::RetryAborted } else { otherwise }
}

fn counted(number: u32, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn failed(run: &Run, failure: CallAbort) -> Ending {
    let agent = &run.spec.agent_name;
    let because_of = |reason| Ending::failed(reason, format!("agent {agent}: {failure}"));
    match &failure {
        CallAbort::Stopped { cause } => match cause {
            StopCause::Canceled => Ending::canceled(StopReason::CanceledByOwner),
            StopCause::RunTimeout => Ending::failed(
                StopReason::RunTimeout,
                format!(
                    "deadline exceeded: task timed out, after running for {} ms",
                    run.spec.timeout_ms.unwrap_or_default()
                ),
            ),
            StopCause::Shutdown => Ending::canceled(StopReason::HostShutdown),
            StopCause::Diverged => Ending::failed(
                StopReason::ContractViolation,
                format!("agent {agent}: a plan step {failure}"),
            ),
            StopCause::JournalFull | StopCause::Denied | StopCause::PushedBack => {
                because_of(StopReason::AgentTrap)
            }
            StopCause::HandOver | StopCause::LeaseLost => Ending::failed(
                StopReason::LeaseLost,
                "the host could not say for too long that it lives",
            ),
        },
        CallAbort::Deadline { limit_ms } => late(run, "plan step", *limit_ms),
        CallAbort::Contract { .. } => because_of(StopReason::ContractViolation).because(failure),
        CallAbort::Memory { .. }
        | CallAbort::Unavailable
        | CallAbort::Stack
        | CallAbort::Limit { .. }
        | CallAbort::Trap { .. }
        | CallAbort::Internal => because_of(StopReason::AgentTrap).because(failure),
    }
}

/// The end of a run of which something took longer than it may.
fn late(run: &Run, what: &str, limit_ms: u64) -> Ending {
    let agent = &run.spec.agent_name;
    Ending::failed(
        aborted(run, StopReason::TurnTimeout),
        format!("deadline exceeded: a {what} of agent {agent} may take {limit_ms} ms"),
    )
    .because(CallAbort::Deadline { limit_ms })
}

/// The stop reason that belongs to a limit.
#[must_use]
pub(crate) fn stop_reason(reason: TerminationReason) -> StopReason {
    match reason {
        TerminationReason::TimeBudget => StopReason::Wallclock,
        TerminationReason::ToolCap => StopReason::ToolCap,
        TerminationReason::FailureCap => StopReason::FailureCap,
        TerminationReason::TurnCap => StopReason::MaxTurns,
        TerminationReason::TokenCap => StopReason::MaxTokens,
        TerminationReason::CostCap => StopReason::MaxCost,
    }
}
