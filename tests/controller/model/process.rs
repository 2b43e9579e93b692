//! The store as one process sees it: dead processes get no answer any more, and every claim is
//! held against the promise of the port.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::controller::FINALIZERS_MAX;
use taskrun_journal::delivery::Report;
use taskrun_journal::event::EventRecord;
use taskrun_journal::ids::{HostId, RunId, Seq};
use taskrun_journal::list::{Cursor, EndedRun, ListFilter, Page, Scope, TreePage, TreeQuery};
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::RESUMES_IN_A_ROW;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use taskrun_journal::store::{
    Append, AppendOutcome, BatchOutcome, Claim, CreateOutcome, Host, Hosts, JointOutcome, NewBatch,
    NewRun, PresentHost, Prospect, Removal, RemovalOutcome, ReportChange, ReportQuery, RunWatch,
    Stay, Store, StoreError,
};
use taskrun_journal::time::Timestamp;
use taskrun_store::MemoryStore;
use tokio::sync::watch;

use super::queue::{self, Wanted};

/// The parts that all processes of a case share.
#[derive(Default)]
pub(super) struct Shared {
    /// Runs in the order of acceptance.
    accepted: Mutex<Vec<RunId>>,
    /// The runs by the process that took them, since somebody last asked.
    claims: Mutex<Vec<(RunId, HostId)>>,
    /// Claims that broke the promise.
    broken: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The runs by the process that took them since the last call.
    pub(super) fn take_claims(&self) -> Vec<(RunId, HostId)> {
        std::mem::take(&mut lock(&self.claims))
    }

    /// True if any run was taken since the last [`Self::take_claims`].
    pub(super) fn has_claims(&self) -> bool {
        !lock(&self.claims).is_empty()
    }

    /// The first claim that broke the promise.
    pub(super) fn broken(&self) -> Option<String> {
        lock(&self.broken).first().cloned()
    }

    /// All runs with their place in the order of acceptance.
    pub(super) async fn all(&self, memory: &MemoryStore) -> Vec<(usize, Run)> {
        let accepted = lock(&self.accepted).clone();
        let mut all = Vec::new();
        for (number, id) in accepted.iter().enumerate() {
            if let Ok(Some(run)) = memory.get(id).await {
                // An id that was removed and given again counts from its last acceptance.
                all.retain(|(_, other): &(usize, Run)| other.id() != id);
                all.push((number, run));
            }
        }
        all
    }
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Lives,
    /// It stands still, perhaps for ever.
    Still,
    /// It stood still, and goes on when others hold it for dead.
    Late,
}

/// A process on the shared store.
pub(super) struct Process {
    pub(super) memory: Arc<MemoryStore>,
    pub(super) shared: Arc<Shared>,
    slots: usize,
    life: watch::Sender<Life>,
}

impl Process {
    pub(super) fn new(memory: Arc<MemoryStore>, shared: Arc<Shared>, slots: usize) -> Arc<Self> {
        Arc::new(Self { memory, shared, slots, life: watch::Sender::new(Life::Lives) })
    }

    /// Whatever it asks of the store from now on is neither done nor answered.
    pub(super) fn die(&self) {
        self.life.send_replace(Life::Still);
    }

    /// Goes on where it stood still: what it asked of the store meanwhile is done.
    pub(super) fn go_on(&self) {
        self.life.send_replace(Life::Late);
    }

    async fn alive(&self) {
        alive(&mut self.life.subscribe()).await;
    }

