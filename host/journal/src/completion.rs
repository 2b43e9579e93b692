//! Questions to language models and their answers, whole and in parts.

use serde::{Deserialize, Serialize};

use crate::media::{MEDIA_WEIGHT, MediaBytes};
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
    /// The calls that it is to make of them.
    #[serde(default, skip_serializing_if = "ToolChoice::is_auto")]
    pub tool_choice: ToolChoice,
    /// Most tokens to generate.
    pub max_tokens: Option<u32>,
    /// From 0, the most likely, to 2.
    pub temperature: Option<f32>,
    /// Texts at which the answer ends.
    pub stop_sequences: Vec<String>,
    /// JSON schema that the answer must fit.
    pub response_schema: Option<String>,
    /// The bytes of its images. They are nowhere kept with it.
    #[serde(skip)]
    pub media: MediaBytes,
    /// The most tokens that the budget of its run leaves for the answer; `None` is no bound. It is
    /// the host's, and no part of what is asked: the same question has the same answer on record.
    #[serde(skip)]
    pub tokens_left: Option<u32>,
}

impl CompletionRequest {
    /// Bytes of what a model is to read for it; an image has those that it weighs in a conversation.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let tool =
            |tool: &ToolSpec| tool.name.len() + tool.description.len() + tool.input_schema.len();
        let messages = self.messages.iter().map(Message::bytes).sum::<usize>();
        (messages + self.tools.iter().map(tool).sum::<usize>()) as u64
    }

    /// The bytes that every provider counts: those of [`Self::bytes`] without reasoning of before,
    /// which many drop or are not sent, and without images, of which a small one costs next to
    /// nothing.
    #[must_use]
    pub fn least_bytes(&self) -> u64 {
        let parts = self.messages.iter().flat_map(|message| message.parts.iter());
        let unsure = parts.map(|part| match part {
            Part::Thinking(block) => block.bytes(),
            Part::Media(_) => MEDIA_WEIGHT,
            Part::ToolAnswer(answer) => answer.media.len() * MEDIA_WEIGHT,
            Part::Text(_) | Part::ToolUse(_) | Part::Json(_) => 0,
        });
        self.bytes().saturating_sub(unsure.sum::<usize>() as u64)
    }
}

/// The calls that a model is to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// Those that it finds right, or none.
    #[default]
    Auto,
    /// None, though it is shown tools.
    None,
    /// One at least.
    Required,
    /// One of the tool of this qualified name.
    Tool(String),
}

impl ToolChoice {
    /// True if the model decides, as where nothing is said.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
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
///
/// It is written as one word: one of those below in `snake_case`, and `other:` with a provider's
/// own behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum CompletionStop {
    /// It said what it had to say.
    EndTurn,
    /// It waits for tools.
    ToolUse,
    /// No tokens were left.
    MaxTokens,
    /// One of the stop sequences came up.
    StopSequence,
    /// No room was left in its context window.
    ContextWindow,
    /// It asked for a tool in a form that cannot be read.
    MalformedCall,
    /// Something else, in the provider's word; empty where it gave none.
    Other(String),
}

impl From<String> for CompletionStop {
    /// Reads a reason as it is written. Any other word is a provider's.
    fn from(text: String) -> Self {
        match text.as_str() {
            "end_turn" => Self::EndTurn,
            "tool_use" => Self::ToolUse,
            "max_tokens" => Self::MaxTokens,
            "stop_sequence" => Self::StopSequence,
            "context_window" => Self::ContextWindow,
            "malformed_call" => Self::MalformedCall,
            "other" => Self::Other(String::new()),
            word => Self::Other(word.strip_prefix("other:").unwrap_or(word).to_owned()),
        }
    }
}

