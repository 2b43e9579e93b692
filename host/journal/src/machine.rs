//! The state machine of a run: [`apply`] folds one event, and the functions of [`decide`] say
//! what to record. All of them are pure and total.

pub mod decide;
mod step;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use crate::event::{Event, Recorded};
use crate::hold::{Await, Hold, Lane};
use crate::message::Usage;
use crate::pause::Inbox;
use crate::progress::{Progress, Reply};
use crate::run::{Crashes, HeldWait, Lifecycle, Run, RunState, SUMMARY_CHARS_MAX, Uncounted};
use crate::spec::RunClass;
use crate::status::Status;
use crate::text::first_chars;
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
            hold: match spec.class {
                RunClass::Task => Hold::Wanted { lane: Lane::Fresh, not_before: Timestamp(0) },
                RunClass::Heartbeat => Hold::Beat,
            },
            pause: None,
            inbox: Inbox::default(),
            head: 1,
            epoch: 0,
            ran_ms: 0,
            uncounted: None,
            crashes: Crashes::default(),
            held_wait: HeldWait::default(),
            failed_attempts: 0,
            skipped: 0,
            awaits: Vec::new(),
            step_usage: Usage::default(),
            updated_at: recorded.at,
            progress: Progress::default(),
            reply: Reply::default(),
            turns: 0,
            tool_calls: 0,
            failures: crate::run::Failures::default(),
            metadata: crate::message::Labels::new(),
            metrics: crate::metrics::Metrics::default(),
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
    let (place, pause) = step::step(place, state.pause, open, recorded).ok_or_else(illegal)?;
    let moved = place.0.status() != status;
    (state.lifecycle, state.hold) = place;
    state.pause = pause;
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
    state.failures.push(&recorded.event);
    count_step_usage(state, &recorded.event);
    count_running_time(state, recorded);
    let waited = state.held_wait;
    state.held_wait = held_wait(waited, recorded);
    match &recorded.event {
        Event::Started { epoch, .. } | Event::Resumed { epoch, .. } | Event::Lost { epoch, .. } => {
            if let Event::Lost { crashed: true, .. } = recorded.event
                && !waited.lasts(recorded.at)
            {
                state.crashes.in_a_row += 1;
                state.crashes.total += 1;
            }
            return *epoch == state.epoch + 1;
        }
        Event::PlanDecided { turn, .. } => {
            state.turns = *turn;
            state.crashes.in_a_row = 0;
            state.failed_attempts = 0;
            state.skipped = 0;
        }
        Event::TurnSkipped { turn, .. } => {
            state.turns = *turn;
            state.failed_attempts = 0;
            state.skipped += 1;
        }
        // A call that was declined is spent like one that is made.
        Event::ToolCallScheduled { .. } | Event::ToolAuthorization { approved: false, .. } => {
            state.tool_calls += 1;
        }
        Event::StepFailed { attempt, .. } => state.failed_attempts = *attempt,
        Event::Blocked { .. } => state.awaits.retain(|one| !one.answered),
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
        Event::Injected { text, .. } => state.inbox = state.inbox.with([text]),
        Event::PauseEnded { messages, .. } => state.inbox = state.inbox.with(messages),
        Event::InboxShown { messages } => {
            let all = std::mem::take(&mut state.inbox);
            return all.messages == *messages;
        }
        Event::Finished { metadata, .. } => state.metadata.extend(metadata.clone()),
        Event::MetricsRecorded { metrics } => state.metrics.merge(metrics),
        Event::Queued { .. }
        | Event::AssistantChunk { .. }
        | Event::AssistantMessage { .. }
        | Event::ToolCallArgsDelta { .. }
        | Event::ThinkingBlock { .. }
        | Event::PlannerNote { .. }
        | Event::PromptRendered { .. }
        | Event::HistoryCarried { .. }
        | Event::Usage { .. }
        | Event::ToolResult { .. }
        | Event::ToolCallRepeated { .. }
        | Event::ToolCallParked { .. }
        | Event::ChildRunLinked { .. }
        | Event::ToolCallUpdated { .. }
        | Event::FinalToolResult { .. }
        | Event::ModelAnswered { .. }
        | Event::ControllerAnswered { .. }
        | Event::MemoryAnswered { .. }
        | Event::MemoryAppended { .. }
        | Event::ModelWait { .. }
        | Event::ClockRead { .. }
        | Event::StepRestarted { .. }
        | Event::ReplayDiverged { .. }
        | Event::PolicyDecision { .. }
        | Event::ToolAuthorization { approved: true, .. }
        | Event::Log { .. }
        | Event::FinalizeRequested { .. }
        | Event::PauseRequested { .. }
        | Event::CancelRequested { .. }
        | Event::Finalizing { .. }
        | Event::FinalizerStarted => {}
    }
    true
}

