//! The state machine of a run: [`apply`] folds one event, and the functions of [`decide`] say
//! what to record. All of them are pure and total.

pub mod decide;
mod step;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use crate::event::{
    AccountEvent, CallEvent, CallWait, DialogEvent, Event, EventRecord, EventView, LifecycleEvent,
    StepEvent, TapedEvent,
};
use crate::hold::{Await, Hold, Lane};
use crate::ids::Seq;
use crate::message::Usage;
use crate::pause::Inbox;
use crate::progress::Progress;
use crate::reply::Reply;
use crate::run::{
    CancelRequest, Crashes, HeldWait, Lifecycle, REPORTED_AT_MAX, Run, RunState, SUMMARY_CHARS_MAX,
    UncountedTime,
};
use crate::spec::{Continuation, RunClass, RunSpec};
use crate::status::Status;
use crate::text::first_chars;
use crate::time::{Timestamp, millis};

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
pub fn begin(recorded: &EventRecord) -> Result<Run, IllegalBeginning> {
    let (Event::Queued { spec }, 1) = (&recorded.event, recorded.seq) else {
        return Err(IllegalBeginning { event: recorded.event.kind(), seq: recorded.seq });
    };
    let mut run = at_its_beginning(spec, recorded);
    if let Some(carried) = &spec.continues {
        carry(&mut run.state, carried);
    }
    Ok(run)
}

/// Begins where the run ended that it continues.
fn carry(state: &mut RunState, carried: &Continuation) {
    let Continuation { turns, tool_calls, ran_ms, usage, reply, .. } = carried;
    (state.turns, state.tool_calls, state.ran_ms) = (*turns, *tool_calls, *ran_ms);
    state.rounds = crate::rounds::Rounds::continuing(carried);
    state.progress.add(*usage);
    state.reply = reply.of_round_before();
}

fn at_its_beginning(spec: &Arc<RunSpec>, recorded: &EventRecord) -> Run {
    Run {
        spec: Arc::clone(spec),
        state: RunState {
            lifecycle: Lifecycle::Queued,
            hold: match spec.class {
                RunClass::Task => Hold::Wanted { lane: Lane::Fresh, not_before: Timestamp(0) },
                RunClass::Heartbeat => Hold::Beat,
            },
            pause: None,
            pin: None,
            inbox: Inbox::default(),
            head: 1,
            epoch: 0,
            ran_ms: 0,
            uncounted: None,
            crashes: Crashes::default(),
            held_wait: HeldWait::default(),
            failed_attempts: 0,
            pushed_back_ms: 0,
            skipped: 0,
            awaits: Vec::new(),
            step_usage: Usage::default(),
            updated_at: recorded.at,
            reported_at: Vec::new(),
            told_at_turn: None,
            awaited_runs: false,
            cancel: None,
            progress: Progress::default(),
            reply: Reply::default(),
            turns: 0,
            tool_calls: 0,
            failures: crate::run::Failures::default(),
            rounds: crate::rounds::Rounds::default(),
            metadata: crate::message::Labels::new(),
            metrics: crate::metrics::Metrics::default(),
        },
    }
}

