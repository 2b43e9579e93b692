//! Transitions of status and hold, every pair of place and event written out.

mod finalizing;

use crate::ending::{EndStatus, Ending};
use crate::event::{CallEvent, DialogEvent, Event, EventRecord, EventView, LifecycleEvent};
use crate::hold::{Hold, Lane, Wait, WaitMode};
use crate::ids::{HostId, RunId};
use crate::pause::Pause;
use crate::run::{Execution, Lifecycle};
use crate::status::{BlockedOn, StopReason};
use crate::time::Timestamp;

use self::finalizing::from_finalizing;

/// The meaning of an event for the status of a run.
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
        batch: Option<&'a RunId>,
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
    PauseRequested {
        by: &'a str,
        reason: Option<&'a str>,
        until: Option<Timestamp>,
    },
    PauseEnded,
    /// A message came to the inbox, which waits for the next turn.
    Injected,
    /// It goes on as another form of its agent.
    Adopted,
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
    match event.view() {
        EventView::Step(_) | EventView::Taped(_) | EventView::Account(_) => Meaning::Work,
        EventView::Call(event) => match event {
            CallEvent::ToolCallScheduled { .. } | CallEvent::ToolCallRepeated { .. } => {
                Meaning::Effect
            }
            CallEvent::Marked { .. }
            | CallEvent::ToolResult { .. }
            | CallEvent::ToolCallParked { .. }
            | CallEvent::ChildRunLinked { .. }
            | CallEvent::ToolCallUpdated { .. }
            | CallEvent::ToolAuthorization { .. } => Meaning::Work,
        },
        EventView::Dialog(event) => match event {
            DialogEvent::Asked { .. } => Meaning::Effect,
            DialogEvent::Answered { .. } => Meaning::Answered,
            DialogEvent::Injected { .. } => Meaning::Injected,
            DialogEvent::HistoryCarried { .. }
            | DialogEvent::Reported { .. }
            | DialogEvent::AssistantMessage { .. }
            | DialogEvent::InboxShown { .. } => Meaning::Work,
        },
        EventView::Lifecycle(event) => match event {
            LifecycleEvent::Queued { .. } => Meaning::Queued,
            LifecycleEvent::Started { host, child_session_id, request_id, batch, .. } => {
                Meaning::Started { host, session: child_session_id, request: request_id, batch }
            }
            LifecycleEvent::Resumed { host, .. } => Meaning::Resumed { host },
            LifecycleEvent::Lost { not_before, .. } => Meaning::Lost { not_before },
            LifecycleEvent::Blocked { on, wait, .. } => Meaning::Blocked { on, wait },
            LifecycleEvent::PauseRequested { by, reason, until } => {
                Meaning::PauseRequested { by, reason, until }
            }
            LifecycleEvent::PauseEnded { .. } => Meaning::PauseEnded,
            LifecycleEvent::Adopted { .. } => Meaning::Adopted,
            LifecycleEvent::CancelRequested { by, from: _, reason } => {
                Meaning::CancelRequested { by, reason }
            }
            LifecycleEvent::Finalizing { ending } => Meaning::Finalizing { ending },
            LifecycleEvent::FinalizerStarted => Meaning::FinalizerStarted,
            LifecycleEvent::Finished { .. } => Meaning::Finished,
        },
    }
}

/// Where a run stands and who has it.
pub(super) type MachineState = (Lifecycle, Hold);

/// The things that are open in a run.
#[derive(Clone, Copy)]
pub(super) struct Open {
    /// Something is asked and not answered.
    pub(super) question: bool,
    /// It is deferred until a wake-up that it wanted.
    pub(super) deferral: bool,
}

/// The next place, and the pause that lies over it; `None` if the event cannot happen.
///
/// Each event is looked at as if there were no pause: the hold is then the one that would be. Over
/// what that leads to the pause is laid again, unless a host has the run.
pub(super) fn step(
    (lifecycle, hold): MachineState,
    mut pause: Option<Pause>,
    open: Open,
    recorded: &EventRecord,
) -> Option<(MachineState, Option<Pause>)> {
    let meaning = meaning(&recorded.event);
    let hold = pause.as_mut().and_then(|pause| pause.then.take()).unwrap_or(hold);
    let pause = pause_after(pause, &meaning, recorded.at)?;
    let paused = pause.is_some();
    let state = WaitCauses { open: open.question, deferred: open.deferral, paused };
    let (lifecycle, hold) = next((lifecycle, hold), state, &meaning, recorded)?;
    match (pause, hold) {
        (Some(mut pause), hold) if hold.host().is_none() => {
            let hold = pause.cover(hold);
            Some(((lifecycle, hold), Some(pause)))
        }
        (pause, hold) => Some(((lifecycle, hold), pause)),
    }
}

