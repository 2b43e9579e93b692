//! The work that hosts give their store.

use std::ops::Sub;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::CreateOutcome;
use tokio::sync::Notify;

/// Bytes and rows that went to a store and came from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Bytes of the events that were added.
    pub(super) events: u64,
    /// Bytes of the artifacts that were kept.
    pub(super) artifacts: u64,
    /// Bytes of the records that were written with them.
    pub(super) state: u64,
    /// Bytes of the events and artifacts that were read.
    pub(super) read: u64,
    /// Runs that came in lists.
    pub(super) runs: u64,
}

impl Work {
    /// Each kind by its name. An artifact is written once in many rounds: all bytes that are written
    /// are one kind.
    pub(super) fn named(self) -> [(&'static str, u64); 3] {
        let Self { events, artifacts, state, read, runs } = self;
        let written = events + artifacts + state;
        [("bytes written", written), ("bytes read", read), ("runs listed", runs)]
    }

    fn with(self, more: Self) -> Self {
        Self {
            events: self.events + more.events,
            artifacts: self.artifacts + more.artifacts,
            state: self.state + more.state,
            read: self.read + more.read,
            runs: self.runs + more.runs,
        }
    }
}

impl Sub for Work {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            events: self.events - before.events,
            artifacts: self.artifacts - before.artifacts,
            state: self.state - before.state,
            read: self.read - before.read,
            runs: self.runs - before.runs,
        }
    }
}

/// The work of all hosts that were told to count it.
#[derive(Default)]
pub(super) struct Tally {
    work: Mutex<Work>,
    children: Mutex<Vec<String>>,
    is_armed: AtomicBool,
    killed: Notify,
}

impl Tally {
    pub(super) fn count(&self, more: Work) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        *work = work.with(more);
    }

    /// All of it so far.
    pub(super) fn work(&self) -> Work {
        *self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next host of which the first run of a tree begins calls dies with that write.
    pub(super) fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// True once after that.
    pub(super) fn kills(&self) -> bool {
        let kills = self.is_armed.swap(false, Ordering::SeqCst);
        if kills {
            self.killed.notify_one();
        }
        kills
    }

    /// Waits until a host has died so.
    pub(super) async fn has_killed(&self) {
        self.killed.notified().await;
    }

    /// Notes a run that is kept, if another one started it.
    pub(super) fn note_new(&self, id: String, spec: &RunSpec, created: &CreateOutcome) {
        if created.is_new() && spec.depth > 0 {
            self.children().push(id);
        }
    }

    /// The runs that other runs started, in that order.
    pub(super) fn children(&self) -> MutexGuard<'_, Vec<String>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
