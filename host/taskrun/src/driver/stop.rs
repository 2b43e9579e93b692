//! The reasons for which a run does not go on in this host, and the things that each forbids.
//!
//! Several reasons may hold at the same moment. They are asked about in one place,
//! [`super::recorder::Recorder::go_on`], in the order of [`Stop`], the gravest first, and the first
//! that forbids what is next counts:
//!
//! | reason | anything | a plan step | the last word | further calls | finalizer |
//! | --- | --- | --- | --- | --- | --- |
//! | the work was asked to end | no | no | no | | |
//! | the host hands its runs over | | no | no | no | no |
//! | the run is paused | no | no | no | no | |
//! | the run's time-out is over | | no | no | | |
//! | the journal is full | | no | | no | |
//! | the budget of time is used up | | no | | no | |
//!
//! A call that is on record begins whatever the host intends: it counts as begun for whoever takes
//! the run up. One that waits for a place ends without having begun where the work was asked to end,
//! so that it has its result.

use taskrun_journal::plan::TerminationReason;
use taskrun_journal::stop::StopCause;
use taskrun_journal::store::StoreError;

/// Why a run does not go on in this host, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// The host was not heard for most of its lease, and gives the run up. What was about to begin
    /// did not. The run is given back.
    #[error("the host was not heard, and gives the run up")]
    Lease,
    /// The work was asked to end: by a cancellation that is on record, by the run's own time-out, or
    /// by the host. The run ends, or is given back where another host is to go on with it.
    #[error("{0}")]
    Asked(StopCause),
    /// The host hands its runs over, each at the next point at which nothing is lost.
    #[error("the host hands its runs over")]
    HandOver,
    /// The run is paused. It is given back, and blocked.
    #[error("the run is paused")]
    Paused,
    /// The run's own time-out is over, and nobody was told yet. The run ends.
    #[error("the run's time-out is over")]
    TimedOut,
    /// The journal has as many bytes as it may. The run ends.
    #[error("the journal is full")]
    JournalFull,
    /// A limit of the run's budget is met. The run has its last word.
    #[error("a limit is met: {0:?}")]
    Limit(TerminationReason),
}

/// The next thing in a run, which a [`Stop`] may forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Anything, be it only to wait, or to bring what is open to its end.
    Anything,
    /// A turn, or another attempt at its plan step.
    Step,
    /// An attempt at the last word.
    LastWord,
    /// Calls of the turn that waited for a place.
    FurtherCalls,
    /// The finalizer.
    Finalizer,
}

impl Stop {
    /// True if this keeps what is next from beginning.
    pub(super) fn forbids(self, next: Next) -> bool {
        let any_of = |forbidden: &[Next]| forbidden.contains(&next);
        match self {
            Self::Lease => true,
            Self::Asked(_) => any_of(&[Next::Anything, Next::Step, Next::LastWord]),
            Self::HandOver => {
                any_of(&[Next::Step, Next::LastWord, Next::FurtherCalls, Next::Finalizer])
            }
            Self::Paused => {
                any_of(&[Next::Anything, Next::Step, Next::LastWord, Next::FurtherCalls])
            }
            Self::TimedOut => any_of(&[Next::Step, Next::LastWord]),
            Self::JournalFull | Self::Limit(_) => any_of(&[Next::Step, Next::FurtherCalls]),
        }
    }
}

/// Why a driver does not go on.
#[derive(Debug, thiserror::Error)]
pub enum Halt {
    /// The run belongs to another host, or another process ended it. Nothing more may be
    /// written and nothing done.
    #[error("another process took the run over")]
    Fenced,
    /// Nothing more begins here.
    #[error("the run does not go on here")]
    Stopped(#[from] Stop),
    /// The run waits, and that is on record.
    #[error("the run waits")]
    Blocked,
    /// The run would wait for one that waits for it.
    #[error("the runs would wait for each other")]
    Cycle,
    /// Something that is needed to go on cannot be read.
    #[error("the store cannot be read")]
    Read(#[source] StoreError),
    /// The store refuses.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// The journal tells what cannot be.
    #[error("the journal is inconsistent: {0}")]
    Inconsistent(String),
}

/// True if the run of a call that was stopped so is to be continued by another host.
pub(super) fn goes_elsewhere(cause: StopCause) -> bool {
    match cause {
        StopCause::HandOver | StopCause::LeaseLost => true,
        StopCause::Canceled
        | StopCause::Shutdown
        | StopCause::RunTimeout
        | StopCause::Diverged
        | StopCause::Denied
        | StopCause::PushedBack
        | StopCause::JournalFull => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_forbids_what_the_table_says() {
        let all = [Next::Anything, Next::Step, Next::LastWord, Next::FurtherCalls, Next::Finalizer];
        let limit = Stop::Limit(TerminationReason::TimeBudget);
        let table = [
            (Stop::Lease, [true; 5]),
            (Stop::Asked(StopCause::Canceled), [true, true, true, false, false]),
            (Stop::HandOver, [false, true, true, true, true]),
            (Stop::Paused, [true, true, true, true, false]),
            (Stop::TimedOut, [false, true, true, false, false]),
            (Stop::JournalFull, [false, true, false, true, false]),
            (limit, [false, true, false, true, false]),
        ];
        for (stop, expected) in table {
            assert_eq!(all.map(|next| stop.forbids(next)), expected, "{stop:?}");
        }
    }
}