/// The things that keep a run waiting beside its hold.
#[derive(Clone, Copy)]
struct WaitCauses {
    /// Something is asked and not answered.
    open: bool,
    /// It is deferred until a wake-up that it wanted.
    deferred: bool,
    /// Somebody paused it.
    paused: bool,
}

/// The pause after an event. There is one at a time, and it ends before the way out begins.
fn pause_after(
    pause: Option<Pause>,
    meaning: &Meaning<'_>,
    at: Timestamp,
) -> Option<Option<Pause>> {
    match (meaning, pause) {
        (Meaning::PauseRequested { by, reason, until }, None) => {
            let (by, reason) = ((*by).to_owned(), reason.map(str::to_owned));
            Some(Some(Pause { since: at, by, reason, until: *until, then: None }))
        }
        (Meaning::PauseEnded, Some(_)) => Some(None),
        (Meaning::PauseRequested { .. }, Some(_))
        | (Meaning::PauseEnded, None)
        | (Meaning::CancelRequested { .. } | Meaning::Finalizing { .. }, Some(_)) => None,
        (
            Meaning::Work
            | Meaning::Effect
            | Meaning::Queued
            | Meaning::Started { .. }
            | Meaning::Resumed { .. }
            | Meaning::Lost { .. }
            | Meaning::Blocked { .. }
            | Meaning::Answered
            | Meaning::Injected
            | Meaning::Adopted
            | Meaning::CancelRequested { .. }
            | Meaning::Finalizing { .. }
            | Meaning::FinalizerStarted
            | Meaning::Finished,
            pause,
        ) => Some(pause),
    }
}

