//! A store that forgets everything with its process.

mod artifacts;
mod attached;
mod claim;
mod consents;
mod dispatches;
mod entries;
#[cfg(test)]
mod explore;
mod facts;
mod hosts;
mod lists;
mod outbox;
mod queue;
mod register;
mod removal;
mod sessions;
mod state;
mod waits;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use taskrun_journal::delivery::Report;
use taskrun_journal::dispatch::{AttemptOutcome, Dispatch};
use taskrun_journal::event::EventRecord;
use taskrun_journal::ids::{HostId, RunId, Seq};
use taskrun_journal::list::{Cursor, EndedRun, ListFilter, Page, Scope, TreePage, TreeQuery};
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{
    Append, AppendOutcome, BatchOutcome, Claim, CreateOutcome, DispatchClaim, DispatchQuery,
    Dispatches, JointOutcome, NewBatch, NewRun, Policies, PolicyRevision, PolicyText, Prospect,
    Removal, RemovalOutcome, ReportChange, ReportQuery, RunWatch, Session, SessionKey, SessionPage,
    Sessions, Store, StoreError,
};
use taskrun_journal::time::Timestamp;

use self::sessions::PageBytes;
use self::state::{CanceledRun, State};
use crate::wake::Wakes;

/// A store in memory: for tests, and for runs that need not outlive their process. Nothing
/// is serialised; one mutex is held for microseconds, and for longer only to remove many runs.
///
/// Hosts of one process share one store. A host lives from [`Hosts::register`] until it retires
/// or [`Self::forget`] declares it dead; nobody needs to hear its heart, as it dies with the
/// store. A run held by a host that was never registered is an orphan.
///
/// # Panics
/// All ways to add events if the events do not follow one
/// another or do not lead to the record, and [`Store::batch`] for a batch without a key.
///
/// [`Hosts::register`]: taskrun_journal::store::Hosts::register
pub struct MemoryStore {
    state: Mutex<State>,
    wakes: Arc<Wakes>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Mutex::new(State::default()), wakes: Arc::new(Wakes::new()) }
    }

    /// Declares a host dead, as if its process had died: the runs it holds become orphans.
    pub fn forget(&self, host: &HostId) {
        self.lock().hosts.remove(host);
    }

    /// Runs that somebody watches by [`Store::watch`], and sessions that somebody waits for in
    /// [`Sessions::session_changed`].
    #[must_use]
    pub fn watched(&self) -> usize {
        self.wakes.watched()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state; returns the answer, the last place then, and whether there may be more
    /// work since. What ended with other runs comes after that place, and whoever waits for it is
    /// told here.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> (T, u64, bool) {
        let mut state = self.lock();
        let answer = change(&mut state);
        let stirred = std::mem::take(&mut state.stirred);
        let canceled = std::mem::take(&mut state.canceled);
        let place = canceled.first().map_or(state.timelines.place(), |first| first.places.0);
        drop(state);
        for CanceledRun { spec, head, open, places } in canceled {
            self.tell(&spec, head, open, places.1);
        }
        (answer, place, stirred)
    }

    /// Wakes those who wait for a run or its session.
    fn tell(&self, spec: &RunSpec, head: Seq, open: bool, place: u64) {
        if self.wakes.anybody() {
            self.wakes.moved(&spec.id, head, open);
            schedule::widest_of(spec).for_each(|key| self.wakes.session_moved(&key, place));
        }
        if !spec.subscriptions.is_empty() {
            self.wakes.dispatched();
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn create(&self, new: NewRun) -> Result<CreateOutcome, StoreError> {
        schedule::check_new(&new);
        let (spec, head) = (Arc::clone(&new.run.spec), new.run.state.head);
        let open = !new.run.status().is_terminal();
        let (created, place, stirred) = self.change(|state| state.create(new));
        if created.is_new() {
            self.tell(&spec, head, open, place);
        }
        if stirred {
            self.wakes.queued();
        }
        Ok(created)
    }

    async fn create_and_claim(
        &self,
        new: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        schedule::check_new(&new);
        let (spec, head) = (Arc::clone(&new.run.spec), new.run.state.head);
        let open = !new.run.status().is_terminal();
        let ((created, runs), place, stirred) =
            self.change(|state| state.create_and_claim(new, &claim));
        let is_new = created.is_new();
        if is_new {
            self.tell(&spec, head, open, place);
        }
        for run in &runs {
            self.tell(&run.spec, run.state.head, true, place);
        }
        if stirred {
            self.wakes.queued();
        }
        Ok(JointOutcome::Done { created, claimed: runs })
    }

    async fn create_all(&self, news: Vec<NewRun>) -> Result<Vec<CreateOutcome>, StoreError> {
        news.iter().for_each(schedule::check_new);
        let runs: Vec<_> = news.iter().map(|new| new.run.clone()).collect();
        let (created, place, stirred) = self.change(|state| state.create_all(news));
        if !created.last().is_some_and(CreateOutcome::is_refusal) {
            for (run, created) in runs.iter().zip(&created) {
                if created.is_new() {
                    self.tell(&run.spec, run.state.head, !run.status().is_terminal(), place);
                }
            }
        }
        if stirred {
            self.wakes.queued();
        }
        Ok(created)
    }

    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        schedule::check_batch(&batch);
        let runs = std::iter::once(&batch.run.run).chain(batch.entries.iter().map(|one| &*one.run));
        let heads: Vec<_> = runs.map(|run| (Arc::clone(&run.spec), run.state.head)).collect();
        let (batched, place, stirred) = self.change(|state| state.batch(batch));
        if batched == BatchOutcome::New {
            heads.iter().for_each(|(spec, head)| self.tell(spec, *head, true, place));
        }
        if stirred {
            self.wakes.queued();
        }
        Ok(batched)
    }

    async fn entries(&self, agent_name: &str, limit: usize) -> Result<Vec<Vec<RunId>>, StoreError> {
        Ok(self.lock().entries.waiting(agent_name, limit))
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        schedule::check_append(&append);
        let (spec, head) = (Arc::clone(&append.run.spec), append.run.state.head);
        let open = !append.run.status().is_terminal();
        // Whoever begins to wait after this looks at the store.
        let ended = (!open && self.wakes.anybody()).then(|| Arc::clone(&append.run));
        let (appended, place, stirred) = self.change(|state| state.append(append));
        if appended == AppendOutcome::Done {
            if let Some(ended) = ended {
                self.wakes.kept(&ended, None);
            }
            self.tell(&spec, head, open, place);
        }
        if stirred {
            self.wakes.queued();
        }
        Ok(appended)
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        let before = self.wakes.before_claim();
        let (runs, place, stirred) = self.change(|state| state.claim(&claim));
        for run in &runs {
            self.tell(&run.spec, run.state.head, true, place);
        }
        if runs.len() < claim.limit {
            self.wakes.drained(before);
        } else if stirred {
            self.wakes.queued();
        }
        Ok(runs)
    }

    async fn prospect(&self, claim: &Claim) -> Result<Prospect, StoreError> {
        let before = self.wakes.before_claim();
        let prospect = self.lock().prospect(claim);
        if prospect != Prospect::Claim {
            self.wakes.drained(before);
        }
        Ok(prospect)
    }

    async fn wanted(&self) -> Result<Vec<Pins>, StoreError> {
        Ok(self.lock().wanted())
    }

    async fn pins(&self, ended_since: Option<Timestamp>) -> Result<Vec<Pins>, StoreError> {
        Ok(self.lock().pins(ended_since))
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        Ok(self.lock().runs.get(id).map(|entry| entry.run.clone()))
    }

    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        Ok(self.lock().list(scope, filter, after, limit.max(1)))
    }

    async fn ended(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EndedRun>, StoreError> {
        Ok(self.lock().ended(scope, filter, before, limit))
    }

    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        Ok(self.lock().tree(query, after, limit.max(1)))
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let chunks = self.lock().runs.get(id).map(|entry| entry.chunks_after(after, limit));
        let events = chunks.iter().flatten().flat_map(|chunk| chunk.iter());
        let wanted = events.filter(|recorded| recorded.seq > after).take(limit);
        let mut page = PageBytes::default();
        Ok(wanted.take_while(|recorded| page.takes(recorded)).cloned().collect())
    }

    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        let state = self.lock();
        let kept = state.runs.get(id).filter(|entry| entry.artifacts.contains(hash));
        Ok(kept.and_then(|entry| state.artifacts.get(&entry.run.spec.tenant, hash)))
    }

    async fn reports(
        &self,
        query: &ReportQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Report>, StoreError> {
        Ok(self.lock().reports(query, after, limit))
    }

    async fn change_report(&self, run: &RunId, change: ReportChange) -> Result<bool, StoreError> {
        Ok(self.lock().change_report(run, change))
    }

    fn watch(&self, id: &RunId) -> Box<dyn RunWatch> {
        Box::new(self.wakes.watch(id))
    }

    async fn work(&self) {
        self.wakes.wait_for_work(|| {}).await;
    }

    async fn remove(&self, removal: Removal) -> Result<RemovalOutcome, StoreError> {
        let (mut removed, journals) = self.lock().remove(&removal);
        for recorded in journals.iter().flatten().flat_map(|chunk| chunk.events.iter()) {
            let body = serde_json::to_string(&recorded.event).expect("events are plain data");
            removed.events += 1;
            removed.bytes += body.len() as u64;
        }
        Ok(removed)
    }
}

