//! The ports of a store, answered by its writer and its readers.

mod hosts;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::Connection;
use taskrun_journal::delivery::Report;
use taskrun_journal::dispatch::{AttemptOutcome, Dispatch};
use taskrun_journal::event::EventRecord;
use taskrun_journal::fact::{Fact, FactNamespace};
use taskrun_journal::ids::{HostId, RunId, Seq};
use taskrun_journal::list::{Cursor, EndedRun, Head, ListFilter, Page, Scope, TreePage, TreeQuery};
use taskrun_journal::memory::{FactChange, FactOutcome, FactWriter, Memory};
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::schedule;
use taskrun_journal::store::{
    Append, AppendOutcome, BatchOutcome, Claim, CreateOutcome, DispatchClaim, DispatchQuery,
    Dispatches, JointOutcome, NewBatch, NewRun, Policies, PolicyRevision, PolicyText, Prospect,
    Removal, RemovalOutcome, ReportChange, ReportQuery, RunWatch, Session, SessionKey, SessionPage,
    Sessions, Store, StoreError,
};
use taskrun_journal::time::Timestamp;

use super::accept::JointWrite;
use super::change::{self, AppendRow, WriteOutcome};
use super::create::NewRow;
use super::entries::{self, BatchRow};
use super::facts::{self, ChangeRow};
use super::news::{tell, tell_claimed};
use super::store::SqliteStore;
use super::taken::TakenRow;
use super::watch::SqliteWatch;
use super::{
    artifacts, dispatches, list, outbox, pins, policies, prospect, removal, row, sessions, trees,
};
use crate::wake::Written;

/// Bytes that a claim or a change of hosts counts for in a batch.
const SMALL: usize = 1 << 10;

#[async_trait]
impl Store for SqliteStore {
    async fn create(&self, new: NewRun) -> Result<CreateOutcome, StoreError> {
        self.is_open()?;
        schedule::check_new(&new);
        self.keep(Arc::new(NewRow::new(new))).await
    }

    async fn create_and_claim(
        &self,
        new: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        self.is_open()?;
        schedule::check_new(&new);
        let taken = TakenRow::new(&new, &claim);
        let row = Arc::new(NewRow::new(new));
        let (wakes, locks) = (Arc::clone(&self.wakes), Arc::clone(&self.locks));
        let (added, written) = (Arc::clone(&row), Arc::clone(&row));
        let tell = move |told: &JointWrite| {
            let JointWrite { created, claimed } = told;
            tell(&wakes, created, std::slice::from_ref(added.run()), added.events(), None);
            tell_claimed(&wakes, claimed);
        };
        let bytes = row.bytes() + taken.as_ref().map_or(SMALL, TakenRow::bytes);
        let write = move |db: &Connection| {
            JointWrite::create_and_claim(db, &locks, (&written, taken.as_ref()), &claim)
        };
        match self.writer.submit(bytes, write, tell).await {
            Ok(JointWrite { created, claimed }) => {
                Ok(JointOutcome::Done { created: created.answer, claimed: claimed.answer })
            }
            // Damage that only the claim has met, perhaps.
            Err(StoreError::Corrupt { .. }) => {
                Ok(JointOutcome::Done { created: self.keep(row).await?, claimed: Vec::new() })
            }
            Err(error) => Err(error),
        }
    }

