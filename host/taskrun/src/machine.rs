//! The state machine of a run: [`apply`] folds one event, and the functions of [`decide`] say
//! what to record. All of them are pure and total.

pub mod decide;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use crate::event::{Event, Recorded};
use crate::ids::HostId;
use crate::message::Usage;
use crate::progress::{Progress, Reply, first_chars};
use crate::run::{
    Await, Ending, Execution, Hold, Lane, Lifecycle, Run, RunState, SUMMARY_CHARS_MAX, Wait,
};
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
            hold: Hold::Wanted { lane: Lane::Fresh, not_before: Timestamp(0) },
            head: 1,
            epoch: 0,
            ran_ms: 0,
            crashes: (0, 0),
            failed_attempts: 0,
            awaits: Vec::new(),
            step_usage: Usage::default(),
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
    if recorded.seq != state.head + 1 || !count(&mut state, recorded) {
        return Err(illegal());
    }
    let open = state.awaits.iter().any(|one| !one.answered);
    let place = (state.lifecycle, state.hold);
    let (lifecycle, hold) = step(place, open, recorded).ok_or_else(illegal)?;
    let moved = lifecycle.status() != status;
    state.lifecycle = lifecycle;
    state.hold = hold;
    state.head = recorded.seq;
    if let Event::Started { epoch, .. } | Event::Resumed { epoch, .. } | Event::Lost { epoch, .. } =
        &recorded.event
    {
        state.epoch = *epoch;
    }
    if moved {
        state.updated_at = recorded.at;
    }
    Ok(state)
}

/// Counts what an event says beside the status. False if it speaks of what is not there.
fn count(state: &mut RunState, recorded: &Recorded) -> bool {
    state.progress.count(recorded);
    state.reply.count(&recorded.event);
    count_step_usage(state, &recorded.event);
    match &recorded.event {
        Event::Started { epoch, .. } | Event::Resumed { epoch, .. } | Event::Lost { epoch, .. } => {
            if let Event::Lost { ran_ms, .. } = recorded.event {
                state.ran_ms = state.ran_ms.max(ran_ms);
            }
            if let Event::Lost { crashed: true, .. } = recorded.event {
                state.crashes.0 += 1;
                state.crashes.1 += 1;
            }
            return *epoch == state.epoch + 1;
        }
        Event::PlanDecided { turn, ran_ms, .. } => {
            state.turns = *turn;
            state.ran_ms = state.ran_ms.max(*ran_ms);
            state.crashes.0 = 0;
            state.failed_attempts = 0;
        }
        Event::ToolCallScheduled { .. } => state.tool_calls += 1,
        Event::StepFailed { attempt, .. } => state.failed_attempts = *attempt,
        Event::Blocked { ran_ms, .. } => {
            state.ran_ms = state.ran_ms.max(*ran_ms);
            state.awaits.retain(|one| !one.answered);
        }
        Event::Asked { item } => state.awaits.push(Await {
            id: item.id().to_owned(),
            on: item.what.blocks(),
            prompt: first_chars(&item.what.prompt(), SUMMARY_CHARS_MAX).to_owned(),
            answered: false,
        }),
        Event::Answered { item, .. } => {
            let open = |one: &&mut Await| one.id == *item && !one.answered;
            match state.awaits.iter_mut().find(open) {
                Some(one) => one.answered = true,
                None => return false,
            }
        }
        Event::Finished { metadata, .. } => state.metadata.extend(metadata.clone()),
        Event::Queued { .. }
        | Event::AssistantChunk { .. }
        | Event::AssistantMessage { .. }
        | Event::ToolCallArgsDelta { .. }
        | Event::ThinkingBlock { .. }
        | Event::PlannerNote { .. }
        | Event::Usage { .. }
        | Event::ToolResult { .. }
        | Event::ToolCallRepeated { .. }
        | Event::ToolCallParked { .. }
        | Event::ModelAnswered { .. }
        | Event::ClockRead { .. }
        | Event::StepRestarted { .. }
        | Event::ReplayDiverged { .. }
        | Event::PolicyDecision { .. }
        | Event::Log { .. }
        | Event::FinalizeRequested { .. }
        | Event::Unblocked
        | Event::CancelRequested { .. }
        | Event::Finalizing { .. }
        | Event::FinalizerStarted => {}
    }
    true
}

