//! Turns that are skipped, as their plan step failed too often in a way that may pass.

use taskrun_journal::event::Event;
use taskrun_journal::machine::decide::Outcome;
use taskrun_policy::Then;

use super::{Driver, End, Halt};

impl Driver {
    /// What follows from a step that came to no plan: the end of the run, or, where the policy says
    /// so and all attempts at the step were in vain, the next turn. `pending` is what of the step is
    /// still to be written.
    pub(super) async fn skip_or_end(
        &mut self,
        mut pending: Vec<Event>,
        outcome: Outcome,
    ) -> Result<Option<End>, Halt> {
        match (self.agent.retry.then, outcome) {
            (Then::Skip { in_a_row }, Outcome::RetryAborted { attempts, skipped, error })
                if skipped < in_a_row =>
            {
                let turn = self.journal.run().state.turns + 1;
                pending.push(Event::TurnSkipped { turn, attempts, error, ran_ms: self.ran_ms() });
                self.write(pending).await?;
                Ok(None)
            }
            (Then::Skip { .. } | Then::Abort, outcome) => Ok(Some(End::done(pending, outcome))),
        }
    }
}
