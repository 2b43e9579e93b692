//! Responses: requests, and conversations of several turns.

use serde_json::{Value, json};
use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::message::{Message, Part, Role, Thinking, ToolAnswer, ToolUse};

use crate::ask::{answer, hello, model, request, result, tool};
use crate::provider::responses::{Answer, sealed};
use crate::provider::rules::Strictness;
use crate::provider::{Provider, Reply};

fn good() -> Reply {
    Answer::new().message("msg_1", None, "ok").completed()
}

fn call(id: &str, payload: &str) -> Part {
    Part::ToolUse(ToolUse {
        tool_call_id: id.to_owned(),
        name: "workspace/read".to_owned(),
        payload: payload.to_owned(),
    })
}

fn output(id: &str, content: &str) -> Part {
    let (tool_call_id, content) = (id.to_owned(), content.to_owned());
    Part::ToolAnswer(ToolAnswer { tool_call_id, content, is_error: false, media: Vec::new() })
}

fn thought(signature: Option<&str>) -> Part {
    let signature = signature.map(str::to_owned);
    Part::Thinking(Thinking { text: "Hm.".to_owned(), signature })
}

fn assistant(parts: Vec<Part>) -> Message {
    Message { role: Role::Assistant, parts: parts.into() }
}

/// The body of the request, which the provider takes.
async fn taken(strictness: Strictness, more: &str, asked: CompletionRequest) -> Value {
    let provider = Provider::start_as(strictness, [good()]).await;
    let answered = answer(model("openai", &provider, more).as_ref(), asked).await;
    let sent = provider.asked().remove(0);
    let said = answered.map(|done| done.message.joined_text());
    assert_eq!(said.as_deref(), Ok("ok"), "{strictness:?}: {:#}", sent.body);
    assert_eq!(sent.path, "/v1/responses");
    sent.body
}

#[tokio::test]
async fn a_request_is_sent_in_the_protocols_own_form() {
    let mut asked = request(vec![
        Message::text(Role::System, "Be brief."),
        Message::text(Role::System, "Be kind."),
        Message::text(Role::User, "hello"),
        assistant(vec![Part::Text("I look.".into()), call("a", "{\"path\":\"x\"}")]),
        Message {
            role: Role::Tool,
            parts: vec![output("a", "contents"), Part::Text("Again.".into())].into(),
        },
        Message::text(Role::System, "It is late."),
        Message { role: Role::User, parts: vec![Part::Json("{\"n\":1}".into())].into() },
    ]);
    asked.tools = vec![tool("workspace/read")];
    asked.max_tokens = Some(500);
    asked.temperature = Some(0.5);
    asked.response_schema = Some(r#"{"type":"object"}"#.into());
    let more = "max_tokens = 100\neffort = \"low\"\nparallel_tool_calls = true\n\
        extra = { reasoning = { summary = \"auto\" }, service_tier = \"flex\" }";
    let body = taken(Strictness::Common, more, asked).await;
    let message =
        |role: &str, content: &str| json!({ "type": "message", "role": role, "content": content });
    assert_eq!(
        body,
        json!({
            "model": "m-1",
            "instructions": "Be brief.\n\nBe kind.",
            "input": [
                message("user", "hello"),
                message("assistant", "I look."),
                { "type": "function_call", "call_id": "a", "name": "workspace__read",
                    "arguments": "{\"path\":\"x\"}" },
                { "type": "function_call_output", "call_id": "a",
                    "output": "contents\n\nAgain." },
                message("system", "It is late."),
                message("user", "{\"n\":1}"),
            ],
            "stream": true,
            "store": false,
            "include": ["reasoning.encrypted_content"],
            "tools": [{
                "type": "function",
                "name": "workspace__read",
                "description": "Reads.",
                "parameters": { "type": "object", "properties": { "path": { "type": "string" } } },
                "strict": false,
            }],
            "parallel_tool_calls": true,
            "reasoning": { "effort": "low", "summary": "auto" },
            "max_output_tokens": 100,
            "temperature": 0.5,
            "text": { "format": { "type": "json_schema", "name": "answer",
                "schema": { "type": "object" }, "strict": false } },
            "service_tier": "flex",
        })
    );
}

#[tokio::test]
async fn a_schema_that_openai_can_hold_an_answer_to_is_strict() {
    let mut asked = hello();
    let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } },
        "required": ["a"], "additionalProperties": false });
    asked.response_schema = Some(schema.to_string());
    let body = taken(Strictness::OpenAi, "", asked).await;
    assert_eq!(body["text"]["format"]["strict"], true);
    assert_eq!(body["text"]["format"]["schema"], schema);
    assert!(body.get("tools").is_none() && body.get("parallel_tool_calls").is_none());
}

