//! One question to a model of a policy, to see that it answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::SystemRandom;
use taskrun::scope::model::{Model, collect};
use taskrun_journal::completion::{self, Completion, CompletionRequest};
use taskrun_journal::media::MediaBytes;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::time::{Clock, Random};
use taskrun_journal::tool::{ToolHints, ToolSpec};
use taskrun_policy::{ModelPolicy, Policy, Provider};

use crate::loader::{ModelError, model_error};

/// The question: it offers a tool, as some models take none in some protocols.
const QUESTION: &str = "This is a test of the connection. Call the tool with the word \"ready\".";

/// The answer to one question.
#[derive(Debug)]
pub struct ModelProbe {
    /// The answer, or why there is none.
    pub answer: Result<Completion, completion::ModelError>,
    /// The time that it took.
    pub took: Duration,
}

/// Asks a model of a policy once. Nothing is written into a cassette.
///
/// # Errors
/// [`ModelError`] if it cannot be asked at all, as its key is not there.
pub async fn probe_model(
    policy: &Policy,
    model: &ModelPolicy,
    clock: &Arc<dyn Clock>,
) -> Result<ModelProbe, ModelError> {
    let random: Arc<dyn Random> = Arc::new(SystemRandom);
    let models = taskrun_models::open(&asked(policy, model), clock, &random)
        .map_err(|error| model_error(policy, error))?;
    let began = clock.monotonic();
    let answer = match models.get(&model.name) {
        Some(model) => ask(&**model).await,
        None => Err(completion::ModelError::UnknownModel(model.name.clone())),
    };
    Ok(ModelProbe { answer, took: clock.monotonic().saturating_sub(began) })
}

/// The model and the one before which it stands, neither of which writes anything down.
fn asked(policy: &Policy, model: &ModelPolicy) -> BTreeMap<String, ModelPolicy> {
    let before = match &model.provider {
        Provider::Faulty { of, .. } => policy.models.get(of),
        Provider::Scripted { .. }
        | Provider::Echo
        | Provider::Remote(_)
        | Provider::Replay { .. } => None,
    };
    let unrecorded = |model: &ModelPolicy| ModelPolicy { record: None, ..model.clone() };
    let models = std::iter::once(model).chain(before);
    models.map(|model| (model.name.clone(), unrecorded(model))).collect()
}

async fn ask(model: &dyn Model) -> Result<Completion, completion::ModelError> {
    let tool = ToolSpec {
        name: "test/say".to_owned(),
        title: None,
        description: "Says a word.".to_owned(),
        input_schema: r#"{"type":"object","properties":{"word":{"type":"string"}},"required":["word"],"additionalProperties":false}"#
            .to_owned(),
        output_schema: None,
        hints: ToolHints::default(),
        timeout: None,
        tags: Vec::new(),
        stated_tags: Vec::new(),
    };
    let question = CompletionRequest {
        model: None,
        messages: vec![Message::text(Role::User, QUESTION)],
        tools: vec![tool],
        max_tokens: None,
        temperature: None,
        tool_choice: taskrun_journal::completion::ToolChoice::Auto,
        stop_sequences: Vec::new(),
        response_schema: None,
        media: MediaBytes::default(),
        tokens_left: None,
    };
    collect(model.stream(question).await?).await
}
