//! Content generation.

use serde_json::{Value, json};
use taskrun_journal::completion::{Chunk, CompletionStop, ModelError};
use taskrun_journal::message::{Message, Part, Role, Thinking, Usage};

use crate::ask::{answer, chunks, hello, model, request, result, tool, usage};
use crate::provider::{Provider, Reply};

fn event(parts: Value, finish: Option<&str>) -> Value {
    json!({
        "candidates": [{ "content": { "role": "model", "parts": parts }, "finishReason": finish }],
        "usageMetadata": {
            "promptTokenCount": 7, "cachedContentTokenCount": 4, "candidatesTokenCount": 2, "thoughtsTokenCount": 3,
            "totalTokenCount": 12,
        },
        "modelVersion": "m-1-2026",
    })
}

#[tokio::test]
async fn a_call_keeps_the_signature_of_the_reasoning_that_it_followed_from() {
    let call = json!({ "name": "workspace__read", "args": { "path": "docs" } });
    let events = [
        event(json!([{ "text": "I should look.", "thought": true }]), None),
        event(json!([{ "functionCall": call, "thoughtSignature": "c2ln" }]), Some("STOP")),
    ];
    let said = [event(json!([{ "text": "Done." }]), Some("STOP"))];
    let provider = Provider::start([Reply::events(&events), Reply::events(&said)]).await;
    let model = model("gemini", &provider, "thinking = 100");
    let mut asked =
        request(vec![Message::text(Role::System, "Be brief."), Message::text(Role::User, "hello")]);
    asked.tools = vec![tool("workspace/read")];
    let first = answer(model.as_ref(), asked.clone()).await.expect("answers");
    let told = Usage { cached_tokens: 4, reasoning_tokens: 3, ..usage(7, 5) };
    assert_eq!((first.stop, first.usage), (CompletionStop::ToolUse, told));
    let thinking =
        Thinking { text: "I should look.".into(), signature: Some("gemini:c2ln".into()) };
    assert_eq!(first.message.parts[0], Part::Thinking(thinking));
    let id = first.message.tool_uses().next().expect("a call").tool_call_id.clone();
    asked.messages.push(first.message);
    asked.messages.push(result(&id, r#"{"text":"x"}"#));
    let second = answer(model.as_ref(), asked).await.expect("answers");
    assert_eq!((second.message.joined_text().as_str(), &*second.model), ("Done.", "m-1-2026"));

    let sent = &provider.asked()[1];
    assert_eq!(sent.path, "/v1/models/m-1:streamGenerateContent?alt=sse");
    let body = &sent.body;
    assert_eq!(body["systemInstruction"]["parts"][0]["text"], "Be brief.");
    assert_eq!(
        body["contents"][1],
        json!({ "role": "model", "parts": [{ "functionCall": call, "thoughtSignature": "c2ln" }] })
    );
    let response = json!({ "name": "workspace__read", "response": { "result": { "text": "x" } } });
    assert_eq!(body["contents"][2]["parts"][0]["functionResponse"], response);
    let declared = &body["tools"][0]["functionDeclarations"][0];
    assert_eq!(declared["parametersJsonSchema"]["type"], "object");
    assert_eq!(body["generationConfig"]["thinkingConfig"]["thinkingBudget"], 100);
}

#[tokio::test]
async fn what_is_blocked_is_a_refusal_and_what_has_no_reason_to_end_was_cut_off() {
    let blocked = json!({ "promptFeedback": { "blockReason": "SAFETY" } });
    let provider = Provider::start([
        Reply::events(&[blocked]),
        Reply::events(&[event(json!([{ "text": "Half" }]), None)]),
        Reply::new(200, event(json!([{ "text": "No." }]), Some("SAFETY")).to_string()),
    ])
    .await;
    let streaming = model("gemini", &provider, "");
    let refused = answer(streaming.as_ref(), hello()).await;
    assert_eq!(refused, Err(ModelError::Refused("SAFETY".into())));
    assert_eq!(answer(streaming.as_ref(), hello()).await, Err(ModelError::CutOff));
    let whole = model("gemini", &provider, "stream = false");
    let refused = answer(whole.as_ref(), hello()).await;
    assert_eq!(refused, Err(ModelError::Refused("SAFETY".into())));
}

#[tokio::test]
async fn an_answer_says_why_it_ends_and_what_was_read_for_a_refusal_counts() {
    let stops = [
        ("STOP", CompletionStop::EndTurn),
        ("MAX_TOKENS", CompletionStop::MaxTokens),
        ("MALFORMED_FUNCTION_CALL", CompletionStop::MalformedCall),
        ("UNEXPECTED_TOOL_CALL", CompletionStop::MalformedCall),
        ("LANGUAGE", CompletionStop::Other("LANGUAGE".into())),
    ];
    for (word, stop) in stops {
        let reply = Reply::events(&[event(json!([{ "text": "a" }]), Some(word))]);
        let provider = Provider::start([reply]).await;
        let done = answer(model("gemini", &provider, "").as_ref(), hello()).await;
        assert_eq!(done.map(|done| done.stop), Ok(stop), "{word}");
    }
    let counts = json!({ "promptTokenCount": 7, "totalTokenCount": 7 });
    let message = "It is\nnot allowed.";
    let feedback = json!({ "blockReason": "OTHER", "blockReasonMessage": message });
    let stopped = json!({ "finishReason": "PROHIBITED_CONTENT", "finishMessage": message });
    let refusals = [
        (json!({ "promptFeedback": feedback }), "OTHER: It is not allowed."),
        (json!({ "candidates": [stopped] }), "PROHIBITED_CONTENT: It is not allowed."),
        (json!({ "candidates": [] }), "no candidate"),
    ];
    for (mut said, words) in refusals {
        said["usageMetadata"] = counts.clone();
        for more in ["", "stream = false"] {
            let reply = match more {
                "" => Reply::events(std::slice::from_ref(&said)),
                _ => Reply::new(200, said.to_string()),
            };
            let provider = Provider::start([reply]).await;
            let stream = model("gemini", &provider, more).stream(hello()).await.expect("begins");
            let (chunks, error) = chunks(stream).await;
            assert_eq!(error, Some(ModelError::Refused(words.into())), "{said}");
            assert_eq!(chunks, [Chunk::Usage(usage(7, 0))], "{said}");
        }
    }
}

#[tokio::test]
async fn calls_that_a_server_does_not_name_have_other_ids_in_each_answer() {
    let call = json!([{ "functionCall": { "name": "f", "args": {} } }]);
    let named = json!([{ "functionCall": { "id": "0", "name": "f", "args": {} } }]);
    let replies = [&call, &call, &named, &named]
        .map(|parts| Reply::events(&[event(parts.clone(), Some("STOP"))]));
    let provider = Provider::start(replies).await;
    let model = model("gemini", &provider, "");
    let mut asked = hello();
    for _ in 0..4 {
        let done = answer(model.as_ref(), asked.clone()).await.expect("answers");
        let id = done.message.tool_uses().next().expect("a call").tool_call_id.clone();
        asked.messages.extend([done.message, result(&id, "contents")]);
    }
    let ids = asked.messages.iter().flat_map(Message::tool_uses).map(|call| &*call.tool_call_id);
    let ids: Vec<&str> = ids.collect();
    let unique: std::collections::BTreeSet<&&str> = ids.iter().collect();
    assert_eq!((unique.len(), ids[2]), (4, "0"), "{ids:?}");
    // What the provider named goes back under that name, and what we named under none.
    let last = provider.asked()[3].body["contents"].clone();
    let sent = |turn: usize| {
        let (call, result) = (&last[2 * turn + 1]["parts"][0], &last[2 * turn + 2]["parts"][0]);
        [call["functionCall"]["id"].clone(), result["functionResponse"]["id"].clone()]
    };
    assert_eq!(sent(0), [serde_json::Value::Null, serde_json::Value::Null], "{last}");
    assert_eq!(sent(2), [json!("0"), json!("0")], "{last}");
}
