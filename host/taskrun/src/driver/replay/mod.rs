//! The steps of a run, executed again over its record.
//!
//! Each step is given the conversation that it had, by a fold of the journal up to where it ended,
//! and its whole tape: models, the controller, memory, the clock and chance answer from that, as do
//! tools and people, whose answers are part of the conversation. Nothing is written, and nothing
//! outside is asked: a question that is not on the tape is a difference. As each step begins where
//! the record says, and not where the step before it came to, a step that differs makes no other one
//! differ.

mod carried;
mod compare;
mod outcome;
mod step;
mod stopped;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use taskrun_journal::ending::Ending;
use taskrun_journal::event::{
    AccountEvent, DialogEvent, Event, EventRecord, EventView, LifecycleEvent, StepEvent,
};
use taskrun_journal::ids::Seq;
use taskrun_journal::machine;
use taskrun_journal::pin::Pins;
use taskrun_journal::plan::TerminationReason;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::status::StopReason;
use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::millis;

use self::step::{Attempted, StepEndRecord};
use self::stopped::{ASKED_TO_STOP, OUT_OF_TIME, STOPPED_FOR_TIME, StepFate, Stops};
use self::world::Recorded;
use super::parts::Parts;
use super::recorder::Recorder;
use super::work::Work;
use crate::agents::{Agent, AgentCode};
use crate::ports::planner::Planner;
use crate::ports::retry::StepFault;
use crate::scope::QuestionNumber;

pub use self::outcome::{ReplayedStep, StepComparison, StepDifference};
pub use self::world::ReplayWorld;

/// Finds the agents of a run in the forms that its record names.
#[async_trait]
pub trait Forms: Send + Sync {
    /// The agent of a run, and those above it, under the policy in which it and they have these
    /// pins.
    ///
    /// # Errors
    /// Why they cannot be had, in words.
    async fn form(&self, run: &Run, pins_now: &[String]) -> Result<Form, String>;
}

/// An agent with its code, beneath those of the runs above, the root's first.
#[derive(Clone)]
pub struct Form {
    /// The agent.
    pub agent: Arc<Agent>,
    /// Its code.
    pub code: Arc<AgentCode>,
    /// The agents of the runs above.
    pub above: Vec<Option<Arc<Agent>>>,
}

/// The record of a run.
pub struct RunRecord<'r> {
    /// Its events.
    pub own: Arc<[EventRecord]>,
    /// Those of the runs that it continues, as far as they are there, the latest of these first.
    pub before: &'r [Vec<EventRecord>],
}

/// The reason that a record cannot be executed again at all.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The journal is none.
    #[error("the journal tells what cannot be: {0}")]
    Inconsistent(String),
}

/// Executes the steps of a run again, and shows each with the outcome. With `against`, that code
/// decides, and not the code that was recorded.
///
/// # Errors
/// [`ReplayError`], after the steps before it were shown.
///
/// # Cancel safety
/// Dropping the future drops the step under way.
pub async fn replay(
    record: RunRecord<'_>,
    forms: &dyn Forms,
    world: ReplayWorld,
    against: Option<Arc<dyn Planner>>,
    mut see: impl FnMut(ReplayedStep) + Send,
) -> Result<(), ReplayError> {
    let failed = |error: &dyn std::fmt::Display| ReplayError::Inconsistent(error.to_string());
    let RunRecord { own: records, before } = record;
    let first = records.first().ok_or_else(|| failed(&"it is empty"))?;
    let run = machine::begin(first).map_err(|error| failed(&error))?;
    let (work, is_cut) = carried::work(&run, before)?;
    let world = Recorded::new(world, Arc::clone(&records));
    let mut replay = Replay {
        forms,
        world,
        against,
        run,
        work: Some(work),
        form: None,
        is_cut,
        is_mixed: false,
        has_decided: false,
        stops: Stops::default(),
    };
    for (at, record) in records.iter().enumerate() {
        if at > 0 {
            if let Some(end) = replay.end_of_step(&records, at) {
                see(replay.step(end, record.seq).await);
            }
            replay.note_stops(record);
            replay.note(&record.event);
            let state = machine::apply(replay.run.state.clone(), record);
            replay.run.state = state.map_err(|error| failed(&error))?;
        }
        replay.work_mut().push_recorded(record);
    }
    Ok(())
}