/// Keeps account of what was consumed by a plan step that has not said so itself: a step whose
/// host died says it when it runs again, or never.
fn count_step_usage(state: &mut RunState, event: &Event) {
    match event {
        Event::ModelAnswered { answer, .. } => {
            state.step_usage = state.step_usage.plus(answer.usage());
        }
        Event::AssistantMessage { usage: Some(_), .. }
        | Event::Usage { .. }
        | Event::PlanDecided { .. }
        | Event::StepFailed { .. } => state.step_usage = Usage::default(),
        Event::Finalizing { .. } => {
            let usage = std::mem::take(&mut state.step_usage);
            state.progress.add(usage);
        }
        Event::AssistantMessage { usage: None, .. }
        | Event::Queued { .. }
        | Event::Started { .. }
        | Event::Resumed { .. }
        | Event::Lost { .. }
        | Event::AssistantChunk { .. }
        | Event::ToolCallArgsDelta { .. }
        | Event::ThinkingBlock { .. }
        | Event::PlannerNote { .. }
        | Event::ToolCallScheduled { .. }
        | Event::ToolResult { .. }
        | Event::ToolCallRepeated { .. }
        | Event::ToolCallParked { .. }
        | Event::ClockRead { .. }
        | Event::StepRestarted { .. }
        | Event::ReplayDiverged { .. }
        | Event::Asked { .. }
        | Event::Answered { .. }
        | Event::PolicyDecision { .. }
        | Event::Log { .. }
        | Event::FinalizeRequested { .. }
        | Event::Blocked { .. }
        | Event::Unblocked
        | Event::CancelRequested { .. }
        | Event::FinalizerStarted
        | Event::Finished { .. } => {}
    }
}

/// What an event means for the status of a run.
enum Meaning<'a> {
    /// The agent's work; changes no status.
    Work,
    /// A tool call begins, or something is asked: work that a cancellation forbids.
    Effect,
    Queued,
    Started {
        host: &'a HostId,
        session: &'a str,
        request: &'a str,
    },
    Resumed {
        host: &'a HostId,
    },
    Lost {
        not_before: Timestamp,
    },
    Blocked {
        on: BlockedOn,
        wait: &'a Wait,
    },
    Answered,
    Unblocked,
    CancelRequested {
        by: StopReason,
        reason: Option<&'a str>,
    },
    Finalizing {
        ending: &'a Ending,
    },
    FinalizerStarted,
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
        | Event::ToolCallParked { .. }
        | Event::ModelAnswered { .. }
        | Event::ClockRead { .. }
        | Event::StepRestarted { .. }
        | Event::ReplayDiverged { .. }
        | Event::StepFailed { .. }
        | Event::PolicyDecision { .. }
        | Event::Log { .. }
        | Event::PlanDecided { .. }
        | Event::FinalizeRequested { .. } => Meaning::Work,
        Event::ToolCallScheduled { .. } | Event::ToolCallRepeated { .. } | Event::Asked { .. } => {
            Meaning::Effect
        }
        Event::Queued { .. } => Meaning::Queued,
        Event::Started { host, child_session_id, request_id, .. } => {
            Meaning::Started { host, session: child_session_id, request: request_id }
        }
        Event::Resumed { host, .. } => Meaning::Resumed { host },
        Event::Lost { not_before, .. } => Meaning::Lost { not_before: *not_before },
        Event::Blocked { on, wait, .. } => Meaning::Blocked { on: *on, wait },
        Event::Answered { .. } => Meaning::Answered,
        Event::Unblocked => Meaning::Unblocked,
        Event::CancelRequested { by, reason } => {
            Meaning::CancelRequested { by: *by, reason: reason.as_deref() }
        }
        Event::Finalizing { ending } => Meaning::Finalizing { ending },
        Event::FinalizerStarted => Meaning::FinalizerStarted,
        Event::Finished { .. } => Meaning::Finished,
    }
}

