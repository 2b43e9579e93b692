//! Answers of models that a guest reads in parts.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;

use futures::{FutureExt, StreamExt};
use taskrun_journal::completion::{Chunk, CompletionBuilder, CompletionRequest, ModelError};
use taskrun_journal::event::{HostAnswer, ModelAnswer};

use super::CallScope;
use super::ask::{Question, QuestionKey};
use super::model::ModelStream;
use super::open_question::{Cause, OpenQuestion, is_said};

/// A model's answer on its way to a guest. Dropping it cancels the provider's request.
pub struct AnswerStream {
    key: QuestionKey,
    source: Source,
    collected: CompletionBuilder,
    /// The chunks that were handed over, as far as they are to be recorded.
    batches: Vec<Vec<Chunk>>,
    /// The error that ended it, where that is not handed over yet.
    error: Option<ModelError>,
    ended: bool,
    /// The question, as long as nothing was said in answer to it.
    question: Option<Box<OpenQuestion>>,
}

enum Source {
    Live(ModelStream),
    Recorded(VecDeque<Vec<Chunk>>),
}

impl CallScope {
    /// Asks a model. Read the answer with [`Self::next_chunks`], which accounts for it.
    ///
    /// # Errors
    /// [`ModelError::Denied`] if no rule allows the model, [`ModelError::Budget`] if no tokens
    /// are left, [`ModelError::Canceled`] if the run is being stopped, or the provider's.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the provider's request.
    pub async fn stream(&self, mut request: CompletionRequest) -> Result<AnswerStream, ModelError> {
        let model = request.admit(self)?;
        let (key, recorded) = self.number(&mut request, Some(model.name.clone())).await?;
        let mut question = None;
        let (source, error) = match recorded {
            None => {
                let open = OpenQuestion::new(request.clone(), model.clone(), key.call);
                question = Some(Box::new(open));
                let waits = self.waits_for_model();
                let opened = self.open_formed(request, model, key.call);
                let mut opened = self.unless_stopped(opened).await?;
                loop {
                    let cause = opened.as_ref().err().and_then(Cause::of_error);
                    let again = cause.and_then(|cause| self.ask_again(&mut question, cause));
                    let Some(again) = again else { break };
                    opened = self.unless_stopped(again).await?;
                }
                drop(waits);
                match opened {
                    Ok(stream) => {
                        self.wait_ends(key.call).await;
                        (Source::Live(stream), None)
                    }
                    Err(error) => {
                        let answer = HostAnswer::Model(ModelAnswer::Error(error.clone()));
                        self.keep_answer(&key, answer).await?;
                        return Err(self.noted(error));
                    }
                }
            }
            Some(answer) => self.recorded_parts(answer)?,
        };
        let collected = CompletionBuilder::default();
        let batches = Vec::new();
        Ok(AnswerStream { key, source, collected, batches, error, ended: false, question })
    }