    async fn create_all(&self, news: Vec<NewRun>) -> Result<Vec<CreateOutcome>, StoreError> {
        self.is_open()?;
        news.iter().for_each(schedule::check_new);
        let added: Vec<(Run, usize)> =
            news.iter().map(|new| (new.run.clone(), new.events.len())).collect();
        let rows: Vec<NewRow> = news.into_iter().map(NewRow::new).collect();
        let (wakes, locks) = (Arc::clone(&self.wakes), Arc::clone(&self.locks));
        let tell = move |told: &WriteOutcome<Vec<CreateOutcome>>| {
            let all = added.into_iter().zip(&told.answer);
            let kept = all.filter(|(_, answer)| answer.is_new());
            let (runs, events): (Vec<Run>, Vec<usize>) = kept.map(|(added, _)| added).unzip();
            tell(&wakes, told, &runs, events.into_iter().sum(), None);
        };
        let bytes = rows.iter().map(NewRow::bytes).sum();
        let create = move |db: &Connection| NewRow::create_all(&rows, db, &locks);
        Ok(self.writer.submit(bytes, create, tell).await?.answer)
    }

    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        self.is_open()?;
        let runs = std::iter::once(&batch.run.run).chain(batch.entries.iter().map(|one| &*one.run));
        let runs: Vec<Run> = runs.cloned().collect();
        let added = batch.entries.iter().map(|one| one.events.len());
        let events = batch.run.events.len() + added.sum::<usize>();
        let (row, wakes) = (BatchRow::new(batch), Arc::clone(&self.wakes));
        let tell = move |told: &WriteOutcome<BatchOutcome>| {
            tell(&wakes, told, &runs, events, None);
        };
        let told = self.writer.submit(row.bytes(), move |db| row.batch(db), tell).await?;
        Ok(told.answer)
    }

    async fn entries(&self, agent_name: &str, limit: usize) -> Result<Vec<Vec<RunId>>, StoreError> {
        let agent = agent_name.to_owned();
        self.readers.read(move |db| entries::waiting(db, &agent, limit)).await
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        schedule::check_append(&append);
        let (row, wakes) = (AppendRow::new(&append), Arc::clone(&self.wakes));
        let Append { run, events, .. } = append;
        let written = Written { events: events.into_records(), bytes: row.event_bytes() };
        let tell = move |told: &WriteOutcome<AppendOutcome>| {
            let events = written.events.len();
            tell(&wakes, told, std::slice::from_ref(&*run), events, Some(&written));
        };
        let told = self.writer.submit(row.bytes(), move |db| row.append(db), tell).await?;
        Ok(told.answer)
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        let before = self.wakes.before_claim();
        let (wakes, limit) = (Arc::clone(&self.wakes), claim.limit);
        let tell = move |told: &WriteOutcome<Vec<Run>>| {
            tell_claimed(&wakes, told);
            if told.answer.len() < limit {
                wakes.drained(before);
            }
        };
        let told = self.writer.submit(SMALL, move |db| change::claim(db, &claim), tell).await?;
        Ok(told.answer)
    }

    async fn prospect(&self, claim: &Claim) -> Result<Prospect, StoreError> {
        let (before, claim) = (self.wakes.before_claim(), claim.clone());
        let prospect = self.readers.read(move |db| prospect::prospect(db, &claim)).await?;
        if prospect != Prospect::Claim {
            self.wakes.drained(before);
        }
        Ok(prospect)
    }

    async fn wanted(&self) -> Result<Vec<Pins>, StoreError> {
        self.readers.read(prospect::wanted).await
    }

    async fn pins(&self, ended_since: Option<Timestamp>) -> Result<Vec<Pins>, StoreError> {
        self.readers.read(move |db| pins::pins(db, ended_since)).await
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        let (id, absence) = (id.clone(), Arc::clone(&self.absence));
        let read = move |db: &Connection| {
            let run = row::run_by_id(db, &id)?;
            if run.is_none() {
                absence.check(db, &id)?;
            }
            Ok(run)
        };
        self.readers.read(read).await
    }

    async fn head(&self, scope: &Scope, id: &RunId) -> Result<Option<Head>, StoreError> {
        let (scope, id, absence) = (scope.clone(), id.clone(), Arc::clone(&self.absence));
        let read = move |db: &Connection| match row::head_within(db, &scope, &id)? {
            Some(head) => Ok(head),
            None => absence.check(db, &id).map(|()| None),
        };
        self.readers.read(read).await
    }

    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let (scope, filter, after) = (scope.clone(), filter.clone(), after.cloned());
        let limit = limit.max(1);
        self.readers.read(move |db| list::page(db, &scope, &filter, after.as_ref(), limit)).await
    }

    async fn ended(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EndedRun>, StoreError> {
        let (scope, filter) = (scope.clone(), filter.clone());
        self.readers.read(move |db| list::ended(db, &scope, &filter, before, limit)).await
    }

    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        let (query, limit) = (query.clone(), limit.max(1));
        self.readers.read(move |db| trees::page(db, &query, after, limit)).await
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let (id, absence) = (id.clone(), Arc::clone(&self.absence));
        let read = move |db: &Connection| match row::events(db, &id, after, limit)? {
            Some(events) => Ok(events),
            None => absence.check(db, &id).map(|()| Vec::new()),
        };
        self.readers.read(read).await
    }

    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        let (id, hash, absence) = (id.clone(), hash.to_owned(), Arc::clone(&self.absence));
        let read = move |db: &Connection| {
            let bytes = artifacts::get(db, &id, &hash)?;
            if bytes.is_none() && row::head(db, &id)? == 0 {
                absence.check(db, &id)?;
            }
            Ok(bytes)
        };
        self.readers.read(read).await
    }

    async fn reports(
        &self,
        query: &ReportQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Report>, StoreError> {
        let query = query.clone();
        self.readers.read(move |db| outbox::reports(db, &query, after, limit)).await
    }

    async fn change_report(&self, run: &RunId, change: ReportChange) -> Result<bool, StoreError> {
        let run = run.clone();
        self.writer.submit(SMALL, move |db| outbox::change(db, &run, change), |_| {}).await
    }

    fn watch(&self, id: &RunId) -> Box<dyn RunWatch> {
        Box::new(SqliteWatch { watch: self.wakes.watch(id), waker: self.watcher.waker().clone() })
    }

    async fn work(&self) {
        // It ends by itself soon enough where nobody looks.
        let registered = || {
            self.watcher.waker().wake();
        };
        self.wakes.wait_for_work(registered).await;
    }

    async fn remove(&self, removal: Removal) -> Result<RemovalOutcome, StoreError> {
        self.writer.submit(SMALL, move |db| removal::remove(db, &removal), |_| {}).await
    }
}

