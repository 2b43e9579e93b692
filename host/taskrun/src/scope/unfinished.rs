//! Tokens of models' answers that are given up before they are told: canceled, overtaken by a
//! limit, or not read to their end. The provider counts them all the same.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use futures::{Stream, StreamExt};
use taskrun_journal::completion::{Chunk, ModelError};
use taskrun_journal::message::Usage;
use taskrun_journal::money::Price;

use super::model::ModelStream;

/// Bytes that make a token where nobody counts: about right for English text.
const BYTES_PER_TOKEN: u64 = 4;

/// The tokens of so many bytes, as an estimate.
pub(super) fn estimated_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// The sum over all unfinished answers of a call. Clones are the same one.
#[derive(Clone, Default)]
pub(super) struct UnfinishedUsage(Arc<Mutex<Ledger>>);

/// The tokens of answers that are told to nobody yet.
#[derive(Default)]
struct Ledger {
    /// Those of answers that were given up.
    given_up: Usage,
    /// Those of answers that are open, by their numbers.
    open: BTreeMap<u64, Usage>,
    /// The answers that were opened so far.
    opened: u64,
}

impl Ledger {
    fn sum(&self) -> Usage {
        self.open.values().fold(self.given_up, |sum, usage| sum.plus(*usage))
    }
}

impl UnfinishedUsage {
    /// The tokens so far, which are taken out. Nothing more is counted of answers that are open.
    pub(super) fn take(&self) -> Usage {
        let mut ledger = self.ledger();
        let taken = ledger.sum();
        ledger.given_up = Usage::default();
        ledger.open.clear();
        taken
    }

    /// The tokens so far, which stay: those of answers that were given up, and of open ones what went
    /// to the model and was read.
    pub(super) fn so_far(&self) -> Usage {
        self.ledger().sum()
    }

    /// A holder of tokens that are counted and told to nobody yet.
    pub(super) fn holder(&self) -> UntoldUsage {
        UntoldUsage { tokens: self.open(), told: VecDeque::new() }
    }

    /// Opens the bill of a question of so many bytes.
    pub(super) fn bill(&self, read_bytes: u64, price: Option<Price>) -> Bill {
        let tokens = self.open();
        let bill = Bill { tokens, price, read_bytes, said_bytes: 0 };
        bill.update();
        bill
    }

    fn open(&self) -> OpenUsage {
        let mut ledger = self.ledger();
        let number = ledger.opened;
        ledger.opened += 1;
        ledger.open.insert(number, Usage::default());
        OpenUsage { sum: self.clone(), number }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tokens of one open answer. Dropped with it, they count as those of one that was given up.
struct OpenUsage {
    sum: UnfinishedUsage,
    number: u64,
}

impl OpenUsage {
    fn set(&self, usage: Usage) {
        if let Some(open) = self.sum.ledger().open.get_mut(&self.number) {
            *open = usage;
        }
    }
}

impl Drop for OpenUsage {
    fn drop(&mut self) {
        let mut ledger = self.sum.ledger();
        if let Some(usage) = ledger.open.remove(&self.number) {
            ledger.given_up = ledger.given_up.plus(usage);
        }
    }
}

/// Bytes that went to a model and came back and of which no count was told: they count as an
/// estimate of tokens.
pub(super) struct Bill {
    tokens: OpenUsage,
    price: Option<Price>,
    read_bytes: u64,
    said_bytes: u64,
}

impl Bill {
    /// Nothing more comes of the question, and what it took was told.
    pub(super) fn close(&mut self) {
        (self.read_bytes, self.said_bytes) = (0, 0);
        self.update();
    }

    fn count(&mut self, next: Option<&Result<Chunk, ModelError>>) {
        match next {
            Some(Ok(Chunk::Text(text))) => self.said_bytes += text.len() as u64,
            Some(Ok(Chunk::Thinking(block))) => self.said_bytes += block.bytes() as u64,
            Some(Ok(Chunk::ToolCallDelta { delta, .. })) => self.said_bytes += delta.len() as u64,
            Some(Ok(Chunk::ToolCall(_))) => {}
            Some(Ok(Chunk::Usage(_) | Chunk::Stop { .. }) | Err(_)) | None => {
                (self.read_bytes, self.said_bytes) = (0, 0);
            }
        }
        self.update();
    }

    fn update(&self) {
        self.tokens.set(self.estimate());
    }

    fn estimate(&self) -> Usage {
        let prompt_tokens = estimated_tokens(self.read_bytes);
        let completion_tokens = estimated_tokens(self.said_bytes);
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        if total_tokens == 0 {
            return Usage::default();
        }
        let usage = Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens,
            estimated: true,
            ..Usage::default()
        };
        self.price.map_or(usage, |price| price.applied(usage))
    }
}

/// Tokens that a provider counted, of answers that are waited for as a whole. Dropped with them, they
/// count as those of an unfinished answer.
pub(super) struct UntoldUsage {
    tokens: OpenUsage,
    /// As the provider told them, the earliest first.
    told: VecDeque<Usage>,
}

impl UntoldUsage {
    /// Holds the tokens of a chunk.
    pub(super) fn hold(&mut self, chunk: &Chunk) {
        if let Chunk::Usage(usage) = chunk {
            self.told.push_back(*usage);
            self.update();
        }
    }

    /// A chunk is handed on, and with it its tokens: of all chunks that are, in their order.
    pub(super) fn release(&mut self, chunk: &Chunk) {
        if matches!(chunk, Chunk::Usage(_)) {
            self.told.pop_front();
            self.update();
        }
    }

    fn update(&self) {
        self.tokens.set(self.told.iter().fold(Usage::default(), |sum, usage| sum.plus(*usage)));
    }
}

/// An answer with its bill.
pub(super) struct BilledStream {
    pub(super) stream: ModelStream,
    pub(super) bill: Bill,
}

impl Stream for BilledStream {
    type Item = Result<Chunk, ModelError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let next = ready!(this.stream.poll_next_unpin(context));
        this.bill.count(next.as_ref());
        Poll::Ready(next)
    }
}
