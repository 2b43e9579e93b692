//! Chat completions as OpenAI has them, and every server that speaks like it: the request.

use serde_json::{Map, Value, json};
use taskrun_journal::completion::{ModelError, ToolChoice};
use taskrun_journal::tool::ToolSpec;

use super::chat_answer::ChatDecoder;
use super::chat_messages::messages;
use super::names::to_wire;
use super::strict::{closed, is_strict};
use super::{ModelQuery, WireRequest, schema};

/// The request to send, and the reader of its answer.
///
/// # Errors
/// [`ModelError::InvalidRequest`].
pub(crate) fn prepare(asked: ModelQuery<'_>) -> Result<WireRequest, ModelError> {
    let request = asked.request;
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(asked.model));
    let server = asked.policy.server;
    let messages = messages(server, &request.messages, asked.images());
    body.insert("messages".to_owned(), Value::Array(messages));
    body.insert("stream".to_owned(), json!(asked.policy.stream));
    if asked.policy.stream && server.kind.is_asked_for_usage() {
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    }
    if !request.tools.is_empty() {
        let tools: Result<Vec<Value>, _> = request.tools.iter().map(tool).collect();
        body.insert("tools".to_owned(), Value::Array(tools?));
        // Without tools it is refused.
        if let Some(parallel) = asked.policy.request.parallel_tool_calls {
            body.insert("parallel_tool_calls".to_owned(), json!(parallel));
        }
    }
    let choice = asked.tool_choice(|choice| match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Tool(name) => {
            json!({ "type": "function", "function": { "name": to_wire(name) } })
        }
    })?;
    body.extend(choice.map(|choice| ("tool_choice".to_owned(), choice)));
    if let Some(effort) = asked.policy.request.effort {
        body.insert("reasoning_effort".to_owned(), json!(effort.as_str()));
    }
    if let Some(max) = asked.max_tokens() {
        body.insert(server.max_tokens_field.as_str().to_owned(), json!(max));
    }
    if let Some(temperature) = request.temperature {
        body.insert("temperature".to_owned(), json!(temperature));
    }
    if !request.stop_sequences.is_empty() {
        body.insert("stop".to_owned(), json!(request.stop_sequences));
    }
    if let Some(schema) = asked.response_schema()? {
        // OpenAI takes only some schemas as strict, and holds answers to no others.
        let schema = closed(schema);
        let strict = is_strict(&schema);
        let format = json!({
            "type": "json_schema",
            "json_schema": { "name": "answer", "schema": schema, "strict": strict },
        });
        body.insert("response_format".to_owned(), format);
    }
    let url = format!("{}/chat/completions", asked.policy.base_url);
    Ok((url, Value::Object(body), Box::new(ChatDecoder::new(asked.key.cloned()))))
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
