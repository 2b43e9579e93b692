//! Conversations and the values that tools and models exchange: the host's side of the WIT
//! interface `types`, under the same names.

mod usage;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::usage::Usage;
use crate::media::{MEDIA_WEIGHT, Media};
use crate::parts::Parts;

/// Keys and values, each key once.
pub type Labels = BTreeMap<String, String>;

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions of the operator or of the agent's author.
    System,
    /// The person or program that asked.
    User,
    /// The model, or the agent itself.
    Assistant,
    /// Results of tool calls.
    Tool,
}

impl Role {
    /// The word used in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One entry of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The speaker.
    pub role: Role,
    /// In order of appearance.
    pub parts: Parts,
}

impl Message {
    /// A message that is one piece of text.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self { role, parts: vec![Part::Text(text.into())].into() }
    }

    /// Its text parts, joined without a separator.
    #[must_use]
    pub fn joined_text(&self) -> String {
        let mut all = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => all.push_str(text),
                Part::Thinking(_)
                | Part::ToolUse(_)
                | Part::ToolAnswer(_)
                | Part::Json(_)
                | Part::Media(_) => {}
            }
        }
        all
    }

    /// The words of it: its text, or where it has none its structured data, a line each.
    #[must_use]
    pub(crate) fn answer_text(&self) -> String {
        let text = self.joined_text();
        if !text.is_empty() {
            return text;
        }
        let data = self.parts.iter().filter_map(|part| match part {
            Part::Json(json) => Some(json.as_str()),
            Part::Text(_)
            | Part::Thinking(_)
            | Part::ToolUse(_)
            | Part::ToolAnswer(_)
            | Part::Media(_) => None,
        });
        data.collect::<Vec<_>>().join("\n")
    }

    /// Bytes of everything in it that somebody outside wrote.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.bytes()
    }

    /// Its images, with those of the results in it.
    pub fn media(&self) -> impl Iterator<Item = &Media> {
        self.parts.iter().flat_map(|part| match part {
            Part::Media(media) => std::slice::from_ref(media),
            Part::ToolAnswer(answer) => &answer.media[..],
            Part::Text(_) | Part::Thinking(_) | Part::ToolUse(_) | Part::Json(_) => &[],
        })
    }

    /// Its own images, without those of results in it.
    pub fn images(&self) -> impl Iterator<Item = &Media> {
        self.parts.iter().filter_map(|part| match part {
            Part::Media(media) => Some(media),
            Part::ToolAnswer(_)
            | Part::Text(_)
            | Part::Thinking(_)
            | Part::ToolUse(_)
            | Part::Json(_) => None,
        })
    }

    /// Its requests for tools.
    pub fn tool_uses(&self) -> impl Iterator<Item = &ToolUse> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolUse(tool_use) => Some(tool_use),
            Part::Text(_)
            | Part::Thinking(_)
            | Part::ToolAnswer(_)
            | Part::Json(_)
            | Part::Media(_) => None,
        })
    }
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Plain text or Markdown.
    Text(String),
    /// A model's reasoning.
    Thinking(Thinking),
    /// A request to call a tool.
    ToolUse(ToolUse),
    /// The answer to a request to call a tool.
    ToolAnswer(ToolAnswer),
    /// Structured data, as JSON.
    Json(String),
    /// An image.
    Media(Media),
}

impl Part {
    /// The text of one that is JSON.
    #[must_use]
    pub fn as_json(&self) -> Option<&str> {
        match self {
            Self::Json(text) => Some(text),
            Self::Text(_)
            | Self::Thinking(_)
            | Self::ToolUse(_)
            | Self::ToolAnswer(_)
            | Self::Media(_) => None,
        }
    }

    /// Bytes of everything in it that somebody outside wrote; for an image those for which it counts.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Json(text) => text.len(),
            Self::Thinking(block) => block.bytes(),
            Self::ToolUse(call) => call.tool_call_id.len() + call.name.len() + call.payload.len(),
            Self::ToolAnswer(answer) => {
                answer.tool_call_id.len() + answer.content.len() + answer.media.len() * MEDIA_WEIGHT
            }
            Self::Media(_) => MEDIA_WEIGHT,
        }
    }
}

