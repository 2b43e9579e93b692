//! The same work through taskrun: controller, driver, policy, journal in memory, engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{Controller, ControllerParts, Settings, succeeded};
use taskrun::ports::hook::Hooks;
use taskrun::spawn::SpawnRequest;
use taskrun_engine::{Engine, EngineOptions};
use taskrun_examples::{COUNTER, SCRIPTED, SCRIPTED_TOOL, WORDS, evil};
use taskrun_journal::list::Scope;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::status::Status;
use taskrun_policy::Policy;
use taskrun_store::MemoryStore;

use crate::cpu_us;

const POLICY: &str = r#"
[tool.lookup]
component = "lookup.wasm"

[agent.worker]
component = "worker.wasm"
tools = ["lookup/*"]
limits = { tool_calls = 10000 }

[tool.words]
component = "words.wasm"

[agent.counter]
component = "counter.wasm"
tools = ["words/count"]

[agent.spinner]
component = "spinner.wasm"
limits = { step = "10m" }
"#;

/// Calls that an agent makes in one turn.
const CALLS_PER_TURN: u32 = 100;

/// The callers that start runs at the same time where plan steps are counted.
const SPAWNERS: u32 = 16;

/// A host in memory.
pub(crate) struct Product {
    controller: Controller,
    scope: Scope,
    _folder: tempfile::TempDir,
}

/// Writes the policy and its components into a folder.
pub(crate) fn furnish(folder: &std::path::Path) -> Policy {
    for (name, bytes) in [
        ("lookup.wasm", SCRIPTED_TOOL.bytes),
        ("worker.wasm", SCRIPTED.bytes),
        ("spinner.wasm", evil::AGENT.bytes),
        ("words.wasm", WORDS.bytes),
        ("counter.wasm", COUNTER.bytes),
    ] {
        std::fs::write(folder.join(name), bytes).expect("written");
    }
    let path = folder.join("taskrun.toml");
    std::fs::write(&path, POLICY).expect("written");
    Policy::parse(POLICY, &path).expect("a valid policy")
}

fn request(agent: &str, task: String) -> SpawnRequest {
    SpawnRequest {
        owner_user_id: "owner".into(),
        parent_session_id: "parent".into(),
        agent_name: agent.into(),
        task,
        ..SpawnRequest::default()
    }
}

impl Product {
    /// Ends what is left: a driver that outlives its runtime finds no timer.
    pub(crate) async fn close(self) {
        let closed = self.controller.close(Duration::from_secs(30)).await;
        assert!(closed.stragglers.is_empty(), "runs that do not end: {closed:?}");
    }

    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let policy = furnish(folder.path());
        let options = EngineOptions { guest_threads: Some(2), ..EngineOptions::default() };
        let engine = Engine::new(options).expect("an engine");
        let agents = engine.load_agents(&policy, &BTreeMap::new()).await.expect("agents");
        let store = Arc::new(MemoryStore::new());
        let parts = ControllerParts {
            store: store.clone(),
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
        Self { controller, scope: Scope::tenant("bench"), _folder: folder }
    }

    async fn run(&self, task: &str) {
        self.run_of(&request("worker", task.to_owned())).await;
    }

    async fn run_of(&self, request: &SpawnRequest) {
        let run = self.controller.at(&self.scope).spawn(request).await.expect("accepted");
        let waited = self.controller.at(&self.scope).wait(run.id().as_str(), None).await;
        let run = waited.expect("ends").run;
        assert!(succeeded(&run), "{run:?}");
    }

    /// CPU microseconds of a tool call: what a run with many calls costs over one with none,
    /// that has as many turns.
    pub(crate) async fn tool_calls(&self, calls: u32) -> f64 {
        let call = json!({ "call": {
            "name": "lookup/lookup", "args": { "result": { "found": true } } } });
        let turn = vec![call; CALLS_PER_TURN as usize];
        let task = json!({ "steps": [turn, [{ "reply": "done" }]] }).to_string();
        let single = json!({ "call": {
            "name": "lookup/lookup", "args": { "result": { "found": true } } } });
        let baseline = json!({ "steps": [[single], [{ "reply": "done" }]] }).to_string();
        let runs = calls / CALLS_PER_TURN;
        let mut cost = [0.0; 2];
        for (cost, task) in cost.iter_mut().zip([&baseline, &task]) {
            let before = cpu_us();
            for _ in 0..runs {
                self.run(task).await;
            }
            *cost = cpu_us() - before;
        }
        (cost[1] - cost[0]) / f64::from(runs * (CALLS_PER_TURN - 1))
    }

    /// CPU microseconds of a run from spawn to terminal status, with one plan step, where so many
    /// callers start one after the other, each when its last one has ended.
    pub(crate) async fn trivial_runs(&self, runs: u32, at_once: u32) -> f64 {
        let before = cpu_us();
        let spawner = async || {
            for _ in 0..runs / at_once {
                self.run("hello").await;
            }
        };
        futures::future::join_all((0..at_once).map(|_| spawner())).await;
        (cpu_us() - before) / f64::from(runs / at_once * at_once)
    }

    /// CPU microseconds of a plan step in runs of two steps and a call, the whole run with it, and
    /// plan steps for each second when [`SPAWNERS`] start such runs, each waiting for its own.
    pub(crate) async fn counted(&self, messages: usize, runs: u32) -> (f64, f64) {
        let context = Message::text(Role::User, crate::message());
        let mut request = request("counter", crate::message());
        request.injected_context_messages = vec![context; messages - 1];
        let before = cpu_us();
        #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
        let began = Instant::now();
        let spawner = async || {
            for _ in 0..runs / SPAWNERS {
                self.run_of(&request).await;
            }
        };
        futures::future::join_all((0..SPAWNERS).map(|_| spawner())).await;
        let steps = f64::from(runs / SPAWNERS * SPAWNERS * 2);
        ((cpu_us() - before) / steps, steps / began.elapsed().as_secs_f64())
    }

    /// Wall milliseconds from the request to cancel a spinning guest to its terminal status.
    pub(crate) async fn cancels(&self, count: usize) -> Vec<f64> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let request = request("spinner", "spin".into());
            let run = self.controller.at(&self.scope).spawn(&request).await.expect("accepted");
            let id = run.id().as_str();
            let client = self.controller.at(&self.scope);
            let running = client.wait_for(id, None, |r| r.status() == Status::Running);
            running.await.expect("runs");
            // So that the guest really spins.
            tokio::time::sleep(Duration::from_millis(15)).await;
            #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
            let asked = Instant::now();
            self.controller.at(&self.scope).cancel(id, None).await.expect("answers");
            let ended = self.controller.at(&self.scope).wait(id, None).await.expect("ends");
            all.push(asked.elapsed().as_secs_f64() * 1e3);
            assert_eq!(ended.run.status(), Status::Canceled);
        }
        all
    }
}
