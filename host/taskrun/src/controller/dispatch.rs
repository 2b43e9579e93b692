//! Handing dispatches over to their subscribers.
//!
//! The rows are made by the store in the transactions of the events. A host takes those of its
//! subscribers that are due, each for a while, and says what became of it. So a host may die on any
//! line here, and another one takes what it had: a subscriber is told at least once.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use taskrun_journal::dispatch::{
    AttemptOutcome, Dispatch, DispatchState, ERROR_BYTES_MAX, TAKEN_FOR, TaskEvent, pause_after,
};
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::machine;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::store::{DispatchClaim, DispatchQuery, ReportChange, StoreError};
use taskrun_journal::text::cut;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::repeated::RepeatedWarning;
use super::{Client, Controller};
use crate::clock::time_comes;
use crate::driver::in_words;
use crate::error::ControllerError;
use crate::ports::transport::{
    INTERRUPT_REASON, News, Subscriber, Subscribers, Transport, TransportError, TransportKind,
};

// Attempts take the machine's time: subscribers are outside, whatever clock the runs see. The
// pauses between them are of that clock.

/// Longest wait until a voice is silent: nobody waits longer for news that is there.
pub const IDLE_WAIT: Duration = Duration::from_secs(15);
/// The time for an attempt, with all that it waits for: less than another host waits for this one.
const ATTEMPT_MAX: Duration = Duration::from_secs(80);
/// Dispatches that are handed over to one subscriber at once: one that is slow delays few others.
const AT_ONCE: usize = 4;
/// The pause before the store is asked again that could not be.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// The time for attempts that are under way when the host ends.
const LAST_TIME: Duration = Duration::from_secs(2);

/// The handing over by this host under one policy, and the attempts by subscriber, which go on
/// under the next one.
#[derive(Default)]
pub(super) struct Dispatching {
    /// Ends the loops that take what is due.
    taking: CancellationToken,
    attempts: BTreeMap<String, Arc<Attempts>>,
}

/// The attempts of this host to hand over to one subscriber.
#[derive(Default)]
struct Attempts {
    failed: RepeatedWarning,
    /// The numbers of those that are under way. One may be due again before it is over, where the
    /// clock of runs is faster than the machine's, or the machine stood still.
    under_way: Mutex<BTreeSet<u64>>,
    /// Those of which the outcome is not kept yet.
    open: AtomicUsize,
    /// Told when there is one less of these.
    kept: Notify,
    /// Held by the loop that begins attempts: that of the policy before may just be taking some.
    taking: tokio::sync::Mutex<()>,
}

impl Attempts {
    /// Begins one, unless it is under way already.
    fn begin(self: &Arc<Self>, number: u64) -> Option<Attempt> {
        let is_new = self.under_way.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
        is_new.then(|| {
            self.open.fetch_add(1, Ordering::AcqRel);
            Attempt { of: Arc::clone(self), number: Some(number) }
        })
    }

    /// The number of those for which there is room beside the others.
    fn room(&self) -> usize {
        AT_ONCE.saturating_sub(self.open.load(Ordering::Acquire))
    }
}

/// One attempt, until its outcome is kept.
struct Attempt {
    of: Arc<Attempts>,
    /// Its number while it is under way.
    number: Option<u64>,
}

impl Attempt {
    /// Says that it is over: the same may be due again.
    fn end(&mut self) {
        if let Some(number) = self.number.take() {
            self.of.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.end();
        self.of.open.fetch_sub(1, Ordering::AcqRel);
        self.of.kept.notify_one();
    }
}

impl Client {
    /// The dispatches at some stages of the runs that the caller sees, at most [`PAGE_MAX`], after a
    /// number; 0 is the beginning.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn dispatches(
        &self,
        states: &[DispatchState],
        after: u64,
        limit: usize,
    ) -> Result<Vec<Dispatch>, ControllerError> {
        let query = DispatchQuery::Scope { scope: self.scope().clone(), states: states.to_vec() };
        let dispatches = &self.controller.0.parts.dispatches;
        Ok(dispatches.dispatches(&query, after, limit.min(PAGE_MAX)).await?)
    }

