//! From a provider's refusals to typed errors.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;
use taskrun_journal::completion::ModelError;
use taskrun_journal::time::{Timestamp, millis};

use crate::key::Secret;
use crate::wire::error::{NO_QUOTA, is_kind, is_refusal, is_too_long, words, words_about_key};
use crate::wire::sse::Events;

/// Google's reasons for keys that are not accepted.
const KEY_REASONS: [&str; 2] = ["API_KEY_INVALID", "API_KEY_EXPIRED"];
/// The same in words, as they begin.
const KEY_PHRASES: [&str; 2] = ["incorrect api key", "invalid api key"];

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
    let body = serde_json::from_slice(body).unwrap_or_else(|_| in_stream(body));
    let wait = wait.or_else(|| retry_info(&body));
    let said = words(&body, key);
    let told = |fallback: &str| match &said {
        Some(said) => format!("status {}: {said}", status.as_u16()),
        None => format!("status {}{fallback}", status.as_u16()),
    };
    let again = Some(wait.map_or(Retry::Later, Retry::After));
    let retry_after_ms = wait.map(millis);
    match status.as_u16() {
        // Also with the status of a key that is not accepted.
        400..=499 if is_refusal(&body) => ModelError::Refused(told("")).into(),
        400 if refuses_key(&body) => unauthorized(status, &body, key),
        401 | 403 => unauthorized(status, &body, key),
        408 => ModelError::Timeout.into(),
        429 if is_kind(&body, &NO_QUOTA) => ModelError::NoQuota(told("")).into(),
        429 => {
            let said = Some(told(""));
            Failure { error: ModelError::RateLimited { retry_after_ms, said }, again }
        }
        503 | 529 => {
            let said = Some(told(""));
            Failure { error: ModelError::Overloaded { retry_after_ms, said }, again }
        }
        500..=599 => Failure { error: ModelError::Unavailable(told("")), again },
        400 | 413 | 422 if is_too_long(&body) => ModelError::ContextWindow(told("")).into(),
        400..=499 => ModelError::InvalidRequest(told("")).into(),
        300..=399 => ModelError::Unavailable(told(", and redirects are not followed")).into(),
        _ => ModelError::Malformed(told("")).into(),
    }
}

/// The refusal in a body that is a stream of events, as LiteLLM has it where one was asked for;
/// `Null` if there is none.
fn in_stream(body: &[u8]) -> Value {
    let mut events = Events::default();
    events.push(body);
    // The body may end, or be cut off, before the line that ends its event.
    events.push(b"\n\n");
    let all = std::iter::from_fn(|| events.next());
    let mut parsed = all.filter_map(|event| serde_json::from_str::<Value>(&event.data).ok());
    parsed.find(Value::is_object).unwrap_or(Value::Null)
}

/// The failure for a key that is not accepted. What a provider says of a key may repeat the key, in
/// part or in another form, so that it is only logged, and that without such parts.
fn unauthorized(status: StatusCode, body: &Value, key: Option<&Secret>) -> Failure {
    let reason = words_about_key(body, key).unwrap_or_default();
    let status = status.as_u16();
    tracing::warn!(status, reason, "the provider does not accept the key");
    ModelError::Unauthorized(format!("status {status}")).into()
}

/// Tells if a provider that has a bad request for everything means the key: Gemini by the reason of a
/// detail, xAI by its words.
fn refuses_key(body: &Value) -> bool {
    let body = body.get(0).unwrap_or(body);
    let details = body.pointer("/error/details").and_then(Value::as_array);
    let is_reason = |detail: &Value| {
        let reason = detail.get("reason").and_then(Value::as_str);
        reason.is_some_and(|reason| KEY_REASONS.contains(&reason))
    };
    let said = words(body, None).unwrap_or_default().to_lowercase();
    details.is_some_and(|details| details.iter().any(is_reason))
        || is_kind(body, &["invalid_api_key", "authentication_error"])
        || KEY_PHRASES.iter().any(|phrase| said.starts_with(phrase))
}

/// The pause that Google's interfaces ask for, in the body: the `retryDelay` of a detail
/// `google.rpc.RetryInfo`, a number of seconds such as `34.07s`, see
/// <https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto>.
fn retry_info(body: &Value) -> Option<Duration> {
    // Some of its servers put the error into a list.
    let body = body.get(0).unwrap_or(body);
    let details = body.pointer("/error/details")?.as_array()?;
    let is_info = |detail: &&Value| {
        let kind = detail.get("@type").and_then(Value::as_str);
        kind.is_some_and(|kind| kind.ends_with("google.rpc.RetryInfo"))
    };
    let delay = details.iter().find(is_info)?.get("retryDelay")?.as_str()?;
    duration(delay.strip_suffix('s')?, 1.0)
}

