//! Steps that were stopped before they came to their ends. What they would have done is not on
//! record, so there is nothing to hold them against.

use taskrun_journal::ending::Ending;
use taskrun_journal::event::{
    CallEvent, EventRecord, EventView, LifecycleEvent, Refusal, StepEvent,
};
use taskrun_journal::run::{HeldWait, Lifecycle};
use taskrun_journal::status::StopReason;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

use super::Replay;

pub(super) const STOPPED_FOR_TIME: &str = "it was stopped for its time";
pub(super) const OUT_OF_TIME: &str = "the time of the run was up while it was under way";
pub(super) const ASKED_TO_STOP: &str = "it was asked to stop while it was under way";
const LOST_ITS_HOST: &str = "it lost its host while it was under way";

/// The code of a call that was stopped with its run.
const STOPPED: &str = "stopped";

/// The fate of the step before the end of a run, by the reason of that end.
pub(super) enum StepFate {
    /// It failed, if one was under way.
    Failed,
    /// It was stopped for this reason, if one was under way.
    Stopped(&'static str),
    /// None was under way.
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
            | StopReason::MaxTurns
            | StopReason::MaxTokens
            | StopReason::MaxCost
            | StopReason::Wallclock
            | StopReason::ToolCap
            | StopReason::FailureCap
            | StopReason::TimeBudget
            | StopReason::PersistFailed
            | StopReason::Deferred => Self::Decided,
        }
    }
}

/// The stops that are on record, and the calls that kept a step from beginning.
#[derive(Default)]
pub(super) struct Stops {
    /// True if a step was under way when somebody asked to stop, or when the host died, and it does
    /// not go on.
    in_step: bool,
    /// True if the end of the run, or of its time, overtook calls: no step began after them.
    in_calls: bool,
}

impl Replay<'_> {
    /// Takes note of what an event says of the step under way, before the run has that event.
    pub(super) fn note_stops(&mut self, record: &EventRecord) {
        let Stops { in_step, in_calls } = self.stops;
        self.stops = match record.event.view() {
            EventView::Lifecycle(
                LifecycleEvent::CancelRequested { .. } | LifecycleEvent::Lost { crashed: true, .. },
            ) => Stops { in_step: in_step || self.is_in_step(record.at), in_calls },
            // The same step goes on, by its record.
            EventView::Lifecycle(LifecycleEvent::Resumed { .. }) => {
                Stops { in_step: false, in_calls }
            }
            EventView::Call(CallEvent::ToolResult { output, refused, .. }) => {
                let is_overtaken = refused == Some(Refusal::Finalized) || is_stopped(output);
                Stops { in_step, in_calls: in_calls || is_overtaken }
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
            | EventView::Account(_) => Stops { in_step, in_calls },
        };
    }

    /// The reason for which a step was stopped with the run, which came to this end at this time;
    /// `None` if none was.
    pub(super) fn stopped_with_run(&self, ending: &Ending, at: Timestamp) -> Option<&'static str> {
        if matches!(self.run.state.lifecycle, Lifecycle::Canceling { .. }) {
            return self.stops.in_step.then_some(ASKED_TO_STOP);
        }
        match StepFate::of(ending.stop_reason) {
            StepFate::Stopped(why) => (self.stops.in_step || self.is_in_step(at)).then_some(why),
            StepFate::Failed | StepFate::Decided => None,
        }
    }

    /// True if a step is under way at this time, as far as the record tells: that one begins is not
    /// on it, so it is under way where nothing else is.
    pub(super) fn is_in_step(&self, at: Timestamp) -> bool {
        let (state, work) = (&self.run.state, self.work());
        let has_begun = || !work.tape.clone().without_notes_of_host().is_empty();
        let is_executed = match &state.lifecycle {
            // An entry of a heartbeat is worked on in the steps of another run.
            Lifecycle::Running { execution } => {
                execution.batch.is_none() && (state.hold.host().is_some() || has_begun())
            }
            // It may have been put off.
            Lifecycle::Blocked { .. } => has_begun(),
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

/// True for the output of a call that was stopped with its run.
fn is_stopped(output: &ToolOutput) -> bool {
    match &output.outcome {
        ToolOutcome::Failure(failure) => failure.error.code.as_deref() == Some(STOPPED),
        ToolOutcome::Value(_) => false,
    }
}
