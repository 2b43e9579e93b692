//! Chat completions.

use serde_json::{Value, json};
use taskrun_journal::completion::{Chunk, CompletionStop, ModelError};
use taskrun_journal::message::{Message, Part, Role, Thinking, ToolUse, Usage};

use crate::ask::{answer, chunks, hello, model, request, result, tool, usage};
use crate::provider::{Provider, Reply};

fn delta(delta: Value) -> Value {
    json!({ "model": "m-1-2026", "choices": [{ "index": 0, "delta": delta }] })
}

fn finish(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

fn fragment(index: u64, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    delta(json!({ "tool_calls": [{
        "index": index, "id": id, "function": { "name": name, "arguments": arguments },
    }] }))
}

const DONE: &str = "data: [DONE]\n\n";

#[tokio::test]
async fn text_and_reasoning_come_as_they_are_said_and_the_last_chunk_counts_the_tokens() {
    let events = [
        delta(json!({ "role": "assistant", "content": "" })),
        delta(json!({ "reasoning_content": "Let me " })),
        delta(json!({ "reasoning_content": "see." })),
        delta(json!({ "content": "Hel" })),
        delta(json!({ "content": "lo" })),
        finish("stop"),
        json!({ "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13 } }),
    ];
    let provider = Provider::start([Reply::events(&events).then(DONE)]).await;
    let stream = model("openai-chat", &provider, "").stream(hello()).await.expect("begins");
    let (all, error) = chunks(stream).await;
    assert_eq!(error, None);
    let thinking = Thinking { text: "Let me see.".into(), signature: None };
    let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "m-1-2026".into() };
    let (first, second) = (Chunk::Text("Hel".into()), Chunk::Text("lo".into()));
    assert_eq!(all, [Chunk::Thinking(thinking), first, second, Chunk::Usage(usage(9, 4)), stop]);
    let asked = &provider.asked()[0];
    assert_eq!(
        (asked.path.as_str(), &asked.body["stream"]),
        ("/v1/chat/completions", &json!(true))
    );
    assert_eq!(asked.body["stream_options"]["include_usage"], true);
}

#[tokio::test]
async fn calls_whose_fragments_are_mixed_come_whole_and_under_our_names() {
    let events = [
        fragment(0, Some("a"), Some("workspace__read"), ""),
        fragment(1, Some("b"), Some("unheard_of"), "{\"x\""),
        fragment(0, None, None, "{\"path\":\"d"),
        fragment(1, None, None, ":1}"),
        fragment(0, None, None, "ocs\"}"),
        finish("tool_calls"),
    ];
    let provider = Provider::start([Reply::events(&events).then(DONE)]).await;
    let mut asked = hello();
    asked.tools = vec![tool("workspace/read")];
    let stream = model("openai-chat", &provider, "").stream(asked).await.expect("begins");
    let (all, error) = chunks(stream).await;
    assert_eq!(error, None);
    let fragments: String = all
        .iter()
        .filter_map(|chunk| {
            let Chunk::ToolCallDelta { tool_call_id, name, delta } = chunk else { return None };
            assert_eq!(name, if tool_call_id == "a" { "workspace/read" } else { "unheard_of" });
            (tool_call_id == "a").then_some(delta.as_str())
        })
        .collect();
    assert_eq!(fragments, r#"{"path":"docs"}"#);
    let calls: Vec<&ToolUse> = all
        .iter()
        .filter_map(|chunk| if let Chunk::ToolCall(call) = chunk { Some(call) } else { None })
        .collect();
    assert_eq!((&*calls[0].name, &*calls[0].payload), ("workspace/read", r#"{"path":"docs"}"#));
    assert_eq!((&*calls[1].tool_call_id, &*calls[1].name), ("b", "unheard_of"));
    assert!(matches!(all.last(), Some(Chunk::Stop { reason: CompletionStop::ToolUse, .. })));
}

#[tokio::test]
async fn tools_results_and_settings_are_sent_in_the_protocols_own_form() {
    let provider = Provider::start([Reply::events(&[finish("length")]).then(DONE)]).await;
    let call = ToolUse {
        tool_call_id: "a".into(),
        name: "workspace/read".into(),
        payload: r#"{"path":"x"}"#.into(),
    };
    let thinking = Part::Thinking(Thinking { text: "hm".into(), signature: None });
    let mut asked = request(vec![
        Message::text(Role::System, "Be brief."),
        Message::text(Role::User, "hello"),
        Message { role: Role::Assistant, parts: vec![thinking, Part::ToolUse(call)].into() },
        result("a", "contents"),
    ]);
    asked.tools = vec![tool("workspace/read")];
    asked.max_tokens = Some(500);
    asked.temperature = Some(0.5);
    asked.stop_sequences = vec!["END".into()];
    asked.response_schema = Some(r#"{"type":"object"}"#.into());
    let model = model("openai-chat", &provider, "max_tokens = 100\neffort = \"low\"");
    let answer = answer(model.as_ref(), asked).await.expect("answers");
    assert_eq!(answer.stop, CompletionStop::MaxTokens);
    let body = &provider.asked()[0].body;
    let name = "workspace__read";
    let called = json!([{ "id": "a", "type": "function",
        "function": { "name": name, "arguments": r#"{"path":"x"}"# } }]);
    assert_eq!(
        body["messages"],
        json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "hello" },
            { "role": "assistant", "content": null, "tool_calls": called },
            { "role": "tool", "tool_call_id": "a", "content": "contents" },
        ])
    );
    assert_eq!(body["tools"][0]["function"]["name"], name);
    assert_eq!(body["tools"][0]["function"]["parameters"]["properties"]["path"]["type"], "string");
    assert_eq!((&body["max_tokens"], &body["stop"]), (&json!(100), &json!(["END"])));
    assert_eq!((&body["temperature"], &body["reasoning_effort"]), (&json!(0.5), &json!("low")));
    assert_eq!(body["response_format"]["json_schema"]["schema"]["type"], "object");
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_asked_for_the_whole() {
    let whole = json!({
        "model": "m-1",
        "choices": [{
            "message": {
                "content": "I look.",
                "tool_calls": [{ "id": "a", "function": { "name": "f", "arguments": "{}" } }],
            },
            "finish_reason": "tool_calls",
        }],
        "usage": { "prompt_tokens": 3, "completion_tokens": 2 },
    });
    let provider = Provider::start([Reply::new(200, whole.to_string())]).await;
    let model = model("ollama", &provider, "stream = false");
    let answer = answer(model.as_ref(), hello()).await.expect("answers");
    assert_eq!((answer.message.joined_text().as_str(), answer.usage), ("I look.", usage(3, 2)));
    assert_eq!(answer.stop, CompletionStop::ToolUse);
    assert_eq!(provider.asked()[0].body["stream"], false);
}

#[tokio::test]
async fn a_last_event_that_is_left_out_is_not_missed_and_missing_tokens_are_estimated() {
    let events = [delta(json!({ "content": "12345678" })), finish("stop")];
    let provider = Provider::start([Reply::events(&events)]).await;
    let answer =
        answer(model("openai-chat", &provider, "").as_ref(), hello()).await.expect("answers");
    assert_eq!(answer.usage, Usage { estimated: true, ..usage(2, 2) });
}

#[tokio::test]
async fn an_error_in_the_middle_has_its_kind() {
    let error = |code: Value| json!({ "error": { "message": "why", "code": code } });
    let provider = Provider::start([
        Reply::events(&[error(json!("rate_limit_exceeded"))]),
        Reply::events(&[delta(json!({ "content": "a" })), error(json!(503))]),
        Reply::events(&[error(Value::Null)]),
    ])
    .await;
    let model = model("openai-chat", &provider, "");
    let (limited, why) = (answer(model.as_ref(), hello()).await, || Some("why".to_owned()));
    let wants_pause = ModelError::RateLimited { retry_after_ms: None, said: why() };
    assert_eq!(limited, Err(wants_pause));
    let overloaded = answer(model.as_ref(), hello()).await;
    assert_eq!(overloaded, Err(ModelError::Overloaded { retry_after_ms: None, said: why() }));
    let other = answer(model.as_ref(), hello()).await;
    assert_eq!(other, Err(ModelError::Unavailable("why".into())));
}

#[tokio::test]
async fn a_question_that_is_flagged_in_the_middle_is_refused() {
    let error = json!({ "error": { "message": "It was flagged.", "code": 403,
        "metadata": { "reasons": ["violence"], "flagged_input": "How ...?" } } });
    let provider = Provider::start([Reply::events(&[error])]).await;
    let refused = answer(model("openai-chat", &provider, "").as_ref(), hello()).await;
    assert_eq!(refused, Err(ModelError::Refused("It was flagged.".into())));
}

/// The tokens that are counted where a server says this of them.
async fn count_of(usage: &Value) -> Usage {
    let events = [finish("stop"), json!({ "choices": [], "usage": usage })];
    let provider = Provider::start([Reply::events(&events).then(DONE)]).await;
    let model = model("openai-chat", &provider, "");
    answer(model.as_ref(), hello()).await.expect("answers").usage
}

#[tokio::test]
async fn tokens_of_reasoning_that_stand_in_the_total_alone_were_written_too() {
    // xAI names them.
    let named = json!({ "prompt_tokens": 100, "completion_tokens": 15, "total_tokens": 143,
        "completion_tokens_details": { "reasoning_tokens": 28 } });
    assert_eq!(count_of(&named).await, Usage { reasoning_tokens: 28, ..usage(100, 43) });
    // Google's endpoint does not, nor do gateways such as any-llm
    // (<https://github.com/mozilla-ai/any-llm/issues/1290>).
    let unnamed = json!({ "prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 1025 });
    assert_eq!(count_of(&unnamed).await, Usage { reasoning_tokens: 1000, ..usage(20, 1005) });
}

#[tokio::test]
async fn what_the_total_has_beside_reasoning_was_not_written() {
    let with = |details: Value| {
        let mut usage =
            json!({ "prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 1025 });
        if let (Value::Object(usage), Value::Object(details)) = (&mut usage, details) {
            usage.extend(details);
        }
        usage
    };
    // Gateways may count what a cache had beside the prompt.
    let cached = |read: u64, write: u64| json!({ "prompt_tokens_details": { "cached_tokens": read, "cache_write_tokens": write } });
    let cases = [
        with(cached(1000, 0)),
        with(cached(0, 1000)),
        with(cached(600, 400)),
        with(json!({ "completion_tokens_details": { "reasoning_tokens": 0 } })),
        with(json!({ "prompt_tokens": 0, "total_tokens": 25 })),
    ];
    for usage in cases {
        let told = count_of(&usage).await;
        assert_eq!((told.completion_tokens, told.reasoning_tokens), (5, 0), "{usage}");
    }
}
