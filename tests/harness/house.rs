//! A host in a temporary folder.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{Controller, ControllerParts, Settings};
use taskrun::ports::hook::Hooks;
use taskrun::ports::transport::Subscribers;
use taskrun::spawn::SpawnRequest;
use taskrun_engine::{Cache, Engine, EngineOptions};
use taskrun_examples::Example;
use taskrun_journal::consent::Consents;
use taskrun_journal::event::EventRecord;
use taskrun_journal::list::Scope;
use taskrun_journal::memory::Memory;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Dispatches, Hosts, Sessions, Store};
use taskrun_journal::time::{Clock, Random};
use taskrun_policy::Policy;
use taskrun_runtime::load_policy;
use taskrun_store::{MemoryStore, SqliteStore};

use crate::native_code;
use crate::replays::{self, Replays};

/// The time that a test waits for something that must happen. Only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a house keeps its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A store in memory.
    Memory,
    /// In a file.
    Sqlite,
}

/// A host that is being put together.
pub struct Builder {
    folder: tempfile::TempDir,
    policy: String,
    storage: Storage,
    clock: Arc<dyn Clock>,
    slots: usize,
}

/// A host in a temporary folder that is removed with it.
pub struct House {
    /// The controller, started.
    pub controller: Controller,
    /// The store of the house.
    pub store: Arc<dyn Store>,
    /// Sees everything of the tenant.
    pub scope: Scope,
    folder: tempfile::TempDir,
}

/// The engine of this process. One for all tests: its pool is large and its components compile
/// once.
#[must_use]
pub fn engine() -> Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    let made = ENGINE.get_or_init(|| {
        let options = EngineOptions {
            cache: Some(Cache::open(&native_code::folder()).expect("the cache opens")),
            // As the program has it.
            guest_threads: Some(2),
            ..EngineOptions::default()
        };
        Engine::new(options).expect("an engine")
    });
    Arc::clone(made)
}

impl Builder {
    /// A house with this policy. Components are found as `components/NAME.wasm`, one for each
    /// example; the workspace is the folder itself.
    #[must_use]
    pub fn new(policy: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let components = folder.path().join("components");
        std::fs::create_dir(&components).expect("a folder for components");
        let all = taskrun_examples::ALL.iter().chain(taskrun_examples::evil::ALL);
        for Example { name, bytes, .. } in all {
            let file = components.join(format!("{name}.wasm"));
            std::fs::write(file, bytes).expect("a component is written");
        }
        Self {
            folder,
            policy: policy.to_owned(),
            storage: Storage::Memory,
            clock: Arc::new(SystemClock::new()),
            slots: 8,
        }
    }

    /// Another place for the runs.
    #[must_use]
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// Takes another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// So many runs at once.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// A file of the workspace, for its owner only: it may be a key.
    #[must_use]
    pub fn file(self, path: &str, contents: &str) -> Self {
        let file = self.folder.path().join(path);
        std::fs::create_dir_all(file.parent().expect("beneath the folder")).expect("a folder");
        std::fs::write(&file, contents).expect("a file is written");
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(file, own).expect("its mode");
        self
    }