impl SqliteStore {
    /// Keeps a new run.
    async fn keep(&self, row: Arc<NewRow>) -> Result<CreateOutcome, StoreError> {
        let (wakes, locks) = (Arc::clone(&self.wakes), Arc::clone(&self.locks));
        let (bytes, added) = (row.bytes(), Arc::clone(&row));
        let tell = move |told: &WriteOutcome<CreateOutcome>| {
            tell(&wakes, told, std::slice::from_ref(added.run()), added.events(), None);
        };
        let told = self.writer.submit(bytes, move |db| row.create(db, &locks), tell).await?;
        Ok(told.answer)
    }
}

#[async_trait]
impl Dispatches for SqliteStore {
    async fn next_dispatch(
        &self,
        subscribers: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let subscribers = subscribers.clone();
        self.readers.read(move |db| dispatches::next(db, &subscribers, now)).await
    }

    async fn take_dispatches(&self, claim: DispatchClaim) -> Result<Vec<Dispatch>, StoreError> {
        self.writer.submit(SMALL, move |db| dispatches::take(db, &claim), |_| {}).await
    }

    async fn settle_dispatch(
        &self,
        number: u64,
        host: &HostId,
        outcome: AttemptOutcome,
    ) -> Result<bool, StoreError> {
        let host = host.clone();
        let settle = move |db: &Connection| dispatches::settle(db, number, &host, &outcome);
        self.writer.submit(SMALL, settle, |_| {}).await
    }

    async fn dispatches(
        &self,
        query: &DispatchQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Dispatch>, StoreError> {
        let query = query.clone();
        self.readers.read(move |db| dispatches::list(db, &query, after, limit)).await
    }

    async fn change_dispatch(&self, number: u64, change: ReportChange) -> Result<bool, StoreError> {
        let wakes = Arc::clone(&self.wakes);
        let tell = move |_: &bool| wakes.dispatched();
        self.writer.submit(SMALL, move |db| dispatches::change(db, number, change), tell).await
    }

    async fn forget_dispatches(&self, scope: &Scope) -> Result<u64, StoreError> {
        let scope = scope.clone();
        self.writer.submit(SMALL, move |db| dispatches::forget(db, &scope), |_| {}).await
    }

    async fn dispatched(&self) {
        self.wakes.wait_for_dispatch().await;
    }
}

#[async_trait]
impl Sessions for SqliteStore {
    async fn open_session(&self, session: Session) -> Result<Session, StoreError> {
        self.writer.submit(SMALL, move |db| sessions::open(db, &session), |_| {}).await
    }

