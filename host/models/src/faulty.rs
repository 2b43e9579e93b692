//! A model that fails now and then, for trying out how agents take it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use taskrun::clock::SeededRandom;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, ModelError};
use taskrun_journal::time::random_u64;
use taskrun_policy::Fault;

/// Asks another model, except where its schedule has a fault.
pub(crate) struct Faulty {
    model: Arc<dyn Model>,
    faults: Vec<Fault>,
    seed: Option<u64>,
    asked: AtomicU64,
}

impl Faulty {
    /// `faults` has at least one word.
    pub(crate) fn new(model: Arc<dyn Model>, faults: Vec<Fault>, seed: Option<u64>) -> Self {
        Self { model, faults, seed, asked: AtomicU64::new(0) }
    }

    /// The fault of request number `number`, from 0, if any. The same for the same seed, whatever
    /// happened to the others.
    fn fault(&self, number: u64) -> Fault {
        let drawn = match self.seed {
            Some(seed) => random_u64(&SeededRandom::new(seed ^ number.rotate_left(32))),
            None => number,
        };
        let count = self.faults.len().max(1) as u64;
        let index = usize::try_from(drawn % count).unwrap_or(0);
        self.faults.get(index).copied().unwrap_or(Fault::None)
    }
}

#[async_trait]
impl Model for Faulty {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        match self.fault(self.asked.fetch_add(1, Ordering::Relaxed)) {
            Fault::None => self.model.stream(request).await,
            Fault::RateLimited => Err(ModelError::RateLimited { retry_after_ms: None, said: None }),
            Fault::ServerError => Err(ModelError::Unavailable("status 500".to_owned())),
            Fault::Timeout => Err(ModelError::Timeout),
            Fault::Cut => Ok(cut(self.model.stream(request).await?)),
        }
    }
}

/// An answer that is cut off after its first piece, or before its end if it has only that.
fn cut(answer: ModelStream) -> ModelStream {
    answer
        .take(1)
        .filter(|item| {
            let keep = !matches!(item, Ok(Chunk::Stop { .. }) | Err(_));
            std::future::ready(keep)
        })
        .chain(stream::iter([Err(ModelError::CutOff)]))
        .boxed()
}

#[cfg(test)]
mod tests {
    use taskrun::scope::model::collect;
    use taskrun_journal::message::{Message, Role};

    use super::*;
    use crate::Echo;

    fn request() -> CompletionRequest {
        CompletionRequest {
            model: None,
            messages: vec![Message::text(Role::User, "one two")],
            tools: Vec::new(),
            max_tokens: None,
            temperature: None,
            tool_choice: taskrun_journal::completion::ToolChoice::Auto,
            stop_sequences: Vec::new(),
            response_schema: None,
            media: taskrun_journal::media::MediaBytes::default(),
            tokens_left: None,
        }
    }

    async fn asked(model: &Faulty, times: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..times {
            let answer = match model.stream(request()).await {
                Ok(stream) => collect(stream).await,
                Err(error) => Err(error),
            };
            all.push(answer.map_or_else(|e| format!("{e:?}"), |a| a.message.joined_text()));
        }
        all
    }

    fn faulty(faults: &[Fault], seed: Option<u64>) -> Faulty {
        Faulty::new(Arc::new(Echo::new(None)), faults.to_vec(), seed)
    }

    #[tokio::test]
    async fn faults_come_in_the_order_of_the_schedule_and_begin_again() {
        let all = Fault::ALL.map(|(_, fault)| fault);
        let seen = asked(&faulty(&all, None), 6).await;
        assert_eq!(seen[0], "one two");
        assert!(seen[1].contains("RateLimited") && seen[2].contains("500"), "{seen:?}");
        assert_eq!((&*seen[3], &*seen[4], &*seen[5]), ("Timeout", "CutOff", "one two"));
    }

    #[tokio::test]
    async fn a_seed_draws_the_same_faults_each_time() {
        let schedule = [Fault::None, Fault::Timeout];
        let first = asked(&faulty(&schedule, Some(7)), 40).await;
        assert_eq!(first, asked(&faulty(&schedule, Some(7)), 40).await);
        assert_ne!(first, asked(&faulty(&schedule, Some(8)), 40).await);
        assert!(first.contains(&"Timeout".to_owned()) && first.contains(&"one two".to_owned()));
    }
}
