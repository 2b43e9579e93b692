//! Context windows that the policy says nothing of: what has no room is learned from a refusal.

use serde_json::{Value, json};
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::provider::{Provider, Reply};
use taskrun_tests::{Builder, Storage};

/// Bytes of each of the files that are read.
const FILE_BYTES: usize = 20_000;

fn reads(id: &str, path: &str) -> Reply {
    let arguments = json!({ "path": path }).to_string();
    let call = json!({ "index": 0, "id": id, "function":
        { "name": "workspace__read", "arguments": arguments } });
    Reply::events(&[
        json!({ "choices": [{ "delta": { "tool_calls": [call] }, "finish_reason": "tool_calls" }] }),
    ])
}

fn refused() -> Reply {
    let error = json!({ "error": { "type": "invalid_request_error",
        "code": "context_length_exceeded", "message": "prompt is too long" } });
    Reply::new(400, error.to_string())
}

/// Bytes of the messages that were sent.
fn bytes(body: &Value) -> usize {
    body["messages"].to_string().len()
}

#[tokio::test]
async fn a_window_that_was_met_is_kept_to_by_later_steps() {
    let end = json!({ "choices": [{ "delta": { "content": "Read." }, "finish_reason": "stop" }] });
    let replies = [
        reads("a", "a.txt"),
        refused(),
        reads("b", "b.txt"),
        reads("c", "c.txt"),
        Reply::events(&[end]),
    ];
    let provider = Provider::start(replies).await;
    let policy = format!(
        r#"
[tool.workspace]
component = "components/workspace.wasm"

[model.default]
provider = "openai-chat"
model = "m-1"
base_url = "{}"

[agent.talker]
component = "components/chat.wasm"
model = "default"
tools = ["workspace/read"]
allow = ["workspace-read: **"]
deny = ["workspace-write: **"]
"#,
        provider.base_url()
    );
    let house = Builder::new(&policy).storage(Storage::Sqlite).open().await;
    for file in ["a.txt", "b.txt", "c.txt"] {
        let text = format!("{file} ").repeat(FILE_BYTES / 6);
        std::fs::write(house.path().join(file), text).expect("a file");
    }
    let id = house.spawn(&house.request("talker", "Read all three.")).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("Read.")));
    let sent: Vec<usize> = provider.asked().iter().map(|asked| bytes(&asked.body)).collect();
    let [_, refused, second, later @ ..] = &sent[..] else { panic!("{sent:?}") };
    assert!(*second < refused / 2 + 1_000, "{sent:?}");
    assert_eq!(later.len(), 2, "each is asked once: {sent:?}");
    assert!(later.iter().all(|bytes| *bytes < refused * 4 / 5), "{sent:?}");
    let journal = house.journal(&id).await;
    let met = journal.iter().filter(|one| one.event.kind() == "context_window_met").count();
    assert_eq!(met, 1);
}
