//! A store that remembers when this process last had work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::event::{Recorded, Seq};
use taskrun::ids::RunId;
use taskrun::list::{Cursor, ListFilter, Page, Scope};
use taskrun::ports::store::{
    Append, Appended, Batched, Claim, Created, NewBatch, NewRun, Removal, Removed, Store,
    StoreError, Until,
};
use taskrun::run::Run;
use taskrun::time::{Clock, millis};

/// Passes everything on, and notes claims, appends and batches: whoever executes runs makes them.
pub(super) struct Noticed {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    last_ms: AtomicU64,
}

impl Noticed {
    pub(super) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let last_ms = AtomicU64::new(millis(clock.monotonic()));
        Self { store, clock, last_ms }
    }

    /// How long there was no work.
    pub(super) fn idle_for(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.clock.monotonic().saturating_sub(last)
    }

    fn note(&self) {
        self.last_ms.store(millis(self.clock.monotonic()), Ordering::Relaxed);
    }
}

#[async_trait]
impl Store for Noticed {
    async fn create(&self, run: NewRun) -> Result<Created, StoreError> {
        self.store.create(run).await
    }

    async fn batch(&self, batch: NewBatch) -> Result<Batched, StoreError> {
        self.note();
        self.store.batch(batch).await
    }

    async fn entries(
        &self,
        policy_digest: &str,
        agent_name: &str,
        limit: usize,
    ) -> Result<Vec<Vec<RunId>>, StoreError> {
        self.store.entries(policy_digest, agent_name, limit).await
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        self.note();
        self.store.append(append).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        let runs = self.store.claim(claim).await?;
        if !runs.is_empty() {
            self.note();
        }
        Ok(runs)
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        self.store.get(id).await
    }

    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.store.list(scope, filter, after, limit).await
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Recorded>, StoreError> {
        self.store.read(id, after, limit).await
    }

    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        self.store.artifact(id, hash).await
    }

    async fn changed(&self, id: &RunId, until: Until) {
        self.store.changed(id, until).await;
    }

    async fn work(&self) {
        self.store.work().await;
    }

    async fn remove(&self, removal: Removal) -> Result<Removed, StoreError> {
        self.store.remove(removal).await
    }
}
