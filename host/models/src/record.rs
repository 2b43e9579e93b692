//! A model whose answers are written down.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures::{Stream, StreamExt};
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, ModelError};

use crate::cassette::{CassetteError, Entry, Writer};

/// Passes questions and answers on and writes both into a cassette, each call when it ends.
pub(crate) struct Record {
    model: Arc<dyn Model>,
    writer: Arc<Writer>,
}

impl Record {
    /// Records the answers of `model`.
    ///
    /// # Errors
    /// If the cassette cannot be written to.
    pub(crate) fn new(model: Arc<dyn Model>, path: &Path) -> Result<Self, CassetteError> {
        Ok(Self { model, writer: Arc::new(Writer::new(path)?) })
    }
}

#[async_trait]
impl Model for Record {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let entry = Entry { request: request.clone(), responses: Vec::new(), error: None };
        let mut tape = Tape { writer: Arc::clone(&self.writer), entry: Some(entry) };
        match self.model.stream(request).await {
            Ok(stream) => Ok(RecordedStream { stream, tape }.boxed()),
            Err(error) => {
                tape.end(Some(error.clone()));
                Err(error)
            }
        }
    }
}

/// The entry of one call; written when the call ends or its rest is not wanted.
struct Tape {
    writer: Arc<Writer>,
    entry: Option<Entry>,
}

impl Tape {
    fn end(&mut self, error: Option<ModelError>) {
        if let Some(mut entry) = self.entry.take() {
            entry.error = error;
            self.writer.add(&entry);
        }
    }

    fn take_note(&mut self, item: Option<&Result<Chunk, ModelError>>) {
        match item {
            Some(Ok(chunk)) => {
                let last = matches!(chunk, Chunk::Stop { .. });
                if let Some(entry) = &mut self.entry {
                    entry.responses.push(chunk.clone());
                }
                if last {
                    self.end(None);
                }
            }
            Some(Err(error)) => self.end(Some(error.clone())),
            None => self.end(Some(ModelError::CutOff)),
        }
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        self.end(Some(ModelError::Canceled));
    }
}

struct RecordedStream {
    stream: ModelStream,
    tape: Tape,
}

impl Stream for RecordedStream {
    type Item = Result<Chunk, ModelError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let next = self.stream.poll_next_unpin(context);
        if let std::task::Poll::Ready(item) = &next {
            self.tape.take_note(item.as_ref());
        }
        next
    }
}
