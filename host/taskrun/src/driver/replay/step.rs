//! One step over its record.

use std::sync::Arc;

use taskrun_journal::ending::Ending;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::plan::Termination;

use crate::driver::allowance::TreeSnapshot;
use crate::driver::finish::demand;
use crate::driver::parts::Parts;
use crate::driver::recorder::Recorder;
use crate::driver::step::{Step, StepEnd};
use crate::driver::{engines, images};
use crate::ports::planner::{PlanResult, Planner};
use crate::scope::{NotedQuestion, QuestionNumber, ReplayEnd, Tape};

/// The end of a step, as the record tells it.
#[derive(Clone, Copy)]
pub(super) enum StepEndRecord<'r> {
    /// The step decided: the events from that decision on.
    Decided(&'r [EventRecord]),
    /// It failed in a way that may pass, with this error.
    Failed(&'r str),
    /// It ended the run so.
    Ended(&'r Ending),
    /// It was stopped for this reason, and did not end.
    Stopped(&'static str),
}

/// A step that was executed again.
pub(super) struct Attempted {
    /// The events that a host would write of it.
    pub(super) pending: Vec<Event>,
    /// The plan, or how the run would end without one.
    pub(super) outcome: Result<PlanResult, Outcome>,
    /// The rest of its tape.
    pub(super) tape: Tape,
    /// The question that was to be noted, or that differs.
    pub(super) question: Option<NotedQuestion>,
    /// The thing that it wanted from outside and no record has, in words.
    pub(super) unrecorded: Option<String>,
}

/// Executes the step that is next in `recorder` over its tape, by the code of `planner`.
pub(super) async fn attempt(
    parts: &Parts,
    recorder: &mut Recorder,
    planner: Arc<dyn Planner>,
    question: Option<QuestionNumber>,
) -> Attempted {
    let turn = recorder.run().state.turns + 1;
    let tape = recorder.work().tape.clone().without_notes_of_host().whole();
    let finalize = recorder.work().finalize;
    let finalize =
        finalize.map(|reason| Termination { reason, message: demand(reason).to_owned() });
    let live = Arc::clone(recorder.live());
    // What it may spend is not asked of the tree: a question for that is not recorded.
    let last = finalize.is_some();
    let remaining =
        engines::remaining_of_step(parts, recorder, (turn, last), &TreeSnapshot::default()).await;
    let remaining = remaining.unwrap_or_default();
    let mut step = Step::new(parts, recorder);
    let excerpt = match step.excerpt() {
        Ok(excerpt) => excerpt,
        Err(end) => return Attempted::of(*end, ReplayEnd::default()),
    };
    let (stop, entered) = live.enter(planner.hears_cancellation());
    let scope = Arc::new(step.step_scope(remaining, stop, Some(tape), &excerpt));
    if let Some(number) = question {
        scope.want_question(number);
    }
    let input = step.input(&scope, excerpt, finalize);
    let answer = planner.plan(input, Arc::clone(&scope)).await;
    let answer = match answer {
        Ok(Ok(plan)) => Ok(images::keep(parts, step.recorder(), plan).await),
        other @ (Ok(Err(_)) | Err(_)) => other,
    };
    drop(entered);
    let end = scope.end_replay();
    Attempted::of(step.conclude(turn, scope.finish(), answer, None), end)
}

impl Attempted {
    fn of(step: StepEnd, end: ReplayEnd) -> Self {
        let StepEnd { pending, outcome, .. } = step;
        let ReplayEnd { tape, question, unrecorded } = end;
        Self { pending, outcome, tape, question, unrecorded }
    }
}
