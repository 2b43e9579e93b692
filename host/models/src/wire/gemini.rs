//! Content generation as Google's Gemini has it: the request.

use serde_json::{Map, Value, json};
use taskrun_journal::completion::{ModelError, ToolChoice};
use taskrun_journal::media::Media;
use taskrun_journal::message::{Message, Part, Role, ToolAnswer};
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::ThinkingMode;

use super::call_ids::is_ours;
use super::gemini_answer::GeminiDecoder;
use super::images::{Image, Images, OWN_IMAGE};
use super::names::{name_of_call, to_wire};
use super::opaque::Maker;
use super::{ModelQuery, WireRequest, arguments, schema};

/// The request to send, and the reader of its answer. Of the types of images the provider takes all but
/// GIF (<https://ai.google.dev/gemini-api/docs/image-understanding>).
///
/// # Errors
/// [`ModelError::InvalidRequest`].
pub(crate) fn prepare(asked: ModelQuery<'_>) -> Result<WireRequest, ModelError> {
    let request = asked.request;
    let (instructions, conversation) = asked.split_instructions();
    let mut body = Map::new();
    if !instructions.is_empty() {
        let parts = json!({ "parts": [{ "text": instructions }] });
        body.insert("systemInstruction".to_owned(), parts);
    }
    let images = asked.images().without("image/gif");
    body.insert("contents".to_owned(), Value::Array(contents(conversation, images)));
    if !request.tools.is_empty() {
        let tools: Result<Vec<Value>, _> = request.tools.iter().map(tool).collect();
        body.insert("tools".to_owned(), json!([{ "functionDeclarations": tools? }]));
    }
    let choice = asked.tool_choice(|choice| match choice {
        ToolChoice::Auto => json!({ "mode": "AUTO" }),
        ToolChoice::None => json!({ "mode": "NONE" }),
        ToolChoice::Required => json!({ "mode": "ANY" }),
        ToolChoice::Tool(name) => {
            json!({ "mode": "ANY", "allowedFunctionNames": [to_wire(name)] })
        }
    })?;
    let choice = choice.map(|choice| json!({ "functionCallingConfig": choice }));
    body.extend(choice.map(|choice| ("toolConfig".to_owned(), choice)));
    let settings = settings(&asked)?;
    if !settings.is_empty() {
        body.insert("generationConfig".to_owned(), Value::Object(settings));
    }
    let method =
        if asked.policy.stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
    let url = format!("{}/models/{}:{method}", asked.policy.base_url, asked.model);
    Ok((url, Value::Object(body), Box::new(GeminiDecoder::new(asked.key.cloned()))))
}

fn settings(asked: &ModelQuery<'_>) -> Result<Map<String, Value>, ModelError> {
    let request = asked.request;
    let mut settings = Map::new();
    if let Some(max) = asked.max_tokens() {
        settings.insert("maxOutputTokens".to_owned(), json!(max));
    }
    if let Some(temperature) = request.temperature {
        settings.insert("temperature".to_owned(), json!(temperature));
    }
    if !request.stop_sequences.is_empty() {
        settings.insert("stopSequences".to_owned(), json!(request.stop_sequences));
    }
    if let Some(schema) = asked.response_schema()? {
        settings.insert("responseMimeType".to_owned(), json!("application/json"));
        settings.insert("responseJsonSchema".to_owned(), schema);
    }
    if let Some(thinking) = asked.policy.thinking {
        let thinking = match thinking {
            // The provider's number for as many as it finds right.
            ThinkingMode::Adaptive => json!({ "thinkingBudget": -1, "includeThoughts": true }),
            ThinkingMode::Budget(tokens) => {
                json!({ "thinkingBudget": tokens, "includeThoughts": true })
            }
            ThinkingMode::Off => json!({ "thinkingBudget": 0 }),
        };
        settings.insert("thinkingConfig".to_owned(), thinking);
    }
    Ok(settings)
}

fn tool(tool: &ToolSpec) -> Result<Value, ModelError> {
    Ok(json!({
        "name": to_wire(&tool.name),
        "description": tool.description,
        "parametersJsonSchema": schema(&tool.input_schema, &format!("the schema of {}", tool.name))?,
    }))
}

