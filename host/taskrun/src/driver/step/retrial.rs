//! Plan steps that are tried again: when, and after which pause.

use std::time::Duration;

use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::stop::CallAbort;
use taskrun_policy::RetryExhaustion;

use super::{Step, StepEnd};
use crate::driver::put_off::jittered;
use crate::ports::retry::{
    RETRY_AFTER_MAX, RetryDecision, RetryTable, STEP_ATTEMPTS_MAX, StepFailure, StepFault,
};

/// The longest pause that an agent or a program wants through which the run keeps its slot: longer
/// ones it waits without.
const PAUSE_IN_PLACE_MAX: Duration = Duration::from_secs(60);

/// The next attempt at a step.
pub(super) struct Retrial {
    /// Failures of the step so far.
    pub(super) attempt: u32,
    /// The text of the last one.
    pub(super) error: String,
    /// The pause before the attempt.
    pub(super) after: Duration,
    /// The run waits for that without a slot.
    pub(super) waits: bool,
}

impl Step<'_> {
    /// Asks the failure policy about a step without a plan: gives the next attempt, or nothing
    /// where `step` is how it ends.
    pub(super) fn decide(&self, step: &mut StepEnd, is_last: bool) -> Option<Retrial> {
        let Err(outcome) = &step.outcome else { return None };
        let fault = fault_of(outcome)?;
        let (agent, run) = (&self.parts.agent, self.recorder.run());
        let table = RetryTable { retry: agent.retry, on: agent.retry_on.clone() };
        let (own, covered) = (self.parts.env.retry_policy.as_deref(), table.covers(&fault));
        let error = fault.text();
        // The table says nothing about it: it is not for a policy to make it another end.
        if !covered && (own.is_none() || self.recorder.asked().is_some()) {
            return None;
        }
        if step.out_of_patience {
            // Its model would be as far away in a few seconds.
            step.outcome = Err(Outcome::OutOfPatience { error });
            return None;
        }
        let (turn, skipped) = (run.state.turns + 1, run.state.skipped);
        let attempt = run.state.failed_attempts + 1;
        let failure =
            StepFailure { run: run.id(), agent: &agent.name, turn, skipped, fault, table: &table };
        let decision = own.unwrap_or(&table).decide(&failure, attempt);
        let wanted = wanted_pause(&fault);
        // A last word that comes when no time is left is not waited for.
        let is_late = is_last && self.recorder.is_out_of_time();
        let after = match decision {
            RetryDecision::Retry { after } if !is_late && attempt < STEP_ATTEMPTS_MAX => after,
            RetryDecision::Retry { .. } | RetryDecision::Abort | RetryDecision::Skip => {
                step.skipped = decision == RetryDecision::Skip && !is_last;
                let is_default = own.is_none() && agent.retry.then == RetryExhaustion::Abort;
                if attempt > 1 || !is_default {
                    let (attempts, failure) = (attempt, fault.abort());
                    step.outcome = Err(Outcome::RetryAborted { attempts, skipped, error, failure });
                }
                return None;
            }
        };
        let (pause, waits) = match own {
            None => {
                let pause = jittered(after, &*self.parts.env.random).max(wanted);
                (pause, wanted > PAUSE_IN_PLACE_MAX)
            }
            Some(_) => (after.min(RETRY_AFTER_MAX), after > PAUSE_IN_PLACE_MAX),
        };
        let time = self.recorder.time_for_work().filter(|_| !waits);
        let after = time.map_or(pause, |time| pause.min(time));
        Some(Retrial { attempt, error, after, waits })
    }
}

/// The failure of a step, if the step failed by itself.
pub(in crate::driver) fn fault_of(outcome: &Outcome) -> Option<StepFault<'_>> {
    match outcome {
        Outcome::Error(error) => Some(StepFault::Error(error)),
        Outcome::Failed(CallAbort::Stopped { .. }) => None,
        Outcome::Failed(
            abort @ (CallAbort::Memory { .. }
            | CallAbort::Unavailable
            | CallAbort::Deadline { .. }
            | CallAbort::Stack
            | CallAbort::Limit { .. }
            | CallAbort::Trap { .. }
            | CallAbort::Contract { .. }
            | CallAbort::Internal),
        ) => Some(StepFault::Aborted(abort)),
        Outcome::RoundOver { limit_ms } => Some(StepFault::RoundOver { limit_ms: *limit_ms }),
        Outcome::Answered(_)
        | Outcome::NothingToTell
        | Outcome::HandedOver { .. }
        | Outcome::Deferred
        | Outcome::Partial(_)
        | Outcome::Exhausted { .. }
        | Outcome::RetryAborted { .. }
        | Outcome::OutOfPatience { .. }
        | Outcome::NoResult { .. }
        | Outcome::RoundRefused(_)
        | Outcome::Refused(_)
        | Outcome::PersistFailed(_)
        | Outcome::HostFailed(_) => None,
    }
}

/// The pause that the agent wants before another try.
fn wanted_pause(fault: &StepFault<'_>) -> Duration {
    match fault {
        StepFault::Error(error) => {
            let wanted = error.retry_after_ms.map_or(Duration::ZERO, Duration::from_millis);
            wanted.min(RETRY_AFTER_MAX)
        }
        StepFault::Aborted(_) | StepFault::RoundOver { .. } => Duration::ZERO,
    }
}
