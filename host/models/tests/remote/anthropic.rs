//! Messages.

use serde_json::{Value, json};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::message::{Message, Part, Role, Thinking, ToolUse, Usage};

use crate::ask::{answer, chunks, hello, model, request, result, tool, usage};
use crate::provider::prefix::{is_kept_by, kept};
use crate::provider::rules::Strictness;
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
    let model = model("anthropic", &provider, "thinking = 2000\nmax_tokens = 3000");
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
    let mark = json!({ "type": "ephemeral" });
    let system = json!([{ "type": "text", "text": "Be brief.", "cache_control": mark }]);
    assert_eq!((&body["system"], &body["cache_control"]), (&system, &Value::Null));
    assert_eq!(
        (&body["max_tokens"], &body["thinking"]["budget_tokens"]),
        (&json!(3000), &json!(2000))
    );
    assert_eq!(body["temperature"], Value::Null, "it is refused");
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
    // The note of this turn stands behind the mark.
    assert_eq!(
        body["messages"][2],
        json!({ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": "contents",
                "is_error": false, "cache_control": mark },
            { "type": "text", "text": "<system>\nNo turns are left.\n</system>" },
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
    let said = Some("Overloaded".to_owned());
    for error in [ModelError::Overloaded { retry_after_ms: None, said }, ModelError::CutOff] {
        let (all, seen) = chunks(model.stream(hello()).await.expect("begins")).await;
        assert_eq!(seen, Some(error));
        // Nobody says how much was written by then.
        let written = Usage { estimated: true, ..usage(0, 1) };
        let told = [Chunk::Usage(read()), Chunk::Text("Half".into()), Chunk::Usage(written)];
        assert_eq!(all, told);
    }
    assert_eq!(provider.asked().len(), 2, "an answer that has begun is not asked for again");
}

#[tokio::test]
async fn tokens_of_the_prompt_count_whenever_a_server_tells_them() {
    let begun = json!({ "type": "message_start", "message": {
        "model": "m", "usage": { "input_tokens": 0, "output_tokens": 0 },
    } });
    let said = block(0, json!({ "type": "text", "text": "Whole" }));
    let told_late = json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" },
        "usage": { "input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 2 } });
    let never = json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" },
        "usage": { "output_tokens": 2 } });
    let stop = json!({ "type": "message_stop" });
    let answers = [told_late, never.clone()]
        .map(|last| Reply::events(&[begun.clone(), said.clone(), last, stop.clone()]))
        .into_iter()
        // At the end it may be said once more.
        .chain([Reply::events(&[start(), said.clone(), never, stop.clone()])]);
    let provider = Provider::start(answers).await;
    let model = model("anthropic", &provider, "");
    let mut used = Vec::new();
    for _ in 0..3 {
        used.push(answer(model.as_ref(), hello()).await.expect("answers").usage);
    }
    assert_eq!(used[0], Usage { cached_tokens: 3, ..usage(8, 2) });
    assert!(used[1].estimated && used[1].prompt_tokens > 0, "{used:?}");
    assert_eq!(used[1].completion_tokens, 2);
    assert_eq!(used[2], Usage { cached_tokens: 3, cache_write_tokens: 1, ..usage(9, 2) });
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

/// The events of a call with these arguments.
fn tool_use(index: u64, id: &str, arguments: &str) -> [Value; 3] {
    let call = json!({ "type": "tool_use", "id": id, "name": "f", "input": {} });
    [block(index, call), delta(index, "input_json_delta", "partial_json", arguments), end(index)]
}

#[tokio::test]
async fn a_call_that_a_limit_cut_off_before_its_arguments_is_left_out() {
    let two = [tool_use(0, "a", ""), tool_use(1, "b", "")].concat();
    for (reason, kept) in [
        ("max_tokens", &["a"][..]),
        ("model_context_window_exceeded", &["a"]),
        ("tool_use", &["a", "b"]),
    ] {
        let events = [&[start()][..], &two, &finish(reason)].concat();
        let call = |id: &str| json!({ "type": "tool_use", "id": id, "name": "f", "input": {} });
        let whole = json!({ "type": "message", "model": "m-1", "stop_reason": reason,
            "content": [call("a"), call("b")] });
        let replies = [Reply::events(&events), Reply::new(200, whole.to_string())];
        let provider = Provider::start(replies).await;
        for more in ["", "stream = false"] {
            let done = answer(model("anthropic", &provider, more).as_ref(), hello()).await;
            let done = done.expect("answers");
            let calls = done.message.tool_uses().map(|call| (&*call.tool_call_id, &*call.payload));
            let kept: Vec<_> = kept.iter().map(|id| (*id, "{}")).collect();
            assert_eq!(calls.collect::<Vec<_>>(), kept, "{reason} {more}");
        }
    }
    // The arguments that were begun are told as they are.
    let half = tool_use(0, "a", "{\"path\":");
    let events = [&[start()][..], &half, &finish("max_tokens")].concat();
    let provider = Provider::start([Reply::events(&events)]).await;
    let done = answer(model("anthropic", &provider, "").as_ref(), hello()).await.expect("answers");
    let payloads: Vec<&str> = done.message.tool_uses().map(|call| &*call.payload).collect();
    assert_eq!(
        (&payloads[..], done.stop.clone()),
        (&["{\"path\":"][..], CompletionStop::MaxTokens)
    );
}

#[tokio::test]
async fn calls_without_arguments_come_before_what_is_said_after_them() {
    let text = [block(2, json!({ "type": "text", "text": "Looking." })), end(2)];
    let calls = [tool_use(0, "a", ""), tool_use(1, "b", "{}")].concat();
    let events = [&[start()][..], &calls, &text, &finish("tool_use")].concat();
    let provider = Provider::start([Reply::events(&events)]).await;
    let done = answer(model("anthropic", &provider, "").as_ref(), hello()).await.expect("answers");
    let ids: Vec<&str> = done.message.tool_uses().map(|call| &*call.tool_call_id).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(done.message.parts.last(), Some(&Part::Text("Looking.".into())));
}

#[tokio::test]
async fn a_schema_is_sent_without_the_words_that_are_refused() {
    let number = json!({ "type": "integer", "minimum": 1 });
    let schema = json!({ "type": "object", "properties": { "n": number } }).to_string();
    let provider = Provider::start([Reply::new(400, "{}")]).await;
    let asked = CompletionRequest { response_schema: Some(schema), ..hello() };
    let model = model("anthropic", &provider, "");
    answer(model.as_ref(), asked).await.expect_err("no answer");
    let sent = &provider.asked()[0].body["output_config"]["format"]["schema"];
    let number = json!({ "type": "integer", "description": "{\"minimum\":1}" });
    assert_eq!((&sent["properties"]["n"], &sent["additionalProperties"]), (&number, &json!(false)));
}

/// The request that a server of this strictness takes, after an answer with reasoning and a call.
async fn taken(strictness: Strictness, more: &str, messages: Vec<Message>) -> Value {
    let mut last = vec![start()];
    last.extend(finish("end_turn"));
    let provider = Provider::start_as(strictness, [Reply::events(&last)]).await;
    let mut asked = request(messages);
    asked.tools = vec![tool("workspace/read")];
    asked.temperature = Some(0.5);
    answer(model("anthropic", &provider, more).as_ref(), asked).await.expect("it is taken");
    provider.asked()[0].body.clone()
}

/// A question, an answer with a call by a model that signs its reasoning so, and what follows it.
fn called(signature: Option<&str>, after: &[Message]) -> Vec<Message> {
    let thinking = Thinking {
        text: String::new(),
        signature: signature.map(|text| format!("anthropic:{text}")),
    };
    let call = ToolUse {
        tool_call_id: "t1".to_owned(),
        name: "workspace/read".to_owned(),
        payload: "{}".to_owned(),
    };
    let parts = vec![Part::Thinking(thinking), Part::Text(" ".to_owned()), Part::ToolUse(call)];
    let said = Message { role: Role::Assistant, parts: parts.into() };
    [&[Message::text(Role::User, "hello"), said], after].concat()
}

#[tokio::test]
async fn a_model_reasons_in_the_way_that_its_policy_says() {
    let messages = || called(Some("c2ln"), &[result("t1", "contents")]);
    let body = taken(
        Strictness::ClaudeAdaptive,
        "thinking = \"adaptive\"\neffort = \"xhigh\"",
        messages(),
    );
    let body = body.await;
    assert_eq!(body["thinking"], json!({ "type": "adaptive", "display": "summarized" }));
    assert_eq!(body["output_config"], json!({ "effort": "xhigh" }));
    assert_eq!((&body["max_tokens"], &body["temperature"]), (&json!(32_000), &Value::Null));
    let thinking = json!({ "type": "thinking", "thinking": "", "signature": "c2ln" });
    assert_eq!(body["messages"][1]["content"][0], thinking, "also one that is not shown");

    let body = taken(Strictness::ClaudeBudget, "thinking = 3000", messages()).await;
    assert_eq!(body["thinking"], json!({ "type": "enabled", "budget_tokens": 3000 }));
    assert_eq!(body["max_tokens"], 11_192);

    let body = taken(Strictness::ClaudeBudget, "thinking = \"off\"", messages()).await;
    assert_eq!(body["thinking"], json!({ "type": "disabled" }));
    assert_eq!(body["temperature"], Value::Null, "also without reasoning");
}

#[tokio::test]
async fn a_model_with_a_budget_does_not_reason_about_calls_of_another_provider() {
    let foreign = called(None, &[result("t1", "contents")]);
    let body = taken(Strictness::ClaudeBudget, "thinking = 3000", foreign).await;
    assert_eq!(body["thinking"], Value::Null);
    assert_eq!(body["messages"][1]["content"][0]["type"], "tool_use");
    // After that it does again.
    let asked = [result("t1", "contents"), Message::text(Role::Assistant, "Done.")];
    let asked = [&asked[..], &[Message::text(Role::User, "And?")]].concat();
    let body = taken(Strictness::ClaudeBudget, "thinking = 3000", called(None, &asked)).await;
    assert_eq!(body["thinking"]["type"], "enabled");
}

#[tokio::test]
async fn results_come_before_what_was_said_meanwhile() {
    let after = [Message::text(Role::System, "It is late."), result("t1", "contents")];
    let body = taken(Strictness::ClaudeBudget, "", called(Some("c2ln"), &after)).await;
    let kinds = [0, 1].map(|place| body["messages"][2]["content"][place]["type"].clone());
    assert_eq!(kinds, ["tool_result", "text"]);
}

#[tokio::test]
async fn each_request_is_the_beginning_of_the_next_up_to_its_last_mark() {
    let note = |text: &str| Message::text(Role::System, text);
    let said = called(Some("c2ln"), &[result("t1", "contents")]);
    let more = [Message::text(Role::Assistant, "Done."), Message::text(Role::User, "And?")];
    let longer = [&said[..], &more].concat();
    let questions = [
        [&said[..], &[note("It is late.")]].concat(),
        [&longer[..], &[note("It is later.")]].concat(),
    ];
    let mut last = vec![start()];
    last.extend(finish("end_turn"));
    let replies = [Reply::events(&last), Reply::events(&last)];
    let provider = Provider::start_as(Strictness::ClaudeAdaptive, replies).await;
    let model = model("anthropic", &provider, "");
    for messages in questions {
        let asked = CompletionRequest { tools: vec![tool("workspace/read")], ..request(messages) };
        answer(model.as_ref(), asked).await.expect("answers");
    }
    let asked = provider.asked();
    assert!(is_kept_by(&asked[0], &asked[1]), "{:#?}", asked[1].body);
    assert!(!is_kept_by(&asked[1], &asked[0]));
    let kept = kept(&asked[1]);
    assert!(kept.last().is_some_and(|last| last.contains("And?")), "{kept:#?}");
}

#[tokio::test]
async fn the_instructions_and_the_last_words_of_two_turns_are_marked_for_the_cache() {
    let mut said = called(Some("c2ln"), &[result("t1", "contents")]);
    let marks = |body: &Value| body.to_string().matches("cache_control").count();
    let body = taken(Strictness::ClaudeAdaptive, "cache = false", said.clone()).await;
    assert_eq!(marks(&body), 0);
    said.insert(0, Message::text(Role::System, "Be brief."));
    let body = taken(Strictness::ClaudeAdaptive, "", said).await;
    assert_eq!(marks(&body), 3);
    assert_eq!(body["tools"][0]["cache_control"], Value::Null);
    for place in [0, 2] {
        let block = &body["messages"][place]["content"][0];
        assert_eq!(block["cache_control"]["type"], "ephemeral", "{body:#}");
    }
}

#[tokio::test]
async fn ids_of_another_providers_calls_are_sent_in_a_form_that_is_taken() {
    let mut messages = called(None, &[result("functions.f:0", "contents")]);
    for part in &mut messages[1].parts {
        if let Part::ToolUse(call) = part {
            call.tool_call_id = "functions.f:0".to_owned();
        }
    }
    let body = taken(Strictness::ClaudeBudget, "", messages).await;
    let id = &body["messages"][1]["content"][0]["id"];
    assert!(id.as_str().is_some_and(|id| id.starts_with("call_")), "{id}");
    assert_eq!(body["messages"][2]["content"][0]["tool_use_id"], *id);
}
