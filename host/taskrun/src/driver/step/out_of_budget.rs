//! Plan steps that failed as no model was to be asked: the budget has nothing left.

use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::message::LogLevel;

use super::{Step, StepEnd};
use crate::driver::allowance::{Allowance, TreeSnapshot};
use crate::driver::results::host_line;
use crate::driver::stop::Halt;

/// The beginning of the line that keeps the error of such a step beside the limit; the error comes
/// next.
pub(in crate::driver) const STEP_FAILED: &str = "the step failed: ";

impl Step<'_> {
    /// Ends a step at the limit that is met, where its error comes of a question that was refused
    /// for that, or of an answer that was cut off there. A run has its first step whatever is left,
    /// as it may need no model, and others spend while a step is under way: so the limit may show in
    /// a step first.
    pub(super) async fn name_limit(&self, step: &mut StepEnd) -> Result<(), Halt> {
        let Err(Outcome::Error(error)) = &step.outcome else { return Ok(()) };
        let is_short = step.out_of_budget || self.recorder.shortage.is_some();
        if !is_short || self.recorder.asked().is_some() {
            return Ok(());
        }
        let tree = TreeSnapshot::default();
        let allowance = Allowance::new(self.parts, self.recorder, &tree);
        if let Some(reason) = allowance.cap_with(&step.pending).await? {
            step.pending.push(host_line(LogLevel::Warn, format!("{STEP_FAILED}{error}")));
            step.outcome = Err(Outcome::Exhausted { reason, bound: None });
        }
        Ok(())
    }
}
