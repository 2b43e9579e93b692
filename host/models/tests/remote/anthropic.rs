//! Messages.

use serde_json::{Value, json};
use taskrun_journal::completion::{Chunk, CompletionStop, ModelError};
use taskrun_journal::message::{Message, Part, Role, Thinking, Usage};

use crate::ask::{answer, chunks, hello, model, request, result, tool, usage};
use crate::provider::{Provider, Reply};

fn start() -> Value {
    json!({ "type": "message_start", "message": {
        "model": "m-1-2026",
        "usage": { "input_tokens": 5, "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 1, "output_tokens": 1 },
    } })
}

fn block(index: u64, block: Value) -> Value {
    json!({ "type": "content_block_start", "index": index, "content_block": block })
}

/// The tokens of the prompt.
fn read() -> Usage {
    Usage { cached_tokens: 3, cache_write_tokens: 1, ..usage(9, 0) }
}

fn delta(index: u64, kind: &str, key: &str, text: &str) -> Value {
    json!({ "type": "content_block_delta", "index": index, "delta": { "type": kind, key: text } })
}

fn end(index: u64) -> Value {
    json!({ "type": "content_block_stop", "index": index })
}

fn finish(reason: &str) -> [Value; 2] {
    [
        json!({ "type": "message_delta", "delta": { "stop_reason": reason },
            "usage": { "output_tokens": 12 } }),
        json!({ "type": "message_stop" }),
    ]
}

fn thinking_and_call() -> Vec<Value> {
    let mut events = vec![
        start(),
        json!({ "type": "ping" }),
        block(0, json!({ "type": "thinking", "thinking": "" })),
        delta(0, "thinking_delta", "thinking", "I should "),
        delta(0, "thinking_delta", "thinking", "look."),
        delta(0, "signature_delta", "signature", "c2ln"),
        end(0),
        block(1, json!({ "type": "redacted_thinking", "data": "b64" })),
        end(1),
        block(2, json!({ "type": "text", "text": "" })),
        delta(2, "text_delta", "text", "Looking."),
        end(2),
        block(3, json!({ "type": "tool_use", "id": "t1", "name": "workspace__read", "input": {} })),
        delta(3, "input_json_delta", "partial_json", "{\"path\":"),
        delta(3, "input_json_delta", "partial_json", "\"docs\"}"),
        end(3),
    ];
    events.extend(finish("tool_use"));
    events
}

#[tokio::test]
async fn reasoning_text_and_calls_come_as_blocks_and_tokens_before_and_after() {
    let provider = Provider::start([Reply::events(&thinking_and_call())]).await;
    let mut asked = hello();
    asked.tools = vec![tool("workspace/read")];
    let model = model("anthropic", &provider, "");
    let (all, error) = chunks(model.stream(asked).await.expect("begins")).await;
    assert_eq!(error, None);
    let block = |text: &str, signature: &str| {
        Chunk::Thinking(Thinking {
            text: text.into(),
            signature: Some(format!("anthropic:{signature}")),
        })
    };
    assert_eq!(all[0], Chunk::Usage(read()));
    assert_eq!(all[1], block("I should look.", "c2ln"));
    assert_eq!(all[2], block("", "redacted:b64"));
    assert_eq!(all[3], Chunk::Text("Looking.".into()));
    let Chunk::ToolCall(call) = &all[6] else { panic!("{all:?}") };
    assert_eq!((&*call.tool_call_id, &*call.name), ("t1", "workspace/read"));
    assert_eq!(call.payload, r#"{"path":"docs"}"#);
    assert_eq!(all[7], Chunk::Usage(usage(0, 12)));
    let stop = Chunk::Stop { reason: CompletionStop::ToolUse, model: "m-1-2026".into() };
    assert_eq!(all[8], stop);
}

#[tokio::test]
async fn reasoning_goes_back_with_its_signature_before_the_results() {
    let mut last = vec![start()];
    last.extend(finish("end_turn"));
    let replies = [Reply::events(&thinking_and_call()), Reply::events(&last)];
    let provider = Provider::start(replies).await;
    let model = model("anthropic", &provider, "thinking_tokens = 2000\nmax_tokens = 3000");
    let mut asked =
        request(vec![Message::text(Role::System, "Be brief."), Message::text(Role::User, "hello")]);
    asked.tools = vec![tool("workspace/read")];
    asked.temperature = Some(2.0);
    let first = answer(model.as_ref(), asked.clone()).await.expect("answers");
    asked.messages.push(first.message);
    asked.messages.push(result("t1", "contents"));
    asked.messages.push(Message::text(Role::System, "No turns are left."));
    answer(model.as_ref(), asked).await.expect("answers");
    let sent = &provider.asked()[1];
    assert_eq!(sent.path, "/v1/messages");
    assert_eq!(sent.headers["anthropic-version"], "2023-06-01");
    let body = &sent.body;
    assert_eq!(body["system"], "Be brief.");
    assert_eq!(
        (&body["max_tokens"], &body["thinking"]["budget_tokens"]),
        (&json!(3000), &json!(2000))
    );
    assert_eq!(body["temperature"], Value::Null, "not while it reasons");
    assert_eq!(body["tools"][0]["input_schema"]["type"], "object");
    let called = json!({ "type": "tool_use", "id": "t1", "name": "workspace__read", "input": { "path": "docs" } });
    assert_eq!(
        body["messages"][1]["content"],
        json!([
            { "type": "thinking", "thinking": "I should look.", "signature": "c2ln" },
            { "type": "redacted_thinking", "data": "b64" },
            { "type": "text", "text": "Looking." },
            called,
        ])
    );
    assert_eq!(
        body["messages"][2],
        json!({ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": "contents", "is_error": false },
            { "type": "text", "text": "No turns are left." },
        ] })
    );
    assert_eq!(body["messages"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn an_answer_that_breaks_off_has_its_tokens_counted() {
    let events = [start(), block(0, json!({ "type": "text", "text": "Half" }))];
    let overloaded = json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } });
    let broken = Reply::events(&[&events[..], &[overloaded]].concat());
    let provider = Provider::start([broken, Reply::events(&events).cut()]).await;
    let model = model("anthropic", &provider, "");
    for error in [ModelError::Overloaded { retry_after_ms: None }, ModelError::CutOff] {
        let (all, seen) = chunks(model.stream(hello()).await.expect("begins")).await;
        assert_eq!(seen, Some(error));
        assert_eq!(all, [Chunk::Usage(read()), Chunk::Text("Half".into())]);
    }
    assert_eq!(provider.asked().len(), 2, "an answer that has begun is not asked for again");
}

#[tokio::test]
async fn a_whole_answer_says_the_same_as_one_in_pieces() {
    let whole = json!({
        "type": "message",
        "model": "m-1-2026",
        "content": [
            { "type": "thinking", "thinking": "hm", "signature": "s" },
            { "type": "tool_use", "id": "t1", "name": "f", "input": { "a": 1 } },
        ],
        "stop_reason": "tool_use",
        "usage": { "input_tokens": 2, "output_tokens": 3 },
    });
    let provider = Provider::start([Reply::new(200, whole.to_string())]).await;
    let model = model("anthropic", &provider, "stream = false");
    let answer = answer(model.as_ref(), hello()).await.expect("answers");
    let thinking = Thinking { text: "hm".into(), signature: Some("anthropic:s".into()) };
    assert_eq!(answer.message.parts[0], Part::Thinking(thinking));
    assert_eq!(answer.message.tool_uses().next().map(|call| &*call.payload), Some(r#"{"a":1}"#));
    assert_eq!((answer.usage, answer.stop), (usage(2, 3), CompletionStop::ToolUse));
}

#[tokio::test]
async fn an_answer_says_why_it_ends_and_a_refusal_is_none() {
    let stops = [
        ("end_turn", CompletionStop::EndTurn),
        ("max_tokens", CompletionStop::MaxTokens),
        ("stop_sequence", CompletionStop::StopSequence),
        ("model_context_window_exceeded", CompletionStop::ContextWindow),
        ("tool_use", CompletionStop::MalformedCall),
        ("pause_turn", CompletionStop::Other("pause_turn".into())),
    ];
    for (word, stop) in stops {
        let mut events = vec![start()];
        events.extend(finish(word));
        let provider = Provider::start([Reply::events(&events)]).await;
        let done = answer(model("anthropic", &provider, "").as_ref(), hello()).await;
        assert_eq!(done.map(|done| done.stop), Ok(stop), "{word}");
    }
    let details = [
        (json!({ "type": "refusal", "category": "bio", "explanation": "No." }), "No."),
        (json!({ "type": "refusal", "category": "bio", "explanation": null }), "bio"),
        (Value::Null, "it gives no reason"),
    ];
    for (details, words) in details {
        let [mut last, stop] = finish("refusal");
        last["delta"]["stop_details"] = details;
        let provider = Provider::start([Reply::events(&[start(), last, stop])]).await;
        let stream = model("anthropic", &provider, "").stream(hello()).await.expect("begins");
        let (all, error) = chunks(stream).await;
        assert_eq!(error, Some(ModelError::Refused(words.into())));
        assert_eq!(all, [Chunk::Usage(read()), Chunk::Usage(usage(0, 12))], "its tokens count");
    }
}
