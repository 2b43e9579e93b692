//! Responses, the protocol of OpenAI's current models: the request.
//!
//! The provider keeps nothing of a conversation (`store` is false). What it reasoned comes
//! encrypted and goes back with what followed from it.

use serde_json::{Map, Value, json};
use taskrun_journal::completion::{ModelError, ToolChoice};
use taskrun_journal::message::{Message, Role};
use taskrun_journal::tool::ToolSpec;

use super::names::to_wire;
use super::responses_answer::ResponsesDecoder;
use super::responses_items::items;
use super::strict::{closed, is_strict};
use super::{ModelQuery, WireRequest, schema};

/// The least number of tokens that an answer may be bounded by: OpenAI refuses a smaller one.
const MAX_TOKENS_MIN: u32 = 16;

/// The request to send, and the reader of its answer.
///
/// # Errors
/// [`ModelError::InvalidRequest`].
pub(crate) fn prepare(asked: ModelQuery<'_>) -> Result<WireRequest, ModelError> {
    let request = asked.request;
    if !request.stop_sequences.is_empty() {
        let hint = "this protocol has no stop sequences; chat completions have";
        return Err(ModelError::InvalidRequest(hint.to_owned()));
    }
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(asked.model));
    let reasoning_field = asked.policy.server.reasoning_field;
    let (instructions, conversation) = split(&asked);
    if !instructions.is_empty() {
        body.insert("instructions".to_owned(), json!(instructions));
    }
    let input = items(conversation, reasoning_field.is_some(), asked.images());
    body.insert("input".to_owned(), Value::Array(input));
    body.insert("stream".to_owned(), json!(asked.policy.stream));
    body.insert("store".to_owned(), json!(false));
    if let Some(field) = reasoning_field {
        let include = [format!("reasoning.{}", field.as_str())];
        body.insert("include".to_owned(), json!(include));
    }
    if !request.tools.is_empty() {
        let tools: Result<Vec<Value>, _> = request.tools.iter().map(tool).collect();
        body.insert("tools".to_owned(), Value::Array(tools?));
        if let Some(parallel) = asked.policy.request.parallel_tool_calls {
            body.insert("parallel_tool_calls".to_owned(), json!(parallel));
        }
    }
    let choice = asked.tool_choice(|choice| match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Tool(name) => json!({ "type": "function", "name": to_wire(name) }),
    })?;
    body.extend(choice.map(|choice| ("tool_choice".to_owned(), choice)));
    if let Some(effort) = asked.policy.request.effort {
        body.insert("reasoning".to_owned(), json!({ "effort": effort.as_str() }));
    }
    if let Some(max) = asked.max_tokens() {
        body.insert("max_output_tokens".to_owned(), json!(max.max(MAX_TOKENS_MIN)));
    }
    if let Some(temperature) = request.temperature {
        body.insert("temperature".to_owned(), json!(temperature));
    }
    if let Some(schema) = asked.response_schema()? {
        // OpenAI takes only some schemas as strict, and holds answers to no others.
        let schema = closed(schema);
        let strict = is_strict(&schema);
        let format = json!({
            "type": "json_schema", "name": "answer", "schema": schema, "strict": strict,
        });
        body.insert("text".to_owned(), json!({ "format": format }));
    }
    let url = format!("{}/responses", asked.policy.base_url);
    Ok((url, Value::Object(body), Box::new(ResponsesDecoder::new(asked.key.cloned()))))
}

/// The instructions and the conversation. Without a conversation the instructions are all that is
/// asked, as the input must have something in it.
fn split<'q>(asked: &'q ModelQuery<'q>) -> (String, &'q [Message]) {
    let messages = &asked.request.messages;
    if messages.iter().all(|message| message.role == Role::System) {
        return (String::new(), messages);
    }
    asked.split_instructions()
}

/// A tool's schema is advice: held to it strictly, a model could leave no argument out.
fn tool(tool: &ToolSpec) -> Result<Value, ModelError> {
    let parameters = schema(&tool.input_schema, &format!("the schema of {}", tool.name))?;
    Ok(json!({
        "type": "function",
        "name": to_wire(&tool.name),
        "description": tool.description,
        "parameters": parameters,
        "strict": false,
    }))
}
