//! Asking models, through the tape and the journal.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use taskrun_journal::completion::{
    Chunk, Completion, CompletionBuilder, CompletionRequest, ModelError,
};
use taskrun_journal::event::{Event, ModelAnswer};
use taskrun_journal::message::Message;
use taskrun_journal::money::Price;
use taskrun_journal::stop::StopCause;
use taskrun_journal::tool::ToolSpec;

use super::CallScope;
use super::digest::digest;
use super::model::ModelStream;
use super::tape::{Answered, Found, Tape};
use super::unfinished::Billed;

/// A model's answer on its way to a guest. Dropping it cancels the provider's request.
pub struct Answering {
    call: u32,
    request: String,
    source: Source,
    collected: CompletionBuilder,
    /// What was handed over, as far as it is to be recorded.
    batches: Vec<Vec<Chunk>>,
    /// What ended it, where that is not handed over yet.
    error: Option<ModelError>,
    ended: bool,
}

enum Source {
    Live(ModelStream),
    Recorded(VecDeque<Vec<Chunk>>),
}

/// What answers a question.
enum Opened {
    Live(ModelStream),
    Recorded(ModelAnswer),
}

impl CallScope {
    /// Asks a model and waits for the whole answer.
    ///
    /// # Errors
    /// Those of [`Self::stream`] and of the stream.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the provider's request.
    pub async fn complete(&self, request: CompletionRequest) -> Result<Completion, ModelError> {
        let (call, digest, opened) = self.ask(request).await?;
        let mut spent = Vec::new();
        let answer = match opened {
            Opened::Recorded(ModelAnswer::Whole(completion)) => {
                self.account_whole(&completion);
                return Ok(*completion);
            }
            Opened::Recorded(ModelAnswer::Error(error)) => return Err(error),
            Opened::Recorded(ModelAnswer::Broken(batches, error)) if is_only_usage(&batches) => {
                batches.iter().flatten().for_each(|chunk| self.account(chunk));
                return Err(error);
            }
            Opened::Recorded(other @ (ModelAnswer::Parts(_) | ModelAnswer::Broken(..))) => {
                return Err(self.diverged(&format!("{other:?}"), "a question for a whole answer"));
            }
            Opened::Live(stream) => self.collect(stream, &mut spent).await,
        };
        let kept = match &answer {
            Ok(completion) => ModelAnswer::Whole(Box::new(completion.clone())),
            Err(error) if spent.is_empty() => ModelAnswer::Error(error.clone()),
            // Of an answer that broke the tokens are kept: they count against the budget.
            Err(error) => ModelAnswer::Broken(vec![spent], error.clone()),
        };
        self.keep_answer(call, digest, kept).await?;
        answer
    }

    /// Waits for a whole answer; `spent` are the tokens that were told on the way.
    async fn collect(
        &self,
        mut stream: ModelStream,
        spent: &mut Vec<Chunk>,
    ) -> Result<Completion, ModelError> {
        let mut collected = CompletionBuilder::default();
        loop {
            let chunk = tokio::select! {
                biased;
                () = self.parts.stop.asked() => return Err(ModelError::Canceled),
                chunk = stream.next() => chunk,
            };
            let Some(chunk) = chunk else {
                return Err(ModelError::CutOff);
            };
            let chunk = chunk?;
            self.account(&chunk);
            if let Chunk::Usage(_) = chunk {
                spent.push(chunk.clone());
            }
            if let Some(done) = collected.push(chunk) {
                self.open().answer = Some(done.message.clone());
                return Ok(done);
            }
        }
    }

    /// Asks a model. Read the answer with [`Self::next_chunks`], which accounts for it.
    ///
    /// # Errors
    /// [`ModelError::Denied`] if no rule allows the model, [`ModelError::Budget`] if no tokens
    /// are left, [`ModelError::Canceled`] if the run is being stopped, or the provider's.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the provider's request.
    pub async fn stream(&self, request: CompletionRequest) -> Result<Answering, ModelError> {
        let asked = self.ask(request).await;
        let (call, request, opened) = asked?;
        let (source, error) = match opened {
            Opened::Live(stream) => {
                self.wait_ends(call).await;
                (Source::Live(stream), None)
            }
            Opened::Recorded(ModelAnswer::Parts(batches)) => {
                (Source::Recorded(batches.into()), None)
            }
            Opened::Recorded(ModelAnswer::Broken(batches, error)) => {
                (Source::Recorded(batches.into()), Some(error))
            }
            Opened::Recorded(ModelAnswer::Error(error)) => return Err(error),
            Opened::Recorded(other @ ModelAnswer::Whole(_)) => {
                return Err(self.diverged(&format!("{other:?}"), "a question for a stream"));
            }
        };
        let collected = CompletionBuilder::default();
        let batches = Vec::new();
        Ok(Answering { call, request, source, collected, batches, error, ended: false })
    }

