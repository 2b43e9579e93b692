//! A key goes to its provider and nowhere else.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use taskrun::clock::SystemClock;

use crate::ask::{answer, hello, models, table};
use crate::provider::{Provider, Reply};

const KEY: &str = "sk-test-5f2e9c1a7b";
/// In a header of the policy and in its query, as gateways want it.
const OTHER: &str = "gw-test-91c0d7e3f5";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

#[tokio::test]
async fn a_key_appears_in_no_error_no_log_and_no_cassette() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    // For every thread: a place that another test comes by first would stay silent otherwise.
    tracing::subscriber::set_global_default(subscriber).expect("the only log of these tests");

    let folder = tempfile::tempdir().expect("a folder");
    let (key, cassette) = (folder.path().join("key"), folder.path().join("calls.jsonl"));
    std::fs::write(&key, format!("{KEY}\n")).expect("written");
    let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, own).expect("its mode");
    let said = format!("bad key {KEY} in {{\"{KEY}\"}}");
    let error = json!({ "error": { "message": said, "type": said, "code": said } });
    let wires = [
        ("openai", "authorization"),
        ("openai-chat", "authorization"),
        ("anthropic", "x-api-key"),
        ("gemini", "x-goog-api-key"),
    ];
    for (wire, header) in wires {
        let replies = [400, 401, 403, 404, 422, 500, 500]
            .map(|status| Reply::new(status, error.to_string()))
            .into_iter()
            .chain([Reply::events(&[json!({ "type": "error", "error": error["error"] })])])
            .chain([Reply::new(200, format!("<html>{said}</html>"))]);
        let provider = Provider::start(replies).await;
        let more = format!(
            "key_file = {key:?}\nrecord = {cassette:?}\nretry = {{ attempts = 2, pause = \"0s\" }}\n\
             headers = {{ x-gateway = \"{OTHER}\" }}\nquery = {{ gateway = \"{OTHER}\" }}"
        );
        let table = table(wire, &provider, &more);
        let opened = models(&table, Arc::new(SystemClock::new())).expect("a model");
        for _ in 0..8 {
            let error = answer(opened["m"].as_ref(), hello()).await.expect_err("refused");
            let shown = format!("{error} {error:?} {}", serde_json::json!(error));
            assert!(!shown.contains(KEY) && !shown.contains(OTHER), "{shown}");
        }
        let sent = provider.asked();
        assert_eq!(sent.len(), 9);
        assert!(sent[0].headers[header].contains(KEY), "{:?}", sent[0].headers);
        assert_eq!(sent[0].headers["x-gateway"], OTHER);
        assert!(sent[0].path.contains(&format!("gateway={OTHER}")), "{}", sent[0].path);
        assert!(!sent[0].path.contains(KEY) && !sent[0].body.to_string().contains(KEY));
    }
    let recorded = std::fs::read_to_string(&cassette).expect("a cassette");
    assert_eq!(recorded.lines().count(), 8 * wires.len());
    assert!(recorded.contains("bad key [key]"), "{recorded}");
    assert!(!recorded.contains(KEY) && !recorded.contains(OTHER), "{recorded}");
    let logged = log.text();
    assert!(logged.contains("asking again"), "the log was read: {logged}");
    assert!(logged.contains("does not accept the key"), "{logged}");
    assert!(logged.contains("bad key [key] in"), "the operator sees why: {logged}");
    assert!(!logged.contains(KEY) && !logged.contains(OTHER), "{logged}");
}

#[tokio::test]
async fn a_key_that_is_shown_in_part_appears_in_no_error() {
    let error = json!({ "error": { "message": "bad: sk-test-***1a7b, see the console" } });
    let provider = Provider::start([Reply::new(400, error.to_string())]).await;
    let opened = models(&table("openai-chat", &provider, ""), Arc::new(SystemClock::new()));
    let error = answer(opened.expect("a model")["m"].as_ref(), hello()).await;
    let shown = error.expect_err("refused").to_string();
    assert!(
        !shown.contains("1a7b") && shown.contains("bad") && shown.contains("console"),
        "{shown}"
    );
}

#[tokio::test]
async fn a_key_that_is_not_there_is_told_at_the_start_and_none_is_looked_for() {
    let provider = Provider::start([]).await;
    let missing = table("openai-chat", &provider, "key_env = \"TASKRUN_TEST_NO_SUCH_KEY\"");
    let error = models(&missing, Arc::new(SystemClock::new())).err().expect("no key");
    let mut chain = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        chain.push_str(&format!(": {error}"));
        cause = error.source();
    }
    assert!(chain.contains("model m cannot be used"), "{chain}");
    assert!(chain.contains("TASKRUN_TEST_NO_SUCH_KEY is not set"), "{chain}");

    let plain = models(&table("openai-chat", &provider, ""), Arc::new(SystemClock::new()));
    answer(plain.expect("a model")["m"].as_ref(), hello()).await.expect_err("answered with 500");
    assert!(!provider.asked()[0].headers.contains_key("authorization"));
}