    /// The dispatches of a run, in the order in which they were made.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn dispatches_of(&self, id: &str) -> Result<Vec<Dispatch>, ControllerError> {
        let run = self.get(id).await?;
        let query = DispatchQuery::Run(run.id().clone());
        Ok(self.controller.0.parts.dispatches.dispatches(&query, 0, PAGE_MAX).await?)
    }

    /// Changes the dispatches of a run to which that applies, of one subscriber or of all; says how
    /// many there were.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn change_dispatches(
        &self,
        id: &str,
        subscriber: Option<&str>,
        change: ReportChange,
    ) -> Result<usize, ControllerError> {
        let mut changed = 0;
        let is_meant = |one: &Dispatch| subscriber.is_none_or(|name| one.key.subscriber == name);
        for dispatch in self.dispatches_of(id).await?.into_iter().filter(is_meant) {
            let dispatches = &self.controller.0.parts.dispatches;
            let applies = dispatches.change_dispatch(dispatch.number, change).await?;
            changed += usize::from(applies);
        }
        Ok(changed)
    }
}

impl Controller {
    /// The subscribers to which this host hands dispatches over: those of the program, and of the
    /// policy as it is now.
    #[must_use]
    pub(crate) fn subscribers(&self) -> Subscribers {
        self.0.parts.subscribers.with(&self.agents().subscribers)
    }

    /// Begins to hand over for each subscriber, and takes nothing more for those of the policy before.
    /// Attempts that are under way come to their end in the way in which they began.
    pub(super) fn begin_dispatching(&self) {
        let subscribers = self.subscribers();
        let mut known = self.0.dispatching.lock().unwrap_or_else(PoisonError::into_inner);
        let taking = self.0.closing.child_token();
        std::mem::replace(&mut known.taking, taking.clone()).cancel();
        let names = subscribers.names();
        // A loop holds its own, and each attempt.
        known.attempts.retain(|name, one| names.contains(name) || Arc::strong_count(one) > 1);
        for (name, subscriber) in subscribers.iter() {
            let ours = Arc::clone(known.attempts.entry(name.clone()).or_default());
            let subscriber = (name.clone(), subscriber.clone());
            self.0.tasks.spawn(self.clone().dispatch_loop(subscriber, ours, taking.clone()));
        }
    }

