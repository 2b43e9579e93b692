//! Calls of tools as the servers that speak chat completions give them.

use serde_json::{Value, json};
use taskrun_journal::completion::{Chunk, Completion, CompletionStop, ModelError};
use taskrun_journal::message::{Part, Thinking};

use crate::ask::{answer, chunks, hello, model};
use crate::provider::{Provider, Reply};

const DONE: &str = "data: [DONE]\n\n";

fn delta(delta: &Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta }] })
}

fn finish(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

/// One event for each of these fragments, and the end of an answer that asks for tools.
fn fragments(all: &[Value]) -> Reply {
    let event = |fragment: &Value| delta(&json!({ "tool_calls": [fragment] }));
    let events: Vec<Value> = all.iter().map(event).chain([finish("tool_calls")]).collect();
    Reply::events(&events).then(DONE)
}

fn calls(completion: &Completion) -> Vec<(&str, &str, &str)> {
    let all = completion.message.tool_uses();
    all.map(|call| (&*call.tool_call_id, &*call.name, &*call.payload)).collect()
}

/// A fragment that gives all that tells calls apart.
fn piece(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    json!({ "index": index, "id": id, "function": { "name": name, "arguments": arguments } })
}

async fn answered(reply: Reply) -> Completion {
    let provider = Provider::start([reply]).await;
    answer(model("openai-chat", &provider, "").as_ref(), hello()).await.expect("answers")
}

/// Ollama: <https://github.com/ollama/ollama/issues/7881>.
#[tokio::test]
async fn calls_that_all_have_the_number_0_are_told_apart_by_their_ids() {
    let call = |id: &str, arguments: &str| {
        json!({ "index": 0, "id": id, "type": "function",
        "function": { "name": "t", "arguments": arguments } })
    };
    let done = answered(fragments(&[call("a", r#"{"x":1}"#), call("b", r#"{"x":2}"#)])).await;
    assert_eq!(calls(&done), [("a", "t", r#"{"x":1}"#), ("b", "t", r#"{"x":2}"#)]);
}

#[tokio::test]
async fn a_fragment_without_an_id_goes_on_with_the_last_call_of_its_number() {
    let begin = |id: &str, name: &str| json!({ "index": 0, "id": id, "function": { "name": name, "arguments": "{" } });
    let more = |text: &str| json!({ "index": 0, "function": { "arguments": text } });
    let all = [begin("a", "f"), more("\"x\":1}"), begin("b", "g"), more("\"x\":2}")];
    let done = answered(fragments(&all)).await;
    assert_eq!(calls(&done), [("a", "f", r#"{"x":1}"#), ("b", "g", r#"{"x":2}"#)]);
}

#[tokio::test]
async fn fragments_without_a_number_belong_to_their_id_or_to_the_call_before() {
    let all = [
        json!({ "id": "a", "function": { "name": "f", "arguments": "{\"x\"" } }),
        json!({ "function": { "arguments": ":1}" } }),
        json!({ "id": "b", "function": { "name": "g", "arguments": "{" } }),
        json!({ "id": "b", "function": { "arguments": "}" } }),
    ];
    let done = answered(fragments(&all)).await;
    assert_eq!(calls(&done), [("a", "f", r#"{"x":1}"#), ("b", "g", "{}")]);
}

#[tokio::test]
async fn a_call_goes_on_where_its_server_changes_its_id_or_its_number() {
    let changes = [
        // Poolside (<https://github.com/poolsideai/pool/issues/9>) and mlx-openai-server
        // (<https://github.com/cubist38/mlx-openai-server/pull/216>): another id.
        vec![piece(0, "a", "f", ""), piece(0, "b", "", "{\"x\""), piece(0, "c", "", ":1}")],
        // LocalAI: another number (<https://github.com/mudler/LocalAI/issues/9722>).
        vec![piece(0, "a", "f", ""), piece(1, "a", "", "{\"x\":1}")],
        // Nebius and Cerebras: another number and no id
        // (<https://github.com/dirac-run/dirac/pull/215>).
        vec![piece(2, "a", "f", ""), piece(0, "", "", "{\"x\":1}")],
    ];
    for first in changes {
        let both = [&first[..], &[piece(3, "z", "g", "{}")]].concat();
        let done = answered(fragments(&both)).await;
        let expected = [("a", "f", r#"{"x":1}"#), ("z", "g", "{}")];
        assert_eq!(calls(&done), expected, "{first:?}");
    }
    // A call that has its arguments does not go on.
    let done = answered(fragments(&[piece(0, "a", "f", "{}"), piece(0, "b", "", "{}")])).await;
    assert_eq!(calls(&done), [("a", "f", "{}")]);
}

#[tokio::test]
async fn a_call_that_is_given_twice_is_one_and_what_differs_in_anything_is_another() {
    // LocalAI (<https://github.com/mudler/LocalAI/issues/9722>): whole, or name and arguments apart.
    let again = [
        vec![piece(0, "a", "f", "{\"x\":1,\"y\":2}"), piece(1, "a", "f", "{\"y\": 2, \"x\": 1}")],
        vec![
            piece(0, "a", "f", "{\"x\":1,\"y\":2}"),
            piece(1, "a", "f", ""),
            piece(1, "a", "", "{\"x\":1,\"y\":2}"),
        ],
    ];
    for calls_of_one in again {
        let whole = json!({ "choices": [{ "message": { "tool_calls": calls_of_one },
            "finish_reason": "tool_calls" }] });
        for reply in [fragments(&calls_of_one), Reply::new(200, whole.to_string())] {
            let done = answered(reply).await;
            assert_eq!(calls(&done), [("a", "f", "{\"x\":1,\"y\":2}")], "{calls_of_one:?}");
        }
    }
    let bare = [piece(0, "a", "f", ""), piece(1, "a", "f", "{}")];
    assert_eq!(calls(&answered(fragments(&bare)).await), [("a", "f", "{}")]);
    for other in [
        piece(1, "b", "f", "{\"x\":1}"),
        piece(1, "a", "g", "{\"x\":1}"),
        piece(1, "a", "f", "{\"x\":2}"),
        json!({ "index": 1, "function": { "name": "f", "arguments": "{\"x\":1}" } }),
    ] {
        let done = answered(fragments(&[piece(0, "a", "f", "{\"x\":1}"), other.clone()])).await;
        assert_eq!(calls(&done).len(), 2, "{other}");
    }
}

#[tokio::test]
async fn a_call_that_a_limit_cut_off_before_its_arguments_is_left_out() {
    for (reason, kept) in
        [("length", &["a"][..]), ("model_length", &["a"]), ("tool_calls", &["a", "b"])]
    {
        for nothing in ["", "null"] {
            let both = json!([piece(0, "a", "f", nothing), piece(1, "b", "f", nothing)]);
            let message = json!({ "tool_calls": both });
            let choice = json!({ "message": message, "finish_reason": reason });
            let whole = json!({ "choices": [choice] });
            let events = [delta(&message), finish(reason)];
            for reply in [Reply::events(&events).then(DONE), Reply::new(200, whole.to_string())] {
                let done = answered(reply).await;
                let expected: Vec<_> = kept.iter().map(|id| (*id, "f", "{}")).collect();
                assert_eq!(calls(&done), expected, "{reason}");
            }
        }
    }
    let half = delta(&json!({ "tool_calls": [piece(0, "a", "f", "{\"x\":")] }));
    let done = answered(Reply::events(&[half, finish("length")]).then(DONE)).await;
    assert_eq!(calls(&done), [("a", "f", "{\"x\":")], "what was begun is told as it is");
}

#[tokio::test]
async fn whole_calls_without_number_and_id_are_calls_of_their_own() {
    let call =
        |arguments: &str| json!({ "id": "", "function": { "name": "f", "arguments": arguments } });
    let done = answered(fragments(&[call(r#"{"x":1}"#), call(r#"{"x":2}"#)])).await;
    let payloads: Vec<&str> = calls(&done).iter().map(|(_, _, payload)| *payload).collect();
    assert_eq!(payloads, [r#"{"x":1}"#, r#"{"x":2}"#]);
    assert_ne!(calls(&done)[0].0, calls(&done)[1].0, "each has an id of its own");
}

#[tokio::test]
async fn l_020_a_call_without_a_name_is_left_out_and_the_others_are_made() {
    let nameless = json!({ "index": 0, "id": "a", "function": { "arguments": "{}" } });
    let named = json!({ "index": 1, "id": "b", "function": { "name": "f", "arguments": "{}" } });
    let done = answered(fragments(&[nameless.clone(), named])).await;
    assert_eq!(
        (calls(&done), done.stop.clone()),
        (vec![("b", "f", "{}")], CompletionStop::ToolUse)
    );

    let done = answered(fragments(&[nameless])).await;
    assert_eq!(calls(&done), [], "it is an answer, and no failure");
    assert_eq!(done.stop, CompletionStop::MalformedCall, "nothing is there to wait for");
}

#[tokio::test]
async fn arguments_that_are_none_are_empty_and_what_is_no_json_is_handed_on() {
    let call = |id: &str, arguments: Value| json!({ "index": 0, "id": id, "function": { "name": "f", "arguments": arguments } });
    let all = [
        call("a", json!("")),
        call("b", Value::Null),
        call("c", json!("null")),
        call("d", json!({ "x": 1 })),
        call("e", json!("{\"x\":")),
    ];
    let done = answered(fragments(&all)).await;
    let payloads: Vec<&str> = calls(&done).iter().map(|(_, _, payload)| *payload).collect();
    assert_eq!(payloads, ["{}", "{}", "{}", r#"{"x":1}"#, "{\"x\":"]);
}

#[tokio::test]
async fn reasoning_under_both_of_its_names_is_said_once() {
    let both = |text: &str| {
        delta(&json!({ "reasoning_content": text, "reasoning": text, "content": null }))
    };
    let one = delta(&json!({ "reasoning": " then" }));
    let events =
        [both("First"), one, both(" last."), delta(&json!({ "content": "42" })), finish("stop")];
    let done = answered(Reply::events(&events).then(DONE)).await;
    let thinking = Thinking { text: "First then last.".into(), signature: None };
    assert_eq!(done.message.parts[0], Part::Thinking(thinking));
    assert_eq!(done.message.joined_text(), "42");
}

#[tokio::test]
async fn a_refusal_is_one_in_each_of_its_forms() {
    let refused = json!({ "content": [{ "type": "refusal", "refusal": "I will not." }] });
    let cases = [
        vec![
            delta(&json!({ "refusal": "I will " })),
            delta(&json!({ "refusal": "not." })),
            finish("stop"),
        ],
        vec![delta(&refused), finish("stop")],
    ];
    for events in cases {
        let provider = Provider::start([Reply::events(&events).then(DONE)]).await;
        let stream = model("openai-chat", &provider, "").stream(hello()).await.expect("begins");
        let (said, error) = chunks(stream).await;
        assert_eq!(error, Some(ModelError::Refused("I will not.".into())), "{events:?}");
        // Nobody is shown it as an answer, and its tokens count.
        assert!(matches!(said[..], [Chunk::Usage(_)]), "{said:?}");
    }
    let filtered = [delta(&json!({ "content": "Half" })), finish("content_filter")];
    let provider = Provider::start([Reply::events(&filtered).then(DONE)]).await;
    let error = answer(model("openai-chat", &provider, "").as_ref(), hello()).await;
    assert_eq!(error, Err(ModelError::Refused("content_filter".into())));
}

#[tokio::test]
async fn an_answer_says_why_it_ends() {
    let cases = [
        ("stop", CompletionStop::EndTurn),
        ("length", CompletionStop::MaxTokens),
        ("model_length", CompletionStop::ContextWindow),
        ("eos_token", CompletionStop::Other("eos_token".into())),
    ];
    for (word, stop) in cases {
        let done =
            answered(Reply::events(&[delta(&json!({ "content": "a" })), finish(word)])).await;
        assert_eq!(done.stop, stop, "{word}");
    }
    // vLLM says which of the texts it met beside it.
    let met =
        json!({ "choices": [{ "delta": {}, "finish_reason": "stop", "stop_reason": "END" }] });
    let done = answered(Reply::events(&[delta(&json!({ "content": "a" })), met])).await;
    assert_eq!(done.stop, CompletionStop::StopSequence);
}

/// SGLang (<https://github.com/sgl-project/sglang/issues/3912>) and Ollama
/// (<https://github.com/ollama/ollama/issues/4357>).
#[tokio::test]
async fn an_empty_word_is_no_end() {
    let half = json!({ "choices": [{ "delta": { "content": "Half" }, "finish_reason": "" }] });
    let provider = Provider::start([Reply::events(std::slice::from_ref(&half))]).await;
    let error = answer(model("openai-chat", &provider, "").as_ref(), hello()).await;
    assert_eq!(error, Err(ModelError::CutOff));
    let done = answered(Reply::events(&[half, finish("stop")])).await;
    assert_eq!((&*done.message.joined_text(), done.stop), ("Half", CompletionStop::EndTurn));
}

#[tokio::test]
async fn a_server_that_gives_up_in_the_middle_is_a_failure_that_is_tried_again() {
    for word in ["insufficient_system_resource", "error", "abort"] {
        let events = [delta(&json!({ "content": "Half" })), finish(word)];
        let provider = Provider::start([Reply::events(&events)]).await;
        let stream = model("openai-chat", &provider, "").stream(hello()).await.expect("begins");
        let (said, error) = chunks(stream).await;
        assert_eq!(said[0], Chunk::Text("Half".into()));
        let error = error.expect(word);
        assert!(error.to_string().contains("provider is"), "{word}: {error}");
    }
}

#[tokio::test]
async fn tokens_are_counted_wherever_the_server_tells_them() {
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13 });
    let nothing = json!({ "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0 });
    let last = |usage: &Value| json!({ "choices": [], "usage": usage });
    // Kimi tells them within the choice; others in each event, and some then nothing.
    let within = json!({ "choices": [{ "delta": {}, "finish_reason": "stop", "usage": usage }] });
    let cases = [
        vec![within],
        vec![finish("stop"), last(&usage)],
        vec![last(&usage), finish("stop"), last(&nothing)],
    ];
    for events in cases {
        let done = answered(Reply::events(&events).then(DONE)).await;
        let told = (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.estimated);
        assert_eq!(told, (9, 4, false), "{events:?}");
    }
}

#[tokio::test]
async fn tokens_of_the_cache_and_of_reasoning_are_counted_by_each_of_their_names() {
    let all = |mut more: Value| {
        more["prompt_tokens"] = json!(9);
        more["completion_tokens"] = json!(4);
        [finish("stop"), json!({ "choices": [], "usage": more })]
    };
    let cases = [
        (
            json!({ "prompt_tokens_details": { "cached_tokens": 6, "cache_write_tokens": 2 },
            "completion_tokens_details": { "reasoning_tokens": 3 } }),
            (6, 2, 3),
        ),
        // DeepSeek and Kimi.
        (json!({ "prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 3 }), (6, 0, 0)),
        (json!({ "cached_tokens": 6, "prompt_tokens_details": null }), (6, 0, 0)),
        (json!({}), (0, 0, 0)),
    ];
    for (usage, expected) in cases {
        let done = answered(Reply::events(&all(usage.clone())).then(DONE)).await.usage;
        let told = (done.cached_tokens, done.cache_write_tokens, done.reasoning_tokens);
        assert_eq!(told, expected, "{usage}");
        assert_eq!((done.prompt_tokens, done.total_tokens), (9, 13), "parts are no more tokens");
    }
}
