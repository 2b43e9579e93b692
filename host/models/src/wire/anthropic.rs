//! Messages as Anthropic has them: the request.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use taskrun_journal::completion::{ModelError, ToolChoice};
use taskrun_journal::media::Media;
use taskrun_journal::message::{Message, Part, Role, Thinking, ToolAnswer};
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::ThinkingMode;

use super::anthropic_answer::{AnthropicDecoder, REDACTED};
use super::anthropic_grammar::has_grammar;
use super::anthropic_schema::{to_wire_schema, to_wire_tool_schema};
use super::images::{Image, Images, OWN_IMAGE};
use super::names::to_wire;
use super::opaque::Maker;
use super::{ModelQuery, WireRequest, arguments, schema};

/// Tokens of an answer where the request has no number: this protocol wants one.
const MAX_TOKENS_DEFAULT: u32 = 8_192;
/// The same for a model that reasons as much as it finds right, which counts as well. Every model
/// that can do so writes as much.
const MAX_TOKENS_ADAPTIVE: u32 = 32_000;
/// Blocks of the conversation that are marked for the cache. Of four marks that a request may have,
/// one is on the instructions.
const CONVERSATION_MARKS: usize = 2;
/// Hexadecimal digits of an id that stands for another, 96 bits: no two are the same.
const ID_DIGITS: usize = 24;
/// Most bytes of an image: the provider takes 5 MiB of one as it is sent, in Base64
/// (<https://docs.anthropic.com/en/docs/build-with-claude/vision>).
const IMAGE_BYTES_MAX: usize = (5 << 20) / 4 * 3;
/// The least that may be given for reasoning.
const THINKING_TOKENS_MIN: u32 = 1_024;

/// The request to send, and the reader of its answer.
///
/// # Errors
/// [`ModelError::InvalidRequest`].
pub(crate) fn prepare(asked: ModelQuery<'_>) -> Result<WireRequest, ModelError> {
    let request = asked.request;
    let (instructions, conversation) = asked.split_instructions();
    let (conversation, notes) = split_notes(conversation);
    let images = asked.images().at_most(IMAGE_BYTES_MAX);
    let mut messages = messages(conversation, images);
    let marks = marks(&messages);
    add_notes(notes, images, &mut messages);
    let (schema, demand) = form(&asked)?;
    add_notes(demand.as_slice(), images, &mut messages);
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(asked.model));
    if !instructions.trim().is_empty() {
        body.insert("system".to_owned(), json!([{ "type": "text", "text": instructions }]));
    }
    body.insert("stream".to_owned(), json!(asked.policy.stream));
    if !request.tools.is_empty() {
        let tools: Result<Vec<Value>, _> = request.tools.iter().map(tool).collect();
        body.insert("tools".to_owned(), Value::Array(tools?));
    }
    let choice = asked.tool_choice(|choice| match choice {
        ToolChoice::Auto => json!({ "type": "auto" }),
        ToolChoice::None => json!({ "type": "none" }),
        ToolChoice::Required => json!({ "type": "any" }),
        ToolChoice::Tool(name) => json!({ "type": "tool", "name": to_wire(name) }),
    })?;
    body.extend(choice.map(|choice| ("tool_choice".to_owned(), choice)));
    set_thinking(&asked, &messages, &mut body);
    // No temperature: models since Opus 4.7 refuse it, as do those that reason.
    if !request.stop_sequences.is_empty() {
        body.insert("stop_sequences".to_owned(), json!(request.stop_sequences));
    }
    let output = output(&asked, schema);
    if !output.is_empty() {
        body.insert("output_config".to_owned(), Value::Object(output));
    }
    body.insert("messages".to_owned(), Value::Array(messages));
    if asked.policy.cache {
        mark_for_cache(&marks, &mut body);
    }
    let url = format!("{}/messages", asked.policy.base_url);
    Ok((url, Value::Object(body), Box::new(AnthropicDecoder::new(asked.key.cloned()))))
}

/// The schema of the answer as it is sent, or where the provider would refuse it the demand in
/// words: the host holds the answer to it all the same.
///
/// # Errors
/// [`ModelError::InvalidRequest`].
fn form(asked: &ModelQuery<'_>) -> Result<(Option<Value>, Option<Message>), ModelError> {
    let Some(schema) = asked.response_schema()? else { return Ok((None, None)) };
    if has_grammar(&schema) {
        return Ok((Some(to_wire_schema(schema)), None));
    }
    let demand = format!(
        "Unless you call a tool, answer with nothing but JSON, without Markdown, that fits the \
         schema: {schema}"
    );
    Ok((None, Some(Message::text(Role::System, demand))))
}

