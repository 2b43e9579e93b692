//! The last word of a run that met a limit.

use taskrun_journal::event::Event;
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::message::LogLevel;
use taskrun_journal::plan::{Termination, TerminationReason};
use taskrun_policy::Reserve;

use super::calls::host_line;
use super::{Driver, End, Halt};
use crate::ports::call::Tape;
use crate::ports::planner::Decision;

impl Driver {
    /// Ends the work at a limit that forbids any other step: with the planner's last word, or, where
    /// nothing is kept for one, with what there is. `pending` is what of the work is still to be
    /// written.
    pub(super) async fn finalize(
        &mut self,
        mut pending: Vec<Event>,
        reason: TerminationReason,
    ) -> Result<End, Halt> {
        let has_last_word = self.has_last_word(reason);
        if has_last_word {
            let message = demand(reason).to_owned();
            pending.push(Event::FinalizeRequested { reason, message });
        }
        self.write(pending).await?;
        if has_last_word {
            return self.last_word(reason, None).await;
        }
        Ok(End::done(Vec::new(), self.something_or_nothing(reason)))
    }

    /// Whether the planner is asked once more at this limit. Where turns, tokens or money are used
    /// up a last word is only asked for if some of them are kept to pay for it.
    fn has_last_word(&self, reason: TerminationReason) -> bool {
        match reason {
            TerminationReason::TimeBudget
            | TerminationReason::ToolCap
            | TerminationReason::FailureCap => true,
            TerminationReason::TurnCap
            | TerminationReason::TokenCap
            | TerminationReason::CostCap => self.agent.budget.reserve != Reserve::default(),
        }
    }

    /// The same for a limit that is on record; the step may have been begun by another host.
    pub(super) async fn last_word(
        &mut self,
        reason: TerminationReason,
        tape: Option<Tape>,
    ) -> Result<End, Halt> {
        if let Some(failure) = self.stopped() {
            return Ok(End::failed(failure));
        }
        if self.stays_paused().await? {
            return Ok(End::Released);
        }
        let message = demand(reason).to_owned();
        let step = self.step_with_retries(Some(Termination { reason, message }), tape).await?;
        let mut pending = step.pending;
        let outcome = match step.outcome {
            Ok(plan) => match plan.decision {
                Decision::FinalResponse(_) | Decision::FinalToolResult(_) => {
                    Outcome::Partial(reason)
                }
                Decision::ToolCalls(requests) => {
                    super::calls::refuse_all(&mut pending, &requests);
                    self.something_or_nothing(reason)
                }
                Decision::AwaitRuns(wait) => {
                    super::calls::refuse_all(&mut pending, wait.call.as_slice());
                    self.something_or_nothing(reason)
                }
                Decision::Await(_) => self.something_or_nothing(reason),
            },
            Err(outcome) => match self.stopped() {
                Some(failure) => Outcome::Failed(failure),
                None => {
                    let line = format!("the last step failed: {outcome:?}");
                    pending.push(host_line(LogLevel::Warn, line));
                    self.something_or_nothing(reason)
                }
            },
        };
        Ok(End::done(pending, outcome))
    }

    fn something_or_nothing(&self, reason: TerminationReason) -> Outcome {
        match self.journal.run().state.reply.result() {
            Some(_) => Outcome::Partial(reason),
            None => Outcome::Exhausted(reason),
        }
    }
}

fn demand(reason: TerminationReason) -> &'static str {
    match reason {
        TerminationReason::TimeBudget => "No time is left. Answer now from what you have.",
        TerminationReason::ToolCap => "No tool calls are left. Answer now from what you have.",
        TerminationReason::FailureCap => "Too many tool calls failed. Answer from what you have.",
        TerminationReason::TurnCap => "No turns are left. Answer now from what you have.",
        TerminationReason::TokenCap => "No tokens are left. Answer now from what you have.",
        TerminationReason::CostCap => "No money is left. Answer now from what you have.",
    }
}
