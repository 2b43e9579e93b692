//! A host that records what a scripted guest does, and gives it its tape when it runs again.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::message::{Message, Role};
use taskrun_journal::time::{Clock, Timestamp, random_u64};
use taskrun_policy::{CallRules, Policy};
use tokio::sync::Notify;

use super::super::model::{Model, ModelStream};
use super::super::*;
use super::parts;
use crate::clock::SeededRandom;

/// A clock that tells another time whenever it is asked, and never one that another host told.
pub(super) struct Ticking(AtomicU64);

#[async_trait]
impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        // The same time is told twice before it moves on, as happens within a millisecond.
        Timestamp(self.0.fetch_add(1, Ordering::Relaxed) / 2)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    async fn sleep_until(&self, _: Duration) {
        self.0.fetch_add(10, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

/// A model whose answers follow from the question, and from its host where that says so.
pub(super) struct Scripted {
    salt: u64,
    pub(super) asked: AtomicU32,
}

#[async_trait]
impl Model for Scripted {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        // Its answers stay as they are where nothing is said about tools.
        let asked = format!("{} {request:?}", self.salt).replace(" tool_choice: Auto,", "");
        let hash = blake3::hash(asked.as_bytes());
        let byte = |at: usize| hash.as_bytes()[at];
        if byte(0).is_multiple_of(8) {
            let retry_after_ms = Some(u64::from(byte(1)));
            return Err(ModelError::RateLimited { retry_after_ms, said: None });
        }
        let usage = Usage { total_tokens: u64::from(byte(2)), ..Usage::default() };
        let mut items: Vec<Result<Chunk, ModelError>> =
            (0..byte(3) % 6).map(|n| Ok(Chunk::Text(format!("{n}:{};", byte(4))))).collect();
        items.insert(0, Ok(Chunk::Usage(usage)));
        items.push(match byte(5) % 4 {
            0 => Err(ModelError::Timeout),
            _ => Ok(Chunk::Stop { reason: CompletionStop::EndTurn, model: "m-1".to_owned() }),
        });
        let late = byte(6);
        // Some chunks are there at once and some are waited for, so that batches differ.
        Ok(stream::iter(items.into_iter().zip(0u32..))
            .then(move |(item, n)| async move {
                if u32::from(late) >> (n % 8) & 1 == 1 {
                    tokio::task::yield_now().await;
                }
                item
            })
            .boxed())
    }
}

pub(super) fn question(text: &str) -> CompletionRequest {
    CompletionRequest {
        model: None,
        messages: vec![Message::text(Role::User, text)],
        tools: Vec::new(),
        max_tokens: None,
        temperature: None,
        tool_choice: taskrun_journal::completion::ToolChoice::Auto,
        stop_sequences: Vec::new(),
        response_schema: None,
        media: taskrun_journal::media::MediaBytes::default(),
        tokens_left: None,
    }
}

/// One host: what it is given of the journal, and how it differs from others.
pub(super) struct Host {
    pub(super) scope: Arc<CallScope>,
    pub(super) model: Arc<Scripted>,
    /// The journal of the step: what was there before and what this host adds.
    pub(super) journal: Mutex<Vec<Event>>,
    wake: Arc<Notify>,
    urgent: Arc<Notify>,
    eager: SeededRandom,
}

impl Host {
    /// Takes a step up where `journal` ends. The clocks of two `hosts` never agree; their models
    /// do if the `salt` is the same.
    pub(super) fn new(journal: &[Event], host: u64, salt: u64) -> Self {
        Self::under(journal, (host, salt), (Self::rules(), Vec::new()))
    }

    /// The rules of [`POLICY`].
    pub(super) fn rules() -> Arc<CurrentRules> {
        let policy = Policy::parse(POLICY, "taskrun.toml".as_ref()).expect("a valid policy");
        let grants = Arc::clone(&policy.agents["a"].grants);
        CurrentRules::fixed(CallRules::new(grants, None))
    }

    /// The same under these rules, where the journal says that the work goes on under those pins.
    pub(super) fn under(
        journal: &[Event],
        numbers: (u64, u64),
        rules: (Arc<CurrentRules>, Vec<String>),
    ) -> Self {
        Self::of_program(journal, numbers, rules, Services::default())
    }

    /// The same with what a program has for calls.
    pub(super) fn of_program(
        journal: &[Event],
        (host, salt): (u64, u64),
        (rules, pins): (Arc<CurrentRules>, Vec<String>),
        services: Services,
    ) -> Self {
        let mut tape = Tape::default();
        journal.iter().for_each(|event| tape.push(event));
        let model = Arc::new(Scripted { salt, asked: AtomicU32::new(0) });
        let (wake, urgent) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let scope = Arc::new(CallScope::new(CallScopeParts {
            clock: Arc::new(Ticking(AtomicU64::new(host * 1_000_000))),
            models: Some(Arc::new(Models {
                by_name: BTreeMap::from([("m".to_owned(), Arc::clone(&model) as Arc<dyn Model>)]),
                prices: BTreeMap::new(),
                settings: BTreeMap::new(),
                default: Some("m".to_owned()),
            })),
            rules,
            pins,
            services,
            wake: Arc::clone(&wake),
            journal: Some(JournalRoom { urgent: Arc::clone(&urgent), ..JournalRoom::default() }),
            tape: (!journal.is_empty()).then_some(tape),
            ..parts(1_000, 1 << 20)
        }));
        let journal = Mutex::new(journal.to_vec());
        Self { scope, model, journal, wake, urgent, eager: SeededRandom::new(host) }
    }

    /// Writes what was reported, as the driver does.
    pub(super) fn flush(&self) {
        let taken = self.scope.take_events();
        self.journal.lock().expect("no panic").extend(taken.events);
        taken.waiting.release();
    }

    pub(super) fn journal(&self) -> Vec<Event> {
        self.journal.lock().expect("no panic").clone()
    }

    /// Runs a guest to its end, and writes what it reports at once or some time later.
    pub(super) async fn run<T>(&self, guest: impl Future<Output = T>) -> T {
        tokio::pin!(guest);
        let done = loop {
            tokio::select! {
                biased;
                done = &mut guest => break done,
                () = self.urgent.notified() => self.flush(),
                () = self.wake.notified() => {
                    if random_u64(&self.eager).is_multiple_of(2) {
                        self.flush();
                    }
                }
            }
        };
        self.flush();
        done
    }
}

pub(super) const POLICY: &str = r#"
[model.m]
provider = "echo"
[agent.a]
component = "a.wasm"
model = "m"
"#;
