//! The stream of a provider's answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use taskrun::scope::model::ModelStream;
use taskrun_journal::completion::{Chunk, ModelError};
use taskrun_journal::time::Clock;

use super::http::{ResponseStart, within};
use crate::wire::Decoder;
use crate::wire::draft::Draft;
use crate::wire::sse::Events;

/// Bounds on what is left of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// True if it comes piece by piece, as events.
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
    first: Option<Bytes>,
    events: Events,
    /// Of an answer that comes as a whole.
    whole: Vec<u8>,
    decoder: Box<dyn Decoder>,
    draft: Draft,
    clock: Arc<dyn Clock>,
    bounds: Bounds,
    bytes: u64,
    error: Option<ModelError>,
}

/// The chunks of an answer.
pub(super) fn read(
    begun: ResponseStart,
    decoder: Box<dyn Decoder>,
    draft: Draft,
    clock: Arc<dyn Clock>,
    bounds: Bounds,
) -> ModelStream {
    let reading = AnswerReader {
        response: Some(begun.response),
        first: begun.first,
        events: Events::default(),
        whole: Vec::new(),
        decoder,
        draft,
        clock,
        bounds,
        bytes: 0,
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
                self.draft.abort();
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
        if !self.bounds.in_pieces {
            self.whole.extend_from_slice(&bytes);
            return Ok(());
        }
        self.events.push(&bytes);
        while let Some(data) = self.events.next() {
            self.decoder.piece(&data, &mut self.draft)?;
            if self.draft.is_stopped() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, ModelError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
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
