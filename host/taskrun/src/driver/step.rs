//! One plan step: what goes in, what comes out, and what of it is recorded.

mod out_of_budget;
mod retrial;

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::event::{DecisionKind, Event};
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::message::{LogLevel, Part};
use taskrun_journal::plan::{FinalToolResult, PlannerError, Termination, TerminationReason};
use taskrun_journal::status::StopReason;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::text::cut;
use taskrun_journal::time::millis;
use taskrun_journal::tool::ToolOutcome;
use tracing::Instrument;

pub(super) use self::out_of_budget::STEP_FAILED;
use self::retrial::Retrial;
pub(super) use self::retrial::fault_of;
use super::allowance::TreeSnapshot;
use super::conversation::Excerpt;
use super::engines;
use super::images;
use super::parts::Parts;
use super::plan::check;
use super::put_off;
use super::random::StepRandom;
use super::recorder::Recorder;
use super::reports;
use super::results::{dropped_notes, host_line, metrics_event};
use super::said::{message, parents, sent_in_parts};
use super::stop::{Halt, Next, Stop};
use super::time_up::TimeUp;
use super::wake;
use crate::ports::planner::{ConversationView, Decision, PlanInput, PlanResult, Resume};
use crate::scope::{
    CallScope, CallScopeParts, PushBackRoom, Remaining, ScopeEnd, ScopeLimits, Services,
    StepConversation, StopSignal, Tape,
};

/// Most bytes that a plan step is given; a run whose conversation is longer fails.
pub const PLAN_INPUT_BYTES_MAX: usize = 1_000_000;
/// Bytes of that for notes, with their ids.
const REMINDERS_BYTES_MAX: usize = 100_000;
/// Code of a planner's error that says it only passes a cancellation on.
const CANCELED: &str = "canceled";
/// Text for an answer that is said to have gone out in parts and did not.
const OTHER_TEXT: &str =
    "the agent says that its answer was streamed, and what it sent in parts is another text";
/// Most bytes that are told of each side of a divergence.
const DIVERGENCE_BYTES_MAX: usize = 1 << 10;

/// One plan step of a run, with its attempts.
pub(super) struct Step<'a> {
    parts: &'a Parts,
    recorder: &'a mut Recorder,
}

/// The end of a plan step.
pub(super) struct StepEnd {
    /// Events that are still to be written.
    pub(super) pending: Vec<Event>,
    /// The plan, or how the run ends without one.
    pub(super) outcome: Result<PlanResult, Outcome>,
    /// The failure policy has the turn skipped for which there is no plan.
    pub(super) skipped: bool,
    /// A model was not to be asked for longer than the run may wait.
    out_of_patience: bool,
    /// A model was not to be asked, as nothing of the budget is left for it.
    out_of_budget: bool,
}

impl StepEnd {
    fn new(pending: Vec<Event>, outcome: Result<PlanResult, Outcome>) -> Self {
        let (skipped, out_of_patience, out_of_budget) = (false, false, false);
        Self { pending, outcome, skipped, out_of_patience, out_of_budget }
    }
}

impl<'a> Step<'a> {
    pub(super) fn new(parts: &'a Parts, recorder: &'a mut Recorder) -> Self {
        Self { parts, recorder }
    }

    /// Asks the planner, and again after a pause where it failed in a way that may pass. Nothing
    /// of the answer is written yet. The first attempt is bounded by the tree as it is given,
    /// unless it has to wait first.
    ///
    /// # Errors
    /// [`Halt::Stopped`] if an attempt may not begin.
    pub(super) async fn run(
        mut self,
        finalize: Option<Termination>,
        mut tape: Option<Tape>,
        mut tree: TreeSnapshot,
    ) -> Result<StepEnd, Halt> {
        let next = if finalize.is_some() { Next::LastWord } else { Next::Step };
        if self.recorder.rest_of_pause().await? {
            tree = TreeSnapshot::default();
        }
        loop {
            self.recorder.go_on(next).await?;
            if tape.as_ref().is_none_or(Tape::is_empty) {
                wake::tell_if_late(self.parts, self.recorder).await?;
                self.recorder.show_inbox().await?;
                // Whose last word it is decides nothing any more.
                if finalize.is_none() && self.recorder.stop(next).is_none() {
                    reports::pull(self.parts, self.recorder).await?;
                }
            }
            // The last word calls no tools.
            if finalize.is_none() && self.recorder.stop(next).is_none() {
                let shown = (tape.as_ref(), &tree);
                engines::decide_tools(self.parts, self.recorder, shown).await?;
            }
            // Whoever was told or asked meanwhile may have stopped the run.
            self.recorder.go_on(next).await?;
            let tree = std::mem::take(&mut tree);
            let mut step = self.attempt(finalize.clone(), tape.take(), &tree).await?;
            let is_last = finalize.is_some();
            if !is_last {
                self.name_limit(&mut step).await?;
            }
            let Some(retry) = self.decide(&mut step, is_last) else { return Ok(step) };
            let turn = self.recorder.run().state.turns + 1;
            let Retrial { attempt, error, after: pause, waits } = retry;
            let retry_after_ms = millis(pause);
            step.pending.push(Event::StepFailed { turn, attempt, error, retry_after_ms });
            if waits {
                let at = self.parts.env.clock.now().plus(pause);
                return Err(put_off::wait_until(self.recorder, step.pending, |_| at).await?);
            }
            self.recorder.record(step.pending).await?;
            self.recorder.pause(pause).await?;
        }
    }

