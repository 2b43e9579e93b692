//! The stream of a provider's answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use serde_json::Value;
use taskrun::byte_pool::PooledBytes;
use taskrun::scope::model::ModelStream;
use taskrun_journal::completion::{Chunk, ModelError};
use taskrun_journal::time::Clock;

use super::http::{ResponseStart, within};
use crate::key::Secret;
use crate::wire::Decoder;
use crate::wire::draft::Draft;
use crate::wire::error::{of_named_event, words};
use crate::wire::preamble::Preamble;
use crate::wire::sse::Events;

/// Most bytes kept of the beginning of a stream without an event: more than an error shows.
const BEGINNING_BYTES_MAX: usize = 4 << 10;
/// The name of events that are errors, in each protocol that names its events.
const ERROR_EVENT: &str = "error";
/// The fields of an event.
const FIELDS: [&[u8]; 4] = [b"data", b"event", b"id", b"retry"];

/// Bounds on what is left of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// True if it was asked for piece by piece, as events.
    pub(super) in_pieces: bool,
    /// When, on the monotonic clock, it must be complete.
    pub(super) deadline: Duration,
    /// Longest wait for the next piece.
    pub(super) between: Duration,
    /// Most bytes of the answer.
    pub(super) bytes: u64,
}

/// An answer that is being read. Dropping it closes the connection.
struct AnswerReader {
    /// `None` when it is over, so that the connection is free or closed.
    response: Option<reqwest::Response>,
    first: Option<Result<Bytes, ModelError>>,
    /// Of an answer of which nothing has come yet.
    preamble: Option<Preamble>,
    events: Events,
    /// The beginning of a stream of which no event has come yet.
    beginning: Option<Vec<u8>>,
    /// Of an answer that comes as a whole.
    whole: Vec<u8>,
    decoder: Box<dyn Decoder>,
    draft: Draft,
    clock: Arc<dyn Clock>,
    bounds: Bounds,
    bytes: u64,
    /// The memory for answers that it takes.
    held: PooledBytes,
    key: Option<Secret>,
    error: Option<ModelError>,
}

/// The chunks of an answer.
pub(super) fn read(
    begun: ResponseStart,
    decoder: Box<dyn Decoder>,
    draft: Draft,
    clock: Arc<dyn Clock>,
    bounds: Bounds,
    held: PooledBytes,
) -> ModelStream {
    let reading = AnswerReader {
        response: Some(begun.response),
        first: begun.first,
        preamble: Some(Preamble::default()),
        events: Events::default(),
        beginning: Some(Vec::new()),
        whole: Vec::new(),
        decoder,
        draft,
        clock,
        bounds,
        bytes: 0,
        held,
        key: begun.key,
        error: None,
    };
    stream::unfold(reading, |mut reading| async move {
        let next = reading.next().await?;
        Some((next, reading))
    })
    .boxed()
}