impl From<CompletionStop> for String {
    fn from(stop: CompletionStop) -> Self {
        let word = match stop {
            CompletionStop::EndTurn => "end_turn",
            CompletionStop::ToolUse => "tool_use",
            CompletionStop::MaxTokens => "max_tokens",
            CompletionStop::StopSequence => "stop_sequence",
            CompletionStop::ContextWindow => "context_window",
            CompletionStop::MalformedCall => "malformed_call",
            CompletionStop::Other(word) if word.is_empty() => "other",
            CompletionStop::Other(word) => return format!("other:{word}"),
        };
        word.to_owned()
    }
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
        /// Its words about it, which are for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<String>,
    },
    /// The provider's account has no quota left, and a wait changes nothing.
    #[error("the provider's account has no quota left: {0}")]
    NoQuota(String),
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
        /// Its words about it, which are for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<String>,
    },
    /// Nobody answers at the provider's address.
    #[error("the provider cannot be reached: {0}")]
    Unreachable(String),
    /// The provider does not accept the request.
    #[error("the provider refuses the request: {0}")]
    InvalidRequest(String),
    /// The run has no artifact of a name that stands in the request.
    #[error("the run has no artifact {0}")]
    NotFound(String),
    /// The conversation does not fit into the model's context window.
    #[error("the conversation does not fit into the model's context window: {0}")]
    ContextWindow(String),
    /// The provider does not want to answer this, for reasons of content.
    #[error("the provider declines to answer: {0}")]
    Refused(String),
    /// The model answered twice, and neither answer fits the schema that was asked for.
    #[error("the model's answer {0}")]
    Misfit(String),
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

impl ModelError {
    /// The provider's words about a pause that it wants, which no guest is told.
    #[must_use]
    pub fn said(&self) -> Option<&str> {
        if let Self::RateLimited { said, .. } | Self::Overloaded { said, .. } = self {
            said.as_deref()
        } else {
            None
        }
    }

    /// The error for operators, with [`Self::said`].
    #[must_use]
    pub fn in_full(&self) -> String {
        self.said().map_or_else(|| self.to_string(), |said| format!("{self}: {said}"))
    }
}

/// An answer being put together from its chunks. Its parts stand in the order in which they came:
/// some providers refuse a conversation in which they come back in another.
#[derive(Debug, Default)]
pub struct CompletionBuilder {
    parts: Vec<Part>,
    usage: Usage,
}

impl CompletionBuilder {
    /// Adds a chunk; gives the whole answer with the last one.
    pub fn push(&mut self, chunk: Chunk) -> Option<Completion> {
        match chunk {
            Chunk::Text(text) if text.is_empty() => {}
            Chunk::Text(text) => append_text(&mut self.parts, &text),
            Chunk::Thinking(block) => self.parts.push(Part::Thinking(block)),
            Chunk::ToolCallDelta { .. } => {}
            Chunk::ToolCall(call) if call.name.is_empty() => {}
            Chunk::ToolCall(call) => self.parts.push(Part::ToolUse(call)),
            Chunk::Usage(usage) => self.usage = self.usage.plus(usage),
            Chunk::Stop { reason, model } => {
                let Self { parts, usage } = std::mem::take(self);
                let message = Message { role: Role::Assistant, parts: parts.into() };
                return Some(Completion { message, usage, stop: reason, model });
            }
        }
        None
    }
}

