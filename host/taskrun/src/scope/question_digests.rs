//! Digests of questions to models. The questions of a run have a beginning in common, which grows
//! with each: it is hashed once.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use taskrun_journal::completion::{CompletionRequest, ToolChoice};
use taskrun_journal::message::Message;

use super::digest::{PIECE_BYTES, hex};

/// The digests of the questions of a run. Copies share what they know.
#[derive(Clone, Default)]
pub struct QuestionDigests(Arc<Mutex<Option<Beginning>>>);

/// The beginning of the text of a question, up to the last of some messages.
struct Beginning {
    /// The text before the first message.
    head: Vec<u8>,
    messages: Vec<Message>,
    hash: blake3::Hasher,
}

impl QuestionDigests {
    /// The digest of a question. The next one is taken to go on after its copy of `last`, which is
    /// about where this one was asked.
    pub(super) async fn digest(
        &self,
        request: &CompletionRequest,
        last: Option<&Message>,
    ) -> String {
        let (head, tail) = ends(request);
        let messages = &request.messages;
        let known = self.lock().take();
        let is_of = |one: &Beginning| one.head == head && messages.starts_with(&one.messages);
        let (mut beginning, other) = match known {
            Some(known) if is_of(&known) => (known, None),
            other => (Beginning::new(head), other),
        };
        let is_last = |one: &Message| last.is_some_and(|last| one.parts.is_copy_of(&last.parts));
        let shared = messages.iter().rposition(is_last).map_or(0, |place| place + 1);
        let from = beginning.messages.len();
        let shared = shared.max(from);

        let mut text = Text::new(beginning.hash);
        text.push_messages(&messages[from..shared], from).await;
        beginning.hash = text.hash().clone();
        beginning.messages.extend(messages[from..shared].iter().cloned());
        text.push_messages(&messages[shared..], shared).await;
        text.push(&tail).await;
        let digest = hex(text.hash());
        // One that has nothing in common with the next does not take the place of what has.
        let kept = other.filter(|_| beginning.messages.is_empty()).unwrap_or(beginning);
        *self.lock() = Some(kept);
        digest
    }

    fn lock(&self) -> MutexGuard<'_, Option<Beginning>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for QuestionDigests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuestionDigests").finish_non_exhaustive()
    }
}

impl Beginning {
    fn new(head: Vec<u8>) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(&head);
        Self { head, messages: Vec::new(), hash }
    }
}

/// A text that is hashed piece by piece, so that others have their turn.
struct Text {
    hash: blake3::Hasher,
    /// The end of it, which is not hashed yet.
    end: Vec<u8>,
}

impl Text {
    fn new(hash: blake3::Hasher) -> Self {
        Self { hash, end: Vec::new() }
    }

    /// Adds messages, the first of which has this place in its list.
    async fn push_messages(&mut self, messages: &[Message], first: usize) {
        for (place, message) in messages.iter().enumerate() {
            if first + place > 0 {
                self.end.push(b',');
            }
            write(&mut self.end, message);
            self.hash_pieces().await;
        }
    }

    async fn push(&mut self, text: &[u8]) {
        self.end.extend_from_slice(text);
        self.hash_pieces().await;
    }

    async fn hash_pieces(&mut self) {
        if self.end.len() < PIECE_BYTES {
            return;
        }
        for piece in self.end.chunks(PIECE_BYTES) {
            self.hash.update(piece);
            tokio::task::yield_now().await;
        }
        self.end.clear();
    }

    /// The hash of all of it.
    fn hash(&mut self) -> &blake3::Hasher {
        self.hash.update(&self.end);
        self.end.clear();
        &self.hash
    }
}

/// The text of a question before and after its messages, as
/// [`asked`](super::ask::Question::asked) has it.
fn ends(request: &CompletionRequest) -> (Vec<u8>, Vec<u8>) {
    let CompletionRequest {
        model,
        messages: _,
        tools: _,
        tool_choice,
        max_tokens,
        temperature,
        stop_sequences,
        response_schema,
        media: _,
        tokens_left: _,
    } = request;
    let choice = Some(tool_choice).filter(|choice| **choice != ToolChoice::Auto);
    let mut head = if choice.is_some() { b"[[".to_vec() } else { b"[".to_vec() };
    write(&mut head, model);
    head.extend_from_slice(b",[");
    let mut tail = b"],".to_vec();
    write(&mut tail, max_tokens);
    tail.push(b',');
    write(&mut tail, temperature);
    tail.push(b',');
    write(&mut tail, stop_sequences);
    tail.push(b',');
    write(&mut tail, response_schema);
    tail.push(b']');
    if let Some(choice) = choice {
        tail.push(b',');
        write(&mut tail, choice);
        tail.push(b']');
    }
    (head, tail)
}

fn write(text: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(text, value).expect("a question has text keys only");
}