    /// Puts a question again; `None` where that is not to be done.
    fn ask_again<'a>(
        &'a self,
        question: &mut Option<Box<OpenQuestion>>,
        cause: Cause,
    ) -> Option<impl Future<Output = Result<ModelStream, ModelError>> + Send + use<'a>> {
        let open = question.as_deref_mut()?;
        let again = self.put_again(open, cause)?;
        Some(self.open_formed(again, open.model.clone(), open.call))
    }

    /// The answer of the tape to a question for a stream, and the error that ends it.
    fn recorded_parts(
        &self,
        answer: HostAnswer,
    ) -> Result<(Source, Option<ModelError>), ModelError> {
        let other = |given: &dyn fmt::Debug| {
            Err(self.diverged(&format!("{given:?}"), "a question for a stream").into())
        };
        let HostAnswer::Model(answer) = answer else { return other(&answer) };
        match answer {
            ModelAnswer::Parts(batches) => Ok((Source::Recorded(batches.into()), None)),
            ModelAnswer::Broken(batches, error) => {
                Ok((Source::Recorded(batches.into()), Some(error)))
            }
            ModelAnswer::Error(error) => Err(self.noted(error)),
            ModelAnswer::Whole(_) => other(&answer),
        }
    }

    /// The next chunks of a model's answer: waits for one, and takes what else is there, at most
    /// `max`. Empty at the end.
    ///
    /// # Errors
    /// The provider's, and [`ModelError::CutOff`] if the answer ends without its last chunk.
    /// Nothing follows an error.
    pub async fn next_chunks(
        &self,
        answer: &mut AnswerStream,
        max: usize,
    ) -> Result<Vec<Chunk>, ModelError> {
        if answer.ended {
            return Ok(Vec::new());
        }
        let batch = match &mut answer.source {
            Source::Recorded(batches) => batches.pop_front().unwrap_or_default(),
            Source::Live(_) if answer.error.is_some() => Vec::new(),
            Source::Live(_) => self.live_batch(answer, max.max(1)).await,
        };
        // Chunks that came before an error are handed over before it.
        let error = if batch.is_empty() { answer.error.take() } else { None };
        for chunk in &batch {
            self.account(chunk);
            if let Some(completion) = answer.collected.push(chunk.clone()) {
                self.open().answer = Some(completion.message);
                answer.ended = true;
            }
        }
        let live = matches!(answer.source, Source::Live(_));
        if live && !batch.is_empty() {
            answer.batches.push(batch.clone());
        }
        answer.ended |= error.is_some() || (!live && batch.is_empty());
        if live && answer.ended {
            let batches = std::mem::take(&mut answer.batches);
            let kept = match &error {
                Some(error) => ModelAnswer::Broken(batches, error.clone()),
                None => ModelAnswer::Parts(batches),
            };
            self.keep_answer(&answer.key, HostAnswer::Model(kept)).await?;
        }
        match error {
            Some(error) => Err(self.noted(error)),
            None => Ok(batch),
        }
    }

    /// The next batch of a live answer. Where one ends of which nothing came, the question is put
    /// again, and what comes of that follows.
    async fn live_batch(&self, answer: &mut AnswerStream, max: usize) -> Vec<Chunk> {
        // Of an answer that comes in parts the first is waited for.
        let first = answer.batches.is_empty();
        if first {
            self.wait_begins(answer.key.call);
        }
        let batch = loop {
            let Source::Live(stream) = &mut answer.source else { return Vec::new() };
            let (mut batch, mut error) = self.batch(stream, max).await;
            if batch.iter().any(is_said) {
                answer.question = None;
            }
            let mut cause = match (batch.last(), &error) {
                (Some(Chunk::Stop { reason, .. }), _) => Cause::of_stop(reason),
                (_, Some(error)) => Cause::of_error(error),
                (_, None) => None,
            };
            while let Some(again) =
                cause.and_then(|cause| self.ask_again(&mut answer.question, cause))
            {
                batch.retain(|chunk| !matches!(chunk, Chunk::Stop { .. }));
                let waits = self.waits_for_model();
                error = match self.unless_stopped(again).await {
                    Ok(Ok(stream)) => {
                        answer.source = Source::Live(stream);
                        None
                    }
                    Ok(Err(error)) => Some(error),
                    Err(stopped) => Some(stopped.into()),
                };
                drop(waits);
                cause = error.as_ref().and_then(Cause::of_error);
            }
            if !batch.is_empty() || error.is_some() {
                answer.error = error;
                break batch;
            }
        };
        if first && !batch.is_empty() {
            self.wait_ends(answer.key.call).await;
        }
        batch
    }

    /// One batch of a live answer, and the error that ended it.
    async fn batch(
        &self,
        stream: &mut ModelStream,
        max: usize,
    ) -> (Vec<Chunk>, Option<ModelError>) {
        let waits = self.waits_for_model();
        let first = tokio::select! {
            biased;
            () = self.parts.stop.asked() => return (Vec::new(), Some(ModelError::Canceled)),
            first = stream.next() => first,
        };
        drop(waits);
        let mut batch = Vec::new();
        let mut next = first;
        loop {
            match next {
                Some(Ok(chunk)) => {
                    let last = matches!(chunk, Chunk::Stop { .. });
                    batch.push(chunk);
                    if last || batch.len() >= max {
                        return (batch, None);
                    }
                }
                Some(Err(error)) => return (batch, Some(error)),
                None => return (batch, Some(ModelError::CutOff)),
            }
            next = match stream.next().now_or_never() {
                Some(next) => next,
                None => return (batch, None),
            };
        }
    }

    /// Takes note that a guest reads no more of an answer, so that it is given as much if its step
    /// runs again.
    pub fn abandon(&self, answer: AnswerStream) {
        if answer.ended || !matches!(answer.source, Source::Live(_)) || !self.is_journalled() {
            return;
        }
        let read = HostAnswer::Model(ModelAnswer::Parts(answer.batches));
        drop(self.keep(answer.key.answered(read)));
    }
}