    async fn dispatch_loop(
        self,
        (name, subscriber): (String, Subscriber),
        ours: Arc<Attempts>,
        taking: CancellationToken,
    ) {
        let parts = &self.0.parts;
        let names = BTreeSet::from([name.clone()]);
        let not_found = RepeatedWarning::default();
        // The one before has it until it notices that it is to end, which is soon.
        let _alone = ours.taking.lock().await;
        while !taking.is_cancelled() {
            let room = ours.room();
            let now = parts.clock.now();
            let next = match room {
                0 => Ok(None),
                _ => parts.dispatches.next_dispatch(&names, now).await,
            };
            let taken = match &next {
                Ok(Some(due)) if *due <= now => self.take_due(&name, room).await,
                Ok(_) => Ok(Vec::new()),
                Err(error) => Err(error.clone()),
            };
            let look_at = match taken {
                Ok(taken) if taken.is_empty() => next.ok().flatten(),
                Ok(taken) => {
                    for dispatch in taken {
                        if let Some(attempt) = ours.begin(dispatch.number) {
                            let handing =
                                self.clone().attempt(dispatch, subscriber.clone(), attempt);
                            self.0.tasks.spawn(handing);
                        }
                    }
                    continue;
                }
                Err(error) => {
                    if let Some(left_out) = not_found.told(parts.clock.monotonic()) {
                        let text = "what it is to be told is not found";
                        tracing::warn!(subscriber = name, %error, left_out, "{text}");
                    }
                    Some(now.plus(STORE_PAUSE))
                }
            };
            let time = async {
                match look_at {
                    Some(at) => time_comes(&*parts.clock, at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = taking.cancelled() => {}
                () = ours.kept.notified() => {}
                () = time => {}
                () = parts.dispatches.dispatched(), if room > 0 => {}
            }
        }
    }

    /// Takes some of what is due for a subscriber.
    async fn take_due(&self, name: &str, limit: usize) -> Result<Vec<Dispatch>, StoreError> {
        let parts = &self.0.parts;
        let now = parts.clock.now();
        let claim = DispatchClaim {
            host: self.0.host.clone(),
            subscriber: name.to_owned(),
            now,
            until: now.plus(TAKEN_FOR),
            limit,
        };
        parts.dispatches.take_dispatches(claim).await
    }

    /// Hands one over, and keeps what became of it. It is given up when the host ends, and not when
    /// the policy changes: a command would be killed for an edit of something else.
    async fn attempt(self, dispatch: Dispatch, subscriber: Subscriber, attempt: Attempt) {
        let parts = &self.0.parts;
        let (key, clock, machine) = (&dispatch.key, &parts.clock, &parts.machine);
        let handed = AssertUnwindSafe(self.tell(&dispatch, &subscriber)).catch_unwind();
        let given_up = async {
            self.0.closing.cancelled().await;
            machine.sleep(LAST_TIME).await;
        };
        let told = tokio::select! {
            biased;
            told = handed => told.unwrap_or_else(|_| Err(failure("the transport failed"))),
            () = machine.sleep(ATTEMPT_MAX) => Err(failure("it took too long")),
            () = given_up => {
                self.settle_attempt(&dispatch, attempt, AttemptOutcome::Released).await;
                return;
            }
        };
        let outcome = match told {
            Ok(()) => {
                tracing::debug!(%key, "told");
                AttemptOutcome::Delivered
            }
            Err(error) => {
                let attempts = dispatch.attempts + 1;
                let mut share = [0];
                parts.random.fill(&mut share);
                let next = pause_after(attempts, share[0]).map(|pause| clock.now().plus(pause));
                // One that is down fails for each run, and the outbox has them all.
                let last = next.is_none();
                match attempt.of.failed.told(clock.monotonic()) {
                    Some(left_out) => {
                        tracing::warn!(%key, attempts, last, %error, left_out, "not told");
                    }
                    None => tracing::debug!(%key, attempts, last, %error, "not told"),
                }
                let error = cut(&error.to_string(), ERROR_BYTES_MAX).to_owned();
                AttemptOutcome::Failed { error, next }
            }
        };
        self.settle_attempt(&dispatch, attempt, outcome).await;
    }

    async fn settle_attempt(
        &self,
        dispatch: &Dispatch,
        mut attempt: Attempt,
        outcome: AttemptOutcome,
    ) {
        let (parts, key) = (&self.0.parts, &dispatch.key);
        // Before it can be due again.
        attempt.end();
        let settled = parts.dispatches.settle_dispatch(dispatch.number, &self.0.host, outcome);
        // Otherwise it is told once more, by whichever host takes it then.
        if let Err(error) = settled.await {
            tracing::warn!(%key, %error, "the outcome of an attempt is not kept");
        }
    }

    async fn tell(
        &self,
        dispatch: &Dispatch,
        subscriber: &Subscriber,
    ) -> Result<(), TransportError> {
        let unread = |error: StoreError| failure(&error.to_string());
        // Without its run the dispatch is gone, too.
        let Some(news) = self.news(dispatch).await.map_err(unread)? else { return Ok(()) };
        let transport = &*subscriber.transport;
        match (transport.kind(), subscriber.interrupts) {
            (TransportKind::Voice, true) => transport.interrupt(INTERRUPT_REASON).await,
            (TransportKind::Voice, false) => self.wait_for_silence(transport).await,
            (TransportKind::Text | TransportKind::Program, _) => {}
        }
        transport.deliver(&news).await
    }

    async fn wait_for_silence(&self, transport: &dyn Transport) {
        tokio::select! {
            biased;
            () = transport.idle() => {}
            () = self.0.parts.machine.sleep(IDLE_WAIT) => {}
        }
    }

    /// The news of a dispatch; `None` if its run was removed just now. The same each time.
    pub(super) async fn news(&self, dispatch: &Dispatch) -> Result<Option<News>, StoreError> {
        let (store, key) = (&*self.0.parts.store, &dispatch.key);
        let run: Option<Run> = match key.event {
            TaskEvent::Delegated => {
                let first = store.read(&key.run, 0, 1).await?;
                first.first().and_then(|first| machine::begin(first).ok())
            }
            TaskEvent::Completed => store.get(&key.run).await?,
        };
        let Some(run) = run else { return Ok(None) };
        let mut subscriptions = run.spec.subscriptions.iter();
        let own = subscriptions.find(|one| one.subscriber == key.subscriber);
        Ok(Some(News {
            key: key.clone(),
            at: run.state.updated_at,
            text: in_words(store, &run).await?,
            // What the run's own policy says counts beside that of the host.
            without_text: own.is_some_and(|own| own.without_text),
            run: RunView::for_callers(&run),
        }))
    }
}

fn failure(words: &str) -> TransportError {
    TransportError(words.to_owned())
}
