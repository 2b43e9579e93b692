//! A host in this process, which dies.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use taskrun::controller::Client;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::layer::Layer;
use taskrun_journal::list::{Cursor, ListFilter, Page, Scope, TreePage, TreeQuery};
use taskrun_journal::question::Answer;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use taskrun_journal::store::{
    Append, AppendOutcome, Claim, CreateOutcome, JointOutcome, NewRun, RunWatch, Store, StoreError,
};
use taskrun_runtime::{Options, Runtime, agent_loads};
use taskrun_store::SqliteStore;

use super::tally::{Tally, Work};

/// The time that a test waits for something that must happen. Only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Events read at once.
pub(super) const PAGE: usize = 1_000;

/// A host, with threads of its own.
pub(super) struct Host {
    runtime: Runtime,
    threads: tokio::runtime::Runtime,
    is_dead: Arc<AtomicBool>,
}

/// The store as a host sees it that may be dead.
struct Mortal {
    store: Arc<dyn Store>,
    is_dead: Arc<AtomicBool>,
    tally: Arc<Tally>,
}

/// A watch of a host that hears of no end once it is dead.
struct MortalWatch {
    watch: Box<dyn RunWatch>,
    is_dead: Arc<AtomicBool>,
}

#[async_trait]
impl RunWatch for MortalWatch {
    fn known_open(&self) -> Option<Arc<RunSpec>> {
        self.watch.known_open()
    }

    async fn moved(&mut self, after: Seq) {
        self.watch.moved(after).await;
    }

    fn follow(&mut self) {
        self.watch.follow();
    }

    async fn events(&mut self, after: Seq, limit: usize) -> Vec<EventRecord> {
        let mut events = self.watch.events(after, limit).await;
        events.retain(|_| !self.is_dead.load(Ordering::SeqCst));
        events
    }

    async fn ended(&mut self) -> Option<Run> {
        let ended = self.watch.ended().await;
        ended.filter(|_| !self.is_dead.load(Ordering::SeqCst))
    }
}

#[async_trait]
impl Layer for Mortal {
    fn behind(&self) -> &dyn Store {
        match self.is_dead.load(Ordering::SeqCst) {
            true => closed(),
            false => &*self.store,
        }
    }

    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError> {
        let (id, spec) = (run.run.id().to_string(), Arc::clone(&run.run.spec));
        let created = self.behind().create(run).await?;
        self.tally.note_new(id, &spec, &created);
        Ok(created)
    }

    async fn create_and_claim(
        &self,
        run: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        let (id, spec) = (run.run.id().to_string(), Arc::clone(&run.run.spec));
        let both = self.behind().create_and_claim(run, claim).await?;
        if let JointOutcome::Done { created, .. } = &both {
            self.tally.note_new(id, &spec, created);
        }
        Ok(both)
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        let events = append.events.with_json().map(|(_, json)| json.len() as u64).sum();
        let artifacts = append.artifacts.iter().map(|one| one.reference().size).sum();
        let state = serde_json::to_vec(&append.run.state).map_or(0, |state| state.len() as u64);
        self.tally.count(Work { events, artifacts, state, ..Work::default() });
        let begins = |one: &EventRecord| matches!(one.event, Event::ToolCallScheduled { .. });
        let is_fatal = append.run.spec.depth == 0 && append.events.iter().any(begins);
        let appended = self.behind().append(append).await?;
        if is_fatal && self.tally.kills() {
            self.is_dead.store(true, Ordering::SeqCst);
        }
        Ok(appended)
    }

    fn watch(&self, id: &RunId) -> Box<dyn RunWatch> {
        Box::new(MortalWatch { watch: self.behind().watch(id), is_dead: Arc::clone(&self.is_dead) })
    }

    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let page = self.behind().list(scope, filter, after, limit).await?;
        self.tally.count(Work { runs: page.runs.len() as u64, ..Work::default() });
        Ok(page)
    }

    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        let page = self.behind().tree(query, after, limit).await?;
        self.tally.count(Work { runs: page.runs.len() as u64, ..Work::default() });
        Ok(page)
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let page = self.behind().read(id, after, limit).await?;
        let read = page.iter().map(|one| one.event.journal_bytes()).sum();
        self.tally.count(Work { read, ..Work::default() });
        Ok(page)
    }

    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        let bytes = self.behind().artifact(id, hash).await?;
        let read = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        self.tally.count(Work { read, ..Work::default() });
        Ok(bytes)
    }
}

/// A store that does nothing that it is asked.
fn closed() -> &'static SqliteStore {
    static CLOSED: OnceLock<SqliteStore> = OnceLock::new();
    CLOSED.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path(), Default::default()).expect("a store");
        store.close();
        store
    })
}

impl Host {
    /// Opens a runtime of these options.
    pub(super) fn open(options: Options) -> Self {
        Self::counting(options, &Arc::default())
    }