/// Where a run stands and who has it.
type Place = (Lifecycle, Hold);

/// The next place; `None` if the event cannot happen. `open` says whether something is asked and
/// not answered.
fn step((lifecycle, hold): Place, open: bool, recorded: &Recorded) -> Option<Place> {
    let (meaning, at) = (meaning(&recorded.event), recorded.at);
    match lifecycle {
        Lifecycle::Queued => from_queued(&meaning, at),
        Lifecycle::Running { execution } => from_running(execution, hold, &meaning),
        Lifecycle::Blocked { execution, on } => from_blocked((execution, on), hold, open, &meaning),
        Lifecycle::Canceling { execution, by, reason } => {
            from_canceling((execution, by, reason), hold, &meaning)
        }
        Lifecycle::Finalizing { execution, ending, finalizer_began } => {
            from_finalizing((execution, ending, finalizer_began), hold, &meaning, at)
        }
        Lifecycle::Ended { .. } => None,
    }
}

fn held_by(host: &HostId) -> Hold {
    Hold::Host { host: host.clone() }
}

fn wanted_again(not_before: Timestamp) -> Hold {
    Hold::Wanted { lane: Lane::Resume, not_before }
}

/// The same execution in the hands of another host.
fn moved_to(execution: Execution, host: &HostId) -> Execution {
    Execution { host: host.clone(), ..execution }
}

fn from_queued(meaning: &Meaning<'_>, at: Timestamp) -> Option<Place> {
    match meaning {
        Meaning::Started { host, session, request } => {
            let execution = Execution {
                host: (*host).clone(),
                child_session_id: (*session).to_owned(),
                request_id: (*request).to_owned(),
                started_at: at,
            };
            Some((Lifecycle::Running { execution }, held_by(host)))
        }
        Meaning::CancelRequested { by, reason } => {
            let reason = reason.map(str::to_owned);
            Some((Lifecycle::Canceling { execution: None, by: *by, reason }, Hold::Nobody))
        }
        Meaning::Work
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Resumed { .. }
        | Meaning::Lost { .. }
        | Meaning::Blocked { .. }
        | Meaning::Answered
        | Meaning::Unblocked
        | Meaning::Finalizing { .. }
        | Meaning::FinalizerStarted
        | Meaning::Finished => None,
    }
}

fn from_running(execution: Execution, hold: Hold, meaning: &Meaning<'_>) -> Option<Place> {
    let held = hold.host().is_some();
    match meaning {
        Meaning::Work | Meaning::Effect if held => Some((Lifecycle::Running { execution }, hold)),
        Meaning::Answered => Some((Lifecycle::Running { execution }, hold)),
        Meaning::Blocked { on, wait } if held => {
            let hold = match wait {
                Wait::Answers { at: None } | Wait::Word => Hold::Nobody,
                Wait::Answers { at: Some(at) } => wanted_again(*at),
                Wait::Runs { runs, mode, at } => {
                    Hold::Runs { runs: runs.clone(), mode: *mode, until: *at }
                }
            };
            Some((Lifecycle::Blocked { execution, on: *on }, hold))
        }
        Meaning::Lost { not_before } if held => {
            Some((Lifecycle::Running { execution }, wanted_again(*not_before)))
        }
        Meaning::Resumed { host } if !held => {
            let execution = moved_to(execution, host);
            Some((Lifecycle::Running { execution }, held_by(host)))
        }
        Meaning::CancelRequested { by, reason } => {
            let reason = reason.map(str::to_owned);
            let hold = if held { hold } else { Hold::Nobody };
            Some((Lifecycle::Canceling { execution: Some(execution), by: *by, reason }, hold))
        }
        Meaning::Finalizing { ending } => Some(finalizing(Some(execution), ending, hold)),
        Meaning::Work
        | Meaning::Effect
        | Meaning::Blocked { .. }
        | Meaning::Lost { .. }
        | Meaning::Resumed { .. }
        | Meaning::Queued
        | Meaning::Started { .. }
        | Meaning::Unblocked
        | Meaning::FinalizerStarted
        | Meaning::Finished => None,
    }
}