#[async_trait]
impl Dispatches for MemoryStore {
    async fn next_dispatch(
        &self,
        subscribers: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.lock().next_dispatch(subscribers, now))
    }

    async fn take_dispatches(&self, claim: DispatchClaim) -> Result<Vec<Dispatch>, StoreError> {
        Ok(self.lock().take_dispatches(claim))
    }

    async fn settle_dispatch(
        &self,
        number: u64,
        host: &HostId,
        outcome: AttemptOutcome,
    ) -> Result<bool, StoreError> {
        Ok(self.lock().dispatches.settle(number, host, outcome))
    }

    async fn dispatches(
        &self,
        query: &DispatchQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Dispatch>, StoreError> {
        Ok(self.lock().list_dispatches(query, after, limit))
    }

    async fn change_dispatch(&self, number: u64, change: ReportChange) -> Result<bool, StoreError> {
        let changed = self.lock().dispatches.change(number, change);
        self.wakes.dispatched();
        Ok(changed)
    }

    async fn forget_dispatches(&self, scope: &Scope) -> Result<u64, StoreError> {
        Ok(self.lock().forget_dispatches(scope))
    }

    async fn dispatched(&self) {
        self.wakes.wait_for_dispatch().await;
    }
}

#[async_trait]
impl Sessions for MemoryStore {
    async fn open_session(&self, session: Session) -> Result<Session, StoreError> {
        Ok(self.lock().timelines.open(session))
    }

