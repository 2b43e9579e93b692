//! The host whose neighbours are measured.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use async_trait::async_trait;
use serde_json::json;
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{Controller, ControllerParts, Settings, succeeded};
use taskrun::ports::hook::Hooks;
use taskrun::spawn::SpawnRequest;
use taskrun_engine::{CompileWorker, Engine, EngineOptions};
use taskrun_examples::{FETCH, SCRIPTED, SCRIPTED_TOOL, evil};
use taskrun_journal::event::Event;
use taskrun_journal::layer::Layer;
use taskrun_journal::list::Scope;
use taskrun_journal::store::{
    Append, AppendOutcome, Claim, JointOutcome, NewRun, Store, StoreError,
};
use taskrun_policy::Policy;
use taskrun_store::{SqliteOptions, SqliteStore};

use crate::cores;
use crate::servers::Servers;

const POLICY: &str = r#"
[workspace]
limits = { bytes = "1MiB" }

[tool.lookup]
component = "lookup.wasm"

[tool.evil]
component = "evil.wasm"

[agent.worker]
component = "worker.wasm"
tools = ["lookup/*"]

[agent.spinner]
component = "spinner.wasm"
limits = { step = "10m" }

[tool.fetch]
component = "fetch.wasm"

[tool.asker]
component = "asker.wasm"

[agent.fetcher]
component = "worker.wasm"
tools = ["fetch/*", "asker/*"]
allow = [
    "http: GET http://127.0.0.1:FLOODING/**",
    "http: GET http://127.0.0.1:POLITE/**",
    "http: GET http://nobody.example/**",
]
budget = { turns = 1000 }
limits = { tool_calls = 10000, tool_failures = 10000 }

[agent.filler]
component = "worker.wasm"
tools = ["evil/fill"]
allow = ["workspace-read: full/**", "workspace-write: full/**"]
budget = { turns = 1000 }
limits = { tool_calls = 10000, tool_failures = 10000 }

[tool.schema]
component = "schema.wasm"

[agent.bomber]
component = "worker.wasm"
tools = ["lookup/*", SCHEMAS]
budget = { turns = 1000 }
limits = { tool_calls = 10000, tool_failures = 10000, journal = "4GiB" }

[agent.hostile]
component = "worker.wasm"
tools = ["evil/*"]
deny = ["workspace-read: **", "workspace-write: **"]
budget = { turns = 1000 }
limits = { call = "300ms", tool_calls = 10000, tool_failures = 10000, journal = "4GiB" }
"#;

/// Turns of a block, in runs of so many.
pub(crate) const TURNS: usize = 100;
const TURNS_PER_RUN: usize = 10;

/// Notes when a plan is about to be written.
struct Stamping {
    store: Arc<SqliteStore>,
    planned: Mutex<BTreeMap<String, Vec<Instant>>>,
}

#[async_trait]
impl Layer for Stamping {
    fn behind(&self) -> &dyn Store {
        &*self.store
    }

    async fn create_and_claim(
        &self,
        run: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        self.store.create_and_claim(run, claim).await
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        if append.events.iter().any(|one| matches!(one.event, Event::PlanDecided { .. })) {
            let run = append.run.id().to_string();
            #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
            let now = Instant::now();
            self.planned.lock().expect("nobody panics with it").entry(run).or_default().push(now);
        }
        self.store.append(append).await
    }
}

/// A host as the program starts one.
pub(crate) struct Host {
    pub(crate) engine: Arc<Engine>,
    pub(crate) controller: Controller,
    stamps: Arc<Stamping>,
    pub(crate) scope: Scope,
    _folder: tempfile::TempDir,
}

