//! Models on a machine without CA certificates.

use std::process::Command;
use std::sync::Arc;

use serde_json::json;
use taskrun::clock::SystemClock;

use crate::ask::{answer, hello, model, models};
use crate::provider::{Provider, Reply};

/// Set for a process that finds no certificates.
const CHILD: &str = "TASKRUN_TEST_NO_CERTIFICATES";

/// Runs a test once more, in a process that finds no certificates.
fn run_without(name: &str) {
    let none = tempfile::NamedTempFile::new().expect("an empty file");
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name])
        .env(CHILD, "1")
        .env("SSL_CERT_FILE", none.path())
        .env_remove("SSL_CERT_DIR")
        .output()
        .expect("the child runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn a_plain_address_needs_no_certificates_and_another_says_that_it_does() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let is_child = std::env::var_os(CHILD).is_some();
    if !is_child {
        let name =
            "certificates::a_plain_address_needs_no_certificates_and_another_says_that_it_does";
        tokio::task::spawn_blocking(move || run_without(name)).await.expect("it passes");
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