/// What the run waits for after an event. What others write meanwhile, and what says what happened
/// before the wait, ends none.
fn held_wait(before: HeldWait, recorded: &Recorded) -> HeldWait {
    match &recorded.event {
        Event::ModelWait { over: false, .. } => HeldWait::Model,
        Event::StepFailed { retry_after_ms, .. } => {
            HeldWait::Until(recorded.at.plus(std::time::Duration::from_millis(*retry_after_ms)))
        }
        Event::Injected { .. }
        | Event::PauseRequested { .. }
        | Event::PauseEnded { .. }
        | Event::CancelRequested { .. }
        | Event::ToolCallUpdated { .. }
        | Event::Answered { .. } => before,
        // Whoever takes the run up waits for what is left of the time, and asks the model again.
        Event::Lost { .. } | Event::Resumed { .. } => match before {
            HeldWait::Until(until) => HeldWait::Until(until),
            HeldWait::Model | HeldWait::Nothing => HeldWait::Nothing,
        },
        Event::ModelWait { over: true, .. }
        | Event::Queued { .. }
        | Event::Started { .. }
        | Event::HistoryCarried { .. }
        | Event::AssistantChunk { .. }
        | Event::AssistantMessage { .. }
        | Event::ToolCallArgsDelta { .. }
        | Event::ThinkingBlock { .. }
        | Event::PlannerNote { .. }
        | Event::PromptRendered { .. }
        | Event::Usage { .. }
        | Event::ToolCallScheduled { .. }
        | Event::ToolResult { .. }
        | Event::ToolCallRepeated { .. }
        | Event::ToolCallParked { .. }
        | Event::ChildRunLinked { .. }
        | Event::FinalToolResult { .. }
        | Event::ModelAnswered { .. }
        | Event::ControllerAnswered { .. }
        | Event::MemoryAnswered { .. }
        | Event::MemoryAppended { .. }
        | Event::MetricsRecorded { .. }
        | Event::ClockRead { .. }
        | Event::StepRestarted { .. }
        | Event::ReplayDiverged { .. }
        | Event::TurnSkipped { .. }
        | Event::Asked { .. }
        | Event::PolicyDecision { .. }
        | Event::ToolAuthorization { .. }
        | Event::Log { .. }
        | Event::PlanDecided { .. }
        | Event::FinalizeRequested { .. }
        | Event::Blocked { .. }
        | Event::InboxShown { .. }
        | Event::Finalizing { .. }
        | Event::FinalizerStarted
        | Event::Finished { .. } => HeldWait::Nothing,
    }
}

/// Keeps account of how long the run has been running, and since when nobody has said so.
fn count_running_time(state: &mut RunState, recorded: &Recorded) {
    let here = Uncounted { from: recorded.at, until: recorded.at };
    let (ran_ms, uncounted) = match &recorded.event {
        Event::Started { batch: None, .. } | Event::Resumed { .. } => (0, Some(here)),
        Event::PlanDecided { ran_ms, .. } | Event::TurnSkipped { ran_ms, .. } => {
            (*ran_ms, Some(here))
        }
        Event::Lost { ran_ms, .. } | Event::Blocked { ran_ms, .. } => (*ran_ms, None),
        // Nobody executes an entry of a batch, nor what has its outcome.
        Event::Started { batch: Some(_), .. } | Event::Finalizing { .. } => (0, None),
        Event::Queued { .. }
        | Event::AssistantChunk { .. }
        | Event::AssistantMessage { .. }
        | Event::ToolCallArgsDelta { .. }
        | Event::ThinkingBlock { .. }
        | Event::PlannerNote { .. }
        | Event::PromptRendered { .. }
        | Event::HistoryCarried { .. }
        | Event::Usage { .. }
        | Event::ToolCallScheduled { .. }
        | Event::ToolResult { .. }
        | Event::ToolCallRepeated { .. }
        | Event::ToolCallParked { .. }
        | Event::ChildRunLinked { .. }
        | Event::ToolCallUpdated { .. }
        | Event::FinalToolResult { .. }
        | Event::ModelAnswered { .. }
        | Event::ControllerAnswered { .. }
        | Event::MemoryAnswered { .. }
        | Event::MemoryAppended { .. }
        | Event::MetricsRecorded { .. }
        | Event::ModelWait { .. }
        | Event::ClockRead { .. }
        | Event::StepRestarted { .. }
        | Event::ReplayDiverged { .. }
        | Event::StepFailed { .. }
        | Event::PolicyDecision { .. }
        | Event::ToolAuthorization { .. }
        | Event::Log { .. }
        | Event::FinalizeRequested { .. }
        | Event::Asked { .. }
        | Event::Answered { .. }
        | Event::PauseRequested { .. }
        | Event::PauseEnded { .. }
        | Event::Injected { .. }
        | Event::InboxShown { .. }
        | Event::CancelRequested { .. }
        | Event::FinalizerStarted
        | Event::Finished { .. } => {
            let until = recorded.at;
            (0, state.uncounted.map(|stretch| Uncounted { until, ..stretch }))
        }
    };
    state.ran_ms = state.ran_ms.max(ran_ms);
    state.uncounted = uncounted;
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
        | Event::StepFailed { .. }
        | Event::TurnSkipped { .. } => state.step_usage = Usage::default(),
        // A step that was overtaken by a limit after its host died does not run again.
        Event::FinalizeRequested { .. } | Event::Finalizing { .. } => {
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
        | Event::PromptRendered { .. }
        | Event::HistoryCarried { .. }
        | Event::ToolCallScheduled { .. }
        | Event::ToolResult { .. }
        | Event::ToolCallRepeated { .. }
        | Event::ToolCallParked { .. }
        | Event::ChildRunLinked { .. }
        | Event::ToolCallUpdated { .. }
        | Event::FinalToolResult { .. }
        | Event::ControllerAnswered { .. }
        | Event::MemoryAnswered { .. }
        | Event::MemoryAppended { .. }
        | Event::MetricsRecorded { .. }
        | Event::ModelWait { .. }
        | Event::ClockRead { .. }
        | Event::StepRestarted { .. }
        | Event::ReplayDiverged { .. }
        | Event::Asked { .. }
        | Event::Answered { .. }
        | Event::PolicyDecision { .. }
        | Event::ToolAuthorization { .. }
        | Event::Log { .. }
        | Event::Blocked { .. }
        | Event::PauseRequested { .. }
        | Event::PauseEnded { .. }
        | Event::Injected { .. }
        | Event::InboxShown { .. }
        | Event::CancelRequested { .. }
        | Event::FinalizerStarted
        | Event::Finished { .. } => {}
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