/// A run on its way through its record.
struct Replay<'f> {
    forms: &'f dyn Forms,
    world: Recorded,
    against: Option<Arc<dyn Planner>>,
    run: Run,
    /// Lent to the recorder of a step while that is executed.
    work: Option<Work>,
    /// The form that was used last.
    form: Option<KnownForm>,
    /// True if a run that it continues is not on record.
    is_cut: bool,
    /// True if the rules changed while the step was under way.
    is_mixed: bool,
    /// True if a step has just decided, so that what ends the run is no failure of another one.
    has_decided: bool,
    stops: Stops,
}

/// A form, or why it cannot be had, by the run's own pin and those of now.
struct KnownForm {
    pin: String,
    pins_now: Vec<String>,
    form: Result<Form, String>,
}

impl Replay<'_> {
    fn work(&self) -> &Work {
        self.work.as_ref().expect("it is lent for a step only")
    }

    fn work_mut(&mut self) -> &mut Work {
        self.work.as_mut().expect("it is lent for a step only")
    }

    /// Takes note of what makes the step under way one of which the record has two halves.
    fn note(&mut self, event: &Event) {
        let changes = matches!(
            event.view(),
            EventView::Account(AccountEvent::RulesChanged { .. })
                | EventView::Lifecycle(LifecycleEvent::Adopted { .. })
        );
        self.has_decided = match event.view() {
            EventView::Step(StepEvent::PlanDecided { .. }) => true,
            EventView::Step(StepEvent::Usage { .. })
            | EventView::Dialog(DialogEvent::AssistantMessage { .. })
            | EventView::Account(_)
            | EventView::Lifecycle(LifecycleEvent::PauseEnded { .. }) => self.has_decided,
            EventView::Lifecycle(_)
            | EventView::Dialog(_)
            | EventView::Step(_)
            | EventView::Call(_)
            | EventView::Taped(_) => false,
        };
        self.is_mixed = (self.is_mixed || changes) && !self.work().tape.is_empty();
    }

    /// The end of a step that the event at this place of the record tells of, if it does. One that
    /// its host left in the middle is still under way if the run goes on.
    fn end_of_step<'r>(
        &self,
        records: &'r [EventRecord],
        place: usize,
    ) -> Option<StepEndRecord<'r>> {
        let (before, rest) = records.split_at(place);
        let EventRecord { at, event, .. } = rest.first()?;
        match event.view() {
            EventView::Step(event) => match event {
                StepEvent::PlanDecided { .. } => Some(StepEndRecord::Decided(rest)),
                StepEvent::StepFailed { error, .. } | StepEvent::TurnSkipped { error, .. } => {
                    Some(StepEndRecord::Failed(error))
                }
                // It may have been stopped for what is up.
                StepEvent::FinalizeRequested { reason: TerminationReason::TimeBudget, .. } => {
                    self.is_in_step(*at).then_some(StepEndRecord::Stopped(OUT_OF_TIME))
                }
                StepEvent::FinalizeRequested { .. } => self.end_at_limit(before, *at),
                StepEvent::Usage { .. }
                | StepEvent::PushedBack { .. }
                | StepEvent::RoundEnded { .. }
                | StepEvent::ReplayDiverged { .. } => None,
            },
            EventView::Lifecycle(LifecycleEvent::Finalizing { ending }) => {
                if let Some(why) = self.stopped_with_run(ending, *at) {
                    return Some(StepEndRecord::Stopped(why));
                }
                let is_of_step = match StepFate::of(ending.stop_reason) {
                    StepFate::Limited => return self.end_at_limit(before, *at),
                    StepFate::Failed => true,
                    StepFate::Stopped(_) | StepFate::Decided => false,
                };
                // What a step decided may be such an end, too: then it is on record before.
                let is_running = matches!(self.run.state.lifecycle, Lifecycle::Running { .. });
                // One that the host ends between two rounds has not failed in a step either.
                let fails_itself = !self.has_decided && ending.by.is_none();
                (is_of_step && is_running && fails_itself).then_some(StepEndRecord::Ended(ending))
            }
            EventView::Lifecycle(_)
            | EventView::Dialog(_)
            | EventView::Call(_)
            | EventView::Taped(_)
            | EventView::Account(_) => None,
        }
    }

    /// Executes the step that ended so.
    async fn step(&mut self, end: StepEndRecord<'_>, seq: Seq) -> ReplayedStep {
        let turn = self.run.state.turns + 1;
        let attempt = self.run.state.failed_attempts + 1;
        let outcome = match self.reason_to_skip(&end) {
            Some(reason) => StepComparison::Skipped(reason),
            None => match self.form().await {
                Ok(form) => self.compared(form, &end).await,
                Err(reason) if self.has_not_begun(&end) => {
                    StepComparison::Skipped(format!("its agent did not load: {reason}"))
                }
                Err(reason) => StepComparison::Skipped(reason),
            },
        };
        ReplayedStep { turn, attempt, seq, outcome }
    }

    /// Why the record of a step is not one that it can be held against.
    fn reason_to_skip(&self, end: &StepEndRecord<'_>) -> Option<String> {
        let says = |words: &str| Some(words.to_owned());
        if self.is_cut {
            return says("a run that it continues is not on record");
        }
        if self.is_mixed {
            return says("its rules changed while it was under way");
        }
        if matches!(self.run.state.lifecycle, Lifecycle::Canceling { .. }) {
            return says(ASKED_TO_STOP);
        }
        match end {
            StepEndRecord::Ended(ending) => match &ending.failure {
                None if gave_up_for_host(ending) => says("its host failed"),
                Some(CallAbort::Deadline { .. }) => says(STOPPED_FOR_TIME),
                Some(CallAbort::Internal | CallAbort::Unavailable) => says("its host failed"),
                Some(CallAbort::Stopped { .. }) => says("it was stopped"),
                Some(
                    CallAbort::Memory { .. }
                    | CallAbort::Stack
                    | CallAbort::Limit { .. }
                    | CallAbort::Trap { .. }
                    | CallAbort::Contract { .. },
                )
                | None => None,
            },
            StepEndRecord::Failed(error) if is_of_host(error) => says("its host failed"),
            StepEndRecord::Failed(_) => None,
            StepEndRecord::Stopped(why) => Some((*why).to_owned()),
            StepEndRecord::Decided(rest) => {
                let Some(Event::PlanDecided { ran_ms, .. }) = rest.first().map(|one| &one.event)
                else {
                    return None;
                };
                let timeout = self.run.spec.timeout_ms;
                let is_late = timeout.is_some_and(|timeout| *ran_ms >= timeout);
                if is_late { says(OUT_OF_TIME) } else { None }
            }
        }
    }

    /// True if the host ended the run without the code of its agent.
    fn has_not_begun(&self, end: &StepEndRecord<'_>) -> bool {
        matches!(end, StepEndRecord::Ended(ending)
            if ending.stop_reason == StopReason::AgentError && ending.failure.is_none())
            && self.work().tape.is_empty()
    }

    /// The agent as the step had it.
    async fn form(&mut self) -> Result<Form, String> {
        let (pin, pins_now) = (self.run.pin().to_owned(), self.work().pins_now.clone());
        if let Some(known) = &self.form
            && (&known.pin, &known.pins_now) == (&pin, &pins_now)
        {
            return known.form.clone();
        }
        let form = self.forms.form(&self.run, &pins_now).await;
        self.form = Some(KnownForm { pin, pins_now, form: form.clone() });
        form
    }

    async fn compared(&mut self, form: Form, end: &StepEndRecord<'_>) -> StepComparison {
        let pins = self.work().pins_now.clone();
        let parts = self.world.parts(form, &self.run, pins);
        if let StepEndRecord::Decided(rest) = end
            && let Some(Event::PlanDecided { ran_ms, .. }) = rest.first().map(|one| &one.event)
            && parts.agent.budget.wall.is_some_and(|wall| u128::from(*ran_ms) >= wall.as_millis())
        {
            return StepComparison::Skipped(OUT_OF_TIME.to_owned());
        }
        if matches!(end, StepEndRecord::Failed(error) if is_deadline(&parts.agent, error)) {
            return StepComparison::Skipped(STOPPED_FOR_TIME.to_owned());
        }
        let recorded = Arc::clone(&parts.code.planner);
        let planner = self.against.clone().unwrap_or_else(|| Arc::clone(&recorded));
        let attempted = self.attempt(&parts, planner, None).await;
        let mut compared = compare::compare(&attempted, end, &self.run);
        if self.against.is_none() {
            return compared;
        }
        // What the recorded code does here tells apart what the other one does by itself.
        match (&mut compared, attempted) {
            (StepComparison::Skipped(reason), Attempted { unrecorded: Some(_), .. }) => {
                let before = self.attempt(&parts, recorded, None).await;
                match before.unrecorded {
                    Some(_) => compared,
                    None => StepComparison::Differs(Box::new(StepDifference {
                        recorded: "nothing of that kind".to_owned(),
                        found: std::mem::take(reason),
                        question: None,
                    })),
                }
            }
            (StepComparison::Differs(difference), _) => {
                if let Some((known, asked)) = &mut difference.question {
                    let wanted = (asked.number, asked.is_outside);
                    let before = self.attempt(&parts, recorded, Some(wanted)).await;
                    *known = before.question;
                }
                compared
            }
            (StepComparison::Same | StepComparison::Skipped(_), _) => compared,
        }
    }

    /// Executes the step once.
    async fn attempt(
        &mut self,
        parts: &Parts,
        planner: Arc<dyn Planner>,
        question: Option<QuestionNumber>,
    ) -> Attempted {
        let live = self.world.live(Pins::of(&self.run));
        let work = self.work.take().expect("it is lent for a step only");
        let mut recorder = Recorder::over(parts, self.run.clone(), live, work);
        let attempted = step::attempt(parts, &mut recorder, planner, question).await;
        self.work = Some(recorder.into_work());
        attempted
    }
}