    async fn end_session(&self, key: &SessionKey, at: Timestamp) -> Result<Session, StoreError> {
        let key = key.clone();
        self.writer.submit(SMALL, move |db| sessions::end(db, &key, at), |_| {}).await
    }

    async fn session(&self, key: &SessionKey) -> Result<Option<Session>, StoreError> {
        let key = key.clone();
        self.readers.read(move |db| sessions::get(db, &key)).await
    }

    async fn read_session(
        &self,
        key: &SessionKey,
        after: u64,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        let key = key.clone();
        self.readers.read(move |db| sessions::events(db, &key, after, limit)).await
    }

    async fn last_place(&self) -> Result<u64, StoreError> {
        self.readers.read(sessions::last_place).await
    }

    async fn session_changed(&self, key: &SessionKey, after: u64) {
        let mut watch = self.wakes.watch_session(&schedule::widest(key));
        let watched = self.watcher.waker().wake();
        let wanted = key.clone();
        match self.readers.read(move |db| sessions::events(db, &wanted, after, 1)).await {
            Ok(page) if page.events.is_empty() => watched.wait(watch.beyond(after)).await,
            // The caller is to find out for himself.
            Ok(_) | Err(_) => {}
        }
    }
}

#[async_trait]
impl Memory for SqliteStore {
    async fn change_fact(
        &self,
        place: &FactNamespace,
        change: FactChange,
        by: Option<FactWriter>,
    ) -> Result<FactOutcome, StoreError> {
        let row = ChangeRow::new(place, change, by);
        self.writer.submit(row.bytes(), move |db| row.change(db), |_| {}).await
    }

    async fn fact(&self, place: &FactNamespace, key: &str) -> Result<Option<Fact>, StoreError> {
        let (place, key) = (place.clone(), key.to_owned());
        self.readers.read(move |db| facts::get(db, &place, &key)).await
    }

    async fn search_facts(
        &self,
        place: &FactNamespace,
        words: &[String],
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError> {
        let (place, words) = (place.clone(), words.to_vec());
        self.readers.read(move |db| facts::search(db, &place, &words, limit)).await
    }

    async fn facts(
        &self,
        place: &FactNamespace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError> {
        let (place, after) = (place.clone(), after.map(str::to_owned));
        self.readers.read(move |db| facts::list(db, &place, after.as_deref(), limit)).await
    }

    async fn forget_session(
        &self,
        tenant: &str,
        owner: Option<&str>,
        session: &str,
    ) -> Result<u64, StoreError> {
        let (tenant, owner, id) = (tenant.to_owned(), owner.map(str::to_owned), session.to_owned());
        let forget =
            move |db: &Connection| facts::forget_session(db, &tenant, owner.as_deref(), &id);
        self.writer.submit(SMALL, forget, |_| {}).await
    }
}

#[async_trait]
impl Policies for SqliteStore {
    async fn apply_policy(&self, text: PolicyText) -> Result<PolicyRevision, StoreError> {
        // Most find their text in force, and write nothing.
        let wanted = text.clone();
        if let Some(known) = self.readers.read(move |db| policies::same(db, &wanted)).await? {
            return Ok(known);
        }
        let bytes = SMALL + text.text.len();
        self.writer.submit(bytes, move |db| policies::apply(db, &text), |_| {}).await
    }

    async fn policy_in_force(&self, path: &str) -> Result<Option<PolicyRevision>, StoreError> {
        let path = path.to_owned();
        self.readers.read(move |db| policies::in_force(db, &path)).await
    }
}