    /// Asks the planner once.
    async fn attempt(
        &mut self,
        finalize: Option<Termination>,
        mut tape: Option<Tape>,
        tree: &TreeSnapshot,
    ) -> Result<StepEnd, Halt> {
        let turn = self.recorder.run().state.turns + 1;
        let last = finalize.is_some();
        if let Some(over) = self.recorder.round_over().filter(|_| !last) {
            return Ok(StepEnd::new(Vec::new(), Err(over)));
        }
        let excerpt = match self.excerpt() {
            Ok(excerpt) => excerpt,
            Err(end) => return Ok(*end),
        };
        if !excerpt.is_whole {
            // A program before this one may have left out something else when the step began.
            tape.iter_mut().for_each(Tape::change_rules);
        }
        let live = Arc::clone(self.recorder.live());
        let planner = Arc::clone(&self.parts.code.planner);
        let (stop, entered) = live.enter(planner.hears_cancellation());
        let which = (turn, last);
        let remaining = engines::remaining_of_step(self.parts, self.recorder, which, tree).await?;
        let (clock, limits) = (Arc::clone(&self.parts.env.clock), &self.parts.agent.limits);
        // The last word has a time of its own, as it comes when that of the work is over.
        let ends_at = if last {
            limits.last_step.map(|time| clock.monotonic().saturating_add(time))
        } else {
            let ends = [self.recorder.work_ends_at(), self.recorder.round_ends_at()];
            ends.into_iter().flatten().min()
        };
        let grace = limits.grace;
        let mut time_up = TimeUp::new(clock, ends_at, grace);
        time_up.enter(&stop, planner.hears_cancellation());
        let scope = Arc::new(self.step_scope(remaining, stop, tape, &excerpt));
        let input = self.input(&scope, excerpt, finalize);
        self.recorder.enter(&scope);
        let attempt = self.recorder.run().state.failed_attempts + 1;
        let span = tracing::debug_span!("step", turn, attempt);
        let answer = planner.plan(input, Arc::clone(&scope)).instrument(span);
        let answer = self.recorder.attend(&mut time_up, answer).await?;
        let answer = match answer {
            Ok(Ok(plan)) => Ok(images::keep(self.parts, self.recorder, plan).await),
            other @ (Ok(Err(_)) | Err(_)) => other,
        };
        self.recorder.leave(&scope);
        drop(entered);
        if let Err(CallAbort::Stopped { cause: StopCause::Denied }) = &answer {
            // It is handed over, and begins anew with what the rules of now leave it.
            self.recorder.record(scope.finish().events).await?;
            return Err(Stop::HandOver.into());
        }
        if let Some(back) = scope.pushed_back() {
            return Err(put_off::put_off((self.parts, self.recorder), turn, &scope, back).await?);
        }
        let overtaken = self.overtaken(&scope);
        Ok(self.conclude(turn, scope.finish(), answer, overtaken))
    }

    pub(super) fn recorder(&mut self) -> &mut Recorder {
        self.recorder
    }

    /// The conversation as the step is given it; how the run ends where it is too long.
    pub(super) fn excerpt(&mut self) -> Result<Excerpt, Box<StepEnd>> {
        // The same in each turn, so that what is shown is left out in the same places.
        let room = PLAN_INPUT_BYTES_MAX - REMINDERS_BYTES_MAX;
        let models = &self.parts.agent.models;
        let model = (models.default.as_deref(), models.context_tokens());
        let view = self.parts.code.planner.view();
        self.recorder.excerpt(room, model, view).ok_or_else(|| {
            let detail = format!(
                "the conversation has more than {room} bytes, even without the results of tools"
            );
            Box::new(StepEnd::new(Vec::new(), Err(Outcome::Refused(detail))))
        })
    }

