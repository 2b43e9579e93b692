//! Measures how long a piece of a model's answer takes from the provider to whoever watches the
//! run, with 100 answers under way at once, and prints one JSON object.
//!
//! `cargo bench -p taskrun-benches --bench streams -- [--compare FILE]`. The provider is in this
//! process and says when it gave each piece; the guest `chat` reads the stream and passes it on; an
//! observer of each run follows its journal. The store is a file, so a piece is seen when it is on
//! disk.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{Controller, ControllerParts, Settings};
use taskrun::ports::hook::Hooks;
use taskrun::scope::model::{Model, ModelStream};
use taskrun::spawn::SpawnRequest;
use taskrun_benches::{Args, cpu_us, percentile, refused};
use taskrun_engine::{Engine, EngineOptions};
use taskrun_examples::CHAT;
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::Event;
use taskrun_journal::list::Scope;
use taskrun_policy::Policy;
use taskrun_store::{SqliteOptions, SqliteStore};

/// Answers under way at once.
const STREAMS: usize = 100;
/// Pieces of each.
const PIECES: u32 = 50;
/// From one piece to the next: twenty tokens a second.
const PAUSE: Duration = Duration::from_millis(50);
/// Pieces of each answer that do not count, as the others have not begun.
const FIRST: u32 = 10;

const POLICY: &str = r#"
[model.default]
provider = "echo"

[agent.talker]
component = "chat.wasm"
model = "default"
limits = { events = 100000 }
"#;

/// A provider whose pieces say when they were given, in microseconds since it began.
struct Stamping {
    began: Instant,
}

impl Stamping {
    fn now(&self) -> u128 {
        self.began.elapsed().as_micros()
    }
}

/// The same for every stream.
struct Provider(Arc<Stamping>);

#[async_trait]
impl Model for Provider {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        let clock = Arc::clone(&self.0);
        let pieces = stream::iter(0..PIECES).then(move |number| {
            let clock = Arc::clone(&clock);
            async move {
                tokio::time::sleep(PAUSE).await;
                Ok(Chunk::Text(format!("{number}:{} ", clock.now())))
            }
        });
        let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "stamping".into() };
        Ok(pieces.chain(stream::iter([Ok(stop)])).boxed())
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
    std::fs::write(folder.path().join("chat.wasm"), CHAT.bytes).expect("written");
    let path = folder.path().join("taskrun.toml");
    std::fs::write(&path, POLICY).expect("written");
    let policy = Policy::parse(POLICY, &path).expect("a valid policy");
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    let clock = Arc::new(Stamping { began: Instant::now() });
    let provider: Arc<dyn Model> = Arc::new(Provider(Arc::clone(&clock)));
    let models = BTreeMap::from([("default".to_owned(), provider)]);
    let engine = Engine::new(EngineOptions::default()).expect("an engine");
    let agents = engine.load_agents(&policy, &models).await.expect("agents");
    let store = SqliteStore::open(folder.path().join("data"), SqliteOptions::default());
    let store = Arc::new(store.expect("a store"));
    let controller = Controller::new(ControllerParts {
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
        settings: Settings { slots: STREAMS, ..Settings::default() },
    });
    controller.start().await.expect("starts");
    let before = cpu_us();
    let watched = (0..STREAMS).map(|_| watch(&controller, &clock));
    let delays: Vec<f64> = futures::future::join_all(watched).await.concat();
    let cpu = cpu_us() - before;
    json!({
        "v": 1,
        "piece_of_an_answer_to_its_observer": {
            "unit": "ms wall, from the provider's piece to the event read from the store",
            "streams": STREAMS,
            "pieces_per_second": STREAMS as f64 / PAUSE.as_secs_f64(),
            "n": delays.len(),
            "p50": percentile(&delays, 50),
            "p99": percentile(&delays, 99),
            "max": percentile(&delays, 100),
            "us_of_cpu_per_piece": (cpu / f64::from(STREAMS as u32 * PIECES)).round(),
        },
    })
}

/// Starts a run and follows it to its end; milliseconds that each of its pieces took.
async fn watch(controller: &Controller, clock: &Stamping) -> Vec<f64> {
    let scope = Scope::tenant("bench");
    let request = SpawnRequest {
        owner_user_id: "owner".into(),
        parent_session_id: "parent".into(),
        agent_name: "talker".into(),
        task: "Go on.".into(),
        ..SpawnRequest::default()
    };
    let run = controller.at(&scope).spawn(&request).await.expect("accepted");
    let stream = controller.at(&scope).follow(run.id().as_str(), 0).await;
    let (mut stream, mut delays) = (stream.expect("it is there"), Vec::new());
    loop {
        let events = stream.next(200).await.expect("can be read");
        if events.is_empty() {
            break;
        }
        let now = clock.now();
        for recorded in &events {
            let Event::AssistantChunk { text } = &recorded.event else { continue };
            for piece in text.split_whitespace() {
                let (number, stamp) = piece.split_once(':').expect("our own text");
                let number: u32 = number.parse().expect("a number");
                let stamp: u128 = stamp.parse().expect("a time");
                if number >= FIRST {
                    delays.push((now - stamp) as f64 / 1e3);
                }
            }
        }
    }
    assert_eq!(delays.len(), (PIECES - FIRST) as usize, "every piece was seen");
    delays
}
