//! Waiting for a store that cannot be written, or read, just now.
//!
//! What a driver and its guests ask of the store is asked again and again while another program
//! keeps it locked, its disk is full or the system reports an error. The very same thing is asked: an
//! append with the ids of its events, a child run with its key, the change of a fact with its call.
//! Each of these is kept once, so an answer that was lost costs nothing. Meanwhile the run stands
//! still: nothing of it is executed, and its time does not pass.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::event::Recorded;
use taskrun_journal::fact::{Fact, FactPlace};
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::layer::Layer;
use taskrun_journal::memory::{FactChange, FactChanged, FactWriter, Memory};
use taskrun_journal::run::Run;
use taskrun_journal::runs::{RunsAnswer, RunsError, RunsRequest};
use taskrun_journal::store::{Append, Appended, Store, StoreError};
use taskrun_journal::time::{Clock, Timestamp};
use tokio::sync::watch;

use super::{Lease, Live};
use crate::ports::runs::{Caller, Runs};

/// First and longest pause between two questions. The longest one is short: it is what a run loses
/// once the store can be written again, and all that wait are written together.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// The times at which a run stands still.
pub(crate) struct Stalls {
    clock: Arc<dyn Clock>,
    state: watch::Sender<Stood>,
}

#[derive(Clone, Copy, Default)]
struct Stood {
    /// Reasons to stand still at this moment.
    reasons: u32,
    /// Since when there are any.
    since: Duration,
    /// All the time before that in which there were some.
    before: Duration,
}

/// A reason to stand still; ends with this value.
pub(crate) struct Stall(Arc<Stalls>);

impl Stalls {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: watch::Sender::default() })
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Stall {
        let now = self.clock.monotonic();
        self.state.send_modify(|stood| {
            if stood.reasons == 0 {
                stood.since = now;
            }
            stood.reasons += 1;
        });
        Stall(Arc::clone(self))
    }

    /// How long the run has stood still in all.
    fn total(&self) -> Duration {
        let stood = *self.state.borrow();
        match stood.reasons {
            0 => stood.before,
            _ => stood.before + self.clock.monotonic().saturating_sub(stood.since),
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        let now = self.0.clock.monotonic();
        self.0.state.send_modify(|stood| {
            stood.reasons -= 1;
            if stood.reasons == 0 {
                stood.before += now.saturating_sub(stood.since);
            }
        });
    }
}

/// A clock whose time since its beginning passes only while the run does not stand still. The time
/// of day is everybody's.
pub(crate) struct RunClock(pub(crate) Arc<Stalls>);

#[async_trait]
impl Clock for RunClock {
    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.clock.monotonic().saturating_sub(self.0.total())
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.monotonic().saturating_add(duration);
        let mut left = duration;
        loop {
            self.0.clock.sleep(left).await;
            let mut state = self.0.state.subscribe();
            // The sender is there as long as the clock is.
            state.wait_for(|stood| stood.reasons == 0).await.ok();
            left = until.saturating_sub(self.monotonic());
            if left.is_zero() {
                return;
            }
        }
    }
}

/// The patience of one run.
#[derive(Clone)]
pub(crate) struct Patience {
    pub(crate) id: RunId,
    pub(crate) live: Arc<Live>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) stalls: Arc<Stalls>,
}

impl Patience {
    /// Asks until there is an answer, or a failure that does not pass, or the host gives the run up.
    async fn ask<T, E, F>(
        &self,
        passes: impl Fn(&E) -> bool + Send,
        mut ask: impl FnMut() -> F + Send,
    ) -> Result<T, E>
    where
        T: Send,
        E: std::fmt::Display + Send,
        F: Future<Output = Result<T, E>> + Send,
    {
        let mut stall = None;
        let (mut pause, longest) = PAUSE;
        loop {
            let given_back = self.live.is_given_back();
            let error = match ask().await {
                Err(error) if passes(&error) && !given_back => error,
                answer => return answer,
            };
            if stall.is_none() {
                tracing::warn!(run = %self.id, %error, "stands still until the store answers");
                stall = Some(self.stalls.begin());
            }
            tokio::select! {
                biased;
                () = self.live.given_back() => {}
                () = self.stalls.clock.sleep(pause) => {}
            }
            pause = (pause * 2).min(longest);
        }
    }

    async fn ask_store<T, F>(&self, ask: impl FnMut() -> F + Send) -> Result<T, StoreError>
    where
        T: Send,
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        let answer = self.ask(StoreError::is_passing, ask).await;
        if let Err(error) = &answer {
            self.lease.note(error);
        }
        answer
    }
}

/// The store as the driver of a run sees it.
pub(crate) struct PatientStore {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) patience: Patience,
}

#[async_trait]
impl Layer for PatientStore {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        self.patience.ask_store(|| self.inner.append(append.clone())).await
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        self.patience.ask_store(|| self.inner.get(id)).await
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Recorded>, StoreError> {
        self.patience.ask_store(|| self.inner.read(id, after, limit)).await
    }

    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        self.patience.ask_store(|| self.inner.artifact(id, hash)).await
    }
}

/// The controller as the guests of a run see it.
pub(crate) struct PatientRuns {
    pub(crate) inner: Arc<dyn Runs>,
    pub(crate) patience: Patience,
}

#[async_trait]
impl Runs for PatientRuns {
    async fn ask(
        &self,
        caller: &Caller,
        request: RunsRequest,
        longest: Duration,
    ) -> Result<RunsAnswer, RunsError> {
        let ask = || self.inner.ask(caller, request.clone(), longest);
        self.patience.ask(RunsError::is_passing, ask).await
    }

    async fn result(
        &self,
        caller: &Caller,
        hash: &str,
        place: Seq,
    ) -> Result<Option<Arc<[u8]>>, RunsError> {
        self.patience.ask(RunsError::is_passing, || self.inner.result(caller, hash, place)).await
    }
}

/// Facts as the guests of a run see them.
pub(crate) struct PatientMemory {
    pub(crate) inner: Arc<dyn Memory>,
    pub(crate) patience: Patience,
}

#[async_trait]
impl Memory for PatientMemory {
    async fn change_fact(
        &self,
        place: &FactPlace,
        change: FactChange,
        by: Option<FactWriter>,
    ) -> Result<FactChanged, StoreError> {
        let change = || self.inner.change_fact(place, change.clone(), by.clone());
        self.patience.ask_store(change).await
    }

    async fn fact(&self, place: &FactPlace, key: &str) -> Result<Option<Fact>, StoreError> {
        self.patience.ask_store(|| self.inner.fact(place, key)).await
    }

    async fn search_facts(
        &self,
        place: &FactPlace,
        words: &[String],
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError> {
        self.patience.ask_store(|| self.inner.search_facts(place, words, limit)).await
    }

    async fn facts(
        &self,
        place: &FactPlace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError> {
        self.patience.ask_store(|| self.inner.facts(place, after, limit)).await
    }

    async fn forget_session(
        &self,
        tenant: &str,
        owner: Option<&str>,
        session: &str,
    ) -> Result<u64, StoreError> {
        self.inner.forget_session(tenant, owner, session).await
    }
}