/// The conversation, in which two speakers take turns.
fn contents(conversation: &[Message], images: Images<'_>) -> Vec<Value> {
    let mut all: Vec<(&str, Vec<Value>)> = Vec::new();
    for (index, message) in conversation.iter().enumerate() {
        let role = match message.role {
            Role::Assistant => "model",
            Role::User | Role::Tool | Role::System => "user",
        };
        let parts = parts(message, &conversation[..index], images);
        match all.last_mut() {
            Some((last, content)) if *last == role => content.extend(parts),
            Some(_) | None => all.push((role, parts)),
        }
    }
    let spoken = all.into_iter().filter(|(_, parts)| !parts.is_empty());
    spoken.map(|(role, parts)| json!({ "role": role, "parts": parts })).collect()
}

/// Reasoning itself is not sent back. Its signatures are, on the calls that followed from it, or
/// on the text where there are no calls: that is where they were.
fn parts(message: &Message, before: &[Message], images: Images<'_>) -> Vec<Value> {
    let mut signatures = message.parts.iter().filter_map(|part| match part {
        Part::Thinking(block) => Maker::Gemini.item(block.signature.as_deref()?),
        Part::Text(_) | Part::Json(_) | Part::ToolUse(_) | Part::ToolAnswer(_) | Part::Media(_) => {
            None
        }
    });
    let has_calls = message.tool_uses().next().is_some();
    let mut signed = |mut part: Value| {
        if let Some(signature) = signatures.next() {
            part["thoughtSignature"] = json!(signature);
        }
        part
    };
    let mut parts = Vec::new();
    for part in &message.parts {
        match part {
            Part::Text(text) | Part::Json(text) if !text.is_empty() => {
                let part = json!({ "text": text });
                parts.push(if has_calls { part } else { signed(part) });
            }
            Part::Text(_) | Part::Json(_) | Part::Thinking(_) => {}
            Part::ToolUse(call) => {
                let args = arguments(&call.payload);
                let mut asked = json!({ "name": to_wire(&call.name), "args": args });
                add_id(&mut asked, &call.tool_call_id);
                parts.push(signed(json!({ "functionCall": asked })));
            }
            Part::ToolAnswer(answer) => parts.push(result(answer, before)),
            Part::Media(_) if message.role == Role::Assistant => {
                parts.push(json!({ "text": OWN_IMAGE }));
            }
            Part::Media(media) => parts.push(image(media, images)),
        }
    }
    // Images of results stand behind all of these: a result itself takes none from models before
    // Gemini 3.
    let results = message.parts.iter().filter_map(|part| match part {
        Part::ToolAnswer(answer) => Some(&answer.media),
        Part::Text(_) | Part::Json(_) | Part::Thinking(_) | Part::ToolUse(_) | Part::Media(_) => {
            None
        }
    });
    parts.extend(results.flatten().map(|media| image(media, images)));
    parts
}

fn image(media: &Media, images: Images<'_>) -> Value {
    match images.of(media) {
        Image::Inline { media_type, data } => {
            json!({ "inlineData": { "mimeType": media_type, "data": data } })
        }
        Image::Words(words) => json!({ "text": words }),
    }
}

/// The id that the provider gave to a call goes back with it and with its result: Gemini 3 tells
/// parallel calls of one function by it. One of ours means nothing to it.
fn add_id(part: &mut Value, id: &str) {
    if !is_ours(id) {
        part["id"] = json!(id);
    }
}

/// Results are told by the name of their function, and by the id of their call if it has one.
fn result(answer: &ToolAnswer, before: &[Message]) -> Value {
    let name = name_of_call(before, &answer.tool_call_id).unwrap_or("unknown");
    let content = serde_json::from_str(&answer.content);
    let content = content.unwrap_or_else(|_| Value::String(answer.content.clone()));
    let key = if answer.is_error { "error" } else { "result" };
    let mut given = json!({ "name": to_wire(name), "response": { key: content } });
    add_id(&mut given, &answer.tool_call_id);
    json!({ "functionResponse": given })
}
