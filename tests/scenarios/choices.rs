//! Which tools a model is to call, as a component says it.

use serde_json::json;
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::provider::{Provider, Reply};
use taskrun_tests::{Builder, Storage};

/// An answer of a server of chat completions.
pub(super) fn says(text: &str) -> Reply {
    Reply::events(&[
        json!({ "choices": [{ "delta": { "content": text }, "finish_reason": "stop" }] }),
    ])
}

#[tokio::test]
async fn a_model_that_is_to_think_is_shown_its_tools_and_told_to_call_none() {
    let provider = Provider::start([says("It is a greeting."), says("Hello.")]).await;
    let policy = format!(
        r#"
[tool.workspace]
component = "components/workspace.wasm"

[prompt.brief]
template = "Be brief."

[model.default]
provider = "openai-chat"
model = "m-1"
base_url = "{}"

[agent.thinker]
component = "components/thinker.wasm"
model = "default"
tools = ["workspace/read"]
allow = ["workspace-read: **", "prompts: brief"]
deny = ["workspace-write: **"]
"#,
        provider.base_url()
    );
    let house = Builder::new(&policy).storage(Storage::Sqlite).open().await;
    let view = RunView::from(&house.run("thinker", "Hi").await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("Hello.")));
    let asked = provider.asked();
    let [thinks, decides] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(thinks.body["tool_choice"], "none");
    assert!(decides.body.get("tool_choice").is_none(), "{:#}", decides.body);
    assert_eq!(thinks.body["tools"], decides.body["tools"], "the cache finds them");
}
