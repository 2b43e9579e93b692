//! Questions to models: one that waits for the whole answer, and the opening of every answer.

use futures::StreamExt;
use serde::Serialize;
use taskrun_journal::completion::{
    Chunk, Completion, CompletionBuilder, CompletionRequest, CompletionStop, ModelError, ToolChoice,
};
use taskrun_journal::event::{Event, HostAnswer, ModelAnswer};
use taskrun_journal::message::Usage;
use taskrun_journal::money::Price;

use super::CallScope;
use super::ask::{Misfit, Origin, Question};
use super::model::{ChosenModel, ModelStream};
use super::open_question::{Cause, OpenQuestion};
use super::parts::AnswerBound;
use super::shortage::Shortage;
use super::unfinished::{BilledStream, estimated_tokens};

/// A question as its digest is made of it.
#[derive(Serialize)]
#[serde(untagged)]
enum AskedForm<'a, T> {
    Plain(T),
    Choosing(T, &'a ToolChoice),
}

/// Asks a model and waits for the whole answer. Denied if no rule allows the model, and refused if
/// no tokens or no money are left.
impl Question for CompletionRequest {
    type Answer = Completion;
    type Error = ModelError;
    type Source = ChosenModel;

    const KIND: &'static str = "a question to a model";

    fn asked(&self) -> impl Serialize + Send + '_ {
        // Which tools there are to show follows from the policy.
        let Self {
            model,
            messages,
            tools: _,
            tool_choice,
            max_tokens,
            temperature,
            stop_sequences,
            response_schema,
            media: _,
            tokens_left: _,
        } = self;
        let plain = (model, messages, max_tokens, temperature, stop_sequences, response_schema);
        // One without a choice has the digest that it always had.
        match tool_choice {
            ToolChoice::Auto => AskedForm::Plain(plain),
            ToolChoice::None | ToolChoice::Required | ToolChoice::Tool(_) => {
                AskedForm::Choosing(plain, tool_choice)
            }
        }
    }

    async fn digest(&self, scope: &CallScope) -> String {
        scope.digest_of(self).await
    }

    fn admit(&mut self, scope: &CallScope) -> Result<ChosenModel, ModelError> {
        let models = scope.parts.models.as_ref();
        let models = models.ok_or_else(|| ModelError::Denied("tools have no models".to_owned()))?;
        models.choose(self.model.as_deref(), scope)
    }

    fn model_of(source: &ChosenModel) -> Option<&str> {
        Some(&source.name)
    }

    fn begin(&mut self, scope: &CallScope, _digest: &str) {
        scope.note_bound(self);
    }

    async fn put(self, scope: &CallScope, model: ChosenModel, call: u32) -> HostAnswer {
        let _waits = scope.waits_for_model();
        let mut spent = Vec::new();
        let mut question = OpenQuestion::new(self.clone(), model.clone(), call);
        let mut answer = scope.whole_answer(self, model, call, &mut spent).await;
        loop {
            let cause = match &answer {
                Ok(completion) => Cause::of_stop(&completion.stop),
                Err(error) => Cause::of_error(error),
            };
            let again = cause.and_then(|cause| scope.put_again(&mut question, cause));
            let Some(again) = again else { break };
            scope.open().answer = None;
            let model = question.model.clone();
            answer = scope.whole_answer(again, model, call, &mut spent).await;
        }
        HostAnswer::Model(match answer {
            // Of several answers each was paid for.
            Ok(answer) => {
                ModelAnswer::Whole(Box::new(Completion { usage: total(&spent), ..answer }))
            }
            Err(error) if spent.is_empty() => ModelAnswer::Error(error),
            // Of an answer that broke the tokens are kept: they count against the budget.
            Err(error) => ModelAnswer::Broken(vec![spent], error),
        })
    }

    fn accept(
        scope: &CallScope,
        answer: HostAnswer,
        origin: Origin,
    ) -> Result<Result<Completion, ModelError>, Misfit> {
        let HostAnswer::Model(answer) = answer else { return Err(Misfit(format!("{answer:?}"))) };
        // What comes from a provider is accounted for as it comes.
        let again = origin == Origin::Tape;
        match answer {
            ModelAnswer::Whole(completion) => {
                if again {
                    scope.account_whole(&completion);
                }
                Ok(Ok(*completion))
            }
            ModelAnswer::Error(error) => Ok(Err(scope.noted(error))),
            ModelAnswer::Broken(batches, error) if is_only_usage(&batches) => {
                if again {
                    batches.iter().flatten().for_each(|chunk| scope.account(chunk));
                }
                Ok(Err(scope.noted(error)))
            }
            other @ (ModelAnswer::Parts(_) | ModelAnswer::Broken(..)) => {
                Err(Misfit(format!("{other:?}")))
            }
        }
    }
}

