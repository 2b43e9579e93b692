//! Responses: answers, however they come and end.

use std::sync::Arc;

use serde_json::{Value, json};
use taskrun::clock::SystemClock;
use taskrun_journal::completion::{Chunk, Completion, CompletionStop, ModelError};
use taskrun_journal::message::{Part, Thinking, Usage};

use crate::ask::{answer, chunks, hello, model, models, table, tool};
use crate::provider::responses::{Answer, sealed};
use crate::provider::{Provider, Reply};

async fn heard(reply: Reply, more: &str) -> (Vec<Chunk>, Option<ModelError>) {
    let provider = Provider::start([reply]).await;
    let mut asked = hello();
    asked.tools = vec![tool("workspace/read")];
    chunks(model("openai", &provider, more).stream(asked).await.expect("begins")).await
}

async fn answered(reply: Reply) -> Completion {
    let provider = Provider::start([reply]).await;
    answer(model("openai", &provider, "").as_ref(), hello()).await.expect("answers")
}

async fn failed(reply: Reply) -> (Vec<Chunk>, ModelError) {
    let (chunks, error) = heard(reply, "").await;
    (chunks, error.expect("a failure"))
}

fn calls(completion: &Completion) -> Vec<(&str, &str, &str)> {
    let all = completion.message.tool_uses();
    all.map(|call| (&*call.tool_call_id, &*call.name, &*call.payload)).collect()
}

fn kept(id: &str, summary: &Value) -> Option<String> {
    let item = json!({ "type": "reasoning", "id": id, "summary": summary,
        "encrypted_content": sealed(id) });
    Some(format!("openai:{item}"))
}

fn event(kind: &str, mut more: Value) -> Value {
    more["type"] = json!(kind);
    more
}

/// The end of an item, at a place if it is not null.
fn item_done(index: &Value, item: &Value) -> Value {
    event("response.output_item.done", json!({ "output_index": index, "item": item }))
}

/// The end of an answer whose items came before.
fn completed() -> Value {
    event("response.completed", json!({ "response": { "status": "completed", "output": [] } }))
}

fn message(id: &str, text: &str) -> Value {
    let content = json!([{ "type": "output_text", "text": text }]);
    json!({ "type": "message", "id": id, "content": content })
}

/// The tokens that each prepared answer took.
fn told() -> Usage {
    let cached = Usage { cached_tokens: 20, reasoning_tokens: 8, ..Usage::default() };
    Usage { prompt_tokens: 30, completion_tokens: 12, total_tokens: 42, ..cached }
}

/// Reasoning, a comment and two calls.
fn turn() -> Answer {
    Answer::new()
        .reasoning("rs_1", &["First.", "Then."])
        .message("msg_1", Some("commentary"), "I look.")
        .call("fc_1", "call_1", "workspace__read", "{\"path\":\"a\"}")
        .call("fc_2", "call_2", "unheard_of", "")
}

#[tokio::test]
async fn reasoning_comments_and_calls_come_in_their_order_and_pieces_are_shown() {
    let (all, error) = heard(turn().completed(), "").await;
    assert_eq!(error, None);
    let summary = json!([{ "type": "summary_text", "text": "First." },
        { "type": "summary_text", "text": "Then." }]);
    let thinking = Thinking { text: "First.\n\nThen.".into(), signature: kept("rs_1", &summary) };
    assert_eq!(all[0], Chunk::Thinking(thinking));
    let phase = "openai:{\"phase\":\"commentary\",\"type\":\"message\"}".to_owned();
    assert_eq!(all[1], Chunk::Thinking(Thinking { text: String::new(), signature: Some(phase) }));
    let (mut text, mut arguments, mut whole) = (String::new(), String::new(), Vec::new());
    for chunk in &all[2..] {
        match chunk {
            Chunk::Text(piece) => text.push_str(piece),
            Chunk::ToolCallDelta { tool_call_id, name, delta } => {
                assert_eq!((&**tool_call_id, &**name), ("call_1", "workspace/read"));
                arguments.push_str(delta);
            }
            Chunk::ToolCall(call) => whole.push((&*call.tool_call_id, &*call.name, &*call.payload)),
            Chunk::Thinking(_) => panic!("no other block: {all:?}"),
            Chunk::Usage(_) | Chunk::Stop { .. } => {}
        }
    }
    assert_eq!((&*text, &*arguments), ("I look.", "{\"path\":\"a\"}"));
    let expected =
        [("call_1", "workspace/read", "{\"path\":\"a\"}"), ("call_2", "unheard_of", "{}")];
    assert_eq!(whole, expected);
    let stop = Chunk::Stop { reason: CompletionStop::ToolUse, model: "m-1-2026".into() };
    assert_eq!(all[all.len() - 2..], [Chunk::Usage(told()), stop]);
}