    /// Where the house will be.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Opens the house, without starting its controller.
    pub async fn build(self) -> House {
        let path = self.folder.path().join("taskrun.toml");
        std::fs::write(&path, &self.policy).expect("the policy is written");
        let policy = Policy::parse(&self.policy, &path).expect("a valid policy");
        // Providers keep the time of the world: servers outside know nothing of a simulated one.
        let (clock, random): (Arc<dyn Clock>, Arc<dyn Random>) =
            (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        let models = taskrun_models::open(&policy.models, &clock, &random).expect("models");
        let engine = engine();
        let agents = engine.load_agents(&policy, &models).await.expect("the agents load");
        type Ports = (
            Arc<dyn Store>,
            Arc<dyn Hosts>,
            Arc<dyn Sessions>,
            Arc<dyn Memory>,
            Arc<dyn Consents>,
            Arc<dyn Dispatches>,
        );
        let (store, hosts, sessions, memory, consents, dispatches): Ports = match self.storage {
            Storage::Memory => {
                let store = Arc::new(MemoryStore::new());
                let (hosts, sessions) = (store.clone(), store.clone());
                let (memory, consents) = (store.clone(), store.clone());
                (store.clone(), hosts, sessions, memory, consents, store)
            }
            Storage::Sqlite => {
                let data = self.folder.path().join(".taskrun");
                let store = SqliteStore::open(&data, Default::default()).expect("a store");
                let store = Arc::new(store);
                let (hosts, sessions) = (store.clone(), store.clone());
                let (memory, consents) = (store.clone(), store.clone());
                (store.clone(), hosts, sessions, memory, consents, store)
            }
        };
        let parts = ControllerParts {
            store: Arc::clone(&store),
            hosts,
            sessions,
            memory,
            consents,
            dispatches,
            subscribers: Subscribers::default(),
            agents,
            deployments: None,
            machine: Arc::clone(&self.clock),
            clock: self.clock,
            random: Arc::new(SystemRandom),
            interrupt: engine.interrupt(),
            hooks: Hooks::default(),
            retry_policy: None,
            settings: Settings { slots: self.slots, ..Settings::default() },
        };
        let controller = Controller::driving_on(parts, engine.drivers());
        House { controller, store, scope: Scope::tenant("default"), folder: self.folder }
    }

    /// Opens the house and starts its controller.
    pub async fn open(self) -> House {
        let house = self.build().await;
        house.controller.start().await.expect("the controller starts");
        house
    }
}

/// Where `TASKRUN_REPLAYS` is set, every run that is left is executed again.
impl Drop for House {
    fn drop(&mut self) {
        if std::thread::panicking() || !replays::is_wanted() {
            return;
        }
        let path = self.folder.path().join("taskrun.toml");
        let policy = load_policy(&path).ok();
        Replays { store: Arc::clone(&self.store), data_dir: None, policy }.run();
    }
}

impl House {
    /// The controller as an operator of the tenant has it.
    pub fn client(&self) -> taskrun::controller::Client {
        self.controller.at(&self.scope)
    }

    /// The folder, which is also the workspace.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// A request by `user-a` from `parent-a`.
    #[must_use]
    pub fn request(&self, agent: &str, task: &str) -> SpawnRequest {
        SpawnRequest {
            owner_user_id: "user-a".into(),
            parent_session_id: "parent-a".into(),
            agent_name: agent.into(),
            task: task.into(),
            ..SpawnRequest::default()
        }
    }

    /// Spawns a run that must be accepted, and gives its id.
    pub async fn spawn(&self, request: &SpawnRequest) -> String {
        let run = self.client().spawn(request).await.expect("accepted");
        run.id().to_string()
    }

    /// Waits for the end of a run.
    pub async fn end(&self, id: &str) -> Run {
        let client = self.client();
        let waited = client.wait(id, None);
        let waited = tokio::time::timeout(PATIENCE, waited).await.expect("ends in time");
        waited.expect("can be waited for").run
    }

    /// Spawns a run and waits for its end.
    pub async fn run(&self, agent: &str, task: &str) -> Run {
        let id = self.spawn(&self.request(agent, task)).await;
        self.end(&id).await
    }

    /// Waits until a run has a status.
    pub async fn reach(&self, id: &str, status: Status) -> Run {
        let client = self.client();
        let reached = client.wait_for(id, None, |run| run.status() == status);
        let waited = tokio::time::timeout(PATIENCE, reached).await.expect("gets there in time");
        let waited = waited.expect("can be waited for");
        assert!(!waited.timed_out, "the run ended as {}", waited.run.status());
        waited.run
    }

    /// Waits until an event of a run fits.
    pub async fn event(&self, id: &str, fits: impl Fn(&EventRecord) -> bool) -> EventRecord {
        let search = async {
            let mut stream = self.client().follow(id, 0).await.expect("it is there");
            loop {
                let events = stream.next(100).await.expect("can be read");
                assert!(!events.is_empty(), "the run ended without it");
                if let Some(found) = events.iter().find(|recorded| fits(recorded)) {
                    return found.clone();
                }
            }
        };
        tokio::time::timeout(PATIENCE, search).await.expect("happens in time")
    }

    /// The whole journal of a run.
    pub async fn journal(&self, id: &str) -> Vec<EventRecord> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(0, |recorded: &EventRecord| recorded.seq);
            let page = self.client().events(id, after, 1_000).await;
            let page = page.expect("can be read");
            if page.is_empty() {
                return all;
            }
            all.extend(page);
        }
    }
}
