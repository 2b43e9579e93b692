//! Which tools a model is to call, in the form of each protocol.

use serde_json::{Value, json};
use taskrun_journal::completion::{CompletionRequest, ModelError, ToolChoice};

use crate::ask::{answer, hello, model, tool};
use crate::provider::{Provider, Reply};

const WIRES: [&str; 5] = ["openai", "openai-chat", "anthropic", "gemini", "ollama"];

fn choosing(choice: &ToolChoice, tools: &[&str]) -> CompletionRequest {
    let tools = tools.iter().map(|name| tool(name)).collect();
    CompletionRequest { tools, tool_choice: choice.clone(), ..hello() }
}

/// The body of the request that is sent; the error where nothing is.
async fn sent(wire: &str, asked: CompletionRequest, more: &str) -> Result<Value, ModelError> {
    let provider = Provider::start([Reply::new(400, "{}")]).await;
    let told = answer(model(wire, &provider, more).as_ref(), asked).await.expect_err("no answer");
    provider.asked().into_iter().next().map(|asked| asked.body).ok_or(told)
}

/// The member of a request that says which tools are to be called.
fn choice_of(wire: &str, body: &Value) -> Value {
    match wire {
        "gemini" => body["toolConfig"]["functionCallingConfig"].clone(),
        _ => body["tool_choice"].clone(),
    }
}

fn expected(wire: &str, choice: &ToolChoice) -> Value {
    let name = "workspace__read";
    match (wire, choice) {
        (_, ToolChoice::Auto) => Value::Null,
        ("anthropic", ToolChoice::None) => json!({ "type": "none" }),
        ("anthropic", ToolChoice::Required) => json!({ "type": "any" }),
        ("anthropic", ToolChoice::Tool(_)) => json!({ "type": "tool", "name": name }),
        ("gemini", ToolChoice::None) => json!({ "mode": "NONE" }),
        ("gemini", ToolChoice::Required) => json!({ "mode": "ANY" }),
        ("gemini", ToolChoice::Tool(_)) => json!({ "mode": "ANY", "allowedFunctionNames": [name] }),
        (_, ToolChoice::None) => json!("none"),
        (_, ToolChoice::Required) => json!("required"),
        ("openai", ToolChoice::Tool(_)) => json!({ "type": "function", "name": name }),
        (_, ToolChoice::Tool(_)) => json!({ "type": "function", "function": { "name": name } }),
    }
}

#[tokio::test]
async fn each_choice_is_said_in_the_words_of_its_protocol() {
    let one = ToolChoice::Tool("workspace/read".to_owned());
    for wire in WIRES {
        for choice in [&ToolChoice::Auto, &ToolChoice::None, &ToolChoice::Required, &one] {
            let asked = choosing(choice, &["workspace/list", "workspace/read"]);
            let body = sent(wire, asked, "").await.expect("sent");
            assert_eq!(
                choice_of(wire, &body),
                expected(wire, choice),
                "{wire} {choice:?}: {body:#}"
            );
            assert!(body["tools"].is_array(), "{wire}: they are shown all the same");
        }
    }
}

#[tokio::test]
async fn a_choice_of_what_the_model_is_not_shown_is_refused_before_it_is_sent() {
    let other = ToolChoice::Tool("workspace/write".to_owned());
    for wire in WIRES {
        for (choice, tools) in
            [(&ToolChoice::Required, &[][..]), (&other, &[]), (&other, &["workspace/read"])]
        {
            let refused = sent(wire, choosing(choice, tools), "").await.expect_err("refused");
            assert!(matches!(refused, ModelError::InvalidRequest(_)), "{wire}: {refused}");
        }
        let body = sent(wire, choosing(&ToolChoice::None, &[]), "").await.expect("sent");
        assert_eq!(choice_of(wire, &body), Value::Null, "{wire}: there is none to call");
    }
}

#[tokio::test]
async fn a_model_of_anthropic_that_has_to_call_a_tool_does_not_reason() {
    for thinking in ["thinking = 4000", "thinking = \"adaptive\""] {
        for (choice, reasons) in
            [(ToolChoice::Auto, true), (ToolChoice::None, true), (ToolChoice::Required, false)]
        {
            let asked = choosing(&choice, &["workspace/read"]);
            let body = sent("anthropic", asked, thinking).await.expect("sent");
            assert_eq!(body["thinking"].is_object(), reasons, "{choice:?}: {body:#}");
        }
    }
}
