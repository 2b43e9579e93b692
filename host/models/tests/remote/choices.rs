//! The tools that a model is to call, and may call, in the form of each protocol.

use serde_json::{Value, json};
use taskrun_journal::completion::{CompletionRequest, ModelError, ToolChoice};
use taskrun_journal::message::{AVAILABLE_TOOLS, Message, Part, Role, ToolAnswer, ToolUse};

use crate::ask::{answer, hello, model, request, tool};
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

/// Every text that stands somewhere in a value, with the key that it stands at.
fn texts<'v>(key: &'v str, value: &'v Value) -> Vec<(&'v str, &'v str)> {
    match value {
        Value::String(text) => vec![(key, text.as_str())],
        Value::Array(all) => all.iter().flat_map(|one| texts(key, one)).collect(),
        Value::Object(all) => all.iter().flat_map(|(key, one)| texts(key, one)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

#[tokio::test]
async fn the_tools_that_an_error_names_are_named_as_in_the_list_of_those_that_are_shown() {
    let shown = ["workspace/read", "agent/writer", "host/ask_user", "a__b/c"];
    let call = ToolUse {
        tool_call_id: "call_1".to_owned(),
        name: "workspace__nope".to_owned(),
        payload: "{}".to_owned(),
    };
    let failed = |named: &str| ToolAnswer {
        tool_call_id: "call_1".to_owned(),
        content: format!("tool not available: workspace__nope\n{AVAILABLE_TOOLS}{named}"),
        is_error: true,
        media: Vec::new(),
    };
    for wire in WIRES {
        for more in ["", ", and 3 more"] {
            let named = format!("{}{more}", shown.join(", "));
            let asked = request(vec![
                Message::text(Role::User, "Read."),
                Message { role: Role::Assistant, parts: vec![Part::ToolUse(call.clone())].into() },
                Message { role: Role::Tool, parts: vec![Part::ToolAnswer(failed(&named))].into() },
            ]);
            let tools = shown.iter().map(|name| tool(name)).collect();
            let body = sent(wire, CompletionRequest { tools, ..asked }, "").await.expect("sent");
            let names = texts("", &body["tools"]).into_iter();
            let names: Vec<_> = names.filter(|(key, _)| *key == "name").collect();
            assert_eq!(names.len(), shown.len(), "{wire}: {body:#}");
            let all = texts("", &body);
            let said = all.iter().find_map(|(_, text)| text.split_once(AVAILABLE_TOOLS));
            let (_, said) = said.unwrap_or_else(|| panic!("{wire}: {body:#}"));
            let said = said.strip_suffix(more).unwrap_or_else(|| panic!("{wire}: {said}"));
            let expected: Vec<_> = names.iter().map(|(_, name)| *name).collect();
            assert_eq!(said, expected.join(", "), "{wire}");
        }
    }
}

#[tokio::test]
async fn words_in_an_error_that_name_no_tool_that_is_shown_are_given_as_they_are() {
    let failed = ToolAnswer {
        tool_call_id: "call_1".to_owned(),
        content: format!("no such file\n{AVAILABLE_TOOLS}src/main.rs, a/b, workspace/read"),
        is_error: true,
        media: Vec::new(),
    };
    let (tool_call_id, name) = ("call_1".to_owned(), "workspace/read".to_owned());
    let call = ToolUse { tool_call_id, name, payload: "{}".to_owned() };
    for wire in WIRES {
        let asked = request(vec![
            Message::text(Role::User, "Read."),
            Message { role: Role::Assistant, parts: vec![Part::ToolUse(call.clone())].into() },
            Message { role: Role::Tool, parts: vec![Part::ToolAnswer(failed.clone())].into() },
        ]);
        let asked = CompletionRequest { tools: vec![tool("workspace/read")], ..asked };
        let body = sent(wire, asked, "").await.expect("sent");
        let all = texts("", &body);
        let said = all.iter().find_map(|(_, text)| text.split_once(AVAILABLE_TOOLS));
        let (_, said) = said.unwrap_or_else(|| panic!("{wire}: {body:#}"));
        assert_eq!(said, "src/main.rs, a/b, workspace__read", "{wire}");
    }
}
