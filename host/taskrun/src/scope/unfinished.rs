//! Tokens of models' answers that are given up before they are told: canceled, overtaken by a
//! limit, or not read to their end. The provider counts them all the same.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures::{Stream, StreamExt};
use taskrun_journal::completion::{Chunk, ModelError};
use taskrun_journal::message::Usage;
use taskrun_journal::money::Price;

use super::model::ModelStream;

/// Bytes that make a token where nobody counts: about right for English text.
const BYTES_PER_TOKEN: u64 = 4;

/// The sum over all unfinished answers of a call. Clones are the same one.
#[derive(Clone, Default)]
pub(super) struct UnfinishedUsage(Arc<Mutex<Usage>>);

impl UnfinishedUsage {
    /// The estimated tokens so far, which are taken out.
    pub(super) fn take(&self) -> Usage {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A holder of tokens that are counted and told to nobody yet.
    pub(super) fn holder(&self) -> UntoldUsage {
        UntoldUsage { sum: self.clone(), told: VecDeque::new() }
    }

    fn add(&self, usage: Usage) {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *sum = sum.plus(usage);
    }

    /// Opens the bill of a question of so many bytes.
    pub(super) fn bill(&self, question_bytes: usize, price: Option<Price>) -> Bill {
        let sum = self.clone();
        Bill { sum, price, read_bytes: question_bytes as u64, said_bytes: 0, is_open: true }
    }
}

/// Bytes that went to a model and came back and of which no count was told. Dropped while it is
/// open, they count as an estimate of tokens.
pub(super) struct Bill {
    sum: UnfinishedUsage,
    price: Option<Price>,
    read_bytes: u64,
    said_bytes: u64,
    is_open: bool,
}

impl Bill {
    /// Nothing more comes of the question, and what it took was told.
    pub(super) fn close(&mut self) {
        self.is_open = false;
    }

    fn count(&mut self, next: Option<&Result<Chunk, ModelError>>) {
        match next {
            Some(Ok(Chunk::Usage(_))) => (self.read_bytes, self.said_bytes) = (0, 0),
            Some(Ok(Chunk::Text(text))) => self.said_bytes += text.len() as u64,
            Some(Ok(Chunk::Thinking(block))) => self.said_bytes += block.bytes() as u64,
            Some(Ok(Chunk::ToolCallDelta { delta, .. })) => self.said_bytes += delta.len() as u64,
            Some(Ok(Chunk::ToolCall(_))) => {}
            Some(Ok(Chunk::Stop { .. }) | Err(_)) | None => self.close(),
        }
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let prompt_tokens = self.read_bytes.div_ceil(BYTES_PER_TOKEN);
        let completion_tokens = self.said_bytes.div_ceil(BYTES_PER_TOKEN);
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        if total_tokens == 0 {
            return;
        }
        let usage = Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens,
            estimated: true,
            ..Usage::default()
        };
        let usage = self.price.map_or(usage, |price| price.applied(usage));
        self.sum.add(usage);
    }
}

/// Tokens that a provider counted, of answers that are waited for as a whole. Dropped with them, they
/// count as those of an unfinished answer.
pub(super) struct UntoldUsage {
    sum: UnfinishedUsage,
    /// As the provider told them, the earliest first.
    told: VecDeque<Usage>,
}

impl UntoldUsage {
    /// Holds the tokens of a chunk.
    pub(super) fn hold(&mut self, chunk: &Chunk) {
        if let Chunk::Usage(usage) = chunk {
            self.told.push_back(*usage);
        }
    }

    /// A chunk is handed on, and with it its tokens: of all chunks that are, in their order.
    pub(super) fn release(&mut self, chunk: &Chunk) {
        if matches!(chunk, Chunk::Usage(_)) {
            self.told.pop_front();
        }
    }
}

impl Drop for UntoldUsage {
    fn drop(&mut self) {
        let untold = self.told.iter().fold(Usage::default(), |sum, usage| sum.plus(*usage));
        if untold != Usage::default() {
            self.sum.add(untold);
        }
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