/// The form of the answer, and the effort for it.
fn output(asked: &ModelQuery<'_>, schema: Option<Value>) -> Map<String, Value> {
    let mut output = Map::new();
    if let Some(effort) = asked.policy.request.effort {
        output.insert("effort".to_owned(), json!(effort.as_str()));
    }
    let format = schema.map(|schema| json!({ "type": "json_schema", "schema": schema }));
    output.extend(format.map(|format| ("format".to_owned(), format)));
    output
}

/// Messages before the notes at the end, and these: they are of this turn alone.
fn split_notes(conversation: &[Message]) -> (&[Message], &[Message]) {
    let notes = conversation.iter().rev().take_while(|message| message.role == Role::System);
    conversation.split_at(conversation.len() - notes.count())
}

/// Adds the notes of this turn to what the user said last.
fn add_notes(notes: &[Message], images: Images<'_>, messages: &mut Vec<Value>) {
    let blocks = notes.iter().flat_map(|note| note.parts.iter());
    let blocks: Vec<Value> = blocks.filter_map(|part| block(Role::System, part, images)).collect();
    if blocks.is_empty() {
        return;
    }
    let last = messages.last_mut().filter(|last| last["role"] == "user");
    match last.and_then(|last| last["content"].as_array_mut()) {
        Some(content) => content.extend(blocks),
        None => messages.push(json!({ "role": "user", "content": blocks })),
    }
}

/// The blocks of the conversation that are marked for the cache, each by its message and its place
/// there: the last ones that the user said, in this turn and in the one before.
fn marks(messages: &[Value]) -> Vec<(usize, usize)> {
    let said = messages.iter().enumerate().rev().filter(|(_, message)| message["role"] == "user");
    let last = |(at, message): (usize, &Value)| {
        let blocks = message["content"].as_array().map_or(0, Vec::len);
        Some((at, blocks.checked_sub(1)?))
    };
    said.take(CONVERSATION_MARKS).filter_map(last).collect()
}

/// Asks the provider to keep what it reads: what all runs of an agent have in common, and the
/// conversation up to its last word of this turn and of the one before. The provider looks for the
/// longest beginning that it keeps at these places, and at twenty blocks before each: in a turn of
/// more blocks than that it finds the conversation of the turn before at its own mark.
fn mark_for_cache(marks: &[(usize, usize)], body: &mut Map<String, Value>) {
    let mark = || json!({ "type": "ephemeral" });
    let common = if body.contains_key("system") { "system" } else { "tools" };
    let blocks = body.get_mut(common).and_then(Value::as_array_mut);
    if let Some(last) = blocks.and_then(|blocks| blocks.last_mut()) {
        last["cache_control"] = mark();
    }
    for (message, block) in marks {
        body["messages"][message]["content"][block]["cache_control"] = mark();
    }
}

/// Sets how much it may say, reasoning included, and how it reasons. Where the limit leaves too
/// little for reasoning, or the conversation forbids it, it does not.
fn set_thinking(asked: &ModelQuery<'_>, messages: &[Value], body: &mut Map<String, Value>) {
    let (default, wanted) = match asked.policy.thinking {
        Some(ThinkingMode::Adaptive) => (MAX_TOKENS_ADAPTIVE, None),
        Some(ThinkingMode::Budget(tokens)) => {
            (MAX_TOKENS_DEFAULT.saturating_add(tokens), Some(tokens))
        }
        Some(ThinkingMode::Off) | None => (MAX_TOKENS_DEFAULT, None),
    };
    let max = asked.max_tokens_or(default);
    body.insert("max_tokens".to_owned(), json!(max));
    let thinking = match asked.policy.thinking {
        None => None,
        // A model that has to call a tool may not reason.
        Some(ThinkingMode::Adaptive | ThinkingMode::Budget(_)) if asked.forces_calls() => None,
        // Some models do not show it unless they are asked to.
        Some(ThinkingMode::Adaptive) => {
            Some(json!({ "type": "adaptive", "display": "summarized" }))
        }
        Some(ThinkingMode::Off) => Some(json!({ "type": "disabled" })),
        Some(ThinkingMode::Budget(_)) => wanted
            .map(|wanted| wanted.min(max.saturating_sub(1)))
            .filter(|budget| *budget >= THINKING_TOKENS_MIN && may_think(messages))
            .map(|budget| json!({ "type": "enabled", "budget_tokens": budget })),
    };
    body.extend(thinking.map(|thinking| ("thinking".to_owned(), thinking)));
}