impl Host {
    pub(crate) async fn new(servers: &Servers) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, bytes) in [
            ("lookup.wasm", SCRIPTED_TOOL.bytes),
            ("worker.wasm", SCRIPTED.bytes),
            ("spinner.wasm", evil::AGENT.bytes),
            ("evil.wasm", evil::TOOL.bytes),
            ("fetch.wasm", FETCH.bytes),
            ("asker.wasm", evil::FETCH.bytes),
            ("schema.wasm", evil::SCHEMA.bytes),
        ] {
            std::fs::write(folder.path().join(name), bytes).expect("written");
        }
        std::fs::create_dir(folder.path().join("full")).expect("a folder");
        let path = folder.path().join("taskrun.toml");
        let schemas = evil::schema_bombs().map(|(name, _)| format!("\"schema/{name}\""));
        let policy = POLICY
            .replace("FLOODING", &servers.flooding.to_string())
            .replace("POLITE", &servers.polite.to_string())
            .replace("SCHEMAS", &schemas.join(", "));
        std::fs::write(&path, &policy).expect("written");
        let policy = Policy::parse(&policy, &path).expect("a valid policy");
        let worker = CompileWorker {
            program: std::env::current_exe().expect("Linux tells"),
            args: vec![crate::COMPILE.into()],
        };
        let options = EngineOptions {
            guest_threads: Some(cores()),
            compile_worker: Some(worker),
            ..EngineOptions::default()
        };
        let engine = Engine::new(options).expect("an engine");
        let agents = engine.load_agents(&policy, &BTreeMap::new()).await.expect("agents");
        let options = SqliteOptions {
            at_rest: Some(taskrun_engine::give_back_memory),
            ..SqliteOptions::default()
        };
        let store = SqliteStore::open(folder.path().join("data"), options);
        let store = Arc::new(store.expect("a store"));
        let stamps = Arc::new(Stamping { store: Arc::clone(&store), planned: Mutex::default() });
        let parts = ControllerParts {
            store: stamps.clone(),
            hosts: store.clone(),
            sessions: store.clone(),
            memory: store.clone(),
            consents: store.clone(),
            dispatches: store,
            subscribers: Default::default(),
            agents,
            deployments: None,
            clock: Arc::new(SystemClock::new()),
            machine: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            interrupt: engine.interrupt(),
            hooks: Hooks::default(),
            retry_policy: None,
            settings: Settings::default(),
        };
        let controller = Controller::driving_on(parts, engine.drivers());
        controller.start().await.expect("starts");
        Self { engine, controller, stamps, scope: Scope::tenant("bench"), _folder: folder }
    }

    pub(crate) async fn spawn(&self, agent: &str, task: &str) -> String {
        let request = SpawnRequest {
            owner_user_id: "owner".into(),
            parent_session_id: "parent".into(),
            agent_name: agent.into(),
            task: task.into(),
            ..SpawnRequest::default()
        };
        let run = self.controller.at(&self.scope).spawn(&request).await.expect("accepted");
        run.id().to_string()
    }

    pub(crate) async fn finish(&self, id: &str) {
        let waited = self.controller.at(&self.scope).wait(id, None).await.expect("ends");
        assert!(succeeded(&waited.run), "{:?}", waited.run);
    }

    /// Milliseconds of [`TURNS`] turns, each from one plan to the next, which is written in
    /// between.
    pub(crate) async fn turns(&self) -> Vec<f64> {
        let call = json!([{ "call": {
            "name": "lookup/lookup", "args": { "result": { "found": true } } } }]);
        let mut steps = vec![call; TURNS_PER_RUN];
        steps.push(json!([{ "reply": "done" }]));
        let task = json!({ "steps": steps }).to_string();
        let mut turns = Vec::with_capacity(TURNS);
        for _ in 0..TURNS / TURNS_PER_RUN {
            let id = self.spawn("worker", &task).await;
            self.finish(&id).await;
            let mut planned = self.stamps.planned.lock().expect("nobody panics with it");
            let planned = planned.remove(&id).expect("it was planned");
            let took = |pair: &[Instant]| (pair[1] - pair[0]).as_secs_f64() * 1e3;
            turns.extend(planned.windows(2).map(took));
        }
        assert_eq!(turns.len(), TURNS);
        turns
    }
}