    /// The input of the step.
    pub(super) fn input(
        &self,
        scope: &CallScope,
        excerpt: Excerpt,
        finalize: Option<Termination>,
    ) -> PlanInput {
        let turn = self.recorder.run().state.turns + 1;
        let reminders = self.recorder.work().conversation.reminders().due(turn);
        let Excerpt { messages, first_new, outputs, .. } = excerpt;
        let is_later = turn > 1 || finalize.is_some();
        let messages = match self.parts.code.planner.view() {
            ConversationView::New if is_later => Arc::new(messages[first_new..].to_vec()),
            ConversationView::New | ConversationView::Whole => messages,
        };
        let resume = is_later.then_some(Resume { tool_outputs: outputs, finalize });
        PlanInput { messages, run: scope.context().clone(), reminders, resume }
    }

    /// The limit of the run for which a step was asked to stop.
    fn overtaken(&self, scope: &CallScope) -> Option<Outcome> {
        if self.recorder.asked().is_some() {
            return None;
        }
        match scope.stop().cause()? {
            StopCause::RunTimeout => {
                let reason = TerminationReason::TimeBudget;
                let over = self.recorder.round_over().filter(|_| !self.recorder.is_out_of_time());
                Some(over.unwrap_or(Outcome::Exhausted { reason, bound: None }))
            }
            StopCause::JournalFull => Some(Outcome::Failed(self.recorder.journal_limit())),
            StopCause::Canceled
            | StopCause::Shutdown
            | StopCause::Diverged
            | StopCause::HandOver
            | StopCause::Denied
            | StopCause::PushedBack
            | StopCause::LeaseLost => None,
        }
    }

    pub(super) fn step_scope(
        &self,
        remaining: Remaining,
        stop: StopSignal,
        tape: Option<Tape>,
        excerpt: &Excerpt,
    ) -> CallScope {
        let (parts, agent) = (self.parts, &self.parts.agent);
        let (run, work) = (self.recorder.run(), self.recorder.work());
        let turn = run.state.turns + 1;
        CallScope::new(CallScopeParts {
            context: parts.context(run, turn),
            stop,
            deadline: agent.limits.step,
            clock: Arc::clone(&parts.env.clock),
            random: Arc::new(StepRandom::new(&run.spec.seed, turn, run.state.failed_attempts + 1)),
            models: Some(Arc::clone(&agent.models)),
            rules: Arc::clone(&parts.bounds.rules),
            pins: work.pins_now.clone(),
            runs: Some(parts.runs_access(run, format!("turn {turn}"))),
            tools: engines::tools_left(parts, work),
            state: work.conversation.state().clone(),
            services: Services {
                reminders: work.conversation.reminders().clone(),
                prompts: Arc::clone(&agent.prompts),
                memory: Some(parts.memory_access(run, None)),
                results: work.conversation.results(),
                conversation: Some(
                    StepConversation::new(Arc::clone(&excerpt.messages), work.digests.clone())
                        .with_task(excerpt.task),
                ),
                left_out: excerpt.left_out.clone(),
                long_calls: work.long_calls.clone(),
                push_backs: Some(PushBackRoom {
                    held: Arc::clone(&parts.env.held_models),
                    spent: Duration::from_millis(run.state.pushed_back_ms),
                }),
                format: parts.env.format,
                ..Services::default()
            },
            remaining,
            limits: ScopeLimits { events: agent.limits.events, bytes: agent.limits.log_bytes },
            wake: self.recorder.wake(),
            journal: Some(self.recorder.room()),
            tape,
        })
    }

