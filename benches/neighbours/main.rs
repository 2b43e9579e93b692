//! Measures what hostile guests cost their neighbours, and prints one JSON object.
//!
//! `cargo bench -p taskrun-benches --bench neighbours`. An honest run makes a tool call each turn;
//! in alternating blocks guests spin in the same host, or fetch from servers that flood them, or
//! write to a workspace that is full, or do not. Beside those that are flooded it is measured what
//! as many cost whose servers answer. What counts is the ratio of two blocks of turns in
//! one process and one minute, so that it holds on a loaded machine. Then a host is measured before
//! and after thousands of hostile calls.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{Controller, ControllerParts, Settings, succeeded};
use taskrun::ports::hook::Hooks;
use taskrun::spawn::SpawnRequest;
use taskrun_benches::{percentile, resident_bytes};
use taskrun_engine::{Engine, EngineOptions};
use taskrun_examples::{FETCH, SCRIPTED, SCRIPTED_TOOL, evil};
use taskrun_journal::event::Event;
use taskrun_journal::layer::Layer;
use taskrun_journal::list::Scope;
use taskrun_journal::store::{Append, AppendOutcome, Store, StoreError};
use taskrun_policy::Policy;
use taskrun_store::{SqliteOptions, SqliteStore};

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

[agent.fetcher]
component = "worker.wasm"
tools = ["fetch/*"]
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

[agent.hostile]
component = "worker.wasm"
tools = ["evil/*"]
deny = ["workspace-read: **", "workspace-write: **"]
budget = { turns = 1000 }
limits = { call = "300ms", tool_calls = 10000, tool_failures = 10000, journal = "4GiB" }
"#;

/// Ratios of which the median counts.
const RATIOS: usize = 5;
/// Blocks with spinning guests for a ratio, and as many without.
const BLOCKS: usize = 10;
/// Turns of a block, in runs of so many.
const TURNS: usize = 100;
const TURNS_PER_RUN: usize = 10;
/// Hostile calls, in so many runs at once, so many in each turn.
const HOSTILE_CALLS: usize = 10_000;
const HOSTILE_RUNS: usize = 4;
const HOSTILE_PER_TURN: usize = 50;
/// Time without runs before memory is measured: an engine gives back what is free after a second,
/// a store its pages after five.
const REST: Duration = Duration::from_secs(7);
/// Time that neighbours work before the first turn counts: then none of them is on its first slice.
const SETTLE: Duration = Duration::from_millis(50);

const MIB: f64 = (1 << 20) as f64;

fn main() -> ExitCode {
    // One part alone need not wait for the rest.
    let part = std::env::args().find_map(|arg| Part::of(&arg));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    println!("{:#}", runtime.block_on(measure(part)));
    ExitCode::SUCCESS
}

/// A part of the report that can be asked for by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Turns beside guests that spin.
    Spinners,
    /// Turns beside guests that make the host work.
    Others,
    /// Memory after hostile calls.
    Memory,
}

impl Part {
    fn of(name: &str) -> Option<Self> {
        match name {
            "spinners" => Some(Self::Spinners),
            "others" => Some(Self::Others),
            "memory" => Some(Self::Memory),
            _ => None,
        }
    }
}

