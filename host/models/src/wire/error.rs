//! Errors in the words of providers.

use serde_json::Value;
use taskrun_journal::completion::ModelError;

use super::{list_of, str_of};
use crate::key::Secret;

/// Most characters of a provider's own words in an error: enough to understand it.
const WORDS_CHARS_MAX: usize = 300;

/// Words of refusals for reasons of content.
const REFUSALS: [&str; 6] = [
    "bio_policy",
    "content_filter",
    "content_policy_violation",
    "image_content_policy_violation",
    "invalid_prompt",
    "misalignment_policy_violation",
];
/// The members of an error's `metadata` by which OpenRouter says what was flagged in a question
/// (<https://openrouter.ai/docs/api/reference/errors-and-debugging>).
const FLAGS: [&str; 3] = ["flagged_input", "patterns", "reasons"];
/// Its words for refusals there.
const REFUSAL_TYPES: [&str; 2] = ["content_policy_violation", "refusal"];
/// Refusals of xAI, which has no word for them, as their messages begin.
const REFUSAL_PHRASE: &str = "content violates usage guidelines";
/// Words of requests that are wrong whoever is asked.
const INVALID: [&str; 5] =
    ["400", "404", "INVALID_ARGUMENT", "invalid_request_error", "not_found_error"];
/// Words of requests for which the context window has no room.
const NO_ROOM: [&str; 2] = ["context_length_exceeded", "exceed_context_size_error"];
/// The same, of servers that have no word for it, as they stand in their messages: Anthropic (two),
/// Gemini, vLLM (two), llama.cpp, Kimi, xAI and SGLang.
const NO_ROOM_PHRASES: [&str; 10] = [
    "prompt is too long",
    "exceed context limit",
    "exceeds the maximum number of tokens",
    "maximum context length",
    "longer than the maximum model length",
    "context window",
    "available context size",
    "exceeded model token limit",
    "maximum prompt length",
    "longer than the model's context length",
];
/// Words of providers that have no room at present.
const OVERLOADED: [&str; 7] = [
    "503",
    "529",
    "UNAVAILABLE",
    "overloaded",
    "overloaded_error",
    "server_is_overloaded",
    "slow_down",
];
/// Words of providers that want a pause.
const LIMITED: [&str; 5] =
    ["429", "RESOURCE_EXHAUSTED", "insufficient_quota", "rate_limit_error", "rate_limit_exceeded"];

/// The error for an error in the middle of an answer, for all protocols alike.
pub(crate) fn of_event(error: &Value, key: Option<&Secret>) -> ModelError {
    let wrapped = serde_json::json!({ "error": error });
    let said = words(&wrapped, key).unwrap_or_else(|| "it gives no reason".to_owned());
    let is = |kinds: &[&str]| is_kind(&wrapped, kinds);
    if is(&OVERLOADED) {
        ModelError::Overloaded { retry_after_ms: None }
    } else if is(&LIMITED) {
        ModelError::RateLimited { retry_after_ms: None }
    } else if is_refusal(&wrapped) {
        ModelError::Refused(said)
    } else if is(&["authentication_error", "permission_error", "invalid_api_key", "401", "403"]) {
        ModelError::Unauthorized("in the middle of the answer".to_owned())
    } else if is_too_long(&wrapped) {
        ModelError::ContextWindow(said)
    } else if is(&INVALID) {
        ModelError::InvalidRequest(said)
    } else if is(&["timeout_error", "DEADLINE_EXCEEDED", "408"]) {
        ModelError::Timeout
    } else {
        ModelError::Unavailable(said)
    }
}

/// True if a provider says that it declines to answer. OpenRouter and xAI do so with the status of
/// a key that is not accepted.
pub(crate) fn is_refusal(body: &Value) -> bool {
    let metadata = body.get("error").and_then(|error| error.get("metadata"));
    let is_flagged = metadata.is_some_and(|metadata| {
        let is_said =
            |flag: &&str| !list_of(metadata, flag).is_empty() || !str_of(metadata, flag).is_empty();
        FLAGS.iter().any(is_said) || REFUSAL_TYPES.contains(&str_of(metadata, "error_type"))
    });
    let said = words(body, None).unwrap_or_default().to_lowercase();
    is_flagged || is_kind(body, &REFUSALS) || said.starts_with(REFUSAL_PHRASE)
}

/// True if a provider says that the conversation has no room in the model's context window.
pub(crate) fn is_too_long(body: &Value) -> bool {
    let said = words(body, None).unwrap_or_default().to_lowercase();
    is_kind(body, &NO_ROOM) || NO_ROOM_PHRASES.iter().any(|phrase| said.contains(phrase))
}

/// True if `code`, `type` or `status` of the error is one of these.
pub(crate) fn is_kind(body: &Value, kinds: &[&str]) -> bool {
    let error = body.get("error").unwrap_or(body);
    ["code", "type", "status"].iter().filter_map(|key| error.get(key)).any(|value| match value {
        Value::String(word) => kinds.contains(&word.as_str()),
        Value::Number(number) => kinds.contains(&number.to_string().as_str()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    })
}

/// The provider's message, on one line, without the key.
pub(crate) fn words(body: &Value, key: Option<&Secret>) -> Option<String> {
    // Gemini wraps its error in a list where an answer was asked for piece by piece.
    let body = body.get(0).unwrap_or(body);
    let error = body.get("error").unwrap_or(body);
    let message = error.as_str().or_else(|| error.get("message").and_then(Value::as_str))?;
    Some(line_of(message, key)).filter(|line| !line.is_empty())
}

/// The error for an answer that the model or its provider declined to give, in these words.
pub(crate) fn refused(words: &str, key: Option<&Secret>) -> ModelError {
    let line = line_of(words, key);
    ModelError::Refused(if line.is_empty() { "it gives no reason".to_owned() } else { line })
}

/// A provider's words on one line, without the key.
fn line_of(words: &str, key: Option<&Secret>) -> String {
    let words = key.map_or_else(|| words.to_owned(), |key| key.scrub(words));
    let one_line = words.chars().map(|c| if c.is_control() { ' ' } else { c });
    one_line.take(WORDS_CHARS_MAX).collect::<String>().trim().to_owned()
}