/// The state after one more event.
///
/// # Errors
/// [`IllegalTransition`] if the event is not the next one or cannot happen in this status; the
/// state is then lost, as a fold that went wrong is of no use.
pub fn apply(mut state: RunState, recorded: &EventRecord) -> Result<RunState, IllegalTransition> {
    let status = state.lifecycle.status();
    let illegal = || IllegalTransition { status, event: recorded.event.kind(), seq: recorded.seq };
    // What is counted ends it.
    let deferral = state.rounds.due.is_some();
    if recorded.seq != state.head + 1 || !count(&mut state, recorded) {
        return Err(illegal());
    }
    let open = state.awaits.iter().any(|one| !one.answered);
    let place = (state.lifecycle, state.hold);
    let causes = step::Open { question: open, deferral };
    let (place, pause) = step::step(place, state.pause, causes, recorded).ok_or_else(illegal)?;
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
fn count(state: &mut RunState, recorded: &EventRecord) -> bool {
    let rounds_before = state.rounds.ended;
    state.progress.count(recorded);
    state.reply.count(&recorded.event);
    state.failures.push(&recorded.event);
    count_step_usage(state, &recorded.event);
    count_running_time(state, recorded);
    let had = (state.turns, state.tool_calls);
    let uncounted = state.uncounted.map_or(0, |stretch| millis(recorded.at.since(stretch.from)));
    let ran_ms = state.ran_ms.saturating_add(uncounted);
    state.rounds.count(recorded.event.view(), ran_ms, had);
    let waited = state.held_wait;
    state.held_wait = held_wait(waited, recorded);
    match recorded.event.view() {
        EventView::Lifecycle(event) => return count_lifecycle(state, event, recorded.at, waited),
        EventView::Dialog(event) => return count_dialog(state, event, recorded.seq),
        EventView::Step(event) => match event {
            StepEvent::PlanDecided { turn, .. } => {
                state.turns = turn;
                state.crashes.in_a_row = 0;
                state.failed_attempts = 0;
                state.skipped = 0;
            }
            StepEvent::TurnSkipped { turn, .. } => {
                state.turns = turn;
                state.failed_attempts = 0;
                state.skipped += 1;
            }
            StepEvent::RoundEnded { round, checkpoint, .. } => {
                // The bounds on these are those of a round.
                state.crashes = Crashes::default();
                state.pushed_back_ms = 0;
                state.rounds.leave_behind(recorded.seq, checkpoint);
                return round == rounds_before + 1;
            }
            StepEvent::StepFailed { attempt, .. } => state.failed_attempts = attempt,
            StepEvent::PushedBack { until, .. } => {
                let wait = millis(until.since(recorded.at));
                state.pushed_back_ms = state.pushed_back_ms.saturating_add(wait);
            }
            StepEvent::Usage { .. }
            | StepEvent::ReplayDiverged { .. }
            | StepEvent::FinalizeRequested { .. } => {}
        },
        EventView::Call(event) => match event {
            CallEvent::ToolCallParked { waits: CallWait::Runs { .. }, .. } => {
                state.awaited_runs = true;
            }
            // A call that was declined is spent like one that is made.
            CallEvent::ToolCallScheduled { is_own: false, .. }
            | CallEvent::ToolAuthorization { approved: false, .. } => state.tool_calls += 1,
            CallEvent::ToolCallScheduled { is_own: true, .. }
            | CallEvent::Marked { .. }
            | CallEvent::ToolAuthorization { approved: true, .. }
            | CallEvent::ToolResult { .. }
            | CallEvent::ToolCallRepeated { .. }
            | CallEvent::ToolCallParked { .. }
            | CallEvent::ChildRunLinked { .. }
            | CallEvent::ToolCallUpdated { .. } => {}
        },
        EventView::Account(event) => match event {
            AccountEvent::MetricsRecorded { metrics } => state.metrics.merge(metrics),
            AccountEvent::FinalToolResult
            | AccountEvent::MemoryAppended
            | AccountEvent::ModelWait { .. }
            | AccountEvent::ContextWindowMet { .. }
            | AccountEvent::RulesChanged { .. } => {}
        },
        EventView::Taped(TapedEvent::HostAnswered { answer, .. }) => {
            state.awaited_runs |= answer.has_waited_for().is_some();
        }
        EventView::Taped(_) => {}
    }
    true
}

fn count_lifecycle(
    state: &mut RunState,
    event: LifecycleEvent<'_>,
    at: Timestamp,
    waited: HeldWait,
) -> bool {
    match event {
        LifecycleEvent::Started { epoch, .. } | LifecycleEvent::Resumed { epoch, .. } => {
            epoch == state.epoch + 1
        }
        LifecycleEvent::Lost { epoch, crashed, .. } => {
            if crashed && !waited.lasts(at) {
                state.crashes.in_a_row += 1;
                state.crashes.total += 1;
            }
            epoch == state.epoch + 1
        }
        LifecycleEvent::Blocked { .. } => {
            state.awaits.retain(|one| !one.answered);
            true
        }
        LifecycleEvent::PauseEnded { messages, .. } => {
            state.inbox = state.inbox.with(messages);
            true
        }
        LifecycleEvent::Adopted { from, to } => {
            let is_known = state.pin.as_deref().is_none_or(|pin| pin == from);
            state.pin = Some(to.to_owned());
            is_known
        }
        LifecycleEvent::Finished { metadata } => {
            state.metadata.extend(metadata.clone());
            true
        }
        LifecycleEvent::CancelRequested { from, .. } => {
            state.cancel = Some(CancelRequest { from: from.cloned() });
            true
        }
        LifecycleEvent::Queued { .. }
        | LifecycleEvent::PauseRequested { .. }
        | LifecycleEvent::Finalizing { .. }
        | LifecycleEvent::FinalizerStarted => true,
    }
}

fn count_dialog(state: &mut RunState, event: DialogEvent<'_>, seq: Seq) -> bool {
    match event {
        DialogEvent::Asked { item } => state.awaits.push(Await {
            id: item.id().to_owned(),
            on: item.what.blocks(),
            prompt: first_chars(&item.what.prompt(), SUMMARY_CHARS_MAX).to_owned(),
            answered: false,
        }),
        DialogEvent::Answered { item, .. } => {
            let open = |one: &&mut Await| one.id == *item && !one.answered;
            match state.awaits.iter_mut().find(open) {
                Some(one) => one.answered = true,
                None => return false,
            }
        }
        DialogEvent::Injected { text, .. } => state.inbox = state.inbox.with([text]),
        DialogEvent::InboxShown { messages } => {
            let all = std::mem::take(&mut state.inbox);
            return all.messages == messages;
        }
        DialogEvent::Reported { .. } => {
            state.told_at_turn = Some(state.turns);
            state.reported_at.push(seq);
            let surplus = state.reported_at.len().saturating_sub(REPORTED_AT_MAX);
            state.reported_at.drain(..surplus);
        }
        DialogEvent::HistoryCarried { .. } | DialogEvent::AssistantMessage { .. } => {}
    }
    true
}

/// The wait of a held run after an event. Events of others, and those about what happened before
/// the wait, end none.
fn held_wait(before: HeldWait, recorded: &EventRecord) -> HeldWait {
    match recorded.event.view() {
        EventView::Account(event) => match event {
            AccountEvent::ModelWait { over: false } => HeldWait::Model,
            // The question is asked once more.
            AccountEvent::ContextWindowMet { .. } => before,
            AccountEvent::ModelWait { over: true }
            | AccountEvent::FinalToolResult
            | AccountEvent::MemoryAppended
            | AccountEvent::MetricsRecorded { .. }
            | AccountEvent::RulesChanged { .. } => HeldWait::Nothing,
        },
        EventView::Step(event) => match event {
            StepEvent::StepFailed { retry_after_ms, .. } => {
                HeldWait::Until(recorded.at.plus(std::time::Duration::from_millis(retry_after_ms)))
            }
            StepEvent::Usage { .. }
            | StepEvent::PlanDecided { .. }
            | StepEvent::PushedBack { .. }
            | StepEvent::TurnSkipped { .. }
            | StepEvent::RoundEnded { .. }
            | StepEvent::ReplayDiverged { .. }
            | StepEvent::FinalizeRequested { .. } => HeldWait::Nothing,
        },
        EventView::Lifecycle(event) => match event {
            LifecycleEvent::PauseRequested { .. }
            | LifecycleEvent::PauseEnded { .. }
            | LifecycleEvent::Adopted { .. }
            | LifecycleEvent::CancelRequested { .. } => before,
            // The next host waits for what is left of the time, and asks the model again.
            LifecycleEvent::Lost { .. } | LifecycleEvent::Resumed { .. } => match before {
                HeldWait::Until(until) => HeldWait::Until(until),
                HeldWait::Model | HeldWait::Nothing => HeldWait::Nothing,
            },
            LifecycleEvent::Queued { .. }
            | LifecycleEvent::Started { .. }
            | LifecycleEvent::Blocked { .. }
            | LifecycleEvent::Finalizing { .. }
            | LifecycleEvent::FinalizerStarted
            | LifecycleEvent::Finished { .. } => HeldWait::Nothing,
        },
        EventView::Dialog(event) => match event {
            DialogEvent::Injected { .. } | DialogEvent::Answered { .. } => before,
            DialogEvent::HistoryCarried { .. }
            | DialogEvent::Reported { .. }
            | DialogEvent::AssistantMessage { .. }
            | DialogEvent::Asked { .. }
            | DialogEvent::InboxShown { .. } => HeldWait::Nothing,
        },
        EventView::Call(event) => match event {
            CallEvent::ToolCallUpdated { .. } => before,
            CallEvent::ToolCallScheduled { .. }
            | CallEvent::Marked { .. }
            | CallEvent::ToolResult { .. }
            | CallEvent::ToolCallRepeated { .. }
            | CallEvent::ToolCallParked { .. }
            | CallEvent::ChildRunLinked { .. }
            | CallEvent::ToolAuthorization { .. } => HeldWait::Nothing,
        },
        EventView::Taped(_) => HeldWait::Nothing,
    }
}

/// Keeps account of how long the run has been running, and since when nobody has said so.
fn count_running_time(state: &mut RunState, recorded: &EventRecord) {
    let here = UncountedTime { from: recorded.at, until: recorded.at };
    let same = || {
        let until = recorded.at;
        (0, state.uncounted.map(|stretch| UncountedTime { until, ..stretch }))
    };
    let (ran_ms, uncounted) = match recorded.event.view() {
        EventView::Lifecycle(event) => match event {
            LifecycleEvent::Started { batch: None, .. } | LifecycleEvent::Resumed { .. } => {
                (0, Some(here))
            }
            LifecycleEvent::Lost { ran_ms, .. } | LifecycleEvent::Blocked { ran_ms, .. } => {
                (ran_ms, None)
            }
            // Nobody executes an entry of a batch, nor what has its outcome.
            LifecycleEvent::Started { batch: Some(_), .. } | LifecycleEvent::Finalizing { .. } => {
                (0, None)
            }
            LifecycleEvent::Queued { .. }
            | LifecycleEvent::PauseRequested { .. }
            | LifecycleEvent::PauseEnded { .. }
            | LifecycleEvent::Adopted { .. }
            | LifecycleEvent::CancelRequested { .. }
            | LifecycleEvent::FinalizerStarted
            | LifecycleEvent::Finished { .. } => same(),
        },
        EventView::Step(event) => match event {
            StepEvent::PlanDecided { ran_ms, .. } | StepEvent::TurnSkipped { ran_ms, .. } => {
                (ran_ms, Some(here))
            }
            StepEvent::Usage { .. }
            | StepEvent::StepFailed { .. }
            | StepEvent::PushedBack { .. }
            | StepEvent::RoundEnded { .. }
            | StepEvent::ReplayDiverged { .. }
            | StepEvent::FinalizeRequested { .. } => same(),
        },
        EventView::Dialog(_) | EventView::Call(_) | EventView::Taped(_) | EventView::Account(_) => {
            same()
        }
    };
    state.ran_ms = state.ran_ms.max(ran_ms);
    state.uncounted = uncounted;
}

/// Keeps account of what was consumed by a plan step that has not said so itself: a step whose
/// host died says it when it runs again, or never.
fn count_step_usage(state: &mut RunState, event: &Event) {
    match event.view() {
        EventView::Taped(TapedEvent::HostAnswered { answer, .. }) => {
            state.step_usage = state.step_usage.plus(answer.usage());
        }
        EventView::Dialog(DialogEvent::AssistantMessage { usage: Some(_), .. }) => {
            state.step_usage = Usage::default();
        }
        EventView::Step(event) => match event {
            StepEvent::Usage { .. }
            | StepEvent::PlanDecided { .. }
            | StepEvent::StepFailed { .. }
            | StepEvent::TurnSkipped { .. } => state.step_usage = Usage::default(),
            // A step that was overtaken by a limit after its host died does not run again.
            StepEvent::FinalizeRequested { .. } => count_open_step(state),
            // What is on its tape is counted when it runs again.
            StepEvent::PushedBack { .. }
            | StepEvent::RoundEnded { .. }
            | StepEvent::ReplayDiverged { .. } => {}
        },
        EventView::Lifecycle(LifecycleEvent::Finalizing { .. }) => count_open_step(state),
        EventView::Lifecycle(
            LifecycleEvent::Queued { .. }
            | LifecycleEvent::Started { .. }
            | LifecycleEvent::Resumed { .. }
            | LifecycleEvent::Lost { .. }
            | LifecycleEvent::Blocked { .. }
            | LifecycleEvent::PauseRequested { .. }
            | LifecycleEvent::PauseEnded { .. }
            | LifecycleEvent::Adopted { .. }
            | LifecycleEvent::CancelRequested { .. }
            | LifecycleEvent::FinalizerStarted
            | LifecycleEvent::Finished { .. },
        )
        | EventView::Dialog(
            DialogEvent::AssistantMessage { usage: None, .. }
            | DialogEvent::HistoryCarried { .. }
            | DialogEvent::Reported { .. }
            | DialogEvent::Asked { .. }
            | DialogEvent::Answered { .. }
            | DialogEvent::Injected { .. }
            | DialogEvent::InboxShown { .. },
        )
        | EventView::Taped(
            TapedEvent::AssistantChunk { .. }
            | TapedEvent::ToolCallArgsDelta { .. }
            | TapedEvent::ThinkingBlock { .. }
            | TapedEvent::PlannerNote { .. }
            | TapedEvent::PromptRendered { .. }
            | TapedEvent::PolicyDecision { .. }
            | TapedEvent::Log { .. }
            | TapedEvent::OutsideAnswered { .. }
            | TapedEvent::ClockRead { .. }
            | TapedEvent::StepRestarted { .. },
        )
        | EventView::Call(_)
        | EventView::Account(_) => {}
    }
}

/// Counts what the step under way consumed as the run's.
fn count_open_step(state: &mut RunState) {
    let usage = std::mem::take(&mut state.step_usage);
    state.progress.add(usage);
}

/// The run that a whole journal tells.
///
/// # Errors
/// The fault of the journal, in words: it is empty, has gaps, or tells what cannot be.
pub fn fold<'a>(journal: impl IntoIterator<Item = &'a EventRecord>) -> Result<Run, String> {
    let mut journal = journal.into_iter();
    let first = journal.next().ok_or("the journal is empty")?;
    let mut run = begin(first).map_err(|error| error.to_string())?;
    for recorded in journal {
        run.state = apply(run.state, recorded).map_err(|error| error.to_string())?;
    }
    Ok(run)
}
