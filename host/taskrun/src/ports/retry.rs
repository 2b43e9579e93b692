//! The failure policy: the fate of a plan step that failed by itself.

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::ids::RunId;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::stop::CallAbort;
use taskrun_policy::{Retry, RetryExhaustion, RetryOn};

/// Most attempts at one plan step, whatever a policy decides: each may ask a model for as much as
/// the first did.
pub(crate) const STEP_ATTEMPTS_MAX: u32 = 100;
/// Longest pause before another attempt, whatever a policy or the agent wants: who waits longer for
/// a step has no use for it any more.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// The failure of a plan step.
#[derive(Clone, Copy, Debug)]
pub enum StepFault<'a> {
    /// The agent returned an error.
    Error(&'a PlannerError),
    /// The host aborted the step: it met its deadline or another limit, trapped, broke its
    /// contract, or the host itself failed. Never a stop for a cause outside of the step.
    Aborted(&'a CallAbort),
    /// The run worked in this round for as long as its budget has for one (`round`): the step was
    /// stopped, or was not begun.
    RoundOver {
        /// The time of a round.
        limit_ms: u64,
    },
}

impl StepFault<'_> {
    /// The word of the failure: the code of the agent's error, `uncoded` for one without, or the
    /// kind of the abort ([`CallAbort::kind`]), which for a round is that of a deadline.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Error(error) => error.code.as_deref().unwrap_or(RetryOn::UNCODED),
            Self::Aborted(abort) => abort.kind(),
            Self::RoundOver { limit_ms } => CallAbort::Deadline { limit_ms: *limit_ms }.kind(),
        }
    }

    /// The abort of the step, if the host aborted it; for a round, that of its deadline.
    #[must_use]
    pub(crate) fn abort(&self) -> Option<CallAbort> {
        match self {
            Self::Error(_) => None,
            Self::Aborted(abort) => Some((*abort).clone()),
            Self::RoundOver { limit_ms } => Some(CallAbort::Deadline { limit_ms: *limit_ms }),
        }
    }

    /// The text of the failure, for people.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Error(error) => error.to_string(),
            Self::Aborted(abort) => abort.to_string(),
            Self::RoundOver { limit_ms } => {
                format!("stopped: deadline of {limit_ms} ms for a round exceeded")
            }
        }
    }
}

/// A failed plan step, as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct StepFailure<'a> {
    /// The run.
    pub run: &'a RunId,
    /// Its agent.
    pub agent: &'a str,
    /// Number of the turn, from 1.
    pub turn: u32,
    /// Turns that were skipped just before this one.
    pub skipped: u32,
    /// The failure.
    pub fault: StepFault<'a>,
    /// The table of the agent's policy, which may be asked as well.
    pub table: &'a RetryTable,
}

/// The fate of a failed plan step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// The run fails.
    Abort,
    /// The step is tried again, which is no further turn.
    Retry {
        /// The pause before that, at most [`RETRY_AFTER_MAX`]. Over one of more than a minute the
        /// run holds no slot.
        after: Duration,
    },
    /// The turn counts, and the planner is told to go on, as if it had decided nothing. For a last
    /// word this is [`Self::Abort`].
    Skip,
}

/// Decides about plan steps that failed.
///
/// It is asked once for each failure, in the host that saw it, and not when a run was stopped from
/// outside. After the death of that host before the decision was recorded, the step runs again.
pub trait RetryPolicy: Send + Sync {
    /// Decides; `attempt` counts the failures of this step, from 1. It is called where the run is
    /// driven, and must not block.
    fn decide(&self, failure: &StepFailure<'_>, attempt: u32) -> RetryDecision;
}

/// The failure policy that `taskrun.toml` states for an agent (`retry`).
#[derive(Clone, Debug, Default)]
pub struct RetryTable {
    /// The number of attempts, the pauses between them, and the outcome of the last.
    pub retry: Retry,
    /// After which failures.
    pub on: RetryOn,
}

impl RetryTable {
    /// True if it says something about such a failure.
    #[must_use]
    pub(crate) fn covers(&self, fault: &StepFault<'_>) -> bool {
        self.on.has(fault.word())
    }
}

impl RetryPolicy for RetryTable {
    fn decide(&self, failure: &StepFailure<'_>, attempt: u32) -> RetryDecision {
        if !self.covers(&failure.fault) {
            return RetryDecision::Abort;
        }
        if attempt < self.retry.attempts {
            let doubled = 1 << attempt.saturating_sub(1).min(16);
            return RetryDecision::Retry { after: self.retry.pause.saturating_mul(doubled) };
        }
        match self.retry.then {
            RetryExhaustion::Skip { in_a_row } if failure.skipped < in_a_row => RetryDecision::Skip,
            RetryExhaustion::Skip { .. } | RetryExhaustion::Abort => RetryDecision::Abort,
        }
    }
}

/// The policy that decides about the steps of a controller's runs, instead of the tables of their
/// agents; `None` leaves it to these.
pub type SharedRetryPolicy = Option<Arc<dyn RetryPolicy>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(
        table: &RetryTable,
        fault: StepFault<'_>,
        skipped: u32,
        attempt: u32,
    ) -> RetryDecision {
        let run = RunId::new("r").expect("a valid id");
        let failure = StepFailure { run: &run, agent: "a", turn: 1, skipped, fault, table };
        table.decide(&failure, attempt)
    }

    fn error(code: Option<&str>) -> PlannerError {
        let (code, message) = (code.map(str::to_owned), "no".to_owned());
        PlannerError { code, message, causes: Vec::new(), retry_after_ms: None }
    }

    #[test]
    fn m_47_the_table_decides_by_the_word_of_the_failure_and_the_attempt() {
        let seconds = |n| RetryDecision::Retry { after: Duration::from_secs(n) };
        let table = RetryTable::default();
        let (may_pass, uncoded) = (error(Some("unavailable")), error(None));
        let deadline = CallAbort::Deadline { limit_ms: 1 };
        for (fault, expected) in [
            (StepFault::Error(&may_pass), [seconds(1), seconds(2), RetryDecision::Abort]),
            (
                StepFault::Aborted(&CallAbort::Internal),
                [seconds(1), seconds(2), RetryDecision::Abort],
            ),
            (
                StepFault::Aborted(&CallAbort::Unavailable),
                [seconds(1), seconds(2), RetryDecision::Abort],
            ),
            (StepFault::Error(&uncoded), [RetryDecision::Abort; 3]),
            (StepFault::Aborted(&deadline), [RetryDecision::Abort; 3]),
            (StepFault::RoundOver { limit_ms: 1 }, [RetryDecision::Abort; 3]),
        ] {
            assert_eq!([1, 2, 3].map(|attempt| decide(&table, fault, 0, attempt)), expected);
        }
        let then = RetryExhaustion::Skip { in_a_row: 2 };
        let retry = Retry { attempts: 1, then, ..Retry::default() };
        let table = RetryTable { retry, on: RetryOn::new(["uncoded", "deadline"]) };
        for fault in [StepFault::Error(&uncoded), StepFault::Aborted(&deadline)] {
            assert_eq!(decide(&table, fault, 1, 1), RetryDecision::Skip);
            assert_eq!(decide(&table, fault, 2, 1), RetryDecision::Abort, "two were skipped");
        }
        let other = StepFault::Error(&may_pass);
        assert_eq!(decide(&table, other, 0, 1), RetryDecision::Abort, "what is stated is all");
    }
}
