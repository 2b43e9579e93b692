//! Handing dispatches over to their subscribers.
//!
//! The rows are made by the store in the transactions of the events. A host takes those of its
//! subscribers that are due, each for a while, and says what became of it. So a host may die on any
//! line here, and another one takes what it had: a subscriber is told at least once.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
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
use tokio::task::JoinSet;
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

/// The attempts of this host to hand over to one subscriber.
#[derive(Default)]
struct Attempts {
    failed: RepeatedWarning,
    /// The numbers of those that are under way. One may be due again before it is over, where the
    /// clock of runs is faster than the machine's, or the machine stood still.
    under_way: Mutex<BTreeSet<u64>>,
}

impl Attempts {
    /// False if it is under way already.
    fn begin(&self, number: u64) -> bool {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).insert(number)
    }

    fn end(&self, number: u64) {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
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

    /// Begins to hand over for each subscriber, and for those of the policy before no more.
    pub(super) fn begin_dispatching(&self) {
        let dispatching = self.0.closing.child_token();
        let mut before = self.0.dispatching.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *before, dispatching.clone()).cancel();
        drop(before);
        for (name, subscriber) in self.subscribers().iter() {
            let (name, subscriber) = (name.clone(), subscriber.clone());
            let handing = self.clone().dispatch_loop(name, subscriber, dispatching.clone());
            self.0.tasks.spawn(handing);
        }
    }

    async fn dispatch_loop(
        self,
        name: String,
        subscriber: Subscriber,
        dispatching: CancellationToken,
    ) {
        let parts = &self.0.parts;
        let names = BTreeSet::from([name.clone()]);
        let mut attempts = JoinSet::new();
        let (ours, not_found) = (Arc::<Attempts>::default(), RepeatedWarning::default());
        while !dispatching.is_cancelled() {
            let room = AT_ONCE.saturating_sub(attempts.len());
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
                    for dispatch in taken.into_iter().filter(|one| ours.begin(one.number)) {
                        let (subscriber, until) = (subscriber.clone(), dispatching.clone());
                        let ours = Arc::clone(&ours);
                        attempts.spawn(self.clone().attempt(dispatch, subscriber, until, ours));
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
                () = dispatching.cancelled() => {}
                Some(_) = attempts.join_next() => {}
                () = time => {}
                () = parts.dispatches.dispatched(), if room > 0 => {}
            }
        }
        while attempts.join_next().await.is_some() {}
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

    /// Hands one over, and keeps what became of it.
    async fn attempt(
        self,
        dispatch: Dispatch,
        subscriber: Subscriber,
        dispatching: CancellationToken,
        ours: Arc<Attempts>,
    ) {
        let parts = &self.0.parts;
        let (key, clock, machine) = (&dispatch.key, &parts.clock, &parts.machine);
        let handed = AssertUnwindSafe(self.tell(&dispatch, &subscriber)).catch_unwind();
        let given_up = async {
            dispatching.cancelled().await;
            machine.sleep(LAST_TIME).await;
        };
        let told = tokio::select! {
            biased;
            told = handed => told.unwrap_or_else(|_| Err(failure("the transport failed"))),
            () = machine.sleep(ATTEMPT_MAX) => Err(failure("it took too long")),
            () = given_up => {
                self.settle_attempt(&dispatch, &ours, AttemptOutcome::Released).await;
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
                match ours.failed.told(clock.monotonic()) {
                    Some(left_out) => {
                        tracing::warn!(%key, attempts, last, %error, left_out, "not told");
                    }
                    None => tracing::debug!(%key, attempts, last, %error, "not told"),
                }
                let error = cut(&error.to_string(), ERROR_BYTES_MAX).to_owned();
                AttemptOutcome::Failed { error, next }
            }
        };
        self.settle_attempt(&dispatch, &ours, outcome).await;
    }

    async fn settle_attempt(&self, dispatch: &Dispatch, ours: &Attempts, outcome: AttemptOutcome) {
        let (parts, key) = (&self.0.parts, &dispatch.key);
        // Before it can be due again.
        ours.end(dispatch.number);
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