/// Tells if a model with a budget may reason here: where it goes on with results of calls, the
/// message that asked for them has to begin with reasoning. One of another provider does not.
fn may_think(messages: &[Value]) -> bool {
    let [.., calling, results] = messages else { return true };
    let begins = |message: &Value, kinds: &[&str]| {
        kinds.iter().any(|kind| message["content"][0]["type"] == *kind)
    };
    !begins(results, &["tool_result"]) || begins(calling, &["thinking", "redacted_thinking"])
}

fn tool(tool: &ToolSpec) -> Result<Value, ModelError> {
    let schema = schema(&tool.input_schema, &format!("the schema of {}", tool.name))?;
    Ok(json!({
        "name": to_wire(&tool.name),
        "description": tool.description,
        "input_schema": to_wire_tool_schema(schema),
    }))
}

/// The conversation, in which two speakers take turns: everything that is not the model's is the
/// user's, instructions in the middle included.
fn messages(conversation: &[Message], images: Images<'_>) -> Vec<Value> {
    let mut all: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in conversation {
        let role = match message.role {
            Role::Assistant => "assistant",
            Role::User | Role::Tool | Role::System => "user",
        };
        let blocks = message.parts.iter().filter_map(|part| block(message.role, part, images));
        match all.last_mut() {
            Some((last, content)) if *last == role => content.extend(blocks),
            Some(_) | None => all.push((role, blocks.collect())),
        }
    }
    let spoken = all.into_iter().filter(|(_, content)| !content.is_empty());
    let message = |(role, mut content): (&str, Vec<Value>)| {
        // Results come at once after their calls, before anything else that the user says.
        if role == "user" {
            content.sort_by_key(|block| block["type"] != "tool_result");
        }
        json!({ "role": role, "content": content })
    };
    spoken.map(message).collect()
}

fn block(role: Role, part: &Part, images: Images<'_>) -> Option<Value> {
    match part {
        // Blank text is refused.
        Part::Text(text) | Part::Json(text) if text.trim().is_empty() => None,
        Part::Text(text) | Part::Json(text) => Some(match role {
            Role::System => {
                json!({ "type": "text", "text": format!("<system>\n{text}\n</system>") })
            }
            Role::User | Role::Assistant | Role::Tool => json!({ "type": "text", "text": text }),
        }),
        Part::Thinking(block) => thinking(block),
        Part::ToolUse(call) => Some(json!({
            "type": "tool_use",
            "id": wire_id(&call.tool_call_id),
            "name": to_wire(&call.name),
            "input": arguments(&call.payload),
        })),
        Part::ToolAnswer(answer) => Some(json!({
            "type": "tool_result",
            "tool_use_id": wire_id(&answer.tool_call_id),
            "content": content(answer, images),
            "is_error": answer.is_error,
        })),
        Part::Media(media) => Some(match role {
            Role::Assistant => json!({ "type": "text", "text": OWN_IMAGE }),
            Role::System | Role::User | Role::Tool => image(media, images),
        }),
    }
}

/// The content of a result: its text, and its images behind it.
fn content(answer: &ToolAnswer, images: Images<'_>) -> Value {
    let text = answer.content.as_str();
    if answer.media.is_empty() {
        return json!(text);
    }
    let text = Some(text).filter(|text| !text.trim().is_empty());
    let text = text.map(|text| json!({ "type": "text", "text": text }));
    let all = text.into_iter().chain(answer.media.iter().map(|media| image(media, images)));
    Value::Array(all.collect())
}

fn image(media: &Media, images: Images<'_>) -> Value {
    match images.of(media) {
        Image::Inline { media_type, data } => json!({
            "type": "image",
            "source": { "type": "base64", "media_type": media_type, "data": data },
        }),
        Image::Words(words) => json!({ "type": "text", "text": words }),
    }
}

/// The id of a call as it is taken here. Those of other providers may have a colon or a dot.
fn wire_id(id: &str) -> Cow<'_, str> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !id.is_empty() && id.bytes().all(good) {
        return Cow::Borrowed(id);
    }
    Cow::Owned(format!("call_{}", &blake3::hash(id.as_bytes()).to_hex()[..ID_DIGITS]))
}

/// A block of reasoning as it came; one without a signature of Anthropic's is from elsewhere and
/// stays out.
fn thinking(block: &Thinking) -> Option<Value> {
    let signature = Maker::Anthropic.item(block.signature.as_deref()?)?;
    Some(match signature.strip_prefix(REDACTED) {
        Some(data) => json!({ "type": "redacted_thinking", "data": data }),
        None => json!({ "type": "thinking", "thinking": block.text, "signature": signature }),
    })
}
