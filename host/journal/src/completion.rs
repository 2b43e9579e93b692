//! Questions to language models and their answers, whole and in parts.

use serde::{Deserialize, Serialize};

use crate::message::{Message, Part, Role, Thinking, ToolUse, Usage};
use crate::tool::ToolSpec;

/// A question to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionRequest {
    /// Name from the policy's table of models; `None` takes the agent's own.
    pub model: Option<String>,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tools that the model is shown.
    pub tools: Vec<ToolSpec>,
    /// Most tokens to generate.
    pub max_tokens: Option<u32>,
    /// From 0, the most likely, to 2.
    pub temperature: Option<f32>,
    /// Texts at which the answer ends.
    pub stop_sequences: Vec<String>,
    /// JSON schema that the answer must fit.
    pub response_schema: Option<String>,
}

/// Part of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chunk {
    /// Text of the answer.
    Text(String),
    /// Reasoning.
    Thinking(Thinking),
    /// A fragment of a tool call's arguments.
    ToolCallDelta {
        /// Id of the call under construction.
        tool_call_id: String,
        /// Its tool.
        name: String,
        /// The fragment; need not be valid JSON.
        delta: String,
    },
    /// A complete request for a tool.
    ToolCall(ToolUse),
    /// Tokens since the last such chunk.
    Usage(Usage),
    /// The answer is complete.
    Stop {
        /// Why the model stopped.
        reason: CompletionStop,
        /// The provider's name of the model that answered.
        model: String,
    },
}

/// Why a model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionStop {
    /// It said what it had to say.
    EndTurn,
    /// It waits for tools.
    ToolUse,
    /// No tokens were left.
    MaxTokens,
    /// One of the stop sequences came up.
    StopSequence,
    /// It refuses.
    Refusal,
    /// Something else.
    Other,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Of role assistant.
    pub message: Message,
    /// Tokens consumed.
    pub usage: Usage,
    /// Why the model stopped.
    pub stop: CompletionStop,
    /// The provider's name of the model that answered.
    pub model: String,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelError {
    /// The policy does not give this agent that model.
    #[error("{0}")]
    Denied(String),
    /// No model of that name.
    #[error("unknown model {0:?}")]
    UnknownModel(String),
    /// The provider wants a pause.
    #[error("the provider limits the rate of requests")]
    RateLimited {
        /// The time to wait, if it said one.
        retry_after_ms: Option<u64>,
    },
    /// The provider fails.
    #[error("the provider is unavailable: {0}")]
    Unavailable(String),
    /// The provider does not accept the host's key, or gives it no right to this model.
    #[error("the provider does not accept the key: {0}")]
    Unauthorized(String),
    /// The provider has no room for the request at present.
    #[error("the provider is overloaded")]
    Overloaded {
        /// When to come again, if it said so.
        retry_after_ms: Option<u64>,
    },
    /// Nobody answers at the provider's address.
    #[error("the provider cannot be reached: {0}")]
    Unreachable(String),
    /// The provider does not accept the request.
    #[error("the provider refuses the request: {0}")]
    InvalidRequest(String),
    /// The provider does not want to answer this, for reasons of content.
    #[error("the provider declines to answer: {0}")]
    Refused(String),
    /// The answer ended before it was complete.
    #[error("the answer was cut off")]
    CutOff,
    /// The answer is not of the form that the provider's interface has.
    #[error("the provider's answer cannot be read: {0}")]
    Malformed(String),
    /// The answer met a bound.
    #[error("the answer is too large: {0}")]
    TooLarge(String),
    /// The run's budget does not allow it.
    #[error("{0}")]
    Budget(String),
    /// The provider took too long.
    #[error("the provider did not answer in time")]
    Timeout,
    /// The run is being canceled.
    #[error("the run is being canceled")]
    Canceled,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// An answer being put together from its chunks.
#[derive(Debug, Default)]
pub struct CompletionBuilder {
    thinking: Vec<Thinking>,
    text: String,
    calls: Vec<ToolUse>,
    usage: Usage,
}

impl CompletionBuilder {
    /// Adds a chunk; gives the whole answer with the last one.
    pub fn push(&mut self, chunk: Chunk) -> Option<Completion> {
        match chunk {
            Chunk::Text(text) => self.text.push_str(&text),
            Chunk::Thinking(block) => self.thinking.push(block),
            Chunk::ToolCallDelta { .. } => {}
            Chunk::ToolCall(call) if call.name.is_empty() => {}
            Chunk::ToolCall(call) => self.calls.push(call),
            Chunk::Usage(usage) => self.usage = self.usage.plus(usage),
            Chunk::Stop { reason, model } => {
                let Self { thinking, text, calls, usage } = std::mem::take(self);
                let mut parts: Vec<Part> = thinking.into_iter().map(Part::Thinking).collect();
                if !text.is_empty() {
                    parts.push(Part::Text(text));
                }
                parts.extend(calls.into_iter().map(Part::ToolUse));
                let message = Message { role: Role::Assistant, parts };
                return Some(Completion { message, usage, stop: reason, model });
            }
        }
        None
    }
}
