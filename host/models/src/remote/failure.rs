//! From a provider's refusals to typed errors.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;
use taskrun_journal::completion::ModelError;
use taskrun_journal::time::{Timestamp, millis};

use crate::key::Secret;

/// Most characters of a provider's own words in an error: enough to understand it.
const WORDS_CHARS_MAX: usize = 300;

/// The failure of a request, and whether it makes sense to send it again.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: ModelError,
    /// `None`: another try would end alike, or cost twice.
    pub(super) again: Option<Retry>,
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// After a pause of our own choice.
    Later,
    /// Not before this, as the provider asks.
    After(Duration),
}

impl From<ModelError> for Failure {
    /// One that is final.
    fn from(error: ModelError) -> Self {
        Self { error, again: None }
    }
}

/// The failure for an answer with another status than success.
pub(super) fn of_status(
    status: StatusCode,
    wait: Option<Duration>,
    body: &[u8],
    key: Option<&Secret>,
) -> Failure {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let said = words(&body, key);
    let told = |fallback: &str| match &said {
        Some(said) => format!("status {}: {said}", status.as_u16()),
        None => format!("status {}{fallback}", status.as_u16()),
    };
    let again = Some(wait.map_or(Retry::Later, Retry::After));
    let retry_after_ms = wait.map(millis);
    match status.as_u16() {
        // What it says of a key may repeat the key, in part or in another form.
        401 | 403 => ModelError::Unauthorized(format!("status {}", status.as_u16())).into(),
        408 => ModelError::Timeout.into(),
        429 if is_kind(&body, &["insufficient_quota"]) => {
            ModelError::RateLimited { retry_after_ms: None }.into()
        }
        429 => Failure { error: ModelError::RateLimited { retry_after_ms }, again },
        503 | 529 => Failure { error: ModelError::Overloaded { retry_after_ms }, again },
        500..=599 => Failure { error: ModelError::Unavailable(told("")), again },
        400..=499 if is_kind(&body, &["content_filter", "content_policy_violation"]) => {
            ModelError::Refused(told("")).into()
        }
        400..=499 => ModelError::InvalidRequest(told("")).into(),
        300..=399 => ModelError::Unavailable(told(", and redirects are not followed")).into(),
        _ => ModelError::Malformed(told("")).into(),
    }
}

/// The error for an error in the middle of an answer, for all protocols alike.
pub(crate) fn of_event(error: &Value, key: Option<&Secret>) -> ModelError {
    let wrapped = serde_json::json!({ "error": error });
    let said = words(&wrapped, key).unwrap_or_else(|| "it gives no reason".to_owned());
    let is = |kinds: &[&str]| is_kind(&wrapped, kinds);
    if is(&["overloaded_error", "overloaded", "UNAVAILABLE", "503", "529"]) {
        ModelError::Overloaded { retry_after_ms: None }
    } else if is(&["rate_limit_error", "rate_limit_exceeded", "RESOURCE_EXHAUSTED", "429"]) {
        ModelError::RateLimited { retry_after_ms: None }
    } else if is(&["authentication_error", "permission_error", "invalid_api_key", "401", "403"]) {
        ModelError::Unauthorized("in the middle of the answer".to_owned())
    } else if is(&["content_filter", "content_policy_violation"]) {
        ModelError::Refused(said)
    } else if is(&["invalid_request_error", "INVALID_ARGUMENT", "not_found_error", "400", "404"]) {
        ModelError::InvalidRequest(said)
    } else if is(&["timeout_error", "DEADLINE_EXCEEDED", "408"]) {
        ModelError::Timeout
    } else {
        ModelError::Unavailable(said)
    }
}

/// True if `code`, `type` or `status` of the error is one of these.
fn is_kind(body: &Value, kinds: &[&str]) -> bool {
    let error = body.get("error").unwrap_or(body);
    ["code", "type", "status"].iter().filter_map(|key| error.get(key)).any(|value| match value {
        Value::String(word) => kinds.contains(&word.as_str()),
        Value::Number(number) => kinds.contains(&number.to_string().as_str()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    })
}

/// The provider's message, on one line, without the key.
fn words(body: &Value, key: Option<&Secret>) -> Option<String> {
    // Gemini wraps its error in a list where an answer was asked for piece by piece.
    let body = body.get(0).unwrap_or(body);
    let error = body.get("error").unwrap_or(body);
    let message = error.as_str().or_else(|| error.get("message").and_then(Value::as_str))?;
    let message = key.map_or_else(|| message.to_owned(), |key| key.scrub(message));
    let line: String = message
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(WORDS_CHARS_MAX)
        .collect();
    Some(line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// The pause that the provider asks for.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(ms) = text("retry-after-ms").and_then(|text| text.parse().ok()) {
        return Some(Duration::from_millis(ms));
    }
    let value = text("retry-after")?;
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
    let at = Timestamp(u64::try_from(at.as_millisecond()).unwrap_or(0));
    Some(at.since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_may_be_given_in_three_ways() {
        let now = Timestamp(784_111_777_000);
        let after = |name: &'static str, value: &'static str| {
            retry_after(
                &HeaderMap::from_iter([(
                    name.parse().expect("a name"),
                    value.parse().expect("a value"),
                )]),
                now,
            )
        };
        assert_eq!(after("retry-after-ms", "250"), Some(Duration::from_millis(250)));
        assert_eq!(after("retry-after", "7"), Some(Duration::from_secs(7)));
        let date = after("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT");
        assert_eq!(date, Some(Duration::from_secs(3)));
        assert_eq!(after("retry-after", "soon"), None);
    }

    #[test]
    fn each_status_has_its_meaning() {
        let of = |status: u16, body: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            of_status(status, None, body.as_bytes(), None)
        };
        let quota = r#"{"error":{"code":"insufficient_quota","message":"no"}}"#;
        assert!(of(429, quota).again.is_none());
        assert!(of(429, "").again.is_some());
        assert!(matches!(of(529, "").error, ModelError::Overloaded { .. }));
        let filter = r#"{"error":{"code":"content_filter","message":"no\nway"}}"#;
        assert_eq!(of(400, filter).error, ModelError::Refused("status 400: no way".into()));
        assert!(matches!(of(404, "<html>").error, ModelError::InvalidRequest(_)));
        assert!(matches!(of(302, "").error, ModelError::Unavailable(_)));
        assert!(of(502, "").again.is_some() && of(400, "").again.is_none());
    }
}