impl Thinking {
    /// Bytes of text and signature.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len() + self.signature.as_ref().map_or(0, String::len)
    }
}

/// A block of a model's reasoning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thinking {
    /// The readable reasoning; empty if the provider sent it redacted.
    pub text: String,
    /// The provider's opaque signature, sent back as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// A request to call a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolUse {
    /// Pairs the request with its answer.
    pub tool_call_id: String,
    /// Qualified name, `tool/function`.
    pub name: String,
    /// The arguments, as JSON.
    pub payload: String,
}

/// The answer to a [`ToolUse`], as a model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolAnswer {
    /// That of the request.
    pub tool_call_id: String,
    /// The result as JSON, or the error's text.
    pub content: String,
    /// True if `content` is an error's text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// Images that belong to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Media>,
}

/// The beginning of the line in an error's text in which the host says what may be called:
/// qualified names, with `, ` between them. A model is given each of them as it knows it.
pub const AVAILABLE_TOOLS: &str = "available are: ";

/// An error with its causes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolError {
    /// A short word for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The error, for the model and for people.
    pub message: String,
    /// The causes, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
}

impl ToolError {
    /// An error with a code and no causes.
    #[must_use]
    pub fn coded(code: &str, message: impl Into<String>) -> Self {
        Self { code: Some(code.to_owned()), message: message.into(), causes: Vec::new() }
    }
}

/// Why a call should be tried again in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryReason {
    /// An argument has a wrong type or value.
    InvalidArguments,
    /// A required argument is absent.
    MissingFields,
    /// The answer could not be understood.
    MalformedResponse,
    /// The tool took too long.
    Timeout,
    /// Too many calls.
    RateLimited,
    /// No such tool, or none that this agent may use.
    ToolUnavailable,
}

/// Advice for a further try of a failed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryHint {
    /// Why.
    pub reason: RetryReason,
    /// Qualified name of the tool the hint is about.
    pub tool: String,
    /// True if only this tool should be offered in the next turn.
    #[serde(default)]
    pub restrict_to_tool: bool,
    /// Names of the absent fields, or of those whose values are refused if the arguments are
    /// invalid; as JSON pointers without the leading slash.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_fields: Vec<String>,
    /// Arguments that would have been accepted, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example_input: Option<String>,
    /// The arguments that were refused, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior_input: Option<String>,
    /// A question whose answer supplies what is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clarifying_question: Option<String>,
    /// Advice for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl RetryHint {
    /// A hint that names a reason and a tool and nothing else.
    #[must_use]
    pub fn new(reason: RetryReason, tool: &str) -> Self {
        Self {
            reason,
            tool: tool.to_owned(),
            restrict_to_tool: false,
            missing_fields: Vec::new(),
            example_input: None,
            prior_input: None,
            clarifying_question: None,
            message: None,
        }
    }
}

/// The part of a larger result that a result is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Items in this result.
    pub returned: u64,
    /// Items there are in all, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// True if items are left out.
    pub truncated: bool,
    /// Arguments, as JSON, of the call that continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<String>,
    /// Advice for asking for less, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refinement: Option<String>,
}

impl Bounds {
    /// True if nothing is left out, or if it says how the rest is had.
    #[must_use]
    pub fn says_how_to_go_on(&self) -> bool {
        !self.truncated || self.continuation.is_some() || self.refinement.is_some()
    }
}

/// The cost of a call, as far as its tool knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telemetry {
    /// The time that it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Tokens it consumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Model it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Anything else, as a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<String>,
}

/// The importance of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// For finding one's way through a single call.
    Trace,
    /// For finding a mistake.
    Debug,
    /// Something that a reader of the log wants to know.
    Info,
    /// Something is wrong and work goes on.
    Warn,
    /// Something failed.
    Error,
}

impl LogLevel {
    /// The word used in JSON and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}