fn next(
    (lifecycle, hold): MachineState,
    waiting: WaitCauses,
    meaning: &Meaning<'_>,
    recorded: &EventRecord,
) -> Option<MachineState> {
    match lifecycle {
        Lifecycle::Queued => from_queued(hold, meaning, recorded.at),
        Lifecycle::Running { execution } => from_running(execution, hold, waiting, meaning),
        Lifecycle::Blocked { execution, on } => {
            from_blocked((execution, on), hold, waiting, meaning)
        }
        Lifecycle::Canceling { execution, by, reason } => {
            from_canceling((execution, by, reason), hold, meaning)
        }
        Lifecycle::Finalizing { execution, ending, finalizer_began } => {
            from_finalizing((execution, ending, finalizer_began), hold, meaning, recorded)
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

/// Nobody until the batch run has ended that works on an entry; then whoever has a slot ends it.
fn after_batch(batch: &RunId) -> Hold {
    Hold::Runs { runs: vec![batch.clone()], mode: WaitMode::All, until: None }
}

fn from_queued(hold: Hold, meaning: &Meaning<'_>, at: Timestamp) -> Option<MachineState> {
    match meaning {
        Meaning::Started { host, session, request, batch } => {
            let hold = match (&hold, batch) {
                (Hold::Wanted { .. }, None) => held_by(host),
                (Hold::Beat, Some(batch)) => after_batch(batch),
                (Hold::Wanted { .. }, Some(_))
                | (Hold::Beat, None)
                | (Hold::Nobody | Hold::Runs { .. } | Hold::Host { .. }, _) => return None,
            };
            let execution = Execution {
                host: (*host).clone(),
                child_session_id: (*session).to_owned(),
                request_id: (*request).to_owned(),
                started_at: at,
                batch: batch.cloned(),
            };
            Some((Lifecycle::Running { execution }, hold))
        }
        Meaning::CancelRequested { by, reason } => {
            let reason = reason.map(str::to_owned);
            Some((Lifecycle::Canceling { execution: None, by: *by, reason }, Hold::Nobody))
        }
        // An entry waits for its heartbeat, which looks at no pause, and hears nothing itself; it
        // is pinned to nothing.
        Meaning::PauseRequested { .. }
        | Meaning::PauseEnded
        | Meaning::Injected
        | Meaning::Adopted
            if hold == Hold::Beat =>
        {
            None
        }
        Meaning::PauseRequested { .. }
        | Meaning::PauseEnded
        | Meaning::Injected
        | Meaning::Adopted => Some((Lifecycle::Queued, hold)),
        Meaning::Work
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Resumed { .. }
        | Meaning::Lost { .. }
        | Meaning::Blocked { .. }
        | Meaning::Answered
        | Meaning::Finalizing { .. }
        | Meaning::FinalizerStarted
        | Meaning::Finished => None,
    }
}

fn from_running(
    execution: Execution,
    hold: Hold,
    waiting: WaitCauses,
    meaning: &Meaning<'_>,
) -> Option<MachineState> {
    let held = hold.host().is_some();
    // Its batch run does the work of an entry, and says so without holding it.
    let worked_on = held || execution.batch.is_some();
    match meaning {
        Meaning::Work if worked_on => Some((Lifecycle::Running { execution }, hold)),
        Meaning::Effect if held => Some((Lifecycle::Running { execution }, hold)),
        Meaning::Answered => Some((Lifecycle::Running { execution }, hold)),
        Meaning::Blocked { on, wait } if held => {
            let hold = match wait {
                Wait::Answers { at: None } | Wait::Word => Hold::Nobody,
                Wait::Answers { at: Some(at) } | Wait::Time { at } => wanted_again(*at),
                Wait::Runs { runs, mode, at } => {
                    Hold::Runs { runs: runs.clone(), mode: *mode, until: *at }
                }
            };
            Some((Lifecycle::Blocked { execution, on: *on }, hold))
        }
        Meaning::Lost { not_before } if held => {
            let hold = wanted_again(*not_before);
            match waiting.paused {
                true => Some((paused(execution), hold)),
                false => Some((Lifecycle::Running { execution }, hold)),
            }
        }
        Meaning::PauseRequested { .. } if held => Some((Lifecycle::Running { execution }, hold)),
        // The batch that works on an entry can be paused, the entry cannot.
        Meaning::PauseRequested { .. } if execution.batch.is_none() => {
            Some((paused(execution), hold))
        }
        // Only the host that has it knows that nothing of it is under way.
        Meaning::PauseEnded | Meaning::Adopted if held => {
            Some((Lifecycle::Running { execution }, hold))
        }
        Meaning::Injected if execution.batch.is_none() => {
            Some((Lifecycle::Running { execution }, hold))
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
        | Meaning::PauseRequested { .. }
        | Meaning::PauseEnded
        | Meaning::Injected
        | Meaning::Adopted
        | Meaning::Queued
        | Meaning::Started { .. }
        | Meaning::FinalizerStarted
        | Meaning::Finished => None,
    }
}

/// A run that waits for nothing but the end of its pause.
fn paused(execution: Execution) -> Lifecycle {
    Lifecycle::Blocked { execution, on: BlockedOn::Pause }
}

/// A run that nobody holds is finalized by whoever takes it up.
fn finalizing(execution: Option<Execution>, ending: &Ending, hold: Hold) -> MachineState {
    let hold = if hold.host().is_some() { hold } else { Hold::RESUME };
    let ending = ending.clone();
    (Lifecycle::Finalizing { execution, ending, finalizer_began: false }, hold)
}

fn from_blocked(
    (execution, on): (Execution, BlockedOn),
    hold: Hold,
    WaitCauses { open, deferred, paused: is_paused }: WaitCauses,
    meaning: &Meaning<'_>,
) -> Option<MachineState> {
    match meaning {
        // What a deferred run is told wakes it.
        Meaning::Injected if deferred && on == BlockedOn::Schedule => {
            Some((Lifecycle::Blocked { execution, on }, Hold::RESUME))
        }
        Meaning::Answered if open => Some((Lifecycle::Blocked { execution, on }, hold)),
        Meaning::Answered if is_paused => Some((paused(execution), Hold::RESUME)),
        Meaning::Answered => Some((Lifecycle::Blocked { execution, on }, Hold::RESUME)),
        Meaning::PauseRequested { .. } | Meaning::Injected | Meaning::Adopted => {
            Some((Lifecycle::Blocked { execution, on }, hold))
        }
        Meaning::PauseEnded => {
            let hold = match (on, hold) {
                (BlockedOn::Pause, _) => Hold::RESUME,
                // A wait that begins anew could be one in a circle, which its host has to refuse.
                (_, Hold::Runs { .. }) => Hold::RESUME,
                (_, hold @ (Hold::Nobody | Hold::Beat | Hold::Wanted { .. })) => hold,
                (_, Hold::Host { .. }) => return None,
            };
            Some((Lifecycle::Blocked { execution, on }, hold))
        }
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
) -> Option<MachineState> {
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
        Meaning::Finalizing { ending } => {
            let reason = reason.filter(|_| ending.status == EndStatus::Canceled);
            let ending = Ending { reason, ..(*ending).clone() };
            Some(finalizing(execution, &ending, hold))
        }
        Meaning::Work
        | Meaning::Lost { .. }
        | Meaning::Resumed { .. }
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Started { .. }
        | Meaning::Blocked { .. }
        | Meaning::Answered
        | Meaning::PauseRequested { .. }
        | Meaning::PauseEnded
        | Meaning::Injected
        | Meaning::Adopted
        | Meaning::CancelRequested { .. }
        | Meaning::FinalizerStarted
        | Meaning::Finished => None,
    }
}
