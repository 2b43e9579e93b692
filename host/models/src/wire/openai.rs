//! Chat completions as OpenAI has them, and every server that speaks like it.
//!
//! Reasoning is not sent back: the protocol has no place for it, and some servers refuse it.

use serde_json::{Map, Value, json};
use taskrun_journal::completion::ModelError;
use taskrun_journal::message::{Message, Part, Role};
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::Wire;

use super::names::to_wire;
use super::openai_answer::OpenAiDecoder;
use super::{ModelQuery, WireRequest, schema, text_of};

/// The request to send, and the reader of its answer.
///
/// # Errors
/// [`ModelError::InvalidRequest`].
pub(crate) fn prepare(asked: ModelQuery<'_>) -> Result<WireRequest, ModelError> {
    let request = asked.request;
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(asked.model));
    let messages: Vec<Value> = request.messages.iter().flat_map(messages_of).collect();
    body.insert("messages".to_owned(), Value::Array(messages));
    body.insert("stream".to_owned(), json!(asked.policy.stream));
    if asked.policy.stream {
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    }
    if !request.tools.is_empty() {
        let tools: Result<Vec<Value>, _> = request.tools.iter().map(tool).collect();
        body.insert("tools".to_owned(), Value::Array(tools?));
    }
    if let Some(max) = asked.max_tokens() {
        body.insert(max_tokens_key(&asked).to_owned(), json!(max));
    }
    if let Some(temperature) = request.temperature {
        body.insert("temperature".to_owned(), json!(temperature));
    }
    if !request.stop_sequences.is_empty() {
        body.insert("stop".to_owned(), json!(request.stop_sequences));
    }
    if let Some(schema) = asked.response_schema()? {
        let format = json!({
            "type": "json_schema",
            "json_schema": { "name": "answer", "schema": schema },
        });
        body.insert("response_format".to_owned(), format);
    }
    asked.add_extra(&mut body)?;
    let url = format!("{}/chat/completions", asked.policy.base_url);
    Ok((url, Value::Object(body), Box::new(OpenAiDecoder::new(asked.key.cloned()))))
}

/// OpenAI's own models refuse the old name; the servers that came after know only that.
fn max_tokens_key(asked: &ModelQuery<'_>) -> &'static str {
    if asked.policy.base_url == Wire::OpenAi.default_base_url() {
        "max_completion_tokens"
    } else {
        "max_tokens"
    }
}

fn tool(tool: &ToolSpec) -> Result<Value, ModelError> {
    let parameters = schema(&tool.input_schema, &format!("the schema of {}", tool.name))?;
    Ok(json!({
        "type": "function",
        "function": {
            "name": to_wire(&tool.name),
            "description": tool.description,
            "parameters": parameters,
        },
    }))
}

/// A message of ours as theirs: results of tools are messages of their own there.
fn messages_of(message: &Message) -> Vec<Value> {
    let mut all = Vec::new();
    let mut calls = Vec::new();
    for part in &message.parts {
        match part {
            Part::ToolAnswer(answer) => all.push(json!({
                "role": "tool",
                "tool_call_id": answer.tool_call_id,
                "content": answer.content,
            })),
            Part::ToolUse(call) => calls.push(json!({
                "id": call.tool_call_id,
                "type": "function",
                "function": { "name": to_wire(&call.name), "arguments": call.payload },
            })),
            Part::Text(_) | Part::Json(_) | Part::Thinking(_) => {}
        }
    }
    let text = text_of(message);
    match message.role {
        Role::Assistant => {
            let mut said = json!({ "role": "assistant", "content": text });
            if !calls.is_empty() {
                said["tool_calls"] = Value::Array(calls);
                if text.is_empty() {
                    said["content"] = Value::Null;
                }
            }
            all.push(said);
        }
        Role::System => all.push(json!({ "role": "system", "content": text })),
        Role::User | Role::Tool => {
            if !text.is_empty() || all.is_empty() {
                all.push(json!({ "role": "user", "content": text }));
            }
        }
    }
    all
}