impl AnswerReader {
    /// The next chunk; after the last one, or after an error, `None`.
    async fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        loop {
            if let Some(chunk) = self.draft.take() {
                return Some(Ok(chunk));
            }
            if let Some(error) = self.error.take() {
                return Some(Err(error));
            }
            self.response.as_ref()?;
            if let Err(error) = self.advance().await {
                self.draft.abort(&error);
                self.error = Some(error);
            }
            if self.error.is_some() || self.draft.is_stopped() {
                self.response = None;
            }
        }
    }

    /// Reads a piece and finds out what it says.
    async fn advance(&mut self) -> Result<(), ModelError> {
        let Some(bytes) = self.piece().await? else {
            return self.end();
        };
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > self.bounds.bytes {
            let limit = format!("it has more than {} bytes", self.bounds.bytes);
            return Err(ModelError::TooLarge(limit));
        }
        let room = self.held.grow(bytes.len() as u64);
        room.map_err(|full| ModelError::TooLarge(full.to_string()))?;
        let begun = match &mut self.preamble {
            Some(preamble) => preamble.strip(&bytes),
            None => Some(&bytes[..]),
        };
        if let Some(begun) = begun
            && self.preamble.take().is_some()
        {
            // No event begins so. Some servers answer in one piece whatever they are asked, above
            // all with an error.
            self.bounds.in_pieces &= !begun.starts_with(b"{");
        }
        if !self.bounds.in_pieces {
            self.whole.extend_from_slice(begun.unwrap_or_default());
            return Ok(());
        }
        if let Some(beginning) = &mut self.beginning {
            let (begun, room) = (begun.unwrap_or_default(), BEGINNING_BYTES_MAX - beginning.len());
            beginning.extend_from_slice(&begun[..begun.len().min(room)]);
        }
        self.events.push(&bytes);
        while let Some(event) = self.events.next() {
            self.beginning = None;
            if event.name == ERROR_EVENT {
                return Err(of_named_event(&event.data, self.key.as_ref()));
            }
            self.decoder.piece(&event.data, &mut self.draft)?;
            if self.draft.is_stopped() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, ModelError> {
        if let Some(first) = self.first.take() {
            return first.map(Some);
        }
        let Some(response) = &mut self.response else { return Ok(None) };
        let left = self.bounds.deadline.saturating_sub(self.clock.monotonic());
        let limit = self.bounds.between.min(left);
        match within(self.clock.as_ref(), limit, response.chunk()).await {
            Some(Ok(piece)) => Ok(piece),
            Some(Err(_)) => Err(ModelError::CutOff),
            None => Err(ModelError::Timeout),
        }
    }

    /// The body has ended.
    fn end(&mut self) -> Result<(), ModelError> {
        if self.bounds.in_pieces {
            let beginning = self.beginning.take().unwrap_or_default();
            if is_no_stream(&beginning) {
                return Err(no_events(&beginning, self.key.as_ref()));
            }
            // An event that is not whole counts for nothing, as the standard has it.
            if self.events.is_within_event() {
                tracing::debug!("the answer ends within an event");
            }
            self.decoder.end(&mut self.draft)?;
        } else {
            let whole = std::mem::take(&mut self.whole);
            self.decoder.whole(&whole, &mut self.draft)?;
        }
        if self.draft.is_stopped() { Ok(()) } else { Err(ModelError::CutOff) }
    }
}

/// True if a body begins as no stream of events does: it is that of another server, such as a page.
fn is_no_stream(beginning: &[u8]) -> bool {
    let name = beginning.split(|byte| matches!(byte, b':' | b'\n' | b'\r')).next();
    !beginning.is_empty() && name.is_some_and(|name| !FIELDS.contains(&name))
}

/// The error for a body that is no stream of events, in the words that it begins with.
fn no_events(beginning: &[u8], key: Option<&Secret>) -> ModelError {
    let is_whole = beginning.len() < BEGINNING_BYTES_MAX;
    // In a word that is cut off a key would not be found.
    let last = beginning.iter().rposition(u8::is_ascii_whitespace).unwrap_or(0);
    let shown = if is_whole { beginning } else { &beginning[..last] };
    let text = String::from_utf8_lossy(shown);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = words(&Value::String(line), key);
    let detail = said.map_or_else(String::new, |said| format!(": {said}"));
    ModelError::Malformed(format!("no events{detail}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use taskrun::byte_pool::BytePool;
    use taskrun::clock::{SeededRandom, SystemClock};
    use taskrun::scope::model::collect;
    use taskrun_journal::completion::{Completion, CompletionRequest};
    use taskrun_journal::media::MediaBytes;
    use taskrun_journal::message::{Message, Role};
    use taskrun_policy::{Policy, Provider};

    use super::super::{PreparedRequest, Remote};
    use super::*;
    use crate::wire::call_ids::CallIds;

    /// An answer of so many bytes of text, as it is read from its provider.
    fn answer(bytes: usize, in_pieces: bool, pool: &BytePool) -> ModelStream {
        let text = "[model.m]\nprovider = \"openai-chat\"\nmodel = \"m-1\"\n\
                    base_url = \"http://127.0.0.1:1/v1\"\n";
        let text = format!("{text}stream = {in_pieces}\n");
        let policy = Policy::parse(&text, Path::new("/conf/taskrun.toml")).unwrap();
        let model = &policy.models["m"];
        let Provider::Remote(remote) = &model.provider else { panic!("{model:?}") };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let random = Arc::new(SeededRandom::new(1));
        let asked = Remote::new(model, remote, Arc::clone(&clock), random).unwrap();
        let request = CompletionRequest {
            model: None,
            messages: vec![Message::text(Role::User, "hello")],
            tools: Vec::new(),
            max_tokens: None,
            temperature: None,
            tool_choice: taskrun_journal::completion::ToolChoice::Auto,
            stop_sequences: Vec::new(),
            response_schema: None,
            media: MediaBytes::default(),
            tokens_left: None,
        };
        let PreparedRequest { names, decoder, .. } = asked.prepare(&request).unwrap();
        let content = "x".repeat(bytes);
        let (from, to) = match in_pieces {
            true => ("data: ", "\n\ndata: [DONE]\n\n"),
            false => ("", ""),
        };
        let message = match in_pieces {
            true => "delta",
            false => "message",
        };
        let choice = serde_json::json!({
            "choices": [{ "index": 0, message: { "content": content }, "finish_reason": "stop" }],
        });
        let response = ::http::Response::new(format!("{from}{choice}{to}")).into();
        let begun = ResponseStart { response, first: None, key: None };
        let draft = Draft::new(names, CallIds::new(BTreeSet::new(), 1), "m-1".to_owned(), 10);
        let soon = Duration::from_secs(600);
        let deadline = clock.monotonic() + soon;
        let bounds = Bounds { in_pieces, deadline, between: soon, bytes: 64 << 20 };
        read(begun, decoder, draft, clock, bounds, pool.begin())
    }

    async fn collected(answer: ModelStream) -> Result<Completion, ModelError> {
        collect(answer).await
    }

    #[tokio::test]
    async fn answers_that_nobody_reads_on_leave_others_their_share() {
        for in_pieces in [true, false] {
            let pool = BytePool::new(1 << 20, 64 << 10);
            let mut held = answer(1 << 20, in_pieces, &pool);
            held.next().await.expect("a chunk").expect("an answer of the size of the pool");
            let refused = collected(answer(200 << 10, in_pieces, &pool)).await;
            let refused = refused.expect_err("there is no room for it");
            assert!(
                matches!(&refused, ModelError::TooLarge(why) if why.contains("too many bytes"))
            );
            collected(answer(60 << 10, in_pieces, &pool)).await.expect("within its share");
            drop(held);
            collected(answer(200 << 10, in_pieces, &pool)).await.expect("there is room again");
        }
    }
}