    /// A plan to which a step came all the same that was `overtaken` is followed, as far as what is
    /// left of the run allows.
    pub(super) fn conclude(
        &mut self,
        turn: u32,
        end: ScopeEnd,
        answer: Result<Result<PlanResult, PlannerError>, CallAbort>,
        overtaken: Option<Outcome>,
    ) -> StepEnd {
        self.recorder.shortage = end.shortages.ending(matches!(answer, Ok(Ok(_))));
        let asked = self.recorder.asked();
        let notes = dropped_notes(&end);
        let mut pending = end.events;
        pending.extend(notes);
        let usage = end.usage;
        pending.extend(metrics_event(end.metrics));
        // Who is asked to stop may well do something else than before.
        let asked_to_stop = overtaken.is_some() || asked.is_some();
        if let Some((recorded, found)) = end.divergence.filter(|_| !asked_to_stop) {
            let cut = |text: String| cut(&text, DIVERGENCE_BYTES_MAX).to_owned();
            let (recorded, found) = (cut(recorded), cut(found));
            pending = vec![Event::ReplayDiverged { turn, recorded, found }];
            let failure = CallAbort::Stopped { cause: StopCause::Diverged };
            return StepEnd::new(pending, Err(Outcome::Failed(failure)));
        }
        let outcome = match (answer, overtaken) {
            (Ok(Ok(mut plan)), _) => {
                let run = self.recorder.run();
                let attempt = run.state.failed_attempts + 1;
                match check(&mut plan, run.id().as_str(), (turn, attempt)) {
                    Ok(()) => {
                        let sent = || self.sent(&pending);
                        let parts = end
                            .answer
                            .map_or_else(sent, |answer| answer.parts.into_iter().collect());
                        let message = message(&plan.decision, parts);
                        let streamed = message.as_ref().is_some_and(|m| end.sent.is_text_of(m));
                        if plan.streamed && !streamed {
                            pending.push(host_line(LogLevel::Debug, OTHER_TEXT.to_owned()));
                        }
                        pending.extend(plan.notes.drain(..).map(|note| Event::PlannerNote {
                            text: note.text,
                            labels: note.labels,
                        }));
                        pending.push(Event::PlanDecided {
                            turn,
                            decision: kind(&plan.decision),
                            state: end.state_changes,
                            reminders: end.reminder_changes,
                            expected_children: plan.expected_children,
                            parents: parents(&plan.decision),
                            ran_ms: self.recorder.ran_ms(),
                        });
                        pending.extend(self.final_tool_result(&plan.decision));
                        match message {
                            Some(message) => pending.push(Event::AssistantMessage {
                                message,
                                usage,
                                model: end.model,
                                streamed,
                            }),
                            None => pending.extend(usage.map(|usage| Event::Usage { usage })),
                        }
                        // A plan that came after somebody had asked to stop is kept and not
                        // followed.
                        let outcome = match asked {
                            Some(failure) => Err(Outcome::Failed(failure)),
                            None => Ok(plan),
                        };
                        return StepEnd::new(pending, outcome);
                    }
                    Err(detail) => Outcome::Refused(detail),
                }
            }
            (Ok(Err(_)) | Err(CallAbort::Stopped { .. }), Some(overtaken)) => overtaken,
            (Ok(Err(error)), None) => match asked {
                // Whoever cancels may be told that something else went wrong; whoever set a limit
                // is told that it was met.
                Some(CallAbort::Stopped { cause: StopCause::Canceled })
                    if error.code.as_deref() != Some(CANCELED) =>
                {
                    Outcome::Error(error)
                }
                Some(failure) => Outcome::Failed(failure),
                None => Outcome::Error(error),
            },
            (Err(CallAbort::Stopped { cause }), None) => {
                Outcome::Failed(asked.unwrap_or(CallAbort::Stopped { cause }))
            }
            (Err(failure), _) => Outcome::Failed(failure),
        };
        pending.extend(usage.map(|usage| Event::Usage { usage }));
        let (out_of_patience, out_of_budget) = (end.out_of_patience, end.out_of_budget);
        StepEnd { out_of_patience, out_of_budget, ..StepEnd::new(pending, Err(outcome)) }
    }

    /// The event that keeps a result for the call that this run is; nobody asks for it where it is
    /// none.
    fn final_tool_result(&self, decision: &Decision) -> Option<Event> {
        self.recorder.run().spec.parent_tool_call_id.as_ref()?;
        match decision {
            Decision::FinalToolResult(result) => {
                Some(Event::FinalToolResult { result: result.clone() })
            }
            Decision::ToolCalls(_)
            | Decision::FinalResponse(_)
            | Decision::Await(_)
            | Decision::AwaitRuns(_) => None,
        }
    }

    /// The parts that the step under way has sent; `pending` of it is not written yet.
    fn sent(&self, pending: &[Event]) -> Vec<Part> {
        let mut tape = self.recorder.work().tape.clone();
        pending.iter().for_each(|event| tape.push(event));
        sent_in_parts(&tape)
    }
}

fn kind(decision: &Decision) -> DecisionKind {
    match decision {
        Decision::ToolCalls(_) => DecisionKind::ToolCalls,
        Decision::FinalResponse(_) => DecisionKind::FinalResponse,
        Decision::FinalToolResult(_) => DecisionKind::FinalToolResult,
        Decision::Await(_) | Decision::AwaitRuns(_) => DecisionKind::Await,
    }
}

/// The end of a run that is the result of a tool call.
pub(super) fn tool_result_outcome(result: &FinalToolResult) -> Outcome {
    match &result.outcome {
        ToolOutcome::Value(_) => Outcome::Answered(StopReason::FinalResponse),
        ToolOutcome::Failure(failure) => Outcome::Error(PlannerError {
            code: failure.error.code.clone(),
            message: failure.error.message.clone(),
            causes: failure.error.causes.clone(),
            retry_after_ms: None,
        }),
    }
}
