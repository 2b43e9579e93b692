//! A store that forgets everything with its process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use taskrun::event::{Recorded, Seq};
use taskrun::ids::{HostId, RunId};
use taskrun::list::{Cursor, ListFilter, Page, Scope};
use taskrun::ports::store::{
    Append, Appended, Claim, Created, Host, Hosts, NewRun, Store, StoreError,
};
use taskrun::run::{Lifecycle, Run};
use taskrun::time::Timestamp;

use crate::door;
use crate::wake::Wakes;

/// A store in memory: for tests, and for runs that need not outlive their process. Keeps every
/// run until it is dropped. Nothing is serialised; one mutex is held for microseconds.
///
/// Hosts of one process share one store. A host lives from [`Hosts::register`] until it retires
/// or [`Self::forget`] declares it dead; nobody needs to hear its heart, as it dies with the
/// store. A run held by a host that was never registered is an orphan.
///
/// # Panics
/// [`Store::create`] and [`Store::append`] if the events do not follow one another or do not
/// lead to the record.
pub struct MemoryStore {
    state: Mutex<State>,
    wakes: Wakes,
}

#[derive(Default)]
struct State {
    runs: HashMap<RunId, Entry>,
    accepted: u64,
    lists: HashMap<ListKey, BTreeSet<(Timestamp, RunId)>>,
    /// By policy; highest priority first, then in the order of acceptance.
    queues: HashMap<String, BTreeMap<(Reverse<i32>, u64), RunId>>,
    held: BTreeMap<HostId, BTreeSet<RunId>>,
    keys: HashMap<(String, String), (String, RunId)>,
    hosts: BTreeMap<HostId, Host>,
}

struct Entry {
    run: Run,
    /// Order of acceptance.
    number: u64,
    /// What each append brought; shared with the writer, so that no event is copied.
    journal: Vec<Arc<[Recorded]>>,
}

