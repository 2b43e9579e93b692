//! Exit codes.

use std::process::ExitCode;

use taskrun_journal::ending::{EndStatus, Ending};
use taskrun_journal::run::Run;
use taskrun_journal::status::StopReason;

/// The exit code of the program. The numbers are a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All went well; of a run: it completed.
    Completed = 0,
    /// A failure that was not foreseen.
    Unexpected = 1,
    /// The command, its arguments, the policy or a component is wrong.
    Usage = 2,
    /// The caller may not do this.
    Forbidden = 3,
    /// The policy denies it.
    Denied = 4,
    /// The run failed.
    Failed = 5,
    /// The run was canceled.
    Canceled = 6,
    /// The run's own time-out passed.
    TimedOut = 7,
    /// The run waits for an answer that cannot be given here.
    Blocked = 8,
    /// The run's budget was used up.
    Budget = 9,
    /// The store, or the host that executes runs, cannot be reached.
    Unreachable = 10,
    /// A step that was executed again did something else than its record says.
    Differs = 11,
    /// The time for waiting was up; the run goes on.
    WaitTimedOut = 124,
    /// Ctrl-C; the run goes on.
    Interrupted = 130,
}

impl Exit {
    /// The exit of a command that waited for this end.
    #[must_use]
    pub fn of(ending: &Ending) -> Self {
        match ending.status {
            // It waits, and nobody here does.
            EndStatus::Completed if ending.stop_reason == StopReason::Deferred => Self::Blocked,
            // Failed calls are no budget, whether something was said after them or not.
            EndStatus::Completed if ending.stop_reason == StopReason::FailureCap => Self::Failed,
            EndStatus::Completed if ending.partial => Self::Budget,
            EndStatus::Completed => Self::Completed,
            EndStatus::Canceled => Self::Canceled,
            EndStatus::Failed => Self::of_failure(ending.stop_reason),
        }
    }

    fn of_failure(reason: StopReason) -> Self {
        match reason {
            StopReason::RunTimeout => Self::TimedOut,
            StopReason::MaxTurns
            | StopReason::MaxTokens
            | StopReason::MaxCost
            | StopReason::Wallclock
            | StopReason::ToolCap
            | StopReason::TimeBudget => Self::Budget,
            StopReason::Done
            | StopReason::NaturalEnd
            | StopReason::TerminalTool
            | StopReason::FinalResponse
            | StopReason::FailureCap
            | StopReason::TurnTimeout
            | StopReason::RetryAborted
            | StopReason::RateLimited
            | StopReason::PlannerError
            | StopReason::AgentError
            | StopReason::AgentTrap
            | StopReason::ContractViolation
            | StopReason::CanceledByOwner
            | StopReason::CanceledByParent
            | StopReason::HostShutdown
            | StopReason::LeaseLost
            | StopReason::InterruptedByRestart
            | StopReason::PersistFailed
            | StopReason::Deferred => Self::Failed,
        }
    }

    /// The exit of a command that waited for this run, if the run has ended.
    #[must_use]
    pub fn of_run(run: &Run) -> Option<Self> {
        run.status().is_terminal().then(|| run.ending().map(Self::of)).flatten()
    }

    /// The exit code as a number.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_runs_have_the_documented_codes() {
        let failed = |reason| Exit::of(&Ending::failed(reason, "e")).code();
        let partial = Ending { partial: true, ..Ending::completed(StopReason::MaxTurns) };
        assert_eq!(Exit::of(&Ending::completed(StopReason::FinalResponse)).code(), 0);
        assert_eq!(Exit::of(&partial).code(), 9);
        let deferred = Ending { partial: true, ..Ending::completed(StopReason::Deferred) };
        assert_eq!(Exit::of(&deferred).code(), 8);
        assert_eq!(Exit::of(&Ending::canceled(StopReason::CanceledByOwner)).code(), 6);
        let broken = Ending { partial: true, ..Ending::completed(StopReason::FailureCap) };
        assert_eq!((Exit::of(&broken).code(), failed(StopReason::FailureCap)), (5, 5));
        assert_eq!(failed(StopReason::AgentTrap), 5);
        assert_eq!(failed(StopReason::RunTimeout), 7);
        assert_eq!(failed(StopReason::MaxTurns), 9);
    }
}
