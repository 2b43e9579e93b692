//! Models on a machine without CA certificates.

use std::sync::Arc;

use serde_json::json;
use taskrun::clock::SystemClock;
use taskrun_fixtures::certificates;

use crate::ask::{answer, hello, model, models};
use crate::provider::{Provider, Reply};

#[tokio::test]
async fn a_plain_address_needs_no_certificates_and_another_says_that_it_does() {
    if !certificates::are_hidden() {
        let name =
            "certificates::a_plain_address_needs_no_certificates_and_another_says_that_it_does";
        tokio::task::spawn_blocking(move || certificates::run_without(name))
            .await
            .expect("it passes");
        return;
    }
    let whole =
        json!({ "choices": [{ "message": { "content": "Hi." }, "finish_reason": "stop" }] });
    let provider = Provider::start([Reply::new(200, whole.to_string())]).await;
    let plain = model("openai-chat", &provider, "stream = false");
    let done = answer(plain.as_ref(), hello()).await.expect("answers");
    assert_eq!(done.message.joined_text(), "Hi.");

    let table =
        "[model.m]\nprovider = \"anthropic\"\nmodel = \"m\"\nbase_url = \"https://x.test/v1\"\n";
    let secure = models(table, Arc::new(SystemClock::new())).expect("a model");
    let error = answer(secure["m"].as_ref(), hello()).await.expect_err("it has no certificates");
    assert!(error.to_string().contains("the host has no HTTP client"), "{error}");
}
