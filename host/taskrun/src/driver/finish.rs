//! The ways out of the loop: skipped turns, and the last word of a run that met a limit.

use taskrun_journal::event::Event;
use taskrun_journal::machine::decide::{Outcome, ending};
use taskrun_journal::message::LogLevel;
use taskrun_journal::plan::{Termination, TerminationReason};
use taskrun_journal::status::StopReason;
use taskrun_policy::Reserve;

use super::allowance::TreeSnapshot;
use super::end::End;
use super::parts::Parts;
use super::recorder::Recorder;
use super::results::{host_line, refuse_all};
use super::round::Round;
use super::step::Step;
use super::stop::{Halt, Next};
use super::used_up;
use crate::ports::planner::Decision;
use crate::scope::Tape;

/// Skips the turn of a step that was given up after so many attempts, for this error, as the failure
/// policy has it: nothing for the next turn, or the end of the run. `pending` are the events of the step
/// that are still to be written.
pub(super) async fn skip(
    parts: &Parts,
    recorder: &mut Recorder,
    mut pending: Vec<Event>,
    (attempts, error): (u32, String),
) -> Result<Option<End>, Halt> {
    let turn = recorder.run().state.turns + 1;
    let ran_ms = recorder.ran_ms();
    pending.push(Event::TurnSkipped { turn, attempts, error, ran_ms });
    Round { parts, recorder }.skip(pending).await
}

/// The last word of a run at a limit.
pub(super) struct LastWord<'a> {
    parts: &'a Parts,
    recorder: &'a mut Recorder,
}

impl<'a> LastWord<'a> {
    pub(super) fn new(parts: &'a Parts, recorder: &'a mut Recorder) -> Self {
        Self { parts, recorder }
    }

    /// Ends the work at a limit that keeps the next step from beginning. A run that has not begun,
    /// as the one that it continues used up what there was, says which number ended it, and has no
    /// last word: it has nothing to tell beyond that.
    pub(super) async fn before_step(self, reason: TerminationReason) -> Result<End, Halt> {
        if self.has_begun() {
            return self.at(Vec::new(), reason).await;
        }
        let line = used_up::words(&self.parts.agent, self.recorder.run(), reason);
        self.recorder.record(vec![host_line(LogLevel::Warn, line)]).await?;
        Ok(End::done(Vec::new(), self.something_or_nothing(reason).await))
    }

    /// Ends the work at a limit that forbids any other step: with the planner's last word, or,
    /// where nothing is kept for one, with what there is. `pending` is what of the work is still to
    /// be written.
    pub(super) async fn at(
        self,
        mut pending: Vec<Event>,
        reason: TerminationReason,
    ) -> Result<End, Halt> {
        if self.recorder.run().state.rounds.done.is_some() {
            return Ok(End::done(pending, Outcome::Answered(StopReason::Done)));
        }
        let has_last_word = self.has_last_word(reason);
        if has_last_word {
            let message = demand(reason).to_owned();
            pending.push(Event::FinalizeRequested { reason, message });
        }
        self.recorder.record(pending).await?;
        if has_last_word {
            return self.ask(reason, None).await;
        }
        Ok(End::done(Vec::new(), self.something_or_nothing(reason).await))
    }

    /// True if the planner is asked once more at this limit. Where turns, tokens or money are used
    /// up a last word is only asked for if some of them are kept to pay for it.
    fn has_last_word(&self, reason: TerminationReason) -> bool {
        match reason {
            TerminationReason::TimeBudget
            | TerminationReason::ToolCap
            | TerminationReason::FailureCap => true,
            TerminationReason::TurnCap
            | TerminationReason::TokenCap
            | TerminationReason::CostCap => self.parts.agent.budget.reserve != Reserve::default(),
        }
    }

    /// The same for a limit that is on record; the step may have been begun by another host.
    pub(super) async fn ask(
        self,
        reason: TerminationReason,
        tape: Option<Tape>,
    ) -> Result<End, Halt> {
        self.recorder.go_on(Next::Anything).await?;
        let message = demand(reason).to_owned();
        let met = self.recorder.shortage;
        let step = Step::new(self.parts, self.recorder)
            .run(Some(Termination { reason, message }), tape, TreeSnapshot::default())
            .await?;
        // The one that the run ends at, and not that of its last word.
        self.recorder.shortage = met;
        let mut pending = step.pending;
        let outcome = match step.outcome {
            Ok(plan) => match plan.decision {
                Decision::FinalResponse(_) | Decision::FinalToolResult(_) => {
                    Outcome::Partial(reason)
                }
                Decision::ToolCalls(requests) => {
                    refuse_all(&mut pending, &requests);
                    self.something_or_nothing(reason).await
                }
                Decision::AwaitRuns(wait) => {
                    refuse_all(&mut pending, wait.call.as_slice());
                    self.something_or_nothing(reason).await
                }
                Decision::Await(_) => self.something_or_nothing(reason).await,
            },
            Err(outcome) => match self.recorder.asked() {
                Some(failure) => Outcome::Failed(failure),
                None => {
                    pending.push(host_line(LogLevel::Warn, self.last_step_failed(outcome)));
                    self.something_or_nothing(reason).await
                }
            },
        };
        Ok(End::done(pending, outcome))
    }

    /// The line about a last step that came to no plan.
    fn last_step_failed(&self, outcome: Outcome) -> String {
        let ending = ending(self.recorder.run(), outcome);
        let why = ending.error.unwrap_or_else(|| ending.stop_reason.to_string());
        format!("the last step failed: {why}")
    }

    /// True unless the run continues another one and has done nothing yet itself, be it in a step
    /// that has not come to its end.
    fn has_begun(&self) -> bool {
        let run = self.recorder.run();
        let carried = run.spec.continues.as_ref().map(|continued| continued.turns);
        carried != Some(run.state.turns)
            || run.state.rounds.has_begun
            || self.recorder.work().has_begun_step()
    }

    async fn something_or_nothing(&self, reason: TerminationReason) -> Outcome {
        match self.recorder.run().state.reply.result() {
            Some(_) => Outcome::Partial(reason),
            None => {
                let bound = used_up::bound_met(self.parts, self.recorder, reason).await;
                Outcome::Exhausted { reason, bound }
            }
        }
    }
}

pub(super) fn demand(reason: TerminationReason) -> &'static str {
    match reason {
        TerminationReason::TimeBudget => "No time is left. Answer now from what you have.",
        TerminationReason::ToolCap => "No tool calls are left. Answer now from what you have.",
        TerminationReason::FailureCap => "Too many tool calls failed. Answer from what you have.",
        TerminationReason::TurnCap => "No turns are left. Answer now from what you have.",
        TerminationReason::TokenCap => "No tokens are left. Answer now from what you have.",
        TerminationReason::CostCap => "No money is left. Answer now from what you have.",
    }
}
