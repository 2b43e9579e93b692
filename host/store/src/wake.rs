//! Waits for runs, sessions and work, and waking exactly those who wait.

mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::SessionKey;
use tokio::sync::Notify;

use self::watch::{Subject, WatchedSubject};
pub(crate) use self::watch::{Watch, Written};

/// After this a wait for work ends without a reason: the promise of the port.
const WORK_WAIT_MAX: Duration = Duration::from_secs(1);

/// The waiting of one process.
#[derive(Default)]
pub(crate) struct Wakes {
    subjects: Mutex<HashMap<Subject, Arc<WatchedSubject>>>,
    /// Waiters of all kinds. Raised before a waiter looks at the store, read after a writer
    /// wrote: so one of the two sees the other.
    waiting: AtomicUsize,
    work: Notify,
    dispatches: Notify,
    /// There may be a dispatch since somebody last waited for one.
    fresh: AtomicBool,
    /// The times that work was queued, and that number when a claim last found no more. Starts
    /// with a difference, as the past may have left work.
    queued: AtomicU64,
    drained: AtomicU64,
    told: Mutex<WakeCursor>,
    /// Open runs that hosts of this process have, as far as it knows. A run is taken out before
    /// anybody is told that it ended, so whoever begins to wait and then finds it here is told.
    held: Mutex<HashMap<RunId, Arc<RunSpec>>>,
    closed: AtomicBool,
}

/// Places among all events, of which everybody here was told.
#[derive(Default)]
struct WakeCursor {
    /// Up to here.
    looked: u64,
    /// After the first up to the second: what this process wrote, with nothing of others between.
    own: (u64, u64),
}

impl Wakes {
    pub(crate) fn new() -> Self {
        Self { queued: AtomicU64::new(1), ..Self::default() }
    }

    fn subjects(&self) -> MutexGuard<'_, HashMap<Subject, Arc<WatchedSubject>>> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<RunId, Arc<RunSpec>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a host of this process took runs. To be called in the order of the commits, like
    /// [`Self::wrote_run`].
    pub(crate) fn claimed(&self, runs: &[Run]) {
        let mut held = self.held();
        for run in runs {
            held.insert(run.id().clone(), Arc::clone(&run.spec));
        }
    }

    /// Says that this process wrote a run, before anybody is told.
    pub(crate) fn wrote_run(&self, run: &Run) {
        if run.state.hold.host().is_none() {
            self.held().remove(run.id());
        }
    }

    /// The specification of an open run that a host of this process has. To be asked after a wait for it
    /// has begun.
    fn held_run(&self, id: &RunId) -> Option<Arc<RunSpec>> {
        self.held().get(id).cloned()
    }