impl CallScope {
    /// Has a model begin its answer, with the costs of what it says. What is given up of it counts
    /// as an estimate.
    pub(super) async fn open_answer(
        &self,
        request: CompletionRequest,
        chosen: ChosenModel,
        call: u32,
    ) -> Result<ModelStream, ModelError> {
        // What is left depends on what others spend meanwhile, and models come and go with the policy,
        // so these refusals are on the tape too.
        let model = chosen.model.as_ref();
        let model = model.ok_or_else(|| ModelError::UnknownModel(chosen.name.clone()))?;
        // An estimate that is too large would end the run with its budget unspent; what is given up
        // of the answer is billed with all that went.
        let (price, billed) = (chosen.price, request.bytes());
        let tokens = estimated_tokens(request.least_bytes());
        let bound = self.parts.remaining.answer_bound(self.used(), tokens, price);
        let bound = bound.map_err(ModelError::Budget)?;
        if price.is_none() && self.parts.remaining.states_cost {
            // The answer would cost nothing that counts, and so would the next.
            return Err(ModelError::Budget(format!(
                "the run has a budget in dollars, and of model {} no `prices` are known",
                chosen.name
            )));
        }
        let mut request = self.with_media(request).await?;
        // Below what is on record of the question: another budget makes no other question of it.
        request.tokens_left = bound.map(|bound| u32::try_from(bound.tokens).unwrap_or(u32::MAX));
        self.wait_begins(call);
        self.await_turn(&chosen, call).await?;
        let mut bill = self.unfinished.bill(billed, price);
        match model.stream(request).await {
            Ok(stream) => Ok(BilledStream { stream: priced(stream, price), bill }.boxed()),
            Err(error) => {
                bill.close();
                self.heed(&chosen, &error, call).await;
                Err(error)
            }
        }
    }

    /// The tokens of the call so far, those of answers included that are open or were given up.
    pub(super) fn used(&self) -> Usage {
        let told = self.open().usage.unwrap_or_default();
        told.plus(self.unfinished.so_far())
    }

    /// Has a model answer, and waits for all of it; `spent` are the tokens that were told on the way.
    async fn whole_answer(
        &self,
        request: CompletionRequest,
        model: ChosenModel,
        call: u32,
        spent: &mut Vec<Chunk>,
    ) -> Result<Completion, ModelError> {
        let stream = self.open_formed(request, model, call).await?;
        self.collect(stream, spent).await
    }

