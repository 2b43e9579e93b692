//! Stores that stand before others.

use std::sync::Arc;

use crate::delivery::Report;
use crate::event::EventRecord;
use crate::ids::{RunId, Seq};
use crate::list::{Cursor, EndedRun, Head, ListFilter, Page, Scope, TreePage, TreeQuery};
use crate::pin::Pins;
use crate::run::Run;
use crate::store::{
    Append, AppendOutcome, BatchOutcome, Claim, CreateOutcome, JointOutcome, NewBatch, NewRun,
    Prospect, Removal, RemovalOutcome, ReportChange, ReportQuery, RunWatch, Store, StoreError,
};
use crate::time::Timestamp;
use async_trait::async_trait;

/// A store before another one, to which it passes on what it has nothing to do with: each method
/// is that of [`Store`], and does that unless it is written out.
///
/// It costs an allocation for each call.
#[async_trait]
pub trait Layer: Send + Sync {
    /// The store behind this one.
    fn behind(&self) -> &dyn Store;

    /// See [`Store::create`].
    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError> {
        self.behind().create(run).await
    }

    /// See [`Store::create_and_claim`]. It is not passed on unless the layer says so, as the layer may
    /// have to do with either half: by default neither is done ([`JointOutcome::Busy`]), and the caller
    /// asks for each by itself.
    async fn create_and_claim(&self, run: NewRun, _: Claim) -> Result<JointOutcome, StoreError> {
        Ok(JointOutcome::Busy(Box::new(run)))
    }

    /// See [`Store::create_all`].
    async fn create_all(&self, runs: Vec<NewRun>) -> Result<Vec<CreateOutcome>, StoreError> {
        self.behind().create_all(runs).await
    }

    /// See [`Store::batch`].
    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        self.behind().batch(batch).await
    }

    /// See [`Store::entries`].
    async fn entries(&self, agent_name: &str, limit: usize) -> Result<Vec<Vec<RunId>>, StoreError> {
        self.behind().entries(agent_name, limit).await
    }

    /// See [`Store::append`].
    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        self.behind().append(append).await
    }

    /// See [`Store::claim`].
    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        self.behind().claim(claim).await
    }

    /// See [`Store::prospect`].
    async fn prospect(&self, claim: &Claim) -> Result<Prospect, StoreError> {
        self.behind().prospect(claim).await
    }

    /// See [`Store::wanted`].
    async fn wanted(&self) -> Result<Vec<Pins>, StoreError> {
        self.behind().wanted().await
    }

    /// See [`Store::pins`].
    async fn pins(&self, ended_since: Option<Timestamp>) -> Result<Vec<Pins>, StoreError> {
        self.behind().pins(ended_since).await
    }

    /// See [`Store::get`].
    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        self.behind().get(id).await
    }

    /// See [`Store::head`].
    async fn head(&self, scope: &Scope, id: &RunId) -> Result<Option<Head>, StoreError> {
        self.behind().head(scope, id).await
    }

    /// See [`Store::list`].
    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.behind().list(scope, filter, after, limit).await
    }

    /// See [`Store::ended`].
    async fn ended(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EndedRun>, StoreError> {
        self.behind().ended(scope, filter, before, limit).await
    }

    /// See [`Store::tree`].
    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        self.behind().tree(query, after, limit).await
    }

    /// See [`Store::read`].
    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        self.behind().read(id, after, limit).await
    }

    /// See [`Store::artifact`].
    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        self.behind().artifact(id, hash).await
    }

    /// See [`Store::reports`].
    async fn reports(
        &self,
        query: &ReportQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Report>, StoreError> {
        self.behind().reports(query, after, limit).await
    }

    /// See [`Store::change_report`].
    async fn change_report(&self, run: &RunId, change: ReportChange) -> Result<bool, StoreError> {
        self.behind().change_report(run, change).await
    }

    /// See [`Store::watch`].
    fn watch(&self, id: &RunId) -> Box<dyn RunWatch> {
        self.behind().watch(id)
    }

    /// See [`Store::work`].
    async fn work(&self) {
        self.behind().work().await;
    }

    /// See [`Store::remove`].
    async fn remove(&self, removal: Removal) -> Result<RemovalOutcome, StoreError> {
        self.behind().remove(removal).await
    }
}

#[async_trait]
impl<L: Layer> Store for L {
    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError> {
        Layer::create(self, run).await
    }

    async fn create_and_claim(
        &self,
        run: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        Layer::create_and_claim(self, run, claim).await
    }

    async fn create_all(&self, runs: Vec<NewRun>) -> Result<Vec<CreateOutcome>, StoreError> {
        Layer::create_all(self, runs).await
    }

    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        Layer::batch(self, batch).await
    }

    async fn entries(&self, agent_name: &str, limit: usize) -> Result<Vec<Vec<RunId>>, StoreError> {
        Layer::entries(self, agent_name, limit).await
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        Layer::append(self, append).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        Layer::claim(self, claim).await
    }

    async fn prospect(&self, claim: &Claim) -> Result<Prospect, StoreError> {
        Layer::prospect(self, claim).await
    }

    async fn wanted(&self) -> Result<Vec<Pins>, StoreError> {
        Layer::wanted(self).await
    }

    async fn pins(&self, ended_since: Option<Timestamp>) -> Result<Vec<Pins>, StoreError> {
        Layer::pins(self, ended_since).await
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        Layer::get(self, id).await
    }

    async fn head(&self, scope: &Scope, id: &RunId) -> Result<Option<Head>, StoreError> {
        Layer::head(self, scope, id).await
    }

    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        Layer::list(self, scope, filter, after, limit).await
    }

    async fn ended(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EndedRun>, StoreError> {
        Layer::ended(self, scope, filter, before, limit).await
    }

    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        Layer::tree(self, query, after, limit).await
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        Layer::read(self, id, after, limit).await
    }

    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        Layer::artifact(self, id, hash).await
    }

    async fn reports(
        &self,
        query: &ReportQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Report>, StoreError> {
        Layer::reports(self, query, after, limit).await
    }

    async fn change_report(&self, run: &RunId, change: ReportChange) -> Result<bool, StoreError> {
        Layer::change_report(self, run, change).await
    }

    fn watch(&self, id: &RunId) -> Box<dyn RunWatch> {
        Layer::watch(self, id)
    }

    async fn work(&self) {
        Layer::work(self).await;
    }

    async fn remove(&self, removal: Removal) -> Result<RemovalOutcome, StoreError> {
        Layer::remove(self, removal).await
    }
}
