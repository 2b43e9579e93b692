//! The rounds of a run that goes on by itself, folded from its journal.

use serde::{Deserialize, Serialize};

use crate::autonomy::{Done, Mark, Schedule, StateReport};
use crate::checkpoint::{Checkpoint, FoldRef};
use crate::event::{CallEvent, DialogEvent, EventView, LifecycleEvent, StepEvent};
use crate::ids::Seq;
use crate::message::Usage;
use crate::spec::Continuation;
use crate::status::BlockedOn;

/// The rounds of a run, and what it said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rounds {
    /// Rounds that have ended, and after which it went on.
    pub ended: u32,
    /// True once a plan step of the present round came to its end, or failed.
    pub has_begun: bool,
    /// True if a tool was called in the present round that is none of the run's own, by which it
    /// only speaks of itself.
    pub worked: bool,
    /// The time that the run had been running when the present round began, or an attempt at a step of
    /// it failed last, in milliseconds: from there on its time counts.
    pub began_ms: u64,
    /// The turns, and the tool calls, that the run had had when the present round began.
    pub before: (u32, u32),
    /// The number of times that it was asked again for its result, since a round that was gone on
    /// from without that.
    pub asked: u32,
    /// Its word that it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<Done>,
    /// The wake-up that it wants after the present round; of several the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Schedule>,
    /// The wake-up until which it is deferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<Schedule>,
    /// The wake-up for which it was taken up, until it has decided something since, or was told
    /// something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub woken: Option<Schedule>,
    /// The state that it said last it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<StateReport>,
    /// The last fold of its journal that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fold: Option<FoldRef>,
    /// The consumption of the runs beneath it that count no longer in its tree.
    #[serde(skip_serializing_if = "crate::run::is_no_usage")]
    pub settled: Usage,
    /// The consumption beneath the runs that it continues since it was accepted: none where nothing
    /// was open there by then. `None` where it continues none, and as long as something is open
    /// beneath them or no round has ended since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continued: Option<Usage>,
}

impl Rounds {
    /// Those of a run that begins where another one ended.
    pub(crate) fn continuing(continued: &Continuation) -> Self {
        let Continuation {
            run: _,
            turns,
            rounds,
            tool_calls,
            ran_ms,
            usage: _,
            is_final,
            reply: _,
            due,
        } = continued;
        Self {
            ended: *rounds,
            began_ms: *ran_ms,
            before: (*turns, *tool_calls),
            scheduled: due.clone(),
            continued: is_final.then(Usage::default),
            ..Self::default()
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The number of rounds, the present one included.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.ended + u32::from(self.has_begun)
    }

    /// Takes into account what was left behind by the event at this position.
    pub(crate) fn leave_behind(&mut self, seq: Seq, checkpoint: &Checkpoint) {
        let Checkpoint { conversation_bytes: _, settled, continued, fold } = checkpoint;
        self.settled = self.settled.plus(settled.usage);
        self.continued = self.continued.or(*continued);
        if let Some(fold) = fold.as_ref().filter(|fold| fold.seq == seq) {
            self.fold = Some(fold.clone());
        }
    }

    /// Takes one event into account; the run has been running for so long, and has had so many turns
    /// and tool calls.
    pub(crate) fn count(&mut self, event: EventView<'_>, ran_ms: u64, had: (u32, u32)) {
        match event {
            EventView::Step(event) => match event {
                StepEvent::PlanDecided { .. } => self.begin(),
                StepEvent::StepFailed { .. } | StepEvent::TurnSkipped { .. } => {
                    self.begin();
                    self.began_ms = ran_ms;
                }
                StepEvent::RoundEnded { round, wants_result, .. } => {
                    (self.ended, self.began_ms, self.before) = (round, ran_ms, had);
                    (self.has_begun, self.worked) = (false, false);
                    self.asked = if wants_result { self.asked + 1 } else { 0 };
                    self.due = self.scheduled.take();
                }
                StepEvent::Usage { .. }
                | StepEvent::PushedBack { .. }
                | StepEvent::ReplayDiverged { .. }
                | StepEvent::FinalizeRequested { .. } => {}
            },
            EventView::Call(event) => match event {
                CallEvent::ToolCallScheduled { is_own, .. } => self.worked |= !is_own,
                CallEvent::ToolCallParked { .. } => self.worked = true,
                CallEvent::Marked { mark } => self.mark(mark),
                CallEvent::ToolResult { .. }
                | CallEvent::ToolCallRepeated { .. }
                | CallEvent::ChildRunLinked { .. }
                | CallEvent::ToolCallUpdated { .. }
                | CallEvent::ToolAuthorization { .. } => {}
            },
            EventView::Lifecycle(event) => match event {
                LifecycleEvent::Resumed { .. } => {
                    self.woken = self.due.take().or(self.woken.take())
                }
                // Before its first round a run waits for the wake-up of the one that it continues.
                LifecycleEvent::Blocked { on: BlockedOn::Schedule, .. } if !self.has_begun => {
                    self.due = self.due.take().or(self.scheduled.take());
                }
                LifecycleEvent::Queued { .. }
                | LifecycleEvent::Started { .. }
                | LifecycleEvent::Lost { .. }
                | LifecycleEvent::Blocked { .. }
                | LifecycleEvent::PauseRequested { .. }
                | LifecycleEvent::PauseEnded { .. }
                | LifecycleEvent::Adopted { .. }
                | LifecycleEvent::CancelRequested { .. }
                | LifecycleEvent::Finalizing { .. }
                | LifecycleEvent::FinalizerStarted
                | LifecycleEvent::Finished { .. } => {}
            },
            EventView::Dialog(event) => match event {
                DialogEvent::Injected { .. } => (self.due, self.woken) = (None, None),
                DialogEvent::HistoryCarried { .. }
                | DialogEvent::Reported { .. }
                | DialogEvent::AssistantMessage { .. }
                | DialogEvent::Asked { .. }
                | DialogEvent::Answered { .. }
                | DialogEvent::InboxShown { .. } => {}
            },
            EventView::Taped(_) | EventView::Account(_) => {}
        }
    }

    fn begin(&mut self) {
        self.has_begun = true;
        (self.due, self.woken) = (None, None);
    }

    fn mark(&mut self, mark: &Mark) {
        match mark {
            // The first word counts.
            Mark::Done(done) => {
                self.done.get_or_insert_with(|| done.clone());
            }
            Mark::Rejected => self.asked += 1,
            Mark::Status(state) => self.state = Some(state.clone()),
            Mark::Schedule(schedule) => self.scheduled = Some(schedule.clone()),
        }
    }
}