/// So many of a unit that has so many in a second, such as `34.07`; `None` for what is no time.
fn duration(text: &str, per_second: f64) -> Option<Duration> {
    let count: f64 = text.parse().ok()?;
    Duration::try_from_secs_f64(count / per_second).ok()
}

/// The pause that the provider asks for in a header.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(pause) = text("retry-after-ms").and_then(|text| duration(text, 1_000.0)) {
        return Some(pause);
    }
    let value = text("retry-after")?;
    if let Some(pause) = duration(value, 1.0) {
        return Some(pause);
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
        assert_eq!(after("retry-after-ms", "300.5"), Some(Duration::from_micros(300_500)));
        assert_eq!(after("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(after("retry-after", "90.5"), Some(Duration::from_millis(90_500)));
        let date = after("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT");
        assert_eq!(date, Some(Duration::from_secs(3)));
        for name in ["retry-after-ms", "retry-after"] {
            for none in ["soon", "-1", "-0.5", "NaN", "inf", "1e300"] {
                assert_eq!(after(name, none), None, "{name}: {none}");
            }
        }
    }

    #[test]
    fn a_pause_may_be_in_the_body() {
        let of = |body: &str| {
            let status = StatusCode::TOO_MANY_REQUESTS;
            of_status(status, None, body.as_bytes(), None).again.expect("it may be sent again")
        };
        let info = |delay: &str| {
            format!(
                r#"{{"error":{{"code":429,"status":"RESOURCE_EXHAUSTED","details":[
                {{"@type":"type.googleapis.com/google.rpc.QuotaFailure"}},
                {{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"{delay}"}}]}}}}"#
            )
        };
        assert_eq!(of(&info("34.074824224s")), Retry::After(Duration::from_nanos(34_074_824_224)));
        assert_eq!(of(&format!("[{}]", info("90s"))), Retry::After(Duration::from_secs(90)));
        for strange in ["-1s", "soon", "", "1e300s", "NaNs"] {
            assert_eq!(of(&info(strange)), Retry::Later, "{strange}");
        }
        let stated = Some(Duration::from_secs(1));
        let header = of_status(StatusCode::TOO_MANY_REQUESTS, stated, info("5s").as_bytes(), None);
        assert_eq!(header.again, Some(Retry::After(Duration::from_secs(1))));
    }

    #[test]
    fn a_question_that_is_flagged_is_refused_and_the_key_is_not() {
        let of = |status: StatusCode, body: &str| of_status(status, None, body.as_bytes(), None);
        // OpenRouter, which has flagged what it was asked, its filters, and one of its providers.
        let flagged = r#"{"error":{"code":403,"message":"Your input was flagged for \"misc\".",
            "metadata":{"reasons":["misc"],"flagged_input":"How ...?","provider_name":"Meta"}}}"#;
        let blocked = r#"{"error":{"code":403,"message":"Request blocked",
            "metadata":{"patterns":["ignore all"]}}}"#;
        let declined =
            r#"{"error":{"code":403,"message":"No","metadata":{"error_type":"refusal"}}}"#;
        let filtered = r#"{"error":{"code":"content_filter","message":"No"}}"#;
        for (body, words) in [
            (flagged, "status 403: Your input was flagged for \"misc\"."),
            (blocked, "status 403: Request blocked"),
            (declined, "status 403: No"),
            (filtered, "status 403: No"),
        ] {
            let failure = of(StatusCode::FORBIDDEN, body);
            assert_eq!(failure.error, ModelError::Refused(words.into()));
            assert!(failure.again.is_none(), "{body}");
        }
        // xAI, which names the key by its id.
        let words = "Content violates usage guidelines. API key ID: 01234567-89ab-cdef-0123, \
                     Failed check: BIO";
        let of_xai = serde_json::json!({ "code": "permission-denied", "error": words });
        let told = "status 403: Content violates usage guidelines. API key ID: […], \
                    Failed check: BIO";
        let error = of(StatusCode::FORBIDDEN, &of_xai.to_string()).error;
        assert_eq!(error, ModelError::Refused(told.into()));
        for key in [
            r#"{"error":{"code":403,"message":"No","metadata":{"reasons":[],"provider_name":"x"}}}"#,
            r#"{"error":{"code":403,"message":"Key limit exceeded"}}"#,
            "",
        ] {
            let error = of(StatusCode::FORBIDDEN, key).error;
            assert!(matches!(error, ModelError::Unauthorized(_)), "{key}: {error:?}");
        }
    }

    #[test]
    fn a_refusal_has_its_meaning_in_a_stream_of_events_and_words_of_fastapi_are_told() {
        let of = |status: u16, body: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            of_status(status, None, body.as_bytes(), None)
        };
        let streamed = |code: &str, rest: &str| {
            let error = serde_json::json!({ "error": { "message": "no", "code": code } });
            format!(": busy\n\ndata: {error}{rest}")
        };
        for rest in ["\n\ndata: [DONE]\n\n", "\n", ""] {
            let quota = of(429, &streamed("insufficient_quota", rest));
            assert_eq!(quota.error, ModelError::NoQuota("status 429: no".into()), "{rest:?}");
            assert!(quota.again.is_none(), "{rest:?}");
            let long = of(400, &streamed("context_length_exceeded", rest)).error;
            assert_eq!(long, ModelError::ContextWindow("status 400: no".into()), "{rest:?}");
            let failed = of(500, &streamed("500", rest));
            assert_eq!(failed.error, ModelError::Unavailable("status 500: no".into()));
            assert!(failed.again.is_some(), "{rest:?}");
        }
        let none = of(404, "data: [DONE]\n\ndata: 404\n\n").error;
        assert_eq!(none, ModelError::InvalidRequest("status 404".into()));
        let faults = r#"{"detail":[{"type":"missing","loc":["body","model"],"msg":"Field required"},
            {"msg":"Another"}]}"#;
        for (status, body, words) in [
            (404, r#"{"detail":"Not Found"}"#, "status 404: Not Found"),
            (422, faults, "status 422: Field required"),
            (422, r#"{"detail":[]}"#, "status 422"),
        ] {
            assert_eq!(of(status, body).error, ModelError::InvalidRequest(words.into()));
        }
    }

    #[test]
    fn each_status_has_its_meaning() {
        let of = |status: u16, body: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            of_status(status, None, body.as_bytes(), None)
        };
        let quota = r#"{"error":{"code":"insufficient_quota","message":"no"}}"#;
        let none = of(429, quota);
        assert_eq!(none.error, ModelError::NoQuota("status 429: no".into()));
        assert!(none.again.is_none());
        assert!(of(429, "").again.is_some());
        let slow = r#"{"error":{"message":"Slow down; API key: sk-t***e5f."}}"#;
        let said = Some("status 429: Slow down; API key: […]".into());
        assert_eq!(of(429, slow).error, ModelError::RateLimited { retry_after_ms: None, said });
        let said = Some("status 529".into());
        assert_eq!(of(529, "").error, ModelError::Overloaded { retry_after_ms: None, said });
        let filter = r#"{"error":{"code":"content_filter","message":"no\nway"}}"#;
        assert_eq!(of(400, filter).error, ModelError::Refused("status 400: no way".into()));
        let long = [
            r#"{"error":{"code":"context_length_exceeded","message":"too many"}}"#,
            r#"{"type":"error","error":{"type":"invalid_request_error",
                "message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            r#"{"error":{"code":400,"status":"INVALID_ARGUMENT","message":
                "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}"#,
            r#"{"object":"error","message":"This model's maximum context length is 8 tokens."}"#,
            // Kimi, xAI, Anthropic once more, SGLang, and vLLM once more.
            r#"{"error":{"type":"invalid_request_error","message":
                "Your request exceeded model token limit: 262144 (requested: 336148)"}}"#,
            r#"{"code":"Client specified an invalid argument","error":
                "This model's maximum prompt length is 8 but the request contains 9 tokens."}"#,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":
                "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000"}}"#,
            r#"{"object":"error","message":
                "The input (9 tokens) is longer than the model's context length (8 tokens)."}"#,
            r#"{"error":{"message":
                "The decoder prompt (length 9) is longer than the maximum model length of 8."}}"#,
        ];
        for body in long {
            assert!(matches!(of(400, body).error, ModelError::ContextWindow(_)), "{body}");
        }
        assert!(matches!(of(404, "<html>").error, ModelError::InvalidRequest(_)));
        assert!(matches!(of(302, "").error, ModelError::Unavailable(_)));
        assert!(of(502, "").again.is_some() && of(400, "").again.is_none());
    }
}