/// The ends of a step for its host, which may have been otherwise the next time.
const OF_HOST: [CallAbort; 2] = [CallAbort::Internal, CallAbort::Unavailable];

/// True for the text of a step that ended so.
fn is_of_host(error: &str) -> bool {
    OF_HOST.iter().any(|end| error == end.to_string())
}

/// True if a run ended as its last attempt at a step ended so, by the record of an older program,
/// which has that in words alone.
fn gave_up_for_host(ending: &Ending) -> bool {
    let error = ending.error.as_deref().unwrap_or_default();
    ending.stop_reason == StopReason::RetryAborted
        && OF_HOST.iter().any(|end| error.ends_with(&end.to_string()))
}

/// True for the text of a step that was stopped for its time, or for that of its round.
fn is_deadline(agent: &Agent, error: &str) -> bool {
    let (step, round) = (millis(agent.limits.step), agent.budget.round.map(millis));
    // Records of older programs have for a round what they have for a step.
    let stopped = |limit_ms| CallAbort::Deadline { limit_ms }.to_string();
    let over = |limit_ms| StepFault::RoundOver { limit_ms }.text();
    error == stopped(step) || round.is_some_and(|of| error == over(of) || error == stopped(of))
}

/// The images of a run, by their digests.
pub type Images = BTreeMap<String, Arc<[u8]>>;