async fn measure(part: Option<Part>) -> Value {
    let wanted = |one: Part| part.is_none_or(|part| part == one);
    let servers = Servers {
        flooding: server(b"HTTP/1.1 100 Continue\r\n\r\n", true),
        polite: server(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", false),
    };
    let host = Host::new(&servers).await;
    let mut report = json!({ "v": 1, "processors": cores() });
    let mut all = Vec::new();
    if wanted(Part::Spinners) {
        for (count, goal) in [(cores(), 2.0), (4 * cores(), 3.0)] {
            all.push(host.beside(&Neighbour::new("spinner", "spin", count), goal).await);
        }
    }
    if wanted(Part::Others) {
        for neighbour in others(&servers) {
            all.push(host.beside(&neighbour, 2.0).await);
        }
    }
    report["turns_of_an_honest_run_beside"] = all.into();
    if wanted(Part::Memory) {
        report["after_hostile_calls"] = host.hostile().await;
    }
    report
}

/// Runs that go on while the honest one works.
struct Neighbour {
    /// The name in the report.
    name: &'static str,
    agent: &'static str,
    task: String,
    count: usize,
}

impl Neighbour {
    fn new(agent: &'static str, task: impl Into<String>, count: usize) -> Self {
        Self { name: agent, agent, task: task.into(), count }
    }

    /// One that makes a call again and again.
    fn calling(agent: &'static str, name: &str, args: &Value) -> Self {
        let call = json!([{ "call": { "name": name, "args": args } }]);
        Self::new(agent, json!({ "steps": vec![call; 1_000] }).to_string(), 1)
    }
}

/// Neighbours that make the host work and hardly compute themselves.
fn others(servers: &Servers) -> [Neighbour; 4] {
    let fetchers = |name, port| Neighbour {
        name,
        count: 3,
        ..Neighbour::calling(
            "fetcher",
            "fetch/get",
            &json!({ "url": format!("http://127.0.0.1:{port}/") }),
        )
    };
    [
        fetchers("flooded", servers.flooding),
        fetchers("answered", servers.polite),
        // Nobody answers for it, or says that there is none.
        Neighbour::calling("fetcher", "fetch/get", &json!({ "url": "http://nobody.example/" })),
        Neighbour::calling(
            "filler",
            "evil/fill",
            &json!({ "folder": "full", "files": 200, "bytes": 65536, "how": "create" }),
        ),
    ]
}

/// Ports of the servers.
struct Servers {
    /// Answers `100 Continue` without end.
    flooding: u16,
    /// Answers that there is nothing.
    polite: u16,
}

/// A server that says this to everybody who asks, again and again if it is to go on; gives its
/// port. Ends with the process. It stands for another machine, and so its own work waits for all of
/// the host's.
fn server(answer: &'static [u8], goes_on: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        // Of this thread and those that it starts.
        rustix::process::setpriority_process(None, 19).expect("it may be lowered");
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || {
                if goes_on {
                    let many = answer.repeat(1_000);
                    // Until whoever asked is gone.
                    while (&connection).write_all(&many).is_ok() {}
                } else {
                    // Requests fit into one read each.
                    while (&connection).read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0)
                        && (&connection).write_all(answer).is_ok()
                    {}
                }
            });
        }
    });
    port
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

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
struct Host {
    controller: Controller,
    stamps: Arc<Stamping>,
    scope: Scope,
    _folder: tempfile::TempDir,
}