    /// True if anybody waits.
    pub(crate) fn anybody(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Runs and sessions that somebody waits for.
    pub(crate) fn watched(&self) -> usize {
        self.subjects().len()
    }

    /// Says that the journal of a run reaches up to `head`, and whether the run has not ended.
    pub(crate) fn moved(&self, id: &RunId, head: Seq, open: bool) {
        if !open {
            self.held().remove(id);
        }
        if let Some(watched) = self.watched_subject(|| Subject::Run(id.clone())) {
            watched.grown(head, open, None, None);
        }
    }

    /// Says that a run is kept as it stands here, with these events if they are given.
    pub(crate) fn kept(&self, run: &Run, written: Option<&Written>) {
        if let Some(watched) = self.watched_subject(|| Subject::Run(run.id().clone())) {
            watched.grown(run.state.head, !run.status().is_terminal(), Some(run), written);
        }
    }

    /// Says that the events of a session reach up to `place`.
    pub(crate) fn session_moved(&self, key: &SessionKey, place: u64) {
        if let Some(watched) = self.watched_subject(|| Subject::Session(key.clone())) {
            watched.grown(place, true, None, None);
        }
    }

    fn watched_subject(&self, subject: impl FnOnce() -> Subject) -> Option<Arc<WatchedSubject>> {
        if !self.anybody() {
            return None;
        }
        self.subjects().get(&subject()).cloned()
    }

    fn places(&self) -> MutexGuard<'_, WakeCursor> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that this process wrote the events after place `before` up to `last`, and that
    /// everybody was told of them. To be called in the order of the places.
    pub(crate) fn wrote(&self, before: u64, last: u64) {
        let mut told = self.places();
        // Otherwise somebody else wrote between; of that nobody was told here.
        if told.own.1 != before {
            told.own.0 = before;
        }
        told.own.1 = last;
    }

    /// Says that everybody was told of all events up to a place, or is to look for himself.
    pub(crate) fn looked(&self, last: u64) {
        let mut told = self.places();
        told.looked = told.looked.max(last);
    }

    /// The place up to which nobody has to be told any more.
    pub(crate) fn told(&self) -> u64 {
        let told = self.places();
        let (from, to) = told.own;
        if from <= told.looked { told.looked.max(to) } else { told.looked }
    }

    /// Says that there may be one more wanted run that can be had.
    pub(crate) fn queued(&self) {
        self.queued.fetch_add(1, Ordering::SeqCst);
        self.work.notify_waiters();
        // Others that accept a run may have made one.
        self.dispatched();
    }

    /// Says that there may be a dispatch to take that was not there before.
    pub(crate) fn dispatched(&self) {
        self.fresh.store(true, Ordering::SeqCst);
        self.dispatches.notify_waiters();
    }

    /// Makes everybody look for himself.
    pub(crate) fn rouse(&self) {
        // Others may have changed them, and nobody was told.
        self.held().clear();
        self.subjects().values().for_each(|watched| watched.rouse());
        self.queued();
    }

    /// Ends all waiting, for good.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.rouse();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// To be read before a claim and given to [`Self::drained`] if it found less than it could
    /// take.
    pub(crate) fn before_claim(&self) -> u64 {
        self.queued.load(Ordering::SeqCst)
    }

    /// Says that no wanted run of before that moment was left to take.
    pub(crate) fn drained(&self, before: u64) {
        self.drained.fetch_max(before, Ordering::SeqCst);
    }

    /// Begins to wait for a run.
    pub(crate) fn watch(self: &Arc<Self>, id: &RunId) -> Watch {
        self.begin(Subject::Run(id.clone()))
    }

    /// Begins to wait for a session.
    pub(crate) fn watch_session(self: &Arc<Self>, key: &SessionKey) -> Watch {
        self.begin(Subject::Session(key.clone()))
    }

    fn begin(self: &Arc<Self>, subject: Subject) -> Watch {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut subjects = self.subjects();
        let watched = subjects.entry(subject.clone()).or_default();
        // A run that may have ended is left to those who wait for it: another one may have its id.
        if watched.has_ended() {
            *watched = Arc::default();
        }
        Watch::new(self, subject, watched)
    }

    /// Says that a wait is over; `leave` takes it from the subject, and says whether it was the last one.
    fn stopped(
        &self,
        subject: &Subject,
        watched: &Arc<WatchedSubject>,
        leave: impl FnOnce(&WatchedSubject) -> bool,
    ) {
        let mut subjects = self.subjects();
        let is_current = subjects.get(subject).is_some_and(|other| Arc::ptr_eq(other, watched));
        if leave(watched) && is_current {
            subjects.remove(subject);
        }
        drop(subjects);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns when there may be work. `registered` is called once the wait is counted.
    pub(crate) async fn wait_for_work(&self, registered: impl FnOnce()) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = WaiterGuard(&self.waiting);
        registered();
        let notified = self.work.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        let drained = self.drained.load(Ordering::SeqCst);
        if self.is_closed() || self.queued.load(Ordering::SeqCst) > drained {
            return;
        }
        // The caller looks in either case: time ran out or work came.
        tokio::time::timeout(WORK_WAIT_MAX, notified).await.ok();
    }

    /// Returns when there may be a dispatch to take, or when it is time to look.
    pub(crate) async fn wait_for_dispatch(&self) {
        let notified = self.dispatches.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        if !self.is_closed() && !self.fresh.swap(false, Ordering::SeqCst) {
            tokio::time::timeout(WORK_WAIT_MAX, notified).await.ok();
        }
    }
}

/// Counts a waiter down, also if its future is dropped.
struct WaiterGuard<'a>(&'a AtomicUsize);

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
