//! Steps that were stopped before they came to their ends, or that ended at a limit of their run.
//! Those that were stopped have nothing on record that they could be held against.

use taskrun_journal::ending::Ending;
use taskrun_journal::event::{
    CallEvent, Event, EventRecord, EventView, LifecycleEvent, Refusal, StepEvent,
};
use taskrun_journal::run::{HeldWait, Lifecycle};
use taskrun_journal::status::StopReason;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolOutput;

use super::Replay;
use super::step::StepEndRecord;
use crate::driver::results::stopped;
use crate::driver::step::STEP_FAILED;
use crate::scope::HOST;

pub(super) const STOPPED_FOR_TIME: &str = "it was stopped for its time";
pub(super) const OUT_OF_TIME: &str = "the time of the run was up while it was under way";
pub(super) const ASKED_TO_STOP: &str = "it was asked to stop while it was under way";
const LOST_ITS_HOST: &str = "it lost its host while it was under way";
const WITHOUT_IT: &str = "the run came to its end without it";

/// The causes for which the host stops calls while the record says nothing of that, each with the
/// end that the run then has.
const STOPS_OF_CALLS: [(StopCause, StopReason); 2] = [
    (StopCause::RunTimeout, StopReason::RunTimeout),
    (StopCause::Shutdown, StopReason::HostShutdown),
];

/// The fate of the step before the end of a run, by the reason of that end.
pub(super) enum StepFate {
    /// It failed, if one was under way.
    Failed,
    /// It was stopped for this reason, if one was under way.
    Stopped(&'static str),
    /// A limit was met, be it in a step or beside one.
    Limited,
    /// It decided, or the run ended for something else than a step.
    Decided,
}

impl StepFate {
    pub(super) fn of(reason: StopReason) -> Self {
        match reason {
            StopReason::AgentError
            | StopReason::AgentTrap
            | StopReason::ContractViolation
            | StopReason::PlannerError
            | StopReason::RateLimited
            | StopReason::RetryAborted => Self::Failed,
            StopReason::TurnTimeout => Self::Stopped(STOPPED_FOR_TIME),
            StopReason::RunTimeout => Self::Stopped(OUT_OF_TIME),
            StopReason::CanceledByOwner
            | StopReason::CanceledByParent
            | StopReason::HostShutdown => Self::Stopped(ASKED_TO_STOP),
            StopReason::LeaseLost | StopReason::InterruptedByRestart => {
                Self::Stopped(LOST_ITS_HOST)
            }
            StopReason::Done
            | StopReason::NaturalEnd
            | StopReason::TerminalTool
            | StopReason::FinalResponse
            | StopReason::PersistFailed
            | StopReason::Deferred => Self::Decided,
            StopReason::MaxTurns
            | StopReason::MaxTokens
            | StopReason::MaxCost
            | StopReason::Wallclock
            | StopReason::ToolCap
            | StopReason::FailureCap
            | StopReason::TimeBudget => Self::Limited,
        }
    }
}

/// The stops that are on record, and the calls that kept a step from beginning.
#[derive(Clone, Copy, Default)]
pub(super) struct Stops {
    /// True if a step was under way when somebody asked to stop, or when the host died, and it does
    /// not go on.
    in_step: bool,
    /// True if the host refused calls, as the run was to come to its end: no step began after them.
    in_calls: bool,
    /// The end of a run for which the host stops calls as it stopped these: if the run has that
    /// end, no step began after them.
    of_calls: Option<StopReason>,
}

impl Replay<'_> {
    /// Takes note of what an event says of the step under way, before the run has that event.
    pub(super) fn note_stops(&mut self, record: &EventRecord) {
        let stops = self.stops;
        self.stops = match record.event.view() {
            EventView::Lifecycle(
                LifecycleEvent::CancelRequested { .. } | LifecycleEvent::Lost { crashed: true, .. },
            ) => Stops { in_step: stops.in_step || self.is_in_step(record.at), ..stops },
            // The same step goes on, by its record.
            EventView::Lifecycle(LifecycleEvent::Resumed { .. }) => {
                Stops { in_step: false, ..stops }
            }
            EventView::Call(CallEvent::ToolResult { output, refused, .. }) => {
                let in_calls = stops.in_calls || refused == Some(Refusal::Finalized);
                let of_calls = end_of_calls(output).or(stops.of_calls);
                Stops { in_calls, of_calls, ..stops }
            }
            EventView::Step(
                StepEvent::PlanDecided { .. }
                | StepEvent::StepFailed { .. }
                | StepEvent::TurnSkipped { .. }
                | StepEvent::FinalizeRequested { .. },
            ) => Stops::default(),
            EventView::Lifecycle(_)
            | EventView::Step(_)
            | EventView::Call(_)
            | EventView::Dialog(_)
            | EventView::Taped(_)
            | EventView::Account(_) => stops,
        };
    }

