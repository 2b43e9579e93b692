//! The ways in which an execution of a run is over.

use taskrun_journal::event::Event;
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::stop::{CallAbort, StopCause};

use super::parts::Parts;
use super::recorder::Recorder;
use super::stop::{Halt, Stop};

/// The end of an execution.
pub(super) enum End {
    /// The work is at its end.
    Done {
        /// Events that are still to be written.
        pending: Vec<Event>,
        outcome: Outcome,
    },
    /// The run waits, and is nobody's.
    Blocked,
    /// Something changed that makes another look necessary; whoever takes it up next looks.
    Released,
    /// The run could not be read, and is given back for a while.
    Unread,
    /// The run is another one's, or the store is gone: nothing is to be recorded.
    Gone,
}

impl End {
    pub(super) fn done(pending: Vec<Event>, outcome: Outcome) -> Self {
        Self::Done { pending, outcome }
    }

    pub(super) fn failed(failure: CallAbort) -> Self {
        Self::done(Vec::new(), Outcome::Failed(failure))
    }

    /// The end of an execution that cannot go on.
    pub(super) fn of_halt(halt: Halt, parts: &Parts, recorder: &Recorder) -> Self {
        let run = recorder.run().id();
        match halt {
            Halt::Stopped(Stop::Asked(cause)) => Self::failed(CallAbort::Stopped { cause }),
            Halt::Stopped(Stop::TimedOut) => {
                Self::failed(CallAbort::Stopped { cause: StopCause::RunTimeout })
            }
            Halt::Stopped(Stop::JournalFull) => Self::failed(recorder.journal_limit()),
            Halt::Stopped(Stop::Limit(reason)) => {
                Self::done(Vec::new(), Outcome::Exhausted { reason, bound: None })
            }
            Halt::Stopped(Stop::Paused) => Self::Released,
            Halt::Blocked => Self::Blocked,
            Halt::Stopped(stop @ (Stop::Lease | Stop::HandOver)) => {
                tracing::warn!(%run, %stop, "the run is given back");
                Self::Released
            }
            Halt::Fenced => {
                tracing::warn!(%run, "ended or taken over by another process");
                Self::Gone
            }
            Halt::Store(error) | Halt::Read(error) if error.is_for_ever() => {
                parts.env.lease.note(&error);
                Self::Gone
            }
            // The store would have been asked again, had this host not given the run up.
            Halt::Store(error) if error.is_passing() => {
                tracing::warn!(%run, %error, "not recorded; the run is given back");
                Self::Released
            }
            Halt::Read(error) => {
                tracing::warn!(%run, %error, "cannot be read; the run is given back");
                Self::Unread
            }
            Halt::Store(error) => {
                tracing::error!(%run, %error, "the journal cannot be written");
                Self::done(Vec::new(), Outcome::PersistFailed(error.to_string()))
            }
            Halt::Inconsistent(detail) => {
                tracing::error!(%run, %detail, "the journal is inconsistent");
                Self::done(Vec::new(), Outcome::HostFailed(detail.into()))
            }
            Halt::Cycle => Self::done(Vec::new(), Outcome::HostFailed("a wait in a circle".into())),
        }
    }
}
