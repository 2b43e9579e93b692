//! Answers of models that have to fit a schema, held to it by the host: what a provider does about
//! the schema differs from one to the next.

use std::sync::Arc;

use futures::StreamExt;
use taskrun_journal::completion::{
    Chunk, Completion, CompletionBuilder, CompletionRequest, ModelError,
};
use taskrun_journal::message::{Message, Role};

use super::CallScope;
use super::model::{ChosenModel, ModelStream};
use super::unfinished::UntoldUsage;
use crate::form::{Form, TurnSteps};
use crate::schema::Allowance;

/// A whole answer, with its chunks.
struct WholeAnswer {
    chunks: Vec<Chunk>,
    completion: Completion,
}

impl CallScope {
    /// Has a model begin its answer. One that has to fit a schema is waited for and held to it;
    /// where it does not fit, it is asked for once more.
    pub(super) async fn open_formed(
        &self,
        mut request: CompletionRequest,
        model: ChosenModel,
        call: u32,
    ) -> Result<ModelStream, ModelError> {
        let Some(schema) = &request.response_schema else {
            return self.open_answer(request, model, call).await;
        };
        let form = Form::new(schema, &mut Allowance::default());
        let (form, _) = form.map_err(|why| {
            ModelError::InvalidRequest(format!("the response schema is not usable: {why}"))
        })?;
        let (form, steps) = (Arc::new(form), TurnSteps::default());
        let mut held = self.unfinished.holder();
        let first = self.open_answer(request.clone(), model.clone(), call).await?;
        let first = whole(first, &mut held).await;
        let (first, fault) = match first {
            Ok(first) => match fault(&form, &first.completion, &steps).await {
                None => return Ok(all_of(held, first.chunks, None)),
                Some(fault) => (first, fault),
            },
            Err((chunks, error)) => return Ok(all_of(held, chunks, Some(error))),
        };
        let mut spent = usage_of(first.chunks);
        // The tokens of the first answer are held, and count with those.
        if let Some(missing) = self.parts.remaining.missing(self.used()) {
            return Ok(all_of(held, spent, Some(ModelError::Budget(missing.to_owned()))));
        }
        if !first.completion.message.joined_text().trim().is_empty() {
            request.messages.push(first.completion.message);
        }
        let demand = format!(
            "Your answer {fault}. Answer again, with nothing but JSON that fits the schema: {}",
            request.response_schema.as_deref().unwrap_or_default()
        );
        request.messages.push(Message::text(Role::User, demand));
        let second = match self.open_answer(request, model, call).await {
            Ok(stream) => whole(stream, &mut held).await,
            Err(error) => Err((Vec::new(), error)),
        };
        match second {
            Ok(second) => match self::fault(&form, &second.completion, &steps).await {
                None => {
                    spent.extend(second.chunks);
                    Ok(all_of(held, spent, None))
                }
                Some(fault) => {
                    spent.extend(usage_of(second.chunks));
                    Ok(all_of(held, spent, Some(ModelError::Misfit(fault))))
                }
            },
            Err((chunks, error)) => {
                spent.extend(usage_of(chunks));
                Ok(all_of(held, spent, Some(error)))
            }
        }
    }
}

/// Reads an answer to its end; of one that breaks, what had come and the error.
async fn whole(
    mut stream: ModelStream,
    held: &mut UntoldUsage,
) -> Result<WholeAnswer, (Vec<Chunk>, ModelError)> {
    let (mut chunks, mut collected) = (Vec::new(), CompletionBuilder::default());
    loop {
        match stream.next().await {
            Some(Ok(chunk)) => {
                held.hold(&chunk);
                chunks.push(chunk.clone());
                if let Some(completion) = collected.push(chunk) {
                    return Ok(WholeAnswer { chunks, completion });
                }
            }
            Some(Err(error)) => return Err((chunks, error)),
            None => return Err((chunks, ModelError::CutOff)),
        }
    }
}

/// The fault of an answer, in words that follow on it; `None` if it fits, or asks for tools.
async fn fault(form: &Arc<Form>, answer: &Completion, steps: &TurnSteps) -> Option<String> {
    if answer.message.tool_uses().next().is_some() {
        return None;
    }
    let text = answer.message.joined_text();
    form.check(&text, steps).await.err().map(|fault| fault.words())
}

fn usage_of(mut chunks: Vec<Chunk>) -> Vec<Chunk> {
    chunks.retain(|chunk| matches!(chunk, Chunk::Usage(_)));
    chunks
}

/// A stream of these chunks, and of an error behind them. The tokens of chunks that nobody reads
/// stay held.
fn all_of(mut held: UntoldUsage, chunks: Vec<Chunk>, error: Option<ModelError>) -> ModelStream {
    let chunks = chunks.into_iter().map(Ok).chain(error.map(Err));
    let chunks = futures::stream::iter(chunks.collect::<Vec<_>>());
    chunks.inspect(move |next| next.iter().for_each(|chunk| held.release(chunk))).boxed()
}
