//! Servers that speak chat completions, each with its own wishes: a conversation is sent so that
//! the server takes it, by the rules of `tests/harness/rules.rs`.

use serde_json::{Value, json};
use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::message::{Message, Part, Role, Thinking, ToolAnswer, ToolUse};

use crate::ask::{answer, model, request, tool};
use crate::provider::rules::Strictness;
use crate::provider::{Asked, Provider, Reply};

fn good() -> Reply {
    let event = json!({ "choices": [{ "delta": { "content": "ok" }, "finish_reason": "stop" }] });
    Reply::events(&[event])
}

fn call(id: &str, payload: &str) -> Part {
    Part::ToolUse(ToolUse {
        tool_call_id: id.to_owned(),
        name: "workspace/read".to_owned(),
        payload: payload.to_owned(),
    })
}

fn result(id: &str, content: &str) -> Part {
    let (tool_call_id, content) = (id.to_owned(), content.to_owned());
    Part::ToolAnswer(ToolAnswer { tool_call_id, content, is_error: false, media: Vec::new() })
}

fn thought(text: &str) -> Part {
    Part::Thinking(Thinking { text: text.to_owned(), signature: None })
}

fn assistant(parts: Vec<Part>) -> Message {
    Message { role: Role::Assistant, parts: parts.into() }
}

/// A conversation with everything in it that a server may dislike: two calls at once, one of them
/// with arguments that are no JSON; advice of the host beside the results; a person who speaks
/// right after them, reminders in the middle, and a turn of which nothing can be sent.
fn conversation() -> CompletionRequest {
    let results =
        vec![result("call_1", "text"), result("call_2", "no"), Part::Text("Again.".into())];
    let mut asked = request(vec![
        Message::text(Role::System, "Be brief."),
        Message::text(Role::System, "Be kind."),
        Message::text(Role::System, "It is late."),
        Message::text(Role::User, "Read."),
        assistant(vec![thought("Two files."), call("call_1", "{}"), call("call_2", "{\"x\":")]),
        Message { role: Role::Tool, parts: results.into() },
        Message::text(Role::User, "Hurry."),
        assistant(vec![thought("Only thought.")]),
        Message::text(Role::System, "No turns are left."),
    ]);
    asked.tools = vec![tool("workspace/read")];
    asked.max_tokens = Some(50);
    asked
}

async fn ask(
    strictness: Strictness,
    more: &str,
    asked: CompletionRequest,
) -> (Result<String, ModelError>, Asked) {
    let provider = Provider::start_as(strictness, [good()]).await;
    let answered = answer(model("openai-chat", &provider, more).as_ref(), asked).await;
    let answered = answered.map(|done| done.message.joined_text());
    (answered, provider.asked().remove(0))
}

/// The request, which is taken.
async fn taken(strictness: Strictness, more: &str, asked: CompletionRequest) -> Asked {
    let (answered, sent) = ask(strictness, more, asked).await;
    assert_eq!(answered.as_deref(), Ok("ok"), "{strictness:?}: {:#}", sent.body);
    sent
}

fn roles(asked: &Asked) -> Vec<&str> {
    let messages = asked.body["messages"].as_array().expect("messages");
    messages.iter().filter_map(|message| message["role"].as_str()).collect()
}

#[tokio::test]
async fn every_kind_of_server_takes_the_same_conversation() {
    let key = "key_env = \"PATH\"";
    let azure = format!("server = \"azure\"\nquery = {{ api-version = \"2026-01-01\" }}\n{key}");
    let kinds = [
        (Strictness::Template, ""),
        (Strictness::Template, "server = \"openrouter\""),
        (Strictness::OpenAi, "server = \"openai\"\neffort = \"none\""),
        (Strictness::Azure, &azure),
        (Strictness::Mistral, "server = \"mistral\""),
        (Strictness::DeepSeek, "server = \"deepseek\""),
        (Strictness::Kimi, "server = \"kimi\""),
    ];
    for (strictness, more) in kinds {
        let parallel = format!("{more}\nparallel_tool_calls = false");
        taken(strictness, &parallel, conversation()).await;
        taken(strictness, &parallel, crate::ask::hello()).await;
    }
}