    /// The same, and counts the work that it gives its store.
    pub(super) fn counting(options: Options, tally: &Arc<Tally>) -> Self {
        // Opening it blocks, which no task of the host is to wait for.
        closed();
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let is_dead = Arc::<AtomicBool>::default();
        let (dies, tally) = (Arc::clone(&is_dead), Arc::clone(tally));
        let options = Options {
            store_layer: Some(Arc::new(move |store| {
                let (is_dead, tally) = (Arc::clone(&dies), Arc::clone(&tally));
                Ok(Arc::new(Mortal { store, is_dead, tally }))
            })),
            ..options
        };
        let opened = threads.block_on(async { tokio::spawn(Runtime::open(options)).await });
        let runtime = opened.expect("no panic").expect("it opens");
        Self { runtime, threads, is_dead }
    }

    /// The controller as an operator of the tenant has it.
    pub(super) fn client(&self) -> Client {
        self.runtime.controller().at(&Scope::tenant("default"))
    }

    /// Waits for something that must happen.
    pub(super) fn wait<T>(&self, happens: impl Future<Output = T>) -> T {
        let in_time = async { tokio::time::timeout(PATIENCE, happens).await };
        self.threads.block_on(in_time).expect("it happens in time")
    }

    /// The id of a run that must be accepted.
    pub(super) fn spawn(&self, request: &SpawnRequest) -> String {
        let run = self.wait(self.client().spawn(request)).expect("accepted");
        run.id().to_string()
    }

    /// Answers the one thing that a run asks.
    pub(super) fn answer(&self, id: &str, answer: Answer) {
        self.wait(self.client().answer(id, None, answer)).expect("it fits");
    }

    /// Waits until a run has a status.
    pub(super) fn reaches(&self, id: &str, status: Status) {
        self.comes_to(id, |run| run.status() == status);
    }

    /// Waits until a run is so, which it must be before it ends.
    pub(super) fn comes_to(&self, id: &str, is_so: impl Fn(&Run) -> bool + Send) -> Run {
        let client = self.client();
        let reached = client.wait_for(id, Some(Duration::MAX), is_so);
        let in_time = async { tokio::time::timeout(PATIENCE, reached).await };
        match self.threads.block_on(in_time) {
            Ok(reached) => reached.expect("can be waited for").run,
            Err(_) => panic!("{id} stays {:#}", self.view(id)),
        }
    }

    /// Waits until a run has ended.
    pub(super) fn ends(&self, id: &str) {
        let client = self.client();
        self.wait(client.wait(id, Some(Duration::MAX))).expect("can be waited for");
    }

    /// Waits for an event of a kind in the journal of a run.
    pub(super) fn sees(&self, id: &str, kind: &str) -> Value {
        self.wait(self.event(id, kind))
    }

    /// The first event of a kind in the journal of a run, once it is there.
    pub(super) async fn event(&self, id: &str, kind: &str) -> Value {
        let mut stream = self.client().follow(id, 0).await.expect("it is there");
        loop {
            let events = stream.next(PAGE).await.expect("can be read");
            assert!(!events.is_empty(), "{id} has ended without {kind}");
            if let Some(found) = events.iter().find(|recorded| recorded.event.kind() == kind) {
                return json(found);
            }
        }
    }

    /// The journal of a run.
    pub(super) fn events(&self, id: &str) -> Vec<Value> {
        let events = self.wait(self.client().events(id, 0, PAGE)).expect("can be read");
        events.iter().map(json).collect()
    }

    /// The run as people see it.
    pub(super) fn view(&self, id: &str) -> Value {
        let run = self.wait(self.client().get(id)).expect("it is there");
        serde_json::to_value(RunView::from(&run)).expect("JSON")
    }

    /// Waits until it tells that its program cannot bind what runs with these pins consist of.
    pub(super) fn tells_of_unusable(&self, pins: &BTreeSet<String>) {
        let storage = self.runtime.storage();
        let data = storage.data_dir().expect("it has one");
        self.wait(async {
            loop {
                let living = storage.hosts.hosts().await.expect("can be read");
                let told = agent_loads(data, &living).into_iter();
                let told = told.filter(|load| load.lives && load.is_closure_unusable());
                if told.map(|load| load.pin).collect::<BTreeSet<_>>() == *pins {
                    return;
                }
            }
        });
    }

    /// From now on nothing that it does is kept, and nobody takes it for alive.
    ///
    /// Its remains in this process are cleared away with the means of an orderly end: of that
    /// nothing reaches the store either. The lock by which others see that it lives is freed as its
    /// store is closed, as the kernel would free it.
    pub(super) fn die(self) {
        self.is_dead.store(true, Ordering::SeqCst);
        let closed = self.wait(self.runtime.controller().close(Duration::ZERO));
        assert!(closed.stragglers.is_empty(), "{closed:?}");
        let Self { runtime, threads, .. } = self;
        drop(runtime);
        threads.shutdown_timeout(PATIENCE);
    }

    /// Ends it in an orderly way.
    pub(super) fn shut_down(self) {
        let Self { runtime, threads, .. } = self;
        let ended =
            threads.block_on(async { tokio::time::timeout(PATIENCE, runtime.shutdown()).await });
        ended.expect("it ends in time");
        threads.shutdown_timeout(PATIENCE);
    }
}

/// An event as the command line shows it.
pub(super) fn json(recorded: &EventRecord) -> Value {
    serde_json::to_value(&recorded.event).expect("JSON")
}