#[tokio::test]
async fn an_answer_says_the_same_whole_and_byte_by_byte() {
    let streamed = answered(turn().completed()).await;
    let mut buffer = [0; 4];
    let letters = turn().text();
    let bytewise = letters
        .chars()
        .fold(Reply::new(200, ""), |reply, letter| reply.then(letter.encode_utf8(&mut buffer)));
    assert_eq!(answered(bytewise).await, streamed);
    let provider = Provider::start([turn().whole()]).await;
    let whole = model("openai", &provider, "stream = false");
    assert_eq!(answer(whole.as_ref(), hello()).await, Ok(streamed));
    assert_eq!(provider.asked()[0].body["stream"], false);
}

#[tokio::test]
async fn a_refusal_is_one_in_each_of_its_forms() {
    let refused = [
        Answer::new().refusal("msg_1", "I will not.").completed(),
        Answer::new().message("msg_1", None, "I will not.").incomplete("content_filter"),
    ];
    for (reply, words) in refused.into_iter().zip(["I will not.", "content_filter"]) {
        let (chunks, failure) = failed(reply).await;
        assert_eq!(failure, ModelError::Refused(words.into()));
        assert!(chunks.contains(&Chunk::Usage(told())), "its tokens count: {chunks:?}");
        let is_shown = chunks.contains(&Chunk::Text(words.into()));
        assert!(!is_shown, "nobody is shown it as an answer: {chunks:?}");
    }
    let provider = Provider::start([Answer::new().refusal("msg_1", "No.").whole()]).await;
    let whole = model("openai", &provider, "stream = false");
    let refused = answer(whole.as_ref(), hello()).await;
    assert_eq!(refused, Err(ModelError::Refused("No.".into())));
}

#[tokio::test]
async fn an_answer_that_is_cut_off_says_why_and_makes_no_call_of_nothing() {
    let cases = [
        ("max_output_tokens", CompletionStop::MaxTokens),
        ("steered", CompletionStop::Other("steered".into())),
    ];
    for (word, stop) in cases {
        let done = answered(Answer::new().message("msg_1", None, "Half").incomplete(word)).await;
        assert_eq!((&*done.message.joined_text(), done.stop), ("Half", stop), "{word}");
        assert_eq!(done.usage, told());
    }
    let cut = |arguments: &str| {
        Answer::new()
            .call("fc_1", "a", "f", "{}")
            .cut_call("fc_2", "b", "f", arguments)
            .incomplete("max_output_tokens")
    };
    // What was begun is told as it is; what was not is no call without arguments.
    let done = answered(cut("{\"x\":")).await;
    assert_eq!(calls(&done), [("a", "f", "{}"), ("b", "f", "{\"x\":")]);
    let done = answered(cut("")).await;
    assert_eq!(
        (calls(&done), done.stop.clone()),
        (vec![("a", "f", "{}")], CompletionStop::MaxTokens)
    );
}