/// A run that nobody holds is finalized by whoever takes it up.
fn finalizing(execution: Option<Execution>, ending: &Ending, hold: Hold) -> Place {
    let hold = if hold.host().is_some() { hold } else { Hold::RESUME };
    let ending = ending.clone();
    (Lifecycle::Finalizing { execution, ending, finalizer_began: false }, hold)
}

fn from_blocked(
    (execution, on): (Execution, BlockedOn),
    hold: Hold,
    open: bool,
    meaning: &Meaning<'_>,
) -> Option<Place> {
    match meaning {
        Meaning::Answered => {
            let hold = if open { hold } else { Hold::RESUME };
            Some((Lifecycle::Blocked { execution, on }, hold))
        }
        Meaning::Unblocked => Some((Lifecycle::Blocked { execution, on }, Hold::RESUME)),
        Meaning::Resumed { host } => {
            let execution = moved_to(execution, host);
            Some((Lifecycle::Running { execution }, held_by(host)))
        }
        Meaning::CancelRequested { by, reason } => {
            let reason = reason.map(str::to_owned);
            let execution = Some(execution);
            Some((Lifecycle::Canceling { execution, by: *by, reason }, Hold::Nobody))
        }
        Meaning::Work
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Started { .. }
        | Meaning::Lost { .. }
        | Meaning::Blocked { .. }
        | Meaning::Finalizing { .. }
        | Meaning::FinalizerStarted
        | Meaning::Finished => None,
    }
}

fn from_canceling(
    (execution, by, reason): (Option<Execution>, StopReason, Option<String>),
    hold: Hold,
    meaning: &Meaning<'_>,
) -> Option<Place> {
    let held = hold.host().is_some();
    match meaning {
        // A call that is on its way out still reports what it did, and begins nothing.
        Meaning::Work if held => Some((Lifecycle::Canceling { execution, by, reason }, hold)),
        Meaning::Lost { not_before } if held => {
            let hold = wanted_again(*not_before);
            Some((Lifecycle::Canceling { execution, by, reason }, hold))
        }
        Meaning::Resumed { host } if !held => {
            let execution = execution.map(|execution| moved_to(execution, host));
            Some((Lifecycle::Canceling { execution, by, reason }, held_by(host)))
        }
        Meaning::Finalizing { ending } => Some(finalizing(execution, ending, hold)),
        Meaning::Work
        | Meaning::Lost { .. }
        | Meaning::Resumed { .. }
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Started { .. }
        | Meaning::Blocked { .. }
        | Meaning::Answered
        | Meaning::Unblocked
        | Meaning::CancelRequested { .. }
        | Meaning::FinalizerStarted
        | Meaning::Finished => None,
    }
}

fn from_finalizing(
    (execution, ending, finalizer_began): (Option<Execution>, Ending, bool),
    hold: Hold,
    meaning: &Meaning<'_>,
    at: Timestamp,
) -> Option<Place> {
    let held = hold.host().is_some();
    match meaning {
        Meaning::Finished => {
            Some((Lifecycle::Ended { execution, ending, finished_at: at }, Hold::Nobody))
        }
        Meaning::FinalizerStarted if held && !finalizer_began => {
            Some((Lifecycle::Finalizing { execution, ending, finalizer_began: true }, hold))
        }
        Meaning::Lost { not_before } if held => {
            let hold = wanted_again(*not_before);
            Some((Lifecycle::Finalizing { execution, ending, finalizer_began }, hold))
        }
        Meaning::Resumed { host } if !held => {
            let execution = execution.map(|execution| moved_to(execution, host));
            Some((Lifecycle::Finalizing { execution, ending, finalizer_began }, held_by(host)))
        }
        Meaning::FinalizerStarted
        | Meaning::Lost { .. }
        | Meaning::Resumed { .. }
        | Meaning::Work
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Started { .. }
        | Meaning::Blocked { .. }
        | Meaning::Answered
        | Meaning::Unblocked
        | Meaning::CancelRequested { .. }
        | Meaning::Finalizing { .. } => None,
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
