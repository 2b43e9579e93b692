//! The protocols of providers: what a request looks like, and what an answer says.
//!
//! Written by hand over `reqwest` and not on a library of providers; docs/decisions/models.md says
//! why.

pub(crate) mod anthropic;
mod anthropic_answer;
mod anthropic_grammar;
mod anthropic_pattern;
mod anthropic_schema;
pub(crate) mod call_ids;
pub(crate) mod chat;
mod chat_answer;
mod chat_messages;
pub(crate) mod draft;
pub(crate) mod error;
#[cfg(test)]
mod fuzz;
pub(crate) mod gemini;
mod gemini_answer;
mod images;
pub(crate) mod names;
mod opaque;
pub(crate) mod preamble;
pub(crate) mod request;
pub(crate) mod responses;
mod responses_answer;
mod responses_items;
pub(crate) mod sse;
mod strict;
mod usage;

use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use taskrun_journal::completion::{CompletionRequest, ModelError, ToolChoice};
use taskrun_journal::message::{Message, Part, Role};
use taskrun_policy::{Remote, Wire};

use self::draft::Draft;
use self::images::Images;
use self::request::HttpRequest;
use crate::key::Secret;

/// The version of Anthropic's interface that is spoken here.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// The most tokens that an answer is bounded to by a budget alone. Providers refuse a request for
/// more than their model can write, and how much that is they do not tell; so much all of them can.
const ANSWER_TOKENS_ANY: u32 = 4_096;

/// The same of a model whose context window nobody stated. Some servers refuse a question that has
/// no room in it beside the number, and a conversation would be shortened for nothing.
const ANSWER_TOKENS_BLIND: u32 = 1_024;

/// Bytes of a question that are taken for a token of the window: half of what English text has, as
/// other scripts have fewer.
const BYTES_PER_TOKEN_MIN: u64 = 2;

/// A question, and who is asked.
#[derive(Clone, Copy)]
pub(crate) struct ModelQuery<'a> {
    pub(crate) request: &'a CompletionRequest,
    /// The model's name at its provider.
    pub(crate) model: &'a str,
    pub(crate) policy: &'a Remote,
    pub(crate) key: Option<&'a Secret>,
}

/// Address and body of a request, and who reads its answer.
pub(crate) type WireRequest = (String, Value, Box<dyn Decoder>);

/// Finds out what an answer says.
///
/// An answer is either pieces, each the data of an event, and an end, or one whole.
pub(crate) trait Decoder: Send {
    /// Takes the data of an event.
    ///
    /// # Errors
    /// The provider's error, or that the event cannot be understood.
    fn piece(&mut self, data: &str, draft: &mut Draft) -> Result<(), ModelError>;

    /// There are no more events. An answer that is complete all the same is stopped here.
    ///
    /// # Errors
    /// As for [`Self::piece`].
    fn end(&mut self, draft: &mut Draft) -> Result<(), ModelError>;

    /// Takes an answer that did not come in pieces.
    ///
    /// # Errors
    /// As for [`Self::piece`].
    fn whole(&mut self, body: &[u8], draft: &mut Draft) -> Result<(), ModelError>;
}

impl ModelQuery<'_> {
    /// The most tokens: the least of what the agent and the policy say and the budget leaves. What
    /// that leaves is said alone only where no server refuses it.
    fn max_tokens(&self) -> Option<u32> {
        let stated = self.stated_max_tokens().map(|stated| self.within_budget(stated));
        stated.or_else(|| self.request.tokens_left.filter(|left| *left <= self.unstated_max()))
    }

    /// The most tokens that an answer is bounded to by a budget alone: as many as any model can
    /// write, and as have room in the window beside the question.
    fn unstated_max(&self) -> u32 {
        let Some(window) = self.policy.context_tokens else { return ANSWER_TOKENS_BLIND };
        let question = self.request.bytes().div_ceil(BYTES_PER_TOKEN_MIN);
        let question = u32::try_from(question).unwrap_or(u32::MAX);
        window.saturating_sub(question).min(ANSWER_TOKENS_ANY)
    }

    /// The same for a protocol that wants a number: `default`, where neither says one.
    fn max_tokens_or(&self, default: u32) -> u32 {
        self.within_budget(self.stated_max_tokens().unwrap_or(default))
    }

    /// The smaller of what the agent and the policy say.
    fn stated_max_tokens(&self) -> Option<u32> {
        [self.request.max_tokens, self.policy.max_tokens].into_iter().flatten().min()
    }

    fn within_budget(&self, tokens: u32) -> u32 {
        self.request.tokens_left.map_or(tokens, |left| left.min(tokens))
    }

    /// The calls that the model is to make, where that is said; `to` makes the member of it.
    ///
    /// # Errors
    /// [`ModelError::InvalidRequest`] if it is shown no tools, or not the one.
    fn tool_choice(&self, to: impl Fn(&ToolChoice) -> Value) -> Result<Option<Value>, ModelError> {
        let choice = &self.request.tool_choice;
        let shown = &self.request.tools;
        let has = match choice {
            ToolChoice::Auto => return Ok(None),
            // It calls none anyway, and some servers refuse a choice of nothing.
            ToolChoice::None if shown.is_empty() => return Ok(None),
            ToolChoice::None => true,
            ToolChoice::Required => !shown.is_empty(),
            ToolChoice::Tool(name) => shown.iter().any(|tool| tool.name == *name),
        };
        match has {
            true => Ok(Some(to(choice))),
            false => {
                let hint = "a choice of tools needs tools that the model is shown";
                Err(ModelError::InvalidRequest(hint.to_owned()))
            }
        }
    }

    /// True if the model has to call a tool.
    fn forces_calls(&self) -> bool {
        match self.request.tool_choice {
            ToolChoice::Required | ToolChoice::Tool(_) => true,
            ToolChoice::Auto | ToolChoice::None => false,
        }
    }

    fn images(&self) -> Images<'_> {
        Images::new(&self.request.media, self.policy.images)
    }

    fn response_schema(&self) -> Result<Option<Value>, ModelError> {
        let text = self.request.response_schema.as_deref();
        text.map(|text| schema(text, "the response schema")).transpose()
    }

    /// The instructions, which three of the protocols keep apart, and everything after them.
    fn split_instructions(&self) -> (String, &[Message]) {
        let messages = &self.request.messages;
        let count = messages.iter().take_while(|message| message.role == Role::System).count();
        let (instructions, conversation) = messages.split_at(count);
        let texts: Vec<String> = instructions.iter().map(text_of).collect();
        (texts.join("\n\n"), conversation)
    }
}