#[tokio::test]
async fn a_failure_has_its_kind_whichever_event_tells_it() {
    let why = || "why".to_owned();
    let overloaded = || ModelError::Overloaded { retry_after_ms: None, said: Some(why()) };
    let limited = ModelError::RateLimited { retry_after_ms: None, said: Some(why()) };
    let kinds = [
        ("rate_limit_exceeded", limited),
        ("insufficient_quota", ModelError::NoQuota(why())),
        ("server_is_overloaded", overloaded()),
        ("slow_down", overloaded()),
        ("server_error", ModelError::Unavailable(why())),
        ("invalid_prompt", ModelError::Refused(why())),
        ("bio_policy", ModelError::Refused(why())),
        ("context_length_exceeded", ModelError::ContextWindow(why())),
        ("invalid_api_key", ModelError::Unauthorized("in the middle of the answer".into())),
    ];
    for (code, error) in kinds {
        let half = || Answer::new().message("msg_1", None, "Half");
        let (chunks, failure) = failed(half().failed(code, "why")).await;
        assert_eq!(failure, error, "{code}");
        assert!(chunks.contains(&Chunk::Usage(told())), "{chunks:?}");
        // As the documents have it, as it comes, and as it comes from OpenRouter.
        let flat = json!({ "code": code, "message": "why", "param": null });
        let nested = json!({ "error": { "type": "tokens", "code": code, "message": "why" } });
        for (kind, event) in
            [("error", flat), ("error", nested.clone()), ("response.error", nested)]
        {
            let (chunks, failure) = failed(half().event(kind, event).reply()).await;
            assert_eq!(failure, error, "{code}");
            assert_eq!(chunks[0], Chunk::Text("Half".into()));
        }
    }
}

#[tokio::test]
async fn an_answer_that_ends_without_saying_so_was_cut_off() {
    let (chunks, failure) = failed(turn().reply()).await;
    assert_eq!(failure, ModelError::CutOff);
    // What was consumed counts, though the provider has not told it.
    assert!(matches!(chunks.last(), Some(Chunk::Usage(Usage { estimated: true, .. }))));
    let text = turn().text();
    let before_the_last_line = text.trim_end().len();
    let (_, failure) = failed(Reply::new(200, &text[..before_the_last_line])).await;
    assert_eq!(failure, ModelError::CutOff, "an event that is not whole counts for nothing");
}

#[tokio::test]
async fn what_is_not_known_is_passed_over() {
    let item = json!({ "type": "web_search_call", "id": "ws_1", "status": "completed" });
    let reply = Answer::new()
        .event("response.queued", json!({ "response": {} }))
        .event("response.output_item.added", json!({ "output_index": 0, "item": item }))
        .event("response.web_search_call.searching", json!({ "item_id": "ws_1" }))
        .event("response.output_item.done", json!({ "output_index": 0, "item": item }))
        .event("response.unheard_of", json!({ "delta": "x" }))
        .message("msg_1", None, "Done.")
        .event("keepalive", json!({}))
        .completed()
        .then("data: [DONE]\n\n");
    let done = answered(reply).await;
    assert_eq!(done.message.parts, [Part::Text("Done.".into())]);
    assert_eq!(done.stop, CompletionStop::EndTurn);
}

#[tokio::test]
async fn l_020_a_call_without_a_name_is_left_out_and_what_is_no_json_is_handed_on() {
    let reply = Answer::new()
        .call("fc_1", "a", "", "{}")
        .call("fc_2", "b", "f", "{\"x\":")
        .call("fc_3", "c", "f", "null")
        .completed();
    let done = answered(reply).await;
    assert_eq!(calls(&done), [("b", "f", "{\"x\":"), ("c", "f", "{}")]);
    let done = answered(Answer::new().call("fc_1", "a", "", "{}").completed()).await;
    assert_eq!((calls(&done), done.stop.clone()), (vec![], CompletionStop::MalformedCall));
}