    /// Holds what a claim took against what it should have taken.
    fn check(&self, claim: &Claim, taken: &[Run], mut all: Vec<(usize, Run)>) {
        let mut wrong = Vec::new();
        let (mut ordinary, mut finalizers, mut resumes) = (0, 0, claim.resumes);
        for run in taken {
            let best = match ordinary < claim.limit {
                true => queue::next(&all, claim, resumes),
                false => None,
            };
            let finalizer = queue::finalizer(&all, claim.now);
            match best {
                Some(Wanted { id, .. }) if id == *run.id() => {
                    ordinary += 1;
                    let goes_on = run.state.epoch > 1;
                    resumes = if goes_on { resumes % RESUMES_IN_A_ROW + 1 } else { 0 };
                }
                None if finalizers < claim.finalizers && finalizer.as_ref() == Some(run.id()) => {
                    finalizers += 1;
                }
                other => wrong.push(format!("{} was claimed before {other:?}", run.id())),
            }
            if let Some((_, place)) = all.iter_mut().find(|(_, one)| one.id() == run.id()) {
                *place = run.clone();
            }
        }
        let held = all.iter().filter(|(_, run)| run.state.hold.host() == Some(&claim.host));
        let held: Vec<_> = held.map(|(_, run)| run.status()).collect();
        let working = held.iter().filter(|status| **status != Status::Finalizing).count();
        let held = held.len();
        if working > self.slots || held > self.slots + FINALIZERS_MAX {
            wrong.push(format!("{} holds {held} runs with {} slots", claim.host, self.slots));
        }
        let left = queue::wanted(&all, claim.now, claim.tree_slots);
        if ordinary < claim.limit && !left.is_empty() {
            wrong.push(format!("a claim of {} left {left:?}", claim.limit));
        }
        lock(&self.shared.broken).extend(wrong);
    }
}

/// Returns when a process does not stand still, or is gone.
async fn alive(life: &mut watch::Receiver<Life>) {
    life.wait_for(|life| *life != Life::Still).await.ok();
}

/// A watch of a process, which is told of nothing while it stands still.
struct ProcessWatch {
    watch: Box<dyn RunWatch>,
    life: watch::Receiver<Life>,
}

#[async_trait]
impl RunWatch for ProcessWatch {
    fn known_open(&self) -> Option<Arc<RunSpec>> {
        self.watch.known_open()
    }

    async fn moved(&mut self, after: Seq) {
        self.watch.moved(after).await;
        alive(&mut self.life).await;
    }

    fn follow(&mut self) {
        self.watch.follow();
    }

    async fn events(&mut self, after: Seq, limit: usize) -> Vec<EventRecord> {
        let events = self.watch.events(after, limit).await;
        alive(&mut self.life).await;
        events
    }

    async fn ended(&mut self) -> Option<Run> {
        let ended = self.watch.ended().await;
        alive(&mut self.life).await;
        ended
    }
}

#[async_trait]
impl Store for Process {
    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError> {
        self.alive().await;
        let id = run.run.id().clone();
        let created = self.memory.create(run).await?;
        if matches!(created, CreateOutcome::New) {
            lock(&self.shared.accepted).push(id);
        }
        Ok(created)
    }

    async fn create_and_claim(
        &self,
        run: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        self.alive().await;
        let id = run.run.id().clone();
        let (mut before, new) = (self.shared.all(&self.memory).await, run.run.clone());
        let both = self.memory.create_and_claim(run, claim.clone()).await?;
        if let JointOutcome::Done { created: CreateOutcome::New, claimed } = &both {
            let number = {
                let mut accepted = lock(&self.shared.accepted);
                accepted.push(id);
                accepted.len() - 1
            };
            before.push((number, new));
            self.check(&claim, claimed, before);
            let taken = claimed.iter().map(|run| (run.id().clone(), claim.host.clone()));
            lock(&self.shared.claims).extend(taken);
        }
        Ok(both)
    }