/// Adds text to the end of parts: to the last one, if that is text.
fn append_text(parts: &mut Vec<Part>, more: &str) {
    if let Some(Part::Text(text)) = parts.last_mut() {
        text.push_str(more);
    } else {
        parts.push(Part::Text(more.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::Media;
    use crate::message::ToolAnswer;

    #[test]
    fn a_reason_to_stop_is_a_word_and_every_other_word_is_kept() {
        let forms = [
            (CompletionStop::EndTurn, "end_turn"),
            (CompletionStop::ToolUse, "tool_use"),
            (CompletionStop::MaxTokens, "max_tokens"),
            (CompletionStop::StopSequence, "stop_sequence"),
            (CompletionStop::ContextWindow, "context_window"),
            (CompletionStop::MalformedCall, "malformed_call"),
            (CompletionStop::Other(String::new()), "other"),
            (CompletionStop::Other("end_turn".to_owned()), "other:end_turn"),
        ];
        for (stop, text) in forms {
            assert_eq!(serde_json::to_value(&stop).expect("written"), text);
            assert_eq!(CompletionStop::from(text.to_owned()), stop);
        }
        // Journals of earlier versions have it.
        let refusal = CompletionStop::from("refusal".to_owned());
        assert_eq!(refusal, CompletionStop::Other("refusal".to_owned()));
    }

    #[test]
    fn words_about_a_pause_are_kept_for_operators_and_earlier_journals_have_none() {
        let said = Some("status 429: Slow down.".to_owned());
        let limited = ModelError::RateLimited { retry_after_ms: Some(5), said };
        let form = serde_json::json!({ "rate_limited": {
            "retry_after_ms": 5, "said": "status 429: Slow down." } });
        assert_eq!(serde_json::to_value(&limited).expect("written"), form);
        assert_eq!(limited.to_string(), "the provider limits the rate of requests");
        let full = "the provider limits the rate of requests: status 429: Slow down.";
        assert_eq!(limited.in_full(), full);
        let before = serde_json::json!({ "overloaded": { "retry_after_ms": null } });
        let read: ModelError = serde_json::from_value(before.clone()).expect("read");
        assert_eq!(read, ModelError::Overloaded { retry_after_ms: None, said: None });
        assert_eq!(serde_json::to_value(&read).expect("written"), before);
        assert_eq!(read.in_full(), read.to_string());
    }

    #[test]
    fn the_parts_of_an_answer_stand_in_the_order_in_which_they_came() {
        let thinking = |text: &str| Thinking { text: text.to_owned(), signature: None };
        let call = |id: &str| ToolUse {
            tool_call_id: id.to_owned(),
            name: "t/f".to_owned(),
            payload: "{}".to_owned(),
        };
        let chunks = [
            Chunk::Thinking(thinking("first")),
            Chunk::ToolCall(call("a")),
            Chunk::Thinking(thinking("second")),
            Chunk::Text("sa".to_owned()),
            Chunk::Text("id".to_owned()),
            Chunk::ToolCall(call("b")),
        ];
        let mut builder = CompletionBuilder::default();
        for chunk in chunks {
            assert_eq!(builder.push(chunk), None);
        }
        let stop = Chunk::Stop { reason: CompletionStop::ToolUse, model: "m".to_owned() };
        let parts = builder.push(stop).expect("a whole answer").message.parts;
        let expected = [
            Part::Thinking(thinking("first")),
            Part::ToolUse(call("a")),
            Part::Thinking(thinking("second")),
            Part::Text("said".to_owned()),
            Part::ToolUse(call("b")),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn reasoning_and_images_are_no_bytes_that_every_provider_counts() {
        let image = Media { media_type: "image/png".to_owned(), hash: "h".to_owned(), size: 9 };
        let thought = Thinking { text: "hm".to_owned(), signature: Some("signed".to_owned()) };
        let answer = ToolAnswer {
            tool_call_id: "c".to_owned(),
            content: "1234".to_owned(),
            is_error: false,
            media: vec![image.clone()],
        };
        let message = |role, parts: Vec<Part>| Message { role, parts: parts.into() };
        let request = CompletionRequest {
            model: None,
            messages: vec![
                message(Role::User, vec![Part::Text("why?".to_owned()), Part::Media(image)]),
                message(Role::Assistant, vec![Part::Thinking(thought)]),
                message(Role::Tool, vec![Part::ToolAnswer(answer)]),
            ],
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            max_tokens: None,
            temperature: None,
            stop_sequences: Vec::new(),
            response_schema: None,
            media: MediaBytes::default(),
            tokens_left: None,
        };
        assert_eq!(request.least_bytes(), 9);
        assert_eq!(request.bytes(), 9 + 8 + 2 * MEDIA_WEIGHT as u64);
    }
}