/// Servers of others leave out events, or give an item another id each time.
#[tokio::test]
async fn an_item_is_understood_from_the_events_that_there_are() {
    let call = |id: &str| json!({ "type": "function_call", "id": id, "call_id": "a", "name": "f", "arguments": "{\"x\":1}" });
    let begun = |id: &str| {
        let mut item = call(id);
        item["arguments"] = json!("");
        event("response.output_item.added", json!({ "output_index": 0, "item": item }))
    };
    let piece = |id: &str| {
        let delta = json!({ "output_index": 0, "item_id": id, "delta": "{\"x\":1}" });
        event("response.function_call_arguments.delta", delta)
    };
    let done = |id: &str| {
        event("response.output_item.done", json!({ "output_index": 0, "item": call(id) }))
    };
    let end = |output: Value| {
        let response = json!({ "status": "completed", "output": output });
        event("response.completed", json!({ "response": response }))
    };
    let nothing = || end(json!([]));
    let cases = [
        vec![begun("x"), piece("y"), done("z"), nothing()],
        vec![begun("x"), piece("x"), nothing()],
        vec![done("x"), nothing()],
        vec![piece("x"), done("x"), nothing()],
        vec![end(json!([call("x")]))],
        vec![begun("x"), piece("x"), done("x"), end(json!([call("x")]))],
    ];
    for events in cases {
        let done = answered(Reply::events(&events)).await;
        assert_eq!(calls(&done), [("a", "f", "{\"x\":1}")], "{events:#?}");
        assert_eq!(done.stop, CompletionStop::ToolUse);
    }
    let said = json!({ "type": "message", "id": "m", "content": [{ "type": "output_text", "text": "Hi." }] });
    let delta = || event("response.output_text.delta", json!({ "item_id": "m", "delta": "Hi." }));
    let whole = || event("response.output_item.done", json!({ "item": said }));
    let cases = [
        vec![delta(), whole(), nothing()],
        vec![delta(), nothing()],
        vec![whole(), nothing()],
        vec![end(json!([said]))],
    ];
    for events in cases {
        let done = answered(Reply::events(&events)).await;
        assert_eq!(done.message.parts, [Part::Text("Hi.".into())], "{events:#?}");
    }
}

/// Servers of others name in no piece the item that it is of, or give each piece another id.
#[tokio::test]
async fn a_text_whose_pieces_name_no_item_is_said_once() {
    let none = Value::Null;
    let begun = |index: &Value| {
        let item = message("msg_1", "");
        event("response.output_item.added", json!({ "output_index": index, "item": item }))
    };
    let long = "x".repeat(200);
    for text in ["Pay 100 dollars.", long.as_str()] {
        for is_other_id in [false, true] {
            let piece = |(place, letter): (usize, char)| {
                let id = if is_other_id { json!(format!("m{place}")) } else { json!(null) };
                let more = json!({ "item_id": id, "delta": letter.to_string() });
                event("response.output_text.delta", more)
            };
            let beginnings = [
                (vec![], none.clone()),
                (vec![], json!(0)),
                (vec![begun(&none)], none.clone()),
                (vec![begun(&json!(0))], json!(0)),
            ];
            for (mut events, index) in beginnings {
                events.extend(text.chars().enumerate().map(piece));
                events.extend([item_done(&index, &message("msg_1", text)), completed()]);
                let done = answered(Reply::events(&events)).await;
                assert_eq!(done.message.parts, [Part::Text(text.into())], "{:#?}", events[0]);
            }
        }
    }
}

#[tokio::test]
async fn pieces_that_name_no_item_are_of_the_last_one_of_their_kind() {
    let none = Value::Null;
    let piece = |kind: &str, delta: &str| event(kind, json!({ "delta": delta }));
    let text = |delta: &str| piece("response.output_text.delta", delta);
    let reasoning = json!({ "type": "reasoning", "id": "rs_1",
        "summary": [{ "type": "summary_text", "text": "Hm." }] });
    let call = json!({ "type": "function_call", "id": "fc_1", "call_id": "a", "name": "f",
        "arguments": "" });
    let events = [
        piece("response.reasoning_summary_text.delta", "Hm."),
        text("One."),
        item_done(&none, &reasoning),
        item_done(&none, &message("msg_1", "One.")),
        // Of one that is not told in pieces there is the end alone.
        item_done(&none, &message("msg_2", " Two.")),
        text(" Three."),
        event("response.output_item.added", json!({ "item": call })),
        piece("response.function_call_arguments.delta", "{\"x\":"),
        piece("response.function_call_arguments.delta", "1}"),
        item_done(&none, &message("msg_3", " Three.")),
        completed(),
    ];
    let done = answered(Reply::events(&events)).await;
    let said = done.message.parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        Part::Thinking(block) => Some(block.text.as_str()),
        Part::Json(_) | Part::ToolUse(_) | Part::ToolAnswer(_) | Part::Media(_) => None,
    });
    assert_eq!(said.collect::<String>(), "Hm.One. Two. Three.", "{done:?}");
    assert_eq!(calls(&done), [("a", "f", "{\"x\":1}")]);

    let refusal = json!({ "type": "message", "id": "msg_1",
        "content": [{ "type": "refusal", "refusal": "I will not." }] });
    let declined = |delta: &str| piece("response.refusal.delta", delta);
    let events = [declined("I will"), declined(" not."), item_done(&none, &refusal), completed()];
    let (_, failure) = failed(Reply::events(&events)).await;
    assert_eq!(failure, ModelError::Refused("I will not.".into()));
}