/// What a listing can be narrowed to without looking at every run of the tenant.
#[derive(Clone, PartialEq, Eq, Hash)]
enum ListKey {
    Tenant(String),
    Session(String, String),
    Parent(RunId),
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Mutex::new(State::default()), wakes: Wakes::new() }
    }

    /// Declares a host dead, as if its process had died: the runs it holds become orphans.
    pub fn forget(&self, host: &HostId) {
        self.lock().hosts.remove(host);
    }

    /// Runs that somebody waits for in [`Store::changed`].
    #[must_use]
    pub fn watched(&self) -> usize {
        self.wakes.watched()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn create(&self, new: NewRun) -> Result<Created, StoreError> {
        door::check_new(&new);
        let (id, head) = (new.run.id().clone(), new.run.state.head);
        let queued = matches!(new.run.state.lifecycle, Lifecycle::Queued);
        let created = self.lock().create(new);
        if matches!(created, Created::New) {
            self.wakes.moved(&id, head);
            if queued {
                self.wakes.queued();
            }
        }
        Ok(created)
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        door::check_append(&append);
        let (id, head) = (append.run.id().clone(), append.run.state.head);
        let appended = self.lock().append(append);
        if appended == Appended::Done {
            self.wakes.moved(&id, head);
        }
        Ok(appended)
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        let before = self.wakes.before_claim();
        let runs = self.lock().claim(&claim);
        for run in &runs {
            self.wakes.moved(run.id(), run.state.head);
        }
        if runs.len() < claim.limit {
            self.wakes.drained(before);
        }
        Ok(runs)
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

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Recorded>, StoreError> {
        let chunks = self.lock().runs.get(id).map(|entry| entry.chunks_after(after, limit));
        let events = chunks.iter().flatten().flat_map(|chunk| chunk.iter());
        Ok(events.filter(|recorded| recorded.seq > after).take(limit).cloned().collect())
    }

    async fn changed(&self, id: &RunId, after: Seq) {
        let watch = self.wakes.watch(id);
        let head = self.lock().runs.get(id).map_or(0, |entry| entry.run.state.head);
        if head <= after {
            watch.beyond(after).await;
        }
    }

    async fn work(&self) {
        self.wakes.wait_for_work(|| {}).await;
    }
}

#[async_trait]
impl Hosts for MemoryStore {
    async fn register(&self, host: Host) -> Result<(), StoreError> {
        self.lock().hosts.insert(host.id.clone(), host);
        Ok(())
    }

    async fn retire(&self, host: &HostId) -> Result<bool, StoreError> {
        let mut state = self.lock();
        let waiting = state
            .hosts
            .get(host)
            .and_then(|host| state.queues.get(&host.policy_digest))
            .is_some_and(|queue| !queue.is_empty());
        let out = !waiting && !state.held.contains_key(host);
        if out {
            state.hosts.remove(host);
        }
        Ok(out)
    }

    async fn hosts(&self) -> Result<Vec<Host>, StoreError> {
        Ok(self.lock().hosts.values().cloned().collect())
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Run>, StoreError> {
        let state = self.lock();
        let lost = state.held.iter().filter(|(host, _)| !state.hosts.contains_key(host));
        let runs = lost.flat_map(|(_, ids)| ids).filter_map(|id| state.runs.get(id));
        Ok(runs.take(limit).map(|entry| entry.run.clone()).collect())
    }
}

impl Entry {
    /// The parts of the journal that may hold `limit` events after a position.
    fn chunks_after(&self, after: Seq, limit: usize) -> Vec<Arc<[Recorded]>> {
        let ends_before = |chunk: &Arc<[Recorded]>| chunk.last().is_none_or(|r| r.seq <= after);
        let first = self.journal.partition_point(ends_before);
        self.journal[first..].iter().take(limit).cloned().collect()
    }

    fn holds(&self, events: &[Recorded]) -> bool {
        let Some(first) = events.first() else { return false };
        let chunks = self.chunks_after(first.seq - 1, events.len());
        let kept = chunks.iter().flat_map(|chunk| chunk.iter()).filter(|r| r.seq >= first.seq);
        let ids = |recorded: &Recorded| (recorded.seq, recorded.id);
        kept.take(events.len()).map(ids).eq(events.iter().map(ids))
    }
}

impl State {
    fn create(&mut self, new: NewRun) -> Created {
        let NewRun { run, events, idempotency } = new;
        let key = idempotency.map(|i| ((run.spec.tenant.clone(), i.key), i.fingerprint));
        if let Some((key, fingerprint)) = &key
            && let Some((known, id)) = self.keys.get(key)
        {
            return match self.runs.get(id) {
                Some(entry) if known == fingerprint => {
                    Created::Repeated(Box::new(entry.run.clone()))
                }
                Some(_) | None => Created::Taken(id.clone()),
            };
        }
        if self.runs.contains_key(run.id()) {
            return Created::Taken(run.id().clone());
        }
        if let Some((key, fingerprint)) = key {
            self.keys.insert(key, (fingerprint, run.id().clone()));
        }
        let number = self.accepted;
        self.accepted += 1;
        self.enter(&run, number);
        let entry = Entry { run, number, journal: vec![events.into()] };
        self.runs.insert(entry.run.id().clone(), entry);
        Created::New
    }

    fn append(&mut self, append: Append) -> Appended {
        let Some(entry) = self.runs.get(append.run.id()) else { return Appended::Missing };
        let (head, epoch) = (entry.run.state.head, entry.run.state.epoch);
        if head == append.expected_head && epoch == append.epoch {
            self.replace(append.run, append.events);
            Appended::Done
        } else if entry.holds(&append.events) {
            Appended::Done
        } else if epoch != append.epoch {
            Appended::Fenced(epoch)
        } else {
            Appended::Moved(head)
        }
    }

    fn claim(&mut self, claim: &Claim) -> Vec<Run> {
        let mut runs = Vec::new();
        while runs.len() < claim.limit {
            let queue = self.queues.get(&claim.policy_digest);
            let Some(id) = queue.and_then(|queue| queue.values().next()) else { break };
            let Some(entry) = self.runs.get(id) else { break };
            let claimed = door::claimed(entry.run.clone(), &claim.host, claim.now);
            let Ok(Some((run, recorded))) = claimed else {
                unreachable!("a queued run can be claimed: {claimed:?}")
            };
            runs.push(run.clone());
            self.replace(run, [recorded].into());
        }
        runs
    }

    /// Replaces a record that is there.
    fn replace(&mut self, run: Run, events: Arc<[Recorded]>) {
        let Some(entry) = self.runs.get_mut(run.id()) else { return };
        if !events.is_empty() {
            entry.journal.push(events);
        }
        let number = entry.number;
        let old = std::mem::replace(&mut entry.run, run.clone());
        let same_place = old.state.updated_at == run.state.updated_at
            && old.status() == run.status()
            && door::holder(&old.state.lifecycle) == door::holder(&run.state.lifecycle);
        if same_place {
            return;
        }
        self.leave(&old, number);
        self.enter(&run, number);
    }

    fn enter(&mut self, run: &Run, number: u64) {
        for key in list_keys(run) {
            let entry = (run.state.updated_at, run.id().clone());
            self.lists.entry(key).or_default().insert(entry);
        }
        if let Lifecycle::Queued = run.state.lifecycle {
            let queue = self.queues.entry(run.spec.policy_digest.clone()).or_default();
            queue.insert((Reverse(run.spec.priority), number), run.id().clone());
        }
        if let Some(host) = door::holder(&run.state.lifecycle) {
            self.held.entry(host.clone()).or_default().insert(run.id().clone());
        }
    }

    fn leave(&mut self, run: &Run, number: u64) {
        for key in list_keys(run) {
            if let Some(list) = self.lists.get_mut(&key) {
                list.remove(&(run.state.updated_at, run.id().clone()));
            }
        }
        if let Lifecycle::Queued = run.state.lifecycle
            && let Some(queue) = self.queues.get_mut(&run.spec.policy_digest)
        {
            queue.remove(&(Reverse(run.spec.priority), number));
            if queue.is_empty() {
                self.queues.remove(&run.spec.policy_digest);
            }
        }
        if let Some(host) = door::holder(&run.state.lifecycle)
            && let Some(held) = self.held.get_mut(host)
        {
            held.remove(run.id());
            if held.is_empty() {
                self.held.remove(host);
            }
        }
    }

    fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Page {
        let key = match (&filter.parent_run_id, &scope.parent_session_id) {
            (Some(parent), _) => ListKey::Parent(parent.clone()),
            (None, Some(session)) => ListKey::Session(scope.tenant.clone(), session.clone()),
            (None, None) => ListKey::Tenant(scope.tenant.clone()),
        };
        let Some(list) = self.lists.get(&key) else { return Page { runs: vec![], next: None } };
        let range = match after {
            Some(after) => list.range(..(after.updated_at, after.id.clone())),
            None => list.range(..),
        };
        let mut runs: Vec<Run> = range
            .rev()
            .filter_map(|(_, id)| self.runs.get(id))
            .filter(|entry| scope.admits(&entry.run) && filter.admits(&entry.run))
            .take(limit.saturating_add(1))
            .map(|entry| entry.run.clone())
            .collect();
        let next = (runs.len() > limit).then(|| runs.truncate(limit)).and_then(|()| runs.last());
        let next =
            next.map(|run| Cursor { updated_at: run.state.updated_at, id: run.id().clone() });
        Page { runs, next }
    }
}

fn list_keys(run: &Run) -> impl Iterator<Item = ListKey> {
    let spec = &run.spec;
    let fixed = [
        ListKey::Tenant(spec.tenant.clone()),
        ListKey::Session(spec.tenant.clone(), spec.parent_session_id.clone()),
    ];
    fixed.into_iter().chain(spec.parent_run_id.clone().map(ListKey::Parent))
}