    /// Waits for a whole answer; `spent` are the tokens that were told on the way.
    async fn collect(
        &self,
        mut stream: ModelStream,
        spent: &mut Vec<Chunk>,
    ) -> Result<Completion, ModelError> {
        let mut collected = CompletionBuilder::default();
        loop {
            // Also an answer that is there at once ends with the call.
            if self.parts.stop.is_asked() {
                return Err(ModelError::Canceled);
            }
            let chunk = stream.next().await.ok_or(ModelError::CutOff)??;
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

    /// Takes note of an error that a guest is given, where that is the word that nothing of the budget
    /// is left.
    pub(super) fn noted(&self, error: ModelError) -> ModelError {
        if let ModelError::Budget(why) = &error {
            let mut open = self.open();
            open.out_of_budget = true;
            open.shortages.refused(Shortage::of_refusal(why));
        }
        error
    }

    /// Takes note of the bound that the budget is for the answer to a question, be that given just
    /// now or on the tape.
    fn note_bound(&self, request: &CompletionRequest) {
        let Some(models) = &self.parts.models else { return };
        let name = request.model.as_deref().or(models.default.as_deref());
        let price = name.and_then(|name| models.prices.get(name)).copied();
        let tokens = estimated_tokens(request.least_bytes());
        let bound = self.parts.remaining.answer_bound(self.used(), tokens, price).ok().flatten();
        let mut open = self.open();
        let written = open.usage.unwrap_or_default().completion_tokens;
        open.bound = bound.map(|bound| (bound, written));
    }

    /// Takes note of how an answer ended: at the bound that the budget is for it, or otherwise.
    fn note_stop(&self, stop: &CompletionStop) {
        let mut open = self.open();
        let written = open.usage.unwrap_or_default().completion_tokens;
        let is_met = |(bound, before): &(AnswerBound, u64)| {
            *stop == CompletionStop::MaxTokens && written.saturating_sub(*before) >= bound.tokens
        };
        let cut_off = open.bound.filter(is_met).map(|(bound, _)| bound.shortage);
        open.shortages.answered(cut_off);
    }

    /// Takes note that the step waits for a model. It goes into the journal with whatever is
    /// written next, and not at all if the answer is there before.
    pub(super) fn wait_begins(&self, call: u32) {
        if self.is_journalled() {
            self.open().events.push(Event::ModelWait { call, over: false });
            self.parts.wake.notify_one();
        }
    }

    /// Takes note that the guest goes on, and returns when that is durable: a run that ends its
    /// host then is not to be found waiting.
    pub(super) async fn wait_ends(&self, call: u32) {
        if self.is_journalled() && !self.forget_wait(call) {
            let over = self.record_durably(Event::ModelWait { call, over: true });
            // A call that is to stop does not wait for it.
            self.unless_stopped(over).await.ok();
        }
    }

    /// Takes back that the step waits, where that is not written yet; says whether it was not.
    pub(super) fn forget_wait(&self, call: u32) -> bool {
        let wait = Event::ModelWait { call, over: false };
        let mut open = self.open();
        let before = open.events.len();
        open.events.retain(|event| *event != wait);
        open.events.len() < before
    }

    pub(super) fn account(&self, chunk: &Chunk) {
        match chunk {
            Chunk::Usage(usage) => self.spend(*usage),
            Chunk::Stop { reason, model } => {
                self.open().model = Some(model.clone());
                self.note_stop(reason);
            }
            Chunk::Text(_)
            | Chunk::Thinking(_)
            | Chunk::ToolCallDelta { .. }
            | Chunk::ToolCall(_) => {}
        }
    }

    fn account_whole(&self, completion: &Completion) {
        self.spend(completion.usage);
        self.note_stop(&completion.stop);
        let mut open = self.open();
        open.model = Some(completion.model.clone());
        open.answer = Some(completion.message.clone());
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

/// The sum of the tokens that were told.
fn total(spent: &[Chunk]) -> Usage {
    spent.iter().fold(Usage::default(), |sum, chunk| match chunk {
        Chunk::Usage(usage) => sum.plus(*usage),
        Chunk::Text(_)
        | Chunk::Thinking(_)
        | Chunk::ToolCallDelta { .. }
        | Chunk::ToolCall(_)
        | Chunk::Stop { .. } => sum,
    })
}

fn is_only_usage(batches: &[Vec<Chunk>]) -> bool {
    batches.iter().flatten().all(|chunk| matches!(chunk, Chunk::Usage(_)))
}