#[tokio::test]
async fn items_that_do_not_end_are_no_calls_and_not_endless() {
    let begun = |count: usize| {
        let item = |place: usize| message(&format!("m{place}"), "");
        let begun = (0..count)
            .map(|place| event("response.output_item.added", json!({ "item": item(place) })));
        Reply::events(&begun.chain([completed()]).collect::<Vec<_>>())
    };
    assert_eq!(answered(begun(1_024)).await.stop, CompletionStop::EndTurn);
    let (_, failure) = failed(begun(1_025)).await;
    let limit = "it has more than 1024 items that have not ended".to_owned();
    assert_eq!(failure, ModelError::TooLarge(limit));
}

#[tokio::test]
async fn reasoning_is_kept_where_the_provider_can_read_it_again() {
    let done = |item: Value| {
        Answer::new()
            .event("response.output_item.done", json!({ "output_index": 0, "item": item }))
            .message("msg_1", None, "Well.")
            .completed()
    };
    let said = json!([{ "type": "summary_text", "text": "Hm." }]);
    let cases = [
        (json!({ "type": "reasoning", "id": "rs_1", "summary": said }), None),
        (
            json!({ "type": "reasoning", "id": "rs_1", "summary": said, "encrypted_content": "",
            "content": [] }),
            None,
        ),
        (
            json!({ "type": "reasoning", "id": "rs_1", "summary": said, "encrypted_content": "e",
            "status": "completed", "content": null }),
            Some(json!({ "type": "reasoning", "id": "rs_1", "summary": said,
                "encrypted_content": "e" })),
        ),
        // Servers of open models show the reasoning itself.
        (
            json!({ "type": "reasoning", "id": "rs_1",
            "content": [{ "type": "reasoning_text", "text": "Hm." }] }),
            Some(json!({ "type": "reasoning", "id": "rs_1", "summary": [],
                "content": [{ "type": "reasoning_text", "text": "Hm." }] })),
        ),
    ];
    for (item, kept) in cases {
        let done = answered(done(item)).await;
        let Part::Thinking(block) = &done.message.parts[0] else { panic!("{done:?}") };
        assert_eq!(block.text, "Hm.");
        let signature = block.signature.as_deref().map(|text| {
            let item = text.strip_prefix("openai:").expect("the tag");
            serde_json::from_str::<Value>(item).expect("JSON")
        });
        assert_eq!(signature, kept);
    }
}

#[tokio::test]
async fn what_was_recorded_of_responses_is_answered_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let cassette = folder.path().join("calls.jsonl");
    let half = Answer::new().message("msg_1", None, "Half").failed("server_is_overloaded", "why");
    let provider = Provider::start([turn().completed(), half]).await;
    let recording = table("openai", &provider, &format!("record = {cassette:?}"));
    let clock = || Arc::new(SystemClock::new());
    let live = models(&recording, clock()).expect("a model");
    let playing = format!("[model.m]\nprovider = \"replay\"\nfile = {cassette:?}\n");
    let mut other = hello();
    other.max_tokens = Some(100);
    let mut said = Vec::new();
    for question in [hello(), other.clone()] {
        said.push(chunks(live["m"].stream(question).await.expect("begins")).await);
    }
    let why = Some("why".to_owned());
    assert_eq!(said[1].1, Some(ModelError::Overloaded { retry_after_ms: None, said: why }));
    let replay = models(&playing, clock()).expect("a cassette");
    for (question, said) in [hello(), other].into_iter().zip(said) {
        let again = chunks(replay["m"].stream(question).await.expect("begins")).await;
        assert_eq!(again, said);
    }
}
