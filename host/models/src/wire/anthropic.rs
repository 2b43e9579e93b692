//! Messages as Anthropic has them: the request.

use serde_json::{Map, Value, json};
use taskrun_journal::completion::ModelError;
use taskrun_journal::message::{Message, Part, Role, Thinking};
use taskrun_journal::tool::ToolSpec;

use super::anthropic_answer::{AnthropicDecoder, REDACTED};
use super::names::to_wire;
use super::opaque::Maker;
use super::{ModelQuery, WireRequest, arguments, schema};

/// Tokens of an answer where the request has no number: this protocol wants one.
const MAX_TOKENS_DEFAULT: u32 = 8_192;
/// The least that may be given for reasoning.
const THINKING_TOKENS_MIN: u32 = 1_024;

/// The request to send, and the reader of its answer.
///
/// # Errors
/// [`ModelError::InvalidRequest`].
pub(crate) fn prepare(asked: ModelQuery<'_>) -> Result<WireRequest, ModelError> {
    let request = asked.request;
    let (instructions, conversation) = asked.split_instructions();
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(asked.model));
    if !instructions.is_empty() {
        body.insert("system".to_owned(), json!(instructions));
    }
    body.insert("messages".to_owned(), Value::Array(messages(conversation)));
    body.insert("stream".to_owned(), json!(asked.policy.stream));
    if !request.tools.is_empty() {
        let tools: Result<Vec<Value>, _> = request.tools.iter().map(tool).collect();
        body.insert("tools".to_owned(), Value::Array(tools?));
    }
    let thinking = tokens(&asked, &mut body);
    // While it reasons, the temperature is not for others to choose.
    if let Some(temperature) = request.temperature.filter(|_| !thinking) {
        // Theirs ends at 1.
        body.insert("temperature".to_owned(), json!(temperature.min(1.0)));
    }
    if !request.stop_sequences.is_empty() {
        body.insert("stop_sequences".to_owned(), json!(request.stop_sequences));
    }
    if let Some(schema) = asked.response_schema()? {
        let format = json!({ "format": { "type": "json_schema", "schema": schema } });
        body.insert("output_config".to_owned(), format);
    }
    let url = format!("{}/messages", asked.policy.base_url);
    Ok((url, Value::Object(body), Box::new(AnthropicDecoder::new(asked.key.cloned()))))
}

/// Sets how much it may say, reasoning included, and gives whether it reasons. Where the limit
/// leaves too little for reasoning, it does not.
fn tokens(asked: &ModelQuery<'_>, body: &mut Map<String, Value>) -> bool {
    let wanted = asked.policy.thinking_tokens;
    let max = asked
        .max_tokens()
        .unwrap_or_else(|| MAX_TOKENS_DEFAULT.saturating_add(wanted.unwrap_or_default()));
    body.insert("max_tokens".to_owned(), json!(max));
    let budget = wanted.map(|wanted| wanted.min(max.saturating_sub(1)));
    let budget = budget.filter(|budget| *budget >= THINKING_TOKENS_MIN);
    if let Some(budget) = budget {
        let thinking = json!({ "type": "enabled", "budget_tokens": budget });
        body.insert("thinking".to_owned(), thinking);
    }
    budget.is_some()
}

fn tool(tool: &ToolSpec) -> Result<Value, ModelError> {
    Ok(json!({
        "name": to_wire(&tool.name),
        "description": tool.description,
        "input_schema": schema(&tool.input_schema, &format!("the schema of {}", tool.name))?,
    }))
}

/// The conversation, in which two speakers take turns: everything that is not the model's is the
/// user's, instructions in the middle included.
fn messages(conversation: &[Message]) -> Vec<Value> {
    let mut all: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in conversation {
        let role = match message.role {
            Role::Assistant => "assistant",
            Role::User | Role::Tool | Role::System => "user",
        };
        let blocks = message.parts.iter().filter_map(block);
        match all.last_mut() {
            Some((last, content)) if *last == role => content.extend(blocks),
            Some(_) | None => all.push((role, blocks.collect())),
        }
    }
    let spoken = all.into_iter().filter(|(_, content)| !content.is_empty());
    spoken.map(|(role, content)| json!({ "role": role, "content": content })).collect()
}

fn block(part: &Part) -> Option<Value> {
    match part {
        // Empty text is refused.
        Part::Text(text) | Part::Json(text) => {
            (!text.is_empty()).then(|| json!({ "type": "text", "text": text }))
        }
        Part::Thinking(block) => thinking(block),
        Part::ToolUse(call) => Some(json!({
            "type": "tool_use",
            "id": call.tool_call_id,
            "name": to_wire(&call.name),
            "input": arguments(&call.payload),
        })),
        Part::ToolAnswer(answer) => Some(json!({
            "type": "tool_result",
            "tool_use_id": answer.tool_call_id,
            "content": answer.content,
            "is_error": answer.is_error,
        })),
    }
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