    async fn create_all(&self, runs: Vec<NewRun>) -> Result<Vec<CreateOutcome>, StoreError> {
        self.alive().await;
        let ids: Vec<_> = runs.iter().map(|run| run.run.id().clone()).collect();
        let created = self.memory.create_all(runs).await?;
        if !created.last().is_some_and(CreateOutcome::is_refusal) {
            let kept = ids.into_iter().zip(&created);
            let kept = kept.filter(|(_, created)| matches!(created, CreateOutcome::New));
            lock(&self.shared.accepted).extend(kept.map(|(id, _)| id));
        }
        Ok(created)
    }

    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        self.alive().await;
        self.memory.batch(batch).await
    }

    async fn entries(&self, agent_name: &str, limit: usize) -> Result<Vec<Vec<RunId>>, StoreError> {
        self.alive().await;
        self.memory.entries(agent_name, limit).await
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        self.alive().await;
        self.memory.append(append).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        self.alive().await;
        // All in one turn of the runtime, as the store in memory never waits.
        let before = self.shared.all(&self.memory).await;
        let runs = self.memory.claim(claim.clone()).await?;
        self.check(&claim, &runs, before);
        let mut claims = lock(&self.shared.claims);
        claims.extend(runs.iter().map(|run| (run.id().clone(), claim.host.clone())));
        drop(claims);
        Ok(runs)
    }

    async fn prospect(&self, claim: &Claim) -> Result<Prospect, StoreError> {
        self.alive().await;
        self.memory.prospect(claim).await
    }

    async fn wanted(&self) -> Result<Vec<Pins>, StoreError> {
        self.alive().await;
        self.memory.wanted().await
    }

    async fn pins(&self, ended_since: Option<Timestamp>) -> Result<Vec<Pins>, StoreError> {
        self.alive().await;
        self.memory.pins(ended_since).await
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        self.alive().await;
        self.memory.get(id).await
    }

    async fn reports(
        &self,
        query: &ReportQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Report>, StoreError> {
        self.alive().await;
        self.memory.reports(query, after, limit).await
    }

    async fn change_report(&self, run: &RunId, change: ReportChange) -> Result<bool, StoreError> {
        self.alive().await;
        self.memory.change_report(run, change).await
    }

    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.alive().await;
        self.memory.list(scope, filter, after, limit).await
    }

    async fn ended(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EndedRun>, StoreError> {
        self.alive().await;
        self.memory.ended(scope, filter, before, limit).await
    }

    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        self.alive().await;
        self.memory.tree(query, after, limit).await
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        self.alive().await;
        self.memory.read(id, after, limit).await
    }

    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        self.alive().await;
        self.memory.artifact(id, hash).await
    }

    fn watch(&self, id: &RunId) -> Box<dyn RunWatch> {
        Box::new(ProcessWatch { watch: self.memory.watch(id), life: self.life.subscribe() })
    }

    async fn work(&self) {
        self.alive().await;
        self.memory.work().await;
    }

    async fn remove(&self, removal: Removal) -> Result<RemovalOutcome, StoreError> {
        self.alive().await;
        self.memory.remove(removal).await
    }
}

#[async_trait]
impl Hosts for Process {
    async fn register(&self, host: Host) -> Result<(), StoreError> {
        self.alive().await;
        self.memory.register(host).await
    }

    async fn is_needed(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError> {
        self.alive().await;
        self.memory.is_needed(host, stay).await
    }

    async fn retire(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError> {
        self.alive().await;
        self.memory.retire(host, stay).await
    }

    async fn hosts(&self) -> Result<Vec<Host>, StoreError> {
        self.alive().await;
        self.memory.hosts().await
    }

    async fn present_hosts(&self) -> Result<Vec<PresentHost>, StoreError> {
        self.alive().await;
        self.memory.present_hosts().await
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Run>, StoreError> {
        self.alive().await;
        self.memory.orphans(limit).await
    }

    async fn heard(&self, host: &HostId) -> Result<Option<Timestamp>, StoreError> {
        self.alive().await;
        self.memory.heard(host).await
    }

    async fn held(
        &self,
        host: &HostId,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        self.alive().await;
        self.memory.held(host, after, limit).await
    }

    fn silence(&self, host: &HostId) -> Option<Duration> {
        match *self.life.borrow() {
            Life::Lives => self.memory.silence(host),
            Life::Still | Life::Late => Some(Duration::MAX),
        }
    }

    fn abandon(&self, host: &HostId) {
        self.memory.abandon(host);
    }
}