/// Adds the operator's further members of the body. Within groups they are added one by one;
/// otherwise they stand instead of those of the agent.
pub(crate) fn add_extra(body: &mut Value, extra: &Map<String, Value>) {
    let Value::Object(body) = body else { return };
    for (key, value) in extra {
        match (body.get_mut(key), value) {
            (Some(group @ Value::Object(_)), Value::Object(more)) => {
                add_extra(group, more);
            }
            (Some(_) | None, value) => {
                body.insert(key.clone(), value.clone());
            }
        }
    }
}

/// The headers that the protocol and the operator want, with the key where there is one.
///
/// # Errors
/// If the key, or the value of a header, cannot stand in a header.
pub(crate) fn add_headers(
    policy: &Remote,
    key: Option<&Secret>,
    out: &mut HttpRequest,
) -> Result<(), ModelError> {
    for (name, value) in &policy.request.headers {
        let name: HeaderName = name
            .parse()
            .map_err(|_| ModelError::Other("a header of the policy is none".to_owned()))?;
        out.add_key(name, value.reveal())?;
    }
    match policy.wire {
        Wire::OpenAi | Wire::OpenAiChat | Wire::Ollama => {
            if let Some(key) = key {
                match policy.server.kind.key_header() {
                    Some(name) => out.add_key(HeaderName::from_static(name), key.reveal())?,
                    None => out.add_key(AUTHORIZATION, &format!("Bearer {}", key.reveal()))?,
                }
            }
        }
        Wire::Anthropic => {
            let version = HeaderName::from_static("anthropic-version");
            out.headers.insert(version, HeaderValue::from_static(ANTHROPIC_VERSION));
            if let Some(key) = key {
                out.add_key(HeaderName::from_static("x-api-key"), key.reveal())?;
            }
        }
        Wire::Gemini => {
            if let Some(key) = key {
                out.add_key(HeaderName::from_static("x-goog-api-key"), key.reveal())?;
            }
        }
    }
    Ok(())
}

/// A piece of an answer as JSON. `serde_json` refuses what is nested more than 128 deep.
fn parsed(data: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(data).map_err(|error| {
        // The error says where, and never what stands there.
        ModelError::Malformed(format!("not JSON: {error}"))
    })
}

fn schema(text: &str, what: &str) -> Result<Value, ModelError> {
    let parsed: Result<Value, _> = serde_json::from_str(text);
    match parsed {
        Ok(schema @ Value::Object(_)) => Ok(schema),
        Ok(_) => Err(ModelError::InvalidRequest(format!("{what} is not an object"))),
        Err(error) => Err(ModelError::InvalidRequest(format!("{what} is not JSON: {error}"))),
    }
}

/// The text of a message, structured data included.
fn text_of(message: &Message) -> String {
    let texts = message.parts.iter().filter_map(|part| match part {
        Part::Text(text) | Part::Json(text) => Some(text.as_str()),
        Part::Thinking(_) | Part::ToolUse(_) | Part::ToolAnswer(_) | Part::Media(_) => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The arguments of a call as an object, as two of the protocols want them. A model that wrote
/// something else is shown what it wrote.
fn arguments(payload: &str) -> Value {
    match serde_json::from_str(payload) {
        Ok(object @ Value::Object(_)) => object,
        Ok(_) | Err(_) => serde_json::json!({ "arguments": payload }),
    }
}

/// Arguments as the model wrote them. Servers parse them, and refuse what is no object.
fn arguments_text(payload: &str) -> String {
    match serde_json::from_str(payload) {
        Ok(Value::Object(_)) => payload.to_owned(),
        Ok(_) | Err(_) => arguments(payload).to_string(),
    }
}

/// A count of tokens; none is none.
fn tokens(usage: &Value, key: &str) -> u64 {
    usage.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn str_of<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn list_of<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