impl Host {
    async fn new(servers: &Servers) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, bytes) in [
            ("lookup.wasm", SCRIPTED_TOOL.bytes),
            ("worker.wasm", SCRIPTED.bytes),
            ("spinner.wasm", evil::AGENT.bytes),
            ("evil.wasm", evil::TOOL.bytes),
            ("fetch.wasm", FETCH.bytes),
        ] {
            std::fs::write(folder.path().join(name), bytes).expect("written");
        }
        std::fs::create_dir(folder.path().join("full")).expect("a folder");
        let path = folder.path().join("taskrun.toml");
        let policy = POLICY
            .replace("FLOODING", &servers.flooding.to_string())
            .replace("POLITE", &servers.polite.to_string());
        std::fs::write(&path, &policy).expect("written");
        let policy = Policy::parse(&policy, &path).expect("a valid policy");
        let options = EngineOptions { guest_threads: Some(cores()), ..EngineOptions::default() };
        let engine = Engine::new(options).expect("an engine");
        let agents = engine.load_agents(&policy, &BTreeMap::new()).await.expect("agents");
        let store = SqliteStore::open(folder.path().join("data"), SqliteOptions::default());
        let store = Arc::new(store.expect("a store"));
        let stamps = Arc::new(Stamping { store: Arc::clone(&store), planned: Mutex::default() });
        let parts = ControllerParts {
            store: stamps.clone(),
            hosts: store.clone(),
            sessions: store.clone(),
            memory: store.clone(),
            dispatches: store,
            subscribers: Default::default(),
            agents,
            deployments: None,
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            interrupt: engine.interrupt(),
            hooks: Hooks::default(),
            retry_policy: None,
            settings: Settings::default(),
        };
        let controller = Controller::driving_on(parts, engine.drivers());
        controller.start().await.expect("starts");
        Self { controller, stamps, scope: Scope::tenant("bench"), _folder: folder }
    }

    async fn spawn(&self, agent: &str, task: &str) -> String {
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

    async fn finish(&self, id: &str) {
        let waited = self.controller.at(&self.scope).wait(id, None).await.expect("ends");
        assert!(succeeded(&waited.run), "{:?}", waited.run);
    }

    /// Milliseconds of [`TURNS`] turns, each from one plan to the next, which is written in
    /// between.
    async fn turns(&self) -> Vec<f64> {
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

    /// Turns of an honest run beside its neighbours, and without them.
    async fn beside(&self, neighbour: &Neighbour, goal: f64) -> Value {
        self.turns().await;
        let (mut p50, mut p99) = (Vec::new(), Vec::new());
        let (mut last_alone, mut last_beside) = (Vec::new(), Vec::new());
        for _ in 0..RATIOS {
            let (mut alone, mut beside) = (Vec::new(), Vec::new());
            for _ in 0..BLOCKS {
                alone.extend(self.turns().await);
                let mut ids = Vec::new();
                for _ in 0..neighbour.count {
                    ids.push(self.spawn(neighbour.agent, &neighbour.task).await);
                }
                tokio::time::sleep(SETTLE).await;
                beside.extend(self.turns().await);
                for id in &ids {
                    self.controller.at(&self.scope).cancel(id, None).await.expect("answers");
                }
                for id in &ids {
                    self.controller.at(&self.scope).wait(id, None).await.expect("ends");
                }
            }
            p50.push(percentile(&beside, 50) / percentile(&alone, 50));
            p99.push(percentile(&beside, 99) / percentile(&alone, 99));
            (last_alone, last_beside) = (alone, beside);
        }
        let figures = |turns: &[f64]| json!([percentile(turns, 50), percentile(turns, 99)]);
        json!({
            "neighbours": format!("{} {}", neighbour.count, neighbour.name),
            "turns_each": BLOCKS * TURNS,
            "ratio_p50": percentile(&p50, 50),
            "ratio_p99": percentile(&p99, 50),
            "goal_ratio_p99": goal,
            "all_ratios_p99": p99,
            "last_ms_alone_p50_p99": figures(&last_alone),
            "last_ms_beside_p50_p99": figures(&last_beside),
        })
    }

    /// MiB resident in a host that worked, and rests.
    async fn resident_at_rest(&self) -> f64 {
        self.turns().await;
        tokio::time::sleep(REST).await;
        resident_bytes() / MIB
    }

    /// Resident memory after [`HOSTILE_CALLS`].
    async fn hostile(&self) -> Value {
        let before = self.resident_at_rest().await;
        let kinds: [(&str, Value); 8] = [
            ("overflow", json!({})),
            ("overflow_in_host_call", json!({})),
            ("panic", json!({})),
            ("lie", json!({})),
            ("grow", json!({})),
            ("alias_result", json!({ "mib": 8 })),
            ("big_result", json!({ "mib": 2 })),
            ("log_flood", json!({ "lines": 2000, "bytes": 4096 })),
        ];
        let calls = |turn: usize| -> Vec<Value> {
            let call = |n: usize| {
                let (name, args) = &kinds[(turn + n) % kinds.len()];
                json!({ "call": { "name": format!("evil/{name}"), "args": args } })
            };
            let mut calls: Vec<Value> = (0..HOSTILE_PER_TURN - 1).map(call).collect();
            calls.push(json!({ "call": { "name": "evil/spin", "args": {} } }));
            calls
        };
        let turns = HOSTILE_CALLS / HOSTILE_RUNS / HOSTILE_PER_TURN;
        let (mut peak, mut ids) = (before, Vec::new());
        for _ in 0..HOSTILE_RUNS {
            let mut steps: Vec<Vec<Value>> = (0..turns).map(calls).collect();
            steps.push(vec![json!({ "reply": "done" })]);
            ids.push(self.spawn("hostile", &json!({ "steps": steps }).to_string()).await);
        }
        for id in &ids {
            loop {
                let limit = Some(Duration::from_millis(20));
                let waited =
                    self.controller.at(&self.scope).wait(id, limit).await.expect("answers");
                peak = f64::max(peak, resident_bytes() / MIB);
                if !waited.timed_out {
                    assert!(succeeded(&waited.run), "{:?}", waited.run);
                    break;
                }
            }
        }
        let at_once = resident_bytes() / MIB;
        let after = self.resident_at_rest().await;
        json!({
            "unit": "MiB resident, before and after at rest",
            "calls": HOSTILE_CALLS,
            "before": before.round(),
            "peak": peak.round(),
            "at_once": at_once.round(),
            "after": after.round(),
            "grown": (after - before).round(),
            "goal_grown": 32,
        })
    }
}
