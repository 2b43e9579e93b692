//! A model that answers with what it was asked.

use async_trait::async_trait;
use futures::{StreamExt, stream};
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::message::{Message, Role, Usage};

/// The model's name unless the policy gives another.
const NAME: &str = "echo";

/// Answers with the text of the last message of role `user`, word by word. A word counts as a
/// token, so that budgets and accounts have something to count.
#[derive(Debug)]
pub struct Echo {
    name: String,
}

impl Echo {
    /// A provider that calls itself `name`.
    #[must_use]
    pub fn new(name: Option<&str>) -> Self {
        Self { name: name.unwrap_or(NAME).to_owned() }
    }
}

#[async_trait]
impl Model for Echo {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let asked = request.messages.iter().rev().find(|message| message.role == Role::User);
        let text = asked.map(Message::joined_text).unwrap_or_default();
        let cap = [request.max_tokens, request.tokens_left].into_iter().flatten().min();
        let cap = cap.map_or(usize::MAX, |max| max as usize);
        let words: Vec<String> =
            text.split_inclusive(char::is_whitespace).map(str::to_owned).collect();
        let reason =
            if words.len() > cap { CompletionStop::MaxTokens } else { CompletionStop::EndTurn };
        let said: Vec<String> = words.into_iter().take(cap).collect();
        let prompt = request.messages.iter().map(|m| words_in(&m.joined_text())).sum();
        let completion = said.len() as u64;
        let usage = Usage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            ..Usage::default()
        };
        let end = [Chunk::Usage(usage), Chunk::Stop { reason, model: self.name.clone() }];
        let chunks = said.into_iter().map(Chunk::Text).chain(end).map(Ok);
        Ok(stream::iter(chunks.collect::<Vec<_>>()).boxed())
    }
}

fn words_in(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

#[cfg(test)]
mod tests {
    use taskrun::scope::model::collect;

    use super::*;

    fn request(text: &str, max_tokens: Option<u32>) -> CompletionRequest {
        CompletionRequest {
            model: None,
            messages: vec![Message::text(Role::User, text)],
            tools: Vec::new(),
            max_tokens,
            temperature: None,
            tool_choice: taskrun_journal::completion::ToolChoice::Auto,
            stop_sequences: Vec::new(),
            response_schema: None,
            media: taskrun_journal::media::MediaBytes::default(),
            tokens_left: None,
        }
    }

    #[tokio::test]
    async fn the_answer_is_the_question() {
        let stream = Echo::new(None).stream(request("what is it?", None)).await.expect("answers");
        let answer = collect(stream).await.expect("whole");
        assert_eq!(answer.message.joined_text(), "what is it?");
        assert_eq!((answer.usage.prompt_tokens, answer.usage.completion_tokens), (3, 3));
        assert_eq!((answer.stop, &*answer.model), (CompletionStop::EndTurn, "echo"));
    }

    #[tokio::test]
    async fn an_answer_stops_at_the_limit_on_tokens() {
        let stream = Echo::new(Some("e2")).stream(request("a b c", Some(2))).await;
        let answer = collect(stream.expect("answers")).await.expect("whole");
        assert_eq!(answer.message.joined_text(), "a b ");
        assert_eq!((answer.stop, &*answer.model), (CompletionStop::MaxTokens, "e2"));
    }
}