    /// The reason for which a step was stopped with the run, which came to this end at this time;
    /// `None` if none was.
    pub(super) fn stopped_with_run(&self, ending: &Ending, at: Timestamp) -> Option<&'static str> {
        if matches!(self.run.state.lifecycle, Lifecycle::Canceling { .. }) {
            return self.stops.in_step.then_some(ASKED_TO_STOP);
        }
        let was_in_calls =
            || self.stops.of_calls == Some(ending.stop_reason) && !self.work().has_begun_step();
        match StepFate::of(ending.stop_reason) {
            StepFate::Stopped(why) => {
                let is_in_step = || self.is_in_step(at) && !was_in_calls();
                (self.stops.in_step || is_in_step()).then_some(why)
            }
            StepFate::Failed | StepFate::Limited | StepFate::Decided => None,
        }
    }

    /// The end of a step at a limit for which the run has its last word next, or ends; `None` if
    /// none was under way. A step that failed as nothing was left to ask a model with has its error
    /// on record before that.
    pub(super) fn end_at_limit<'r>(
        &self,
        before: &'r [EventRecord],
        at: Timestamp,
    ) -> Option<StepEndRecord<'r>> {
        if let Some(error) = error_before_end(before) {
            return Some(StepEndRecord::Failed(error));
        }
        // Nothing else begins after the last word was asked for.
        let has_begun = || self.work().finalize.is_some() || self.work().has_begun_step();
        (self.is_in_step(at) && has_begun()).then_some(StepEndRecord::Stopped(WITHOUT_IT))
    }

    /// True if a step is under way at this time, as far as the record tells: that one begins is not
    /// on it, so it is under way where nothing else is.
    pub(super) fn is_in_step(&self, at: Timestamp) -> bool {
        let (state, work) = (&self.run.state, self.work());
        let is_executed = match &state.lifecycle {
            // An entry of a heartbeat is worked on in the steps of another run.
            Lifecycle::Running { execution } => {
                execution.batch.is_none() && (state.hold.host().is_some() || work.has_begun_step())
            }
            // It may have been put off.
            Lifecycle::Blocked { .. } => work.has_begun_step(),
            Lifecycle::Queued
            | Lifecycle::Canceling { .. }
            | Lifecycle::Finalizing { .. }
            | Lifecycle::Ended { .. } => false,
        };
        let is_paused = matches!(state.held_wait, HeldWait::Until(until) if at < until);
        let is_calling = self.stops.in_calls || work.open_calls().next().is_some();
        let is_asking = work.asked.iter().any(|asked| asked.answer.is_none());
        is_executed && !(self.has_decided || is_paused || is_calling || is_asking)
    }
}

/// The end of the run with which the host stopped a call that has this output; `None` if it did
/// not. A tool that fails chooses its code itself, so that alone says nothing.
fn end_of_calls(output: &ToolOutput) -> Option<StopReason> {
    let is_stopped = |cause| output.outcome == stopped(&output.name, &CallAbort::Stopped { cause });
    STOPS_OF_CALLS.into_iter().find(|(cause, _)| is_stopped(*cause)).map(|(_, reason)| reason)
}

/// The error of a step that the host wrote just before the record goes on with the limit for which
/// the step was not tried again.
fn error_before_end(before: &[EventRecord]) -> Option<&str> {
    let mut lines = before.iter().rev().map_while(|record| {
        let Event::Log { source, message, .. } = &record.event else { return None };
        (source == HOST).then_some(message)
    });
    lines.find_map(|line| line.strip_prefix(STEP_FAILED))
}