#[tokio::test]
async fn user_and_assistant_take_turns_where_the_server_wants_it() {
    let sent = taken(Strictness::Template, "", conversation()).await;
    let expected = ["system", "user", "assistant", "tool", "tool", "assistant", "user"];
    assert_eq!(roles(&sent), expected, "{:#}", sent.body);
    let messages = &sent.body["messages"];
    assert_eq!(messages[0]["content"], "Be brief.\n\nBe kind.\n\nIt is late.");
    // Advice is part of the last result, and instructions in the middle are marked.
    assert_eq!(messages[4]["content"], "no\n\nAgain.");
    let last = "Hurry.\n\n<system>\nNo turns are left.\n</system>";
    assert_eq!(messages[6]["content"], last);
    // What the model wrote stays as it is; what is no object is put into one.
    let calls = &messages[2]["tool_calls"];
    assert_eq!(calls[0]["function"]["arguments"], "{}");
    assert_eq!(calls[1]["function"]["arguments"], r#"{"arguments":"{\"x\":"}"#);

    let openai = "server = \"openai\"\neffort = \"none\"";
    let sent = taken(Strictness::OpenAi, openai, conversation()).await;
    let expected =
        ["system", "system", "system", "user", "assistant", "tool", "tool", "user", "system"];
    assert_eq!(roles(&sent), expected, "{:#}", sent.body);
    assert_eq!(sent.body["messages"][6]["content"], "no\n\nAgain.");
}

#[tokio::test]
async fn a_conversation_that_an_assistant_begins_or_ends_gets_a_user() {
    let said = |text: &str| Message::text(Role::Assistant, text);
    let sent = taken(Strictness::Template, "", request(vec![said("Hello."), said("Well?")])).await;
    assert_eq!(roles(&sent), ["user", "assistant", "user", "assistant", "user"]);
}

#[tokio::test]
async fn reasoning_goes_back_where_it_is_wanted() {
    let mut asked = conversation();
    asked.messages.push(assistant(vec![
        Part::Thinking(Thinking { text: "Claude's".into(), signature: Some("s".into()) }),
        call("call_3", "{}"),
    ]));
    asked.messages.push(Message { role: Role::Tool, parts: vec![result("call_3", "text")].into() });
    let sent = taken(Strictness::DeepSeek, "server = \"deepseek\"", asked.clone()).await;
    let field = |sent: &Asked, field: &str| -> Vec<Value> {
        let messages = sent.body["messages"].as_array().expect("messages");
        messages.iter().filter_map(|message| message.get(field).cloned()).collect()
    };
    // Another provider's stays out, and the field does not.
    assert_eq!(field(&sent, "reasoning_content"), ["Two files.", "", ""]);
    let sent = taken(Strictness::Template, "reasoning_field = \"reasoning\"", asked.clone()).await;
    assert_eq!(field(&sent, "reasoning"), ["Two files.", "", ""]);
    let sent = taken(Strictness::Template, "", asked).await;
    assert_eq!(field(&sent, "reasoning_content").len() + field(&sent, "reasoning").len(), 0);
}

#[tokio::test]
async fn the_id_of_a_call_is_the_same_in_its_result_however_short_it_must_be() {
    let sent = taken(Strictness::Mistral, "server = \"mistral\"", conversation()).await;
    let messages = &sent.body["messages"];
    let (first, second) =
        (&messages[2]["tool_calls"][0]["id"], &messages[2]["tool_calls"][1]["id"]);
    assert_ne!(first, second);
    assert_eq!((&messages[3]["tool_call_id"], &messages[4]["tool_call_id"]), (first, second));
    assert!(sent.body.get("stream_options").is_none());
}

#[tokio::test]
async fn the_operators_settings_go_into_each_request() {
    let more = "effort = \"high\"\nmax_tokens_field = \"max_completion_tokens\"\n\
        headers = { X-Title = \"t r\" }\nquery = { api-version = \"2026 01\", b = \"a&b\" }\n\
        extra = { top_k = 3, temperature = 0.1, response_options = { b = 2 } }";
    let mut asked = crate::ask::hello();
    asked.max_tokens = Some(9);
    asked.temperature = Some(1.5);
    let sent = taken(Strictness::Template, more, asked).await;
    assert_eq!(sent.path, "/v1/chat/completions?api-version=2026%2001&b=a%26b");
    assert_eq!(sent.headers["x-title"], "t r");
    let body = &sent.body;
    assert_eq!((&body["reasoning_effort"], &body["top_k"]), (&json!("high"), &json!(3)));
    assert_eq!((&body["max_completion_tokens"], &body["temperature"]), (&json!(9), &json!(0.1)));
    assert_eq!(body["response_options"], json!({ "b": 2 }));
    assert!(body.get("max_tokens").is_none() && body.get("parallel_tool_calls").is_none());
}

#[tokio::test]
async fn a_refusal_says_which_rule_the_request_breaks() {
    let mut asked = crate::ask::hello();
    asked.tools = vec![tool("workspace/read")];
    let (answered, _) = ask(Strictness::OpenAi, "server = \"openai\"", asked).await;
    let error = answered.expect_err("OpenAI wants another protocol for this");
    assert!(matches!(error, ModelError::InvalidRequest(_)), "{error}");
    assert!(error.to_string().contains("use /v1/responses"), "{error}");
}
