//! Requests that are sent again: which, when, and how often.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use taskrun::clock::SimulatedClock;
use taskrun_journal::completion::ModelError;
use taskrun_journal::time::Timestamp;

use crate::ask::{answer, hello, in_time, model, model_at};
use crate::provider::{Provider, Reply};

fn good() -> Reply {
    let event = json!({ "choices": [{ "delta": { "content": "ok" }, "finish_reason": "stop" }] });
    Reply::events(&[event])
}

/// The outcome, and how much time passed in pauses: at most `within`, which is to be less than the
/// time-out for the first byte.
async fn ask(
    provider: &Provider,
    within: Duration,
    more: &str,
) -> (Result<String, ModelError>, Duration) {
    let clock = Arc::new(SimulatedClock::new(Timestamp(0)));
    let model = model_at(clock.clone(), "openai-chat", provider, more);
    let asked = async {
        let completion = answer(model.as_ref(), hello()).await?;
        Ok(completion.message.joined_text())
    };
    in_time(clock.run_until(within, asked)).await
}

#[tokio::test]
async fn a_pause_that_the_provider_asks_for_is_kept() {
    let limited = Reply::new(429, "{}").header("retry-after", "7");
    let provider = Provider::start([limited, good()]).await;
    let (outcome, waited) = ask(&provider, Duration::from_secs(60), "").await;
    assert_eq!((outcome.as_deref(), waited), (Ok("ok"), Duration::from_secs(7)));
    assert_eq!(provider.asked().len(), 2);
}

