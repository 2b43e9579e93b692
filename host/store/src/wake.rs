//! Who waits for what, and waking exactly them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskrun::event::Seq;
use taskrun::ids::RunId;
use tokio::sync::Notify;

/// After this a wait for work ends without a reason: the promise of the port.
const WORK_WAIT_MAX: Duration = Duration::from_secs(1);

/// The waiting of one process.
#[derive(Default)]
pub(crate) struct Wakes {
    runs: Mutex<HashMap<RunId, Watched>>,
    /// Waiters of both kinds. Raised before a waiter looks at the store, read after a writer
    /// wrote: so one of the two sees the other.
    waiting: AtomicUsize,
    work: Notify,
    /// How often work was queued, and how often that was when a claim last found no more. Starts
    /// with a difference, as the past may have left work.
    queued: AtomicU64,
    drained: AtomicU64,
    closed: AtomicBool,
}

/// A run that somebody waits for; gone when the last one stops waiting.
struct Watched {
    notify: Arc<Notify>,
    waiters: usize,
    head: Seq,
    /// How often everybody was told to look for himself.
    roused: u64,
}

impl Wakes {
    pub(crate) fn new() -> Self {
        Self { queued: AtomicU64::new(1), ..Self::default() }
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, Watched>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody waits.
    pub(crate) fn anybody(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Runs that somebody waits for.
    pub(crate) fn watched(&self) -> usize {
        self.runs().len()
    }

    /// Says that the journal of a run reaches up to `head`.
    pub(crate) fn moved(&self, id: &RunId, head: Seq) {
        if !self.anybody() {
            return;
        }
        if let Some(watched) = self.runs().get_mut(id)
            && watched.head < head
        {
            watched.head = head;
            watched.notify.notify_waiters();
        }
    }

    /// Says that there is one more queued run.
    pub(crate) fn queued(&self) {
        self.queued.fetch_add(1, Ordering::SeqCst);
        self.work.notify_waiters();
    }

    /// Makes everybody look for himself.
    pub(crate) fn rouse(&self) {
        for watched in self.runs().values_mut() {
            watched.roused += 1;
            watched.notify.notify_waiters();
        }
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

    /// Says that no queued run of before that moment was left to take.
    pub(crate) fn drained(&self, before: u64) {
        self.drained.fetch_max(before, Ordering::SeqCst);
    }

    /// Begins to wait for a run.
    pub(crate) fn watch(&self, id: &RunId) -> Watch<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut runs = self.runs();
        let watched = runs.entry(id.clone()).or_insert_with(|| Watched {
            notify: Arc::new(Notify::new()),
            waiters: 0,
            head: 0,
            roused: 0,
        });
        watched.waiters += 1;
        let (notify, roused) = (Arc::clone(&watched.notify), watched.roused);
        Watch { wakes: self, id: id.clone(), notify, roused }
    }

    /// Returns when there may be work. `rouse` is called once the wait is registered.
    pub(crate) async fn wait_for_work(&self, registered: impl FnOnce()) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        registered();
        let notified = self.work.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        let drained = self.drained.load(Ordering::SeqCst);
        if self.is_closed() || self.queued.load(Ordering::SeqCst) > drained {
            return;
        }
        // Whether time ran out or work came, the caller looks.
        tokio::time::timeout(WORK_WAIT_MAX, notified).await.ok();
    }
}

/// Counts a waiter down, also if its future is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A wait for a run.
pub(crate) struct Watch<'a> {
    wakes: &'a Wakes,
    id: RunId,
    notify: Arc<Notify>,
    roused: u64,
}

impl Watch<'_> {
    /// Returns when the journal reaches beyond `after`, or when everybody is to look.
    pub(crate) async fn beyond(&self, after: Seq) {
        loop {
            let notified = self.notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.wakes.is_closed() || self.is_beyond(after) {
                return;
            }
            notified.await;
        }
    }

    fn is_beyond(&self, after: Seq) -> bool {
        let runs = self.wakes.runs();
        runs.get(&self.id).is_none_or(|run| run.head > after || run.roused > self.roused)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut runs = self.wakes.runs();
        if let Some(watched) = runs.get_mut(&self.id) {
            watched.waiters -= 1;
            if watched.waiters == 0 {
                runs.remove(&self.id);
            }
        }
        drop(runs);
        self.wakes.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
