//! Results that are too large for a conversation, read by a real component.

use serde_json::json;
use taskrun_journal::artifact::digest;
use taskrun_journal::status::Status;
use taskrun_tests::{Builder, Script};

const POLICY: &str = r#"
[tool.lookup]
component = "components/scripted-tool.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["lookup/*"]
"#;

#[tokio::test]
async fn ls_22_a_component_reads_the_result_that_its_conversation_leaves_out() {
    let house = Builder::new(POLICY).open().await;
    let text = "y".repeat((64 << 10) + 1_024);
    let value = json!(text).to_string();
    let script = Script::new()
        .call("big", "lookup/lookup", json!({ "result": text }))
        .then()
        .raw(json!({ "read_result": digest(value.as_bytes()) }));
    let run = house.run("worker", &script.task()).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    let said = run.state.reply.result().expect("an answer");
    assert_eq!(said, format!("{} bytes: \"yyyyyyy", value.len()));
    let script = Script::new().raw(json!({ "read_result": digest(b"nobody's") }));
    let run = house.run("worker", &script.task()).await;
    let said = run.state.reply.result();
    assert_eq!(said.as_deref(), Some("no result of this run has that hash"));
}