#[tokio::test]
async fn pauses_of_our_own_double_and_vary() {
    let failing = |status| Reply::new(status, r#"{"error":{"message":"later"}}"#);
    let provider = Provider::start([failing(500), failing(529), failing(502)]).await;
    // Four and eight seconds, each less up to a quarter.
    let (least, most) = (Duration::from_secs(9), Duration::from_secs(12));
    let more = "retry = { attempts = 3, pause = \"4s\" }";
    let (outcome, waited) = ask(&provider, most, more).await;
    let error = outcome.expect_err("it stays so");
    assert_eq!(error, ModelError::Unavailable("status 502: later".into()));
    assert!(least <= waited && waited < most, "{waited:?}");
    assert_eq!(provider.asked().len(), 3);
}

#[tokio::test]
async fn a_refusal_whose_body_does_not_end_is_judged_by_its_status_and_its_headers() {
    let stuck = |status, pause| Reply::new(status, "{").header("retry-after", pause).hang();
    let provider = Provider::start([stuck(429, "7"), stuck(503, "61.5")]).await;
    let (outcome, waited) = ask(&provider, Duration::from_secs(60), "").await;
    let said = Some("status 503".to_owned());
    assert_eq!(outcome, Err(ModelError::Overloaded { retry_after_ms: Some(61_500), said }));
    assert_eq!((waited, provider.asked().len()), (Duration::from_secs(7), 2));
    provider.abandoned().await;
}

#[tokio::test]
async fn a_pause_longer_than_a_minute_is_for_whoever_asked_to_keep() {
    let words = r#"{"error":{"message":"Not before a minute.\nThank you."}}"#;
    let provider = Provider::start([Reply::new(429, words).header("retry-after", "61")]).await;
    let (outcome, waited) = ask(&provider, Duration::from_secs(61), "").await;
    let retry_after_ms = Some(61_000);
    let said = Some("status 429: Not before a minute. Thank you.".to_owned());
    assert_eq!(outcome, Err(ModelError::RateLimited { retry_after_ms, said }));
    assert_eq!((waited, provider.asked().len()), (Duration::ZERO, 1));
}

#[tokio::test]
async fn each_protocol_tells_of_a_long_pause_and_of_the_end_of_its_window() {
    let gemini = json!({ "error": { "code": 429, "status": "RESOURCE_EXHAUSTED", "details": [{
        "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "600.5s" }] } });
    let long = json!({ "error": { "type": "invalid_request_error", "code": "context_length_exceeded",
        "message": "prompt is too long: 9 tokens > 8 maximum" } });
    for provider in ["openai", "openai-chat", "anthropic", "gemini", "ollama"] {
        let busy = |status: u16| Reply::new(status, "{}").header("retry-after", "600");
        let (limited, overloaded) =
            (busy(429), busy(if provider == "anthropic" { 529 } else { 503 }));
        let in_body = Reply::new(429, gemini.to_string());
        let too_long = Reply::new(400, long.to_string());
        let server = Provider::start([limited, overloaded, in_body, too_long]).await;
        let model = model(provider, &server, "");
        let mut told = Vec::new();
        for _ in 0..4 {
            told.push(answer(model.as_ref(), hello()).await.expect_err("it is refused"));
        }
        let limited = |ms| ModelError::RateLimited {
            retry_after_ms: Some(ms),
            said: Some("status 429".to_owned()),
        };
        assert_eq!(told[0], limited(600_000), "{provider}");
        let is_overloaded = matches!(
            &told[1],
            ModelError::Overloaded { retry_after_ms: Some(600_000), said: Some(_) }
        );
        assert!(is_overloaded, "{provider}: {:?}", told[1]);
        assert_eq!(told[2], limited(600_500), "{provider}");
        assert!(matches!(told[3], ModelError::ContextWindow(_)), "{provider}: {:?}", told[3]);
        assert_eq!(server.asked().len(), 4, "{provider}: none is sent again");
    }
}

#[tokio::test]
async fn what_would_be_refused_again_is_asked_once() {
    let quota = r#"{"error":{"code":"insufficient_quota","message":"pay"}}"#;
    let streamed = format!("data: {quota}\n\ndata: [DONE]\n\n");
    let gemini_key = r#"{"error":{"code":400,"message":"API key not valid.",
        "status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}"#;
    let xai_key = r#"{"code":"Client specified an invalid argument",
        "error":"Incorrect API key provided: sk***7b. See the console."}"#;
    let cases = [
        (Reply::new(401, "{}"), "Unauthorized"),
        (Reply::new(403, "{}"), "Unauthorized"),
        (Reply::new(400, "{}"), "InvalidRequest"),
        (Reply::new(400, gemini_key), "Unauthorized"),
        (Reply::new(400, xai_key), "Unauthorized"),
        (Reply::new(404, "{}"), "InvalidRequest"),
        (Reply::new(413, "{}"), "InvalidRequest"),
        (Reply::new(429, quota), "NoQuota(\"status 429: pay\")"),
        (Reply::new(429, streamed), "NoQuota(\"status 429: pay\")"),
        (Reply::new(302, "").header("location", "http://127.0.0.1:1/"), "Unavailable"),
    ];
    for (reply, kind) in cases {
        let provider = Provider::start([reply, good()]).await;
        let error = answer(model("openai-chat", &provider, "").as_ref(), hello()).await;
        let error = format!("{:?}", error.expect_err(kind));
        assert!(error.starts_with(kind), "{error}");
        assert_eq!(provider.asked().len(), 1, "{error}");
    }
}

#[tokio::test]
async fn nobody_there_is_told_after_as_many_attempts() {
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = gone.local_addr().expect("an address");
    drop(gone);
    let table = format!(
        "[model.m]\nprovider = \"openai-chat\"\nmodel = \"m\"\nbase_url = \"http://{address}\"\n\
         retry = {{ attempts = 2, pause = \"5s\" }}\n"
    );
    let clock = Arc::new(SimulatedClock::new(Timestamp(0)));
    let models = crate::ask::models(&table, clock.clone()).expect("a model");
    let asked = answer(models["m"].as_ref(), hello());
    let (outcome, waited) = in_time(clock.run_until(Duration::from_secs(60), asked)).await;
    let error = outcome.expect_err("nobody is there");
    assert!(matches!(error, ModelError::Unreachable(_)), "{error:?}");
    // One pause, of five seconds less up to a quarter.
    let (least, most) = (Duration::from_millis(3_750), Duration::from_secs(5));
    assert!(least <= waited && waited <= most, "{waited:?}");
}
