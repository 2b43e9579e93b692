//! Errors in the words of providers.

use serde_json::Value;
use taskrun_journal::completion::ModelError;

use super::{list_of, str_of};
use crate::key::Secret;

/// Most characters of a provider's own words in an error: enough to understand it.
const WORDS_CHARS_MAX: usize = 300;

/// Most bytes of a word that is shown where a provider speaks of a key; keys are longer.
const WORD_BYTES_MAX: usize = 20;
/// Bytes that a word may have in common with the key by chance, and one more.
const COMMON_BYTES_MIN: usize = 5;

/// Characters that stand for others in a secret that is shown in part.
const MASKS: [char; 2] = ['*', '…'];
/// The providers' words for a key. Refusals of xAI for reasons of content name it by its id.
const KEY_WORD: &str = "api key";

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
const LIMITED: [&str; 4] = ["429", "RESOURCE_EXHAUSTED", "rate_limit_error", "rate_limit_exceeded"];
/// The word of accounts that have nothing left, however long the pause is.
pub(crate) const NO_QUOTA: [&str; 1] = ["insufficient_quota"];

/// The error for an error in the middle of an answer, for all protocols alike.
pub(crate) fn of_event(error: &Value, key: Option<&Secret>) -> ModelError {
    let wrapped = serde_json::json!({ "error": error });
    let given = words(&wrapped, key);
    let said = given.clone().unwrap_or_else(|| "it gives no reason".to_owned());
    let is = |kinds: &[&str]| is_kind(&wrapped, kinds);
    if is(&OVERLOADED) {
        ModelError::Overloaded { retry_after_ms: None, said: given }
    } else if is(&NO_QUOTA) {
        ModelError::NoQuota(said)
    } else if is(&LIMITED) {
        ModelError::RateLimited { retry_after_ms: None, said: given }
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

/// The error for the data of an event that bears the name of one, in whatever form that is:
/// llama.cpp has the members of an error where Anthropic has a group of them.
pub(crate) fn of_named_event(data: &str, key: Option<&Secret>) -> ModelError {
    let event = serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()));
    of_event(stated(&event).unwrap_or(&event), key)
}

/// The error that an event or an answer states: a group, or a text with its kind beside it.
pub(crate) fn stated(event: &Value) -> Option<&Value> {
    match event.get("error")? {
        group @ Value::Object(_) => Some(group),
        Value::String(text) if !text.is_empty() => Some(event),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            None
        }
    }
}

/// Checks that what has no kind of its protocol states no error. llama.cpp ends a stream of any
/// protocol with an error of chat completions, and gateways do so too.
///
/// # Errors
/// The error that it states.
pub(crate) fn check_unknown(event: &Value, key: Option<&Secret>) -> Result<(), ModelError> {
    stated(event).map_or(Ok(()), |error| Err(of_event(error, key)))
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
    let said = message(body, None).unwrap_or_default().to_lowercase();
    is_flagged || is_kind(body, &REFUSALS) || said.starts_with(REFUSAL_PHRASE)
}

/// True if a provider says that the conversation has no room in the model's context window.
pub(crate) fn is_too_long(body: &Value) -> bool {
    let said = message(body, None).unwrap_or_default().to_lowercase();
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

/// The provider's message, on one line, without the key; one that may show a part of it without
/// everything that may be one.
pub(crate) fn words(body: &Value, key: Option<&Secret>) -> Option<String> {
    let said = message(body, key)?;
    // Keys that are shown with stars in them are shown in part.
    let is_about_key = said.contains(MASKS) || said.to_lowercase().contains(KEY_WORD);
    Some(if is_about_key { without_secrets(&said, key) } else { said })
}

/// The same of a message that is known to be about a key.
pub(crate) fn words_about_key(body: &Value, key: Option<&Secret>) -> Option<String> {
    message(body, key).map(|said| without_secrets(&said, key))
}

/// The provider's message, on one line, as it may repeat a part of the key.
fn message(body: &Value, key: Option<&Secret>) -> Option<String> {
    // Gemini wraps its error in a list where an answer was asked for piece by piece.
    let body = body.get(0).unwrap_or(body);
    let error = body.get("error").unwrap_or(body);
    let mut named = ["message", "error", "detail"].iter().filter_map(|name| error.get(name));
    // FastAPI has its words in `detail`, or there a list of what is wrong with a request.
    let fault = list_of(error, "detail").first().map(|fault| str_of(fault, "msg"));
    let message = error.as_str().or_else(|| named.find_map(Value::as_str)).or(fault)?;
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

/// A provider's words about a key, with everything left out that may be a part or another form of
/// it: long words, those with stars, and those that have letters in common with it.
fn without_secrets(said: &str, key: Option<&Secret>) -> String {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.*…+/=".contains(c);
    let mut clean = String::new();
    for word in said.split_inclusive(|c: char| !is_inner(c)) {
        let (inner, rest) = match word.char_indices().next_back() {
            Some((last, c)) if !is_inner(c) => word.split_at(last),
            Some(_) | None => (word, ""),
        };
        let suspect = inner.len() >= WORD_BYTES_MAX
            || inner.contains(MASKS)
            || key.is_some_and(|key| key.has_in_common(inner, COMMON_BYTES_MIN));
        clean.push_str(if suspect { "[…]" } else { inner });
        clean.push_str(rest);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_provider_says_of_a_key_is_shown_without_any_form_of_it() {
        let key = Secret::for_test("sk-proj-abcdefghijkl");
        let clean = |said: &str| without_secrets(said, Some(&key));
        let plain = "Your organization must be verified; see https://x.test/a.";
        assert_eq!(clean(plain), plain);
        let cases = [
            ("Bad key \"sk-proj-abcdefghijkl\".", "Bad key \"[…]\"."),
            ("Incorrect API key: sk-pr***ijkl!", "Incorrect API key: […]!"),
            ("It ends in ghijkl", "It ends in […]"),
            ("(c2stcHJvai1hYmNkZWZnaGlqa2w=)", "([…])"),
        ];
        for (said, shown) in cases {
            assert_eq!(clean(said), shown);
        }
    }

    #[test]
    fn words_in_the_middle_of_an_answer_show_no_part_of_a_key() {
        let key = Secret::for_test("sk-proj-abcdefghijkl");
        let of = |kind: &str, message: &str| {
            of_event(&serde_json::json!({ "code": kind, "message": message }), Some(&key))
        };
        let said = Some("Slow down; API key: […]".to_owned());
        let limited = of("rate_limit_exceeded", "Slow down; API key: sk-p***ijkl.");
        assert_eq!(limited, ModelError::RateLimited { retry_after_ms: None, said: said.clone() });
        let overloaded = of("overloaded_error", "Slow down; API key: abcdefgh");
        assert_eq!(overloaded, ModelError::Overloaded { retry_after_ms: None, said });
        let invalid = of("invalid_request_error", "No a****b for q-abcdefghijkl.");
        assert_eq!(invalid, ModelError::InvalidRequest("No […] for […]".to_owned()));
        let plain = "Use model m-1 of https://provider.test/models instead.";
        assert_eq!(of("server_error", plain), ModelError::Unavailable(plain.to_owned()));
    }
}