#[tokio::test]
async fn what_the_protocol_cannot_do_is_not_sent_and_what_is_too_small_is_made_larger() {
    let provider = Provider::start([good()]).await;
    let mut asked = hello();
    asked.stop_sequences = vec!["END".into()];
    let refused = answer(model("openai", &provider, "").as_ref(), asked).await;
    let Err(ModelError::InvalidRequest(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("no stop sequences"), "{why}");
    assert_eq!(provider.asked().len(), 0);

    let mut asked = hello();
    asked.max_tokens = Some(1);
    assert_eq!(taken(Strictness::OpenAi, "", asked).await["max_output_tokens"], 16);
    // Instructions alone are a question.
    let body =
        taken(Strictness::OpenAi, "", request(vec![Message::text(Role::System, "Greet.")])).await;
    assert_eq!(body["input"][0]["role"], "system");
    assert!(body.get("instructions").is_none());
}

/// Turns of two calls at once, with reasoning before each of them and a comment: all of it comes
/// back as it came, in its order.
#[tokio::test]
async fn a_conversation_of_twelve_turns_keeps_its_items_in_their_order() {
    const TURNS: usize = 12;
    let turn = |turn: usize| {
        let id = |kind: &str, n: usize| format!("{kind}_{turn}_{n}");
        let arguments = json!({ "path": format!("{turn}") }).to_string();
        Answer::new()
            .reasoning(&id("rs", 1), &["First,", "a summary."])
            .message(&id("msg", 1), Some("commentary"), "I look.")
            .call(&id("fc", 1), &id("call", 1), "workspace__read", &arguments)
            .reasoning(&id("rs", 2), &[])
            .call(&id("fc", 2), &id("call", 2), "workspace__read", &arguments)
            .completed()
    };
    let last =
        Answer::new().reasoning("rs_last", &[]).message("msg_last", Some("final_answer"), "Done.");
    let after = Answer::new().message("msg_after", Some("final_answer"), "Bye.").completed();
    let replies = (0..TURNS).map(turn).chain([last.completed(), after]);
    let provider = Provider::start_as(Strictness::OpenAi, replies).await;
    let model = model("openai", &provider, "effort = \"high\"");
    let mut asked = hello();
    asked.tools = vec![tool("workspace/read")];
    for _ in 0..TURNS {
        let done = answer(model.as_ref(), asked.clone()).await.expect("answers");
        let ids: Vec<String> =
            done.message.tool_uses().map(|call| call.tool_call_id.clone()).collect();
        assert_eq!(ids.len(), 2, "{done:?}");
        asked.messages.push(done.message);
        let outputs = ids.iter().map(|id| output(id, "contents")).collect();
        asked.messages.push(Message { role: Role::Tool, parts: outputs });
    }
    let done = answer(model.as_ref(), asked.clone()).await.expect("answers");
    assert_eq!(done.message.joined_text(), "Done.");
    asked.messages.extend([done.message, Message::text(Role::User, "Thanks.")]);
    answer(model.as_ref(), asked).await.expect("answers");

    let asked = provider.asked();
    assert_eq!(asked.len(), TURNS + 2, "nothing was asked twice");
    let input = asked[TURNS + 1].body["input"].as_array().expect("items");
    assert_eq!(input.len(), 1 + 7 * TURNS + 3);
    let reasoning = |id: String, summary: Value| json!({ "type": "reasoning", "id": id, "summary": summary, "encrypted_content": sealed(&id) });
    for (turn, items) in input[1..].chunks(7).take(TURNS).enumerate() {
        let summary = json!([{ "type": "summary_text", "text": "First," },
            { "type": "summary_text", "text": "a summary." }]);
        assert_eq!(items[0], reasoning(format!("rs_{turn}_1"), summary));
        let comment = json!({ "type": "message", "role": "assistant", "content": "I look.",
            "phase": "commentary" });
        assert_eq!(items[1], comment);
        assert_eq!(items[2]["call_id"], format!("call_{turn}_1"));
        assert_eq!(items[3], reasoning(format!("rs_{turn}_2"), json!([])));
        assert_eq!(items[4]["call_id"], format!("call_{turn}_2"));
        assert_eq!(items[5]["call_id"], format!("call_{turn}_1"));
        assert_eq!(items[6]["call_id"], format!("call_{turn}_2"));
    }
    let end = &input[1 + 7 * TURNS..];
    assert_eq!(end[0], reasoning("rs_last".into(), json!([])));
    assert_eq!((&end[1]["content"], &end[1]["phase"]), (&json!("Done."), &json!("final_answer")));
    assert_eq!(end[2]["content"], "Thanks.");
}

#[tokio::test]
async fn reasoning_without_what_followed_from_it_stays_out() {
    let item = json!({ "type": "reasoning", "id": "rs_1", "summary": [],
        "encrypted_content": sealed("rs_1") });
    let kept = format!("openai:{item}");
    let asked = request(vec![
        Message::text(Role::User, "hello"),
        assistant(vec![thought(Some(&kept))]),
        assistant(vec![thought(Some(&kept)), Part::Text("Well.".into()), thought(Some(&kept))]),
        Message::text(Role::User, "hello?"),
    ]);
    let body = taken(Strictness::OpenAi, "", asked).await;
    let types: Vec<&str> = body["input"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|item| item["type"].as_str())
        .collect();
    assert_eq!(types, ["message", "reasoning", "message", "message"]);
    assert_eq!(body["input"][1], item);
}

#[tokio::test]
async fn no_provider_gets_items_of_another_and_guests_get_no_other_kind_of_item_through() {
    let kept = |id: &str| {
        let item = json!({ "type": "reasoning", "id": id, "summary": [],
            "encrypted_content": sealed(id) });
        format!("openai:{item}")
    };
    let parts = vec![
        thought(Some("anthropic:YW50")),
        thought(Some("gemini:Z2Vt")),
        thought(Some("openai:{\"type\":\"item_reference\",\"id\":\"rs_other\"}")),
        thought(Some("openai:no JSON")),
        thought(Some("YW55")),
        thought(None),
        thought(Some(&kept("rs_1"))),
        Part::Text("Well.".into()),
    ];
    let asked = request(vec![
        Message::text(Role::User, "hello"),
        assistant(parts),
        Message::text(Role::User, "hello?"),
    ]);
    let body = taken(Strictness::OpenAi, "", asked.clone()).await;
    let input = body["input"].as_array().expect("items");
    assert_eq!(input.len(), 4, "{input:#?}");
    assert_eq!(input[1]["id"], "rs_1");

    let elsewhere = [
        ("anthropic", ["YW50", "YW55"]),
        ("gemini", ["Z2Vt", "YW55"]),
        ("openai-chat", ["Hm.", "Hm."]),
    ];
    for (wire, there) in elsewhere {
        let provider = Provider::start([Reply::new(400, "{}")]).await;
        let more = if wire == "openai-chat" { "reasoning_field = \"reasoning\"" } else { "" };
        answer(model(wire, &provider, more).as_ref(), asked.clone()).await.expect_err("a 400");
        let sent = provider.asked().remove(0).body.to_string();
        for own in ["rs_", "encrypted_content", "openai:", "anthropic:", "gemini:"] {
            assert!(!sent.contains(own), "{wire} got {own}: {sent}");
        }
        for signature in ["YW50", "Z2Vt", "YW55"] {
            // The text is a signature of nobody's for Gemini, which has it on the first part.
            let may_be = there.contains(&signature);
            assert!(may_be || !sent.contains(signature), "{wire} got {signature}: {sent}");
        }
        assert!(sent.contains(there[0]), "{wire}: {sent}");
    }
}

#[tokio::test]
async fn a_model_that_does_not_reason_is_asked_for_no_reasoning() {
    let kept = json!({ "type": "reasoning", "id": "rs_1", "summary": [],
        "encrypted_content": sealed("rs_1") });
    let asked = request(vec![
        Message::text(Role::User, "hello"),
        assistant(vec![thought(Some(&format!("openai:{kept}"))), Part::Text("Well.".into())]),
        Message::text(Role::User, "hello?"),
    ]);
    let none = "reasoning_field = \"none\"";
    let body = taken(Strictness::OpenAiWithoutReasoning, none, asked.clone()).await;
    assert!(body.get("include").is_none() && body["input"].as_array().map(Vec::len) == Some(3));

    // Without the setting it says so.
    let provider = Provider::start_as(Strictness::OpenAiWithoutReasoning, [good()]).await;
    let refused = answer(model("openai", &provider, "").as_ref(), asked).await;
    let Err(ModelError::InvalidRequest(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("encrypted content is not supported"), "{why}");
}

#[tokio::test]
async fn a_long_id_of_a_call_is_the_same_in_its_result_however_short_it_must_be() {
    let long = format!("call_{}", "x".repeat(80));
    let asked = request(vec![
        Message::text(Role::User, "hello"),
        assistant(vec![call(&long, "{}")]),
        result(&long, "contents"),
    ]);
    let body = taken(Strictness::OpenAi, "", asked).await;
    assert_eq!(body["input"][1]["call_id"], body["input"][2]["call_id"]);
}