    /// The next chunks of a model's answer: waits for one, and takes what else is there, at most
    /// `max`. Empty at the end.
    ///
    /// # Errors
    /// The provider's, and [`ModelError::CutOff`] if the answer ends without its last chunk.
    /// Nothing follows an error.
    pub async fn next_chunks(
        &self,
        answer: &mut Answering,
        max: usize,
    ) -> Result<Vec<Chunk>, ModelError> {
        if answer.ended {
            return Ok(Vec::new());
        }
        let batch = match &mut answer.source {
            Source::Recorded(batches) => batches.pop_front().unwrap_or_default(),
            Source::Live(_) if answer.error.is_some() => Vec::new(),
            Source::Live(stream) => {
                // Of an answer that comes in parts the first is waited for.
                let first = answer.batches.is_empty();
                if first {
                    self.wait_begins(answer.call);
                }
                let (batch, error) = self.batch(stream, max.max(1)).await;
                if first && !batch.is_empty() {
                    self.wait_ends(answer.call).await;
                }
                answer.error = error;
                batch
            }
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
            self.keep_answer(answer.call, answer.request.clone(), kept).await?;
        }
        match error {
            Some(error) => Err(error),
            None => Ok(batch),
        }
    }

    /// One batch of a live answer, and the error that ended it.
    async fn batch(
        &self,
        stream: &mut ModelStream,
        max: usize,
    ) -> (Vec<Chunk>, Option<ModelError>) {
        let first = tokio::select! {
            biased;
            () = self.parts.stop.asked() => return (Vec::new(), Some(ModelError::Canceled)),
            first = stream.next() => first,
        };
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
    pub fn abandon(&self, answer: Answering) {
        if answer.ended || !matches!(answer.source, Source::Live(_)) || !self.is_journalled() {
            return;
        }
        let Answering { call, request, batches, .. } = answer;
        let answer = ModelAnswer::Parts(batches);
        drop(self.keep(Event::ModelAnswered { call, request, answer }));
    }

    /// Checks a question, and finds who answers it.
    async fn ask(&self, request: CompletionRequest) -> Result<(u32, String, Opened), ModelError> {
        let models = self.parts.models.as_ref();
        let models = models.ok_or_else(|| ModelError::Denied("tools have no models".to_owned()))?;
        let (model, price) = models.choose(request.model.as_deref(), self.rules())?;
        let model = Arc::clone(model);
        let digest = digest(&request).await;
        let (call, recorded) = self.recorded_answer(&digest).ok_or(ModelError::Canceled)?;
        match recorded {
            Some(Answered::Model(answer)) => {
                return Ok((call, digest, Opened::Recorded(answer)));
            }
            Some(other @ (Answered::Controller(_) | Answered::Memory(_))) => {
                self.diverged(&format!("{other:?}"), "a question to a model");
                return Err(ModelError::Canceled);
            }
            None => {}
        }
        // What is left depends on what others spend meanwhile, so a refusal is on the tape too.
        let used = self.open().usage.unwrap_or_default();
        if let Some(missing) = self.parts.remaining.missing(used) {
            let error = ModelError::Budget(missing.to_owned());
            self.keep_answer(call, digest, ModelAnswer::Error(error.clone())).await?;
            return Err(error);
        }
        if self.parts.stop.is_asked() {
            return Err(ModelError::Canceled);
        }
        let mut bill = self.unfinished.bill(question_bytes(&request), price);
        self.wait_begins(call);
        let opened = tokio::select! {
            biased;
            () = self.parts.stop.asked() => return Err(ModelError::Canceled),
            stream = model.stream(request) => stream,
        };
        match opened {
            Ok(stream) => {
                let billed = Billed { stream: priced(stream, price), bill };
                Ok((call, digest, Opened::Live(billed.boxed())))
            }
            Err(error) => {
                bill.close();
                self.keep_answer(call, digest, ModelAnswer::Error(error.clone())).await?;
                Err(error)
            }
        }
    }

    /// Takes note that the step waits for a model. It goes into the journal with whatever is written
    /// next, and not at all if the answer is there before.
    fn wait_begins(&self, call: u32) {
        if self.is_journalled() {
            self.open().events.push(Event::ModelWait { call, over: false });
            self.parts.wake.notify_one();
        }
    }

    /// Takes note that the guest goes on, and returns when that is durable: a run that ends its host
    /// then is not to be found waiting.
    async fn wait_ends(&self, call: u32) {
        if self.is_journalled() && !self.forget_wait(call) {
            let over = self.record_durably(Event::ModelWait { call, over: true });
            tokio::select! {
                biased;
                () = self.parts.stop.asked() => {}
                () = over => {}
            }
        }
    }

    /// Takes back that the step waits, where that is not written yet; says whether it was not.
    fn forget_wait(&self, call: u32) -> bool {
        let wait = Event::ModelWait { call, over: false };
        let mut open = self.open();
        let before = open.events.len();
        open.events.retain(|event| *event != wait);
        open.events.len() < before
    }

    /// The number of the next question, and its recorded answer. Where there is none, the step was
    /// cut off here: what came after it on the tape is void. `None` for a step that asks something
    /// else than before, which is stopped.
    pub(super) fn recorded_answer(&self, digest: &str) -> Option<(u32, Option<Answered>)> {
        let mut open = self.open();
        let call = open.questions;
        open.questions += 1;
        match open.tape.as_mut().map_or(Found::Nothing, |tape| tape.answer(call, digest)) {
            Found::Answer(answer) => Some((call, Some(answer))),
            Found::Nothing => {
                if open.tape.as_mut().is_some_and(Tape::cut) {
                    open.restart(self.parts.context.turn);
                }
                Some((call, None))
            }
            Found::Other(known) => {
                drop(open);
                self.diverged(&known, &format!("another question, {digest}"));
                None
            }
        }
    }

    /// Records an answer and returns when that is durable: what was paid for is not to be asked
    /// again.
    async fn keep_answer(
        &self,
        call: u32,
        request: String,
        answer: ModelAnswer,
    ) -> Result<(), ModelError> {
        let canceled = matches!(
            &answer,
            ModelAnswer::Error(ModelError::Canceled) | ModelAnswer::Broken(_, ModelError::Canceled)
        );
        if canceled || !self.is_journalled() {
            return Ok(());
        }
        self.forget_wait(call);
        let durable = self.record_durably(Event::ModelAnswered { call, request, answer });
        tokio::select! {
            biased;
            () = self.parts.stop.asked() => Err(ModelError::Canceled),
            () = durable => Ok(()),
        }
    }

    fn account(&self, chunk: &Chunk) {
        match chunk {
            Chunk::Usage(usage) => self.spend(*usage),
            Chunk::Stop { model, .. } => self.open().model = Some(model.clone()),
            Chunk::Text(_)
            | Chunk::Thinking(_)
            | Chunk::ToolCallDelta { .. }
            | Chunk::ToolCall(_) => {}
        }
    }

    fn account_whole(&self, completion: &Completion) {
        self.spend(completion.usage);
        let mut open = self.open();
        open.model = Some(completion.model.clone());
        open.answer = Some(completion.message.clone());
    }

    /// Stops a step that does something else than when it ran before.
    pub(super) fn diverged(&self, recorded: &str, found: &str) -> ModelError {
        let mut open = self.open();
        if open.divergence.is_none() {
            open.divergence = Some((recorded.to_owned(), found.to_owned()));
        }
        drop(open);
        self.parts.stop.force(StopCause::Diverged);
        ModelError::Canceled
    }
}

/// The same answer, with the cost of what is consumed for it.
fn priced(stream: ModelStream, price: Option<Price>) -> ModelStream {
    let Some(price) = price else { return stream };
    let with_cost = move |chunk| match chunk {
        Ok(Chunk::Usage(usage)) => Ok(Chunk::Usage(price.applied(usage))),
        other @ (Ok(
            Chunk::Text(_)
            | Chunk::Thinking(_)
            | Chunk::ToolCallDelta { .. }
            | Chunk::ToolCall(_)
            | Chunk::Stop { .. },
        )
        | Err(_)) => other,
    };
    stream.map(with_cost).boxed()
}

fn is_only_usage(batches: &[Vec<Chunk>]) -> bool {
    batches.iter().flatten().all(|chunk| matches!(chunk, Chunk::Usage(_)))
}

/// Bytes of what a model is to read.
fn question_bytes(request: &CompletionRequest) -> usize {
    let tool = |tool: &ToolSpec| tool.name.len() + tool.description.len() + tool.input_schema.len();
    request.messages.iter().map(Message::bytes).sum::<usize>()
        + request.tools.iter().map(tool).sum::<usize>()
}
