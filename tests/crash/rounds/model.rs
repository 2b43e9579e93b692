//! The model of the runs: a server on loopback that makes its answer of what it is shown alone, so that
//! it says the same however often it is asked, and keeps what it was asked for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use taskrun_tests::provider::{Asked, Provider, Reply};

use super::{RESULT_BYTES, ROUNDS, SLOW_MS};

/// The answers of a run that nobody disturbs: the calls of each round and its last words, then the word
/// that the run is done, and the last one.
pub(super) const ANSWERS: usize = 2 * ROUNDS + 2;
/// The time between two pieces of an answer.
const PACE: Duration = Duration::from_millis(10);

/// The server, and the answers that it was asked for.
pub(super) struct Model {
    provider: Provider,
    served: Arc<Mutex<Served>>,
}

#[derive(Default)]
struct Served {
    /// The run that is under way.
    run: String,
    /// The answers that it asked for, each by its place in the run, in the order of the requests.
    asked: Vec<usize>,
}

impl Model {
    pub(super) async fn start() -> Self {
        let served = Arc::<Mutex<Served>>::default();
        let shared = Arc::clone(&served);
        let provider = Provider::answering(move |asked| {
            let mut served = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(answer) = place(asked) else {
                return Reply::new(400, format!("what is that? {}", asked.body));
            };
            served.asked.push(answer);
            reply(&served.run, answer)
        });
        Self { provider: provider.await, served }
    }

    /// The part of the policy that has the model and an agent that asks it.
    pub(super) fn policy(&self) -> String {
        format!(
            "[model.counted]\nprovider = \"openai-chat\"\nmodel = \"m-1\"\nbase_url = {:?}\n\
             prices = {{ prompt = 3, completion = 15 }}\n\n\
             [agent.steady]\ncomponent = \"components/chat.wasm\"\nmodel = \"counted\"\n\
             tools = [\"ledger/*\", \"careful/note\", \"slow/lookup\"]\n\
             allow = [\"workspace-write: ledger.txt\", \"workspace-write: put/**\"]\n",
            self.provider.base_url()
        )
    }

    /// A run begins; those before it have ended.
    pub(super) fn begin(&self, run: &str) {
        *self.served() = Served { run: run.to_owned(), asked: Vec::new() };
    }

    /// The answers that the run asked for, each by its place in the run.
    pub(super) fn asked(&self) -> Vec<usize> {
        self.served().asked.clone()
    }

    fn served(&self) -> std::sync::MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of the answer that a request wants, told by the last message that it shows.
fn place(asked: &Asked) -> Option<usize> {
    let messages = asked.body["messages"].as_array()?;
    let last = messages.last()?;
    if last["role"] == "tool" {
        let call = last["tool_call_id"].as_str()?;
        let round = call.strip_prefix('s').and_then(|round| round.parse::<usize>().ok());
        return round.map(|round| 2 * round - 1).or((call == "d").then_some(ANSWERS - 1));
    }
    let said = messages.iter().rev().find(|message| message["role"] == "assistant");
    let Some(said) = said else { return Some(0) };
    let round = said["content"].as_str()?.strip_prefix("round ")?.parse::<usize>().ok()?;
    Some(2 * round)
}

/// In each round a text that is kept, two that are noted, and some time; then its last words.
fn reply(run: &str, place: usize) -> Reply {
    let round = place / 2 + 1;
    let text = |kind: &str| json!({ "text": format!("{run}.{round}.{kind}") });
    let slow = json!({ "sleep_ms": SLOW_MS, "result": "x".repeat(RESULT_BYTES) });
    if place == ANSWERS - 1 {
        return said(place, "all of it", &[]);
    }
    if place == ANSWERS - 2 {
        let done = json!({ "detail": "thirty rounds" });
        return said(place, "That is it.", &[("d".to_owned(), "report_done", done)]);
    }
    if place % 2 == 1 {
        return said(place, &format!("round {round}"), &[]);
    }
    let calls = [
        (format!("p{round}"), "ledger__put", text("put")),
        (format!("n{round}"), "ledger__note", text("note")),
        (format!("a{round}"), "careful__note", text("ask")),
        (format!("s{round}"), "slow__lookup", slow),
    ];
    said(place, "I keep it.", &calls)
}

/// An answer in pieces: its text in two of them, its calls, and its end with the tokens.
fn said(place: usize, text: &str, calls: &[(String, &str, Value)]) -> Reply {
    let piece = |delta: &Value| json!({ "choices": [{ "index": 0, "delta": delta }] });
    let (first, second) = text.split_at(text.len() / 2);
    let mut events =
        vec![piece(&json!({ "content": first })), piece(&json!({ "content": second }))];
    for (index, (id, name, args)) in calls.iter().enumerate() {
        let function = json!({ "name": name, "arguments": args.to_string() });
        let call = json!({ "index": index, "id": id, "type": "function", "function": function });
        events.push(piece(&json!({ "tool_calls": [call] })));
    }
    let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
    events.push(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }));
    let (prompt, completion) = (10 + place, 5);
    events.push(json!({ "choices": [], "usage": { "prompt_tokens": prompt,
        "completion_tokens": completion, "total_tokens": prompt + completion } }));
    Reply::events(&events).paced(PACE)
}
