//! A model under a policy, and questions to it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use taskrun::clock::{SeededRandom, SystemClock};
use taskrun::scope::model::{Model, ModelStream, collect};
use taskrun_journal::completion::{Chunk, Completion, CompletionRequest, ModelError};
use taskrun_journal::message::{Message, Part, Role, ToolAnswer, Usage};
use taskrun_journal::time::{Clock, Random};
use taskrun_journal::tool::{ToolHints, ToolSpec};
use taskrun_policy::Policy;

use crate::provider::Provider;

/// The models of a policy.
pub(crate) fn models(
    policy: &str,
    clock: Arc<dyn Clock>,
) -> Result<BTreeMap<String, Arc<dyn Model>>, taskrun_models::OpenError> {
    let policy = Policy::parse(policy, Path::new("/conf/taskrun.toml"));
    let policy = policy.unwrap_or_else(|errors| panic!("{errors}"));
    let random: Arc<dyn Random> = Arc::new(SeededRandom::new(7));
    taskrun_models::open(&policy.models, &clock, &random)
}

/// The table of a model `m` of a provider.
pub(crate) fn table(wire: &str, provider: &Provider, more: &str) -> String {
    let url = provider.base_url();
    format!("[model.m]\nprovider = \"{wire}\"\nmodel = \"m-1\"\nbase_url = \"{url}\"\n{more}\n")
}

/// A model of a provider, at another clock.
pub(crate) fn model_at(
    clock: Arc<dyn Clock>,
    wire: &str,
    provider: &Provider,
    more: &str,
) -> Arc<dyn Model> {
    let models = models(&table(wire, provider, more), clock).expect("a model");
    Arc::clone(&models["m"])
}

/// A model of a provider.
pub(crate) fn model(wire: &str, provider: &Provider, more: &str) -> Arc<dyn Model> {
    model_at(Arc::new(SystemClock::new()), wire, provider, more)
}

/// A question with these messages.
pub(crate) fn request(messages: Vec<Message>) -> CompletionRequest {
    CompletionRequest {
        model: None,
        messages,
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

/// A question of a few words.
pub(crate) fn hello() -> CompletionRequest {
    request(vec![Message::text(Role::User, "hello")])
}

/// The description of a tool.
pub(crate) fn tool(name: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        title: None,
        description: "Reads.".to_owned(),
        input_schema: r#"{"type":"object","properties":{"path":{"type":"string"}}}"#.to_owned(),
        output_schema: None,
        hints: ToolHints::default(),
        timeout: None,
        tags: Vec::new(),
        stated_tags: Vec::new(),
    }
}

/// The result of a call.
pub(crate) fn result(id: &str, content: &str) -> Message {
    let answer = ToolAnswer {
        tool_call_id: id.to_owned(),
        content: content.to_owned(),
        is_error: false,
        media: Vec::new(),
    };
    Message { role: Role::Tool, parts: vec![Part::ToolAnswer(answer)].into() }
}

/// The whole answer.
pub(crate) async fn answer(
    model: &dyn Model,
    request: CompletionRequest,
) -> Result<Completion, ModelError> {
    collect(model.stream(request).await?).await
}

/// All chunks, and the error that ended them.
pub(crate) async fn chunks(mut stream: ModelStream) -> (Vec<Chunk>, Option<ModelError>) {
    let mut all = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(chunk) => all.push(chunk),
            Err(error) => return (all, Some(error)),
        }
    }
    (all, None)
}

/// So many tokens.
/// Waits for what must happen, in real time, with a deadline that only a failure meets.
pub(crate) async fn in_time<T>(happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), happens).await.expect("it happens in time")
}

pub(crate) fn usage(prompt_tokens: u64, completion_tokens: u64) -> Usage {
    let total_tokens = prompt_tokens + completion_tokens;
    Usage { prompt_tokens, completion_tokens, total_tokens, ..Usage::default() }
}
