//! Measures what a turn costs late in a long run beside one at its beginning, and prints one JSON object.
//!
//! `cargo bench -p taskrun-benches --bench long -- [--compare FILE]`. The agent is the guest `chat`, whose
//! model, in this process, calls a tool in each turn; the store is a file. The conversation stays with
//! the host, which shows the model all of it in each turn. CPU is that of the whole process, from one
//! question of the model to the next. In a second series each call is of 2 KiB, so that from about the
//! two hundredth turn on there is no room for the oldest results, and later for the oldest turns.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{Controller, ControllerParts, Settings, succeeded};
use taskrun::ports::hook::Hooks;
use taskrun::scope::model::{Model, ModelStream};
use taskrun::spawn::SpawnRequest;
use taskrun_benches::{Args, cpu_us, percentile, refused};
use taskrun_engine::{Engine, EngineOptions};
use taskrun_examples::{CHAT, WORDS};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::list::Scope;
use taskrun_journal::message::ToolUse;
use taskrun_policy::Policy;
use taskrun_store::{SqliteOptions, SqliteStore};

/// Turns of a run.
const TURNS: usize = 1_000;
/// Turns of which the median counts, around the tenth and before the last.
const WINDOW: usize = 20;
/// Runs, one after the other.
const ROUNDS: usize = 3;
/// Bytes of the text in a call of the second series.
const LARGE: usize = 2 << 10;
/// Most times that a late turn may cost what an early one does.
const GOAL: f64 = 1.3;

const POLICY: &str = r#"
[model.default]
provider = "echo"

[tool.words]
component = "words.wasm"

[agent.talker]
component = "chat.wasm"
model = "default"
tools = ["words/count"]
budget = { turns = 1000 }
limits = { tool_calls = 10000, events = 100000, journal = "4GiB" }
"#;

/// The moments at which the model was asked, in microseconds of CPU and of real time.
#[derive(Default)]
struct Moments(Mutex<Vec<(f64, Instant)>>);

/// A model that calls a tool in all turns but the last, with what a run of it has been asked so far.
struct Caller {
    moments: Arc<Moments>,
    /// The arguments of each call.
    payload: Mutex<String>,
}

#[async_trait]
impl Model for Caller {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        let number = {
            let mut moments = self.moments.0.lock().expect("nobody panics with it");
            #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
            moments.push((cpu_us(), Instant::now()));
            moments.len()
        };
        let (chunk, reason) = match number < TURNS {
            true => {
                let call = ToolUse {
                    tool_call_id: format!("call-{number}"),
                    name: "words/count".into(),
                    payload: self.payload.lock().expect("nobody panics with it").clone(),
                };
                (Chunk::ToolCall(call), CompletionStop::ToolUse)
            }
            false => (Chunk::Text("Five, each time.".into()), CompletionStop::EndTurn),
        };
        let stop = Chunk::Stop { reason, model: "caller".into() };
        Ok(stream::iter([Ok(chunk), Ok(stop)]).boxed())
    }
}

fn main() -> ExitCode {
    let args = match Args::of_process() {
        Ok(args) if args.words.is_empty() => args,
        Ok(_) => return refused("known is --compare FILE"),
        Err(wrong) => return refused(&wrong),
    };
    let runtime = taskrun_runtime::control_plane().expect("a runtime");
    args.print(runtime.block_on(measure()));
    ExitCode::SUCCESS
}

async fn measure() -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in [("chat.wasm", CHAT.bytes), ("words.wasm", WORDS.bytes)] {
        std::fs::write(folder.path().join(name), bytes).expect("written");
    }
    let path = folder.path().join("taskrun.toml");
    std::fs::write(&path, POLICY).expect("written");
    let policy = Policy::parse(POLICY, &path).expect("a valid policy");
    let moments = Arc::<Moments>::default();
    let payload = Mutex::default();
    let caller = Arc::new(Caller { moments: Arc::clone(&moments), payload });
    let model: Arc<dyn Model> = caller.clone();
    let models = BTreeMap::from([("default".to_owned(), model)]);
    let engine = Engine::new(EngineOptions::default()).expect("an engine");
    let agents = engine.load_agents(&policy, &models).await.expect("agents");
    let store = SqliteStore::open(folder.path().join("data"), SqliteOptions::default());
    let store = Arc::new(store.expect("a store"));
    let parts = ControllerParts {
        store: store.clone(),
        hosts: store.clone(),
        memory: store.clone(),
        consents: store.clone(),
        dispatches: store.clone(),
        subscribers: Default::default(),
        sessions: store,
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
    let mut series = Vec::new();
    for text in ["how many words are these".to_owned(), "words ".repeat(LARGE / 6)] {
        let payload = json!({ "text": text }).to_string();
        *caller.payload.lock().expect("nobody panics with it") = payload;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            run(&controller).await;
            rounds.push(std::mem::take(&mut *moments.0.lock().expect("nobody panics with it")));
        }
        series.push(figures(&rounds));
    }
    json!({
        "v": 2,
        "turns_of_a_run": TURNS,
        "rounds": ROUNDS,
        "small_calls": series[0],
        "large_calls": series[1],
        "goal_ratio": GOAL,
    })
}

async fn run(controller: &Controller) {
    let client = controller.at(&Scope::tenant("bench"));
    let request = SpawnRequest {
        owner_user_id: "owner".into(),
        parent_session_id: "parent".into(),
        agent_name: "talker".into(),
        task: "Count words, again and again.".into(),
        ..SpawnRequest::default()
    };
    let run = client.spawn(&request).await.expect("accepted");
    let ended = client.wait(run.id().as_str(), None).await.expect("ends").run;
    assert!(succeeded(&ended), "{ended:?}");
}

/// Medians of the rounds of a series.
fn figures(rounds: &[Vec<(f64, Instant)>]) -> Value {
    let turns_of = |moments: &[(f64, Instant)], from: usize| {
        let pairs = moments[from..=from + WINDOW].windows(2).map(|pair| {
            let wall = pair[1].1.duration_since(pair[0].1).as_secs_f64() * 1e6;
            (pair[1].0 - pair[0].0, wall)
        });
        let (cpu, wall): (Vec<f64>, Vec<f64>) = pairs.unzip();
        (percentile(&cpu, 50), percentile(&wall, 50))
    };
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    for moments in rounds {
        assert_eq!(moments.len(), TURNS, "each turn asks once");
        let early = turns_of(moments, 10 - WINDOW / 2);
        let late = turns_of(moments, TURNS - 1 - WINDOW);
        cpu.push((early.0, late.0));
        wall.push((early.1, late.1));
    }
    let medians = |pairs: &[(f64, f64)]| {
        let of = |pick: fn(&(f64, f64)) -> f64| {
            percentile(&pairs.iter().map(pick).collect::<Vec<_>>(), 50)
        };
        json!({
            "turn_10": of(|pair| pair.0),
            "turn_1000": of(|pair| pair.1),
            "ratio": of(|pair| pair.1 / pair.0),
        })
    };
    json!({ "us_of_cpu": medians(&cpu), "us_wall": medians(&wall) })
}
