//! Waiting for a store that cannot be written, or read, just now.
//!
//! A question of a driver or its guests to the store is asked again and again while another program
//! keeps it locked, its disk is full or the system reports an error. The very same thing is asked:
//! an append with the ids of its events, a child run with its key, the change of a fact with its
//! call. Each of these is kept once, so an answer that was lost costs nothing. Meanwhile the run
//! stands still: nothing of it is executed, and its time does not pass.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::event::EventRecord;
use taskrun_journal::fact::{Fact, FactNamespace};
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::layer::Layer;
use taskrun_journal::list::{TreePage, TreeQuery};
use taskrun_journal::memory::{FactChange, FactOutcome, FactWriter, Memory};
use taskrun_journal::run::Run;
use taskrun_journal::runs::{RunsAnswer, RunsError, RunsRequest};
use taskrun_journal::store::{Append, AppendOutcome, Store, StoreError};

use super::lease::Lease;
use super::live::Live;
use super::stalls::Stalls;
use crate::scope::runs::{Caller, Runs};

/// First and longest pause between two questions. The longest one is short: it is what a run loses
/// once the store can be written again, and all that wait are written together.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// The patience of one run.
#[derive(Clone)]
pub(crate) struct Patience {
    pub(crate) id: RunId,
    pub(crate) live: Arc<Live>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) stalls: Arc<Stalls>,
}

impl Patience {
    /// Asks until there is an answer, or a failure that does not pass, or the host gives the run
    /// up.
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
                () = self.stalls.sleep(pause) => {}
            }
            pause = (pause * 2).min(longest);
        }
    }

    pub(super) async fn ask_store<T, F>(
        &self,
        ask: impl FnMut() -> F + Send,
    ) -> Result<T, StoreError>
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

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        self.patience.ask_store(|| self.inner.append(append.clone())).await
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        self.patience.ask_store(|| self.inner.get(id)).await
    }

    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        self.patience.ask_store(|| self.inner.tree(query, after, limit)).await
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
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

    async fn artifact(&self, caller: &Caller, hash: &str) -> Result<Option<Arc<[u8]>>, RunsError> {
        self.patience.ask(RunsError::is_passing, || self.inner.artifact(caller, hash)).await
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
        place: &FactNamespace,
        change: FactChange,
        by: Option<FactWriter>,
    ) -> Result<FactOutcome, StoreError> {
        let change = || self.inner.change_fact(place, change.clone(), by.clone());
        self.patience.ask_store(change).await
    }

    async fn fact(&self, place: &FactNamespace, key: &str) -> Result<Option<Fact>, StoreError> {
        self.patience.ask_store(|| self.inner.fact(place, key)).await
    }

    async fn search_facts(
        &self,
        place: &FactNamespace,
        words: &[String],
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError> {
        self.patience.ask_store(|| self.inner.search_facts(place, words, limit)).await
    }

    async fn facts(
        &self,
        place: &FactNamespace,
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