    async fn end_session(&self, key: &SessionKey, at: Timestamp) -> Result<Session, StoreError> {
        let mut state = self.lock();
        state.outbox.end_session(key);
        state.consents.end_session(&key.scope(), at);
        Ok(state.timelines.end(key, at))
    }

    async fn session(&self, key: &SessionKey) -> Result<Option<Session>, StoreError> {
        Ok(self.lock().timelines.get(key))
    }

    async fn read_session(
        &self,
        key: &SessionKey,
        after: u64,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        let (chunks, last) = {
            let state = self.lock();
            (state.timelines.after(key, after, limit), state.timelines.place())
        };
        Ok(sessions::page_after(&chunks, after, limit, last))
    }

    async fn last_place(&self) -> Result<u64, StoreError> {
        Ok(self.lock().timelines.place())
    }

    async fn session_changed(&self, key: &SessionKey, after: u64) {
        let mut watch = self.wakes.watch_session(&schedule::widest(key));
        let last = self.lock().timelines.last(key);
        if last <= after {
            watch.beyond(after).await;
        }
    }
}

#[async_trait]
impl Policies for MemoryStore {
    async fn apply_policy(&self, text: PolicyText) -> Result<PolicyRevision, StoreError> {
        let mut state = self.lock();
        let known = state.policies.get(&text.path);
        if let Some(known) = known.filter(|known| known.stays_before(&text)) {
            return Ok(known.clone());
        }
        let number = known.map_or(0, |known| known.number) + 1;
        let revision = PolicyRevision { policy: text, number };
        state.policies.insert(revision.policy.path.clone(), revision.clone());
        Ok(revision)
    }

    async fn policy_in_force(&self, path: &str) -> Result<Option<PolicyRevision>, StoreError> {
        Ok(self.lock().policies.get(path).cloned())
    }
}
