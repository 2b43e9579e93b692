//! Tokens that no provider counts: the same answer has the same estimate, whatever the protocol and
//! however it comes.

use serde_json::{Value, json};
use taskrun_journal::message::Usage;
use taskrun_journal::tool::ToolSpec;

use crate::ask::{answer, hello, model, tool, usage};
use crate::provider::{Provider, Reply};

/// The tool's name at the provider.
const NAME: &str = "workspace__read";
const SCHEMA: &str = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;

/// A call of an answer.
struct Call {
    id: &'static str,
    /// Its place in the answer.
    index: usize,
    arguments: String,
}

/// An answer, with the keys that its model has for it.
type Answer = (&'static str, Reply);

/// A long call and a short one.
fn calls() -> [Call; 2] {
    let call = |id: &'static str, index: usize, path: String| {
        let arguments = json!({ "path": path }).to_string();
        Call { id, index, arguments }
    };
    [call("call_a", 0, "x".repeat(4_000)), call("call_b", 1, "y".to_owned())]
}

fn streamed(events: &[Value]) -> Answer {
    ("", Reply::events(events))
}

fn whole(body: &Value) -> Answer {
    ("stream = false", Reply::new(200, body.to_string()))
}

/// Events with the first half of each call's arguments, and then those with the other half.
fn fragments(calls: &[Call], event: impl Fn(&Call, &str) -> Value) -> Vec<Value> {
    let halves = |call: &Call| {
        let (first, other) = call.arguments.split_at(call.arguments.len() / 2);
        [event(call, first), event(call, other)]
    };
    let all: Vec<[Value; 2]> = calls.iter().map(halves).collect();
    [0, 1].into_iter().flat_map(|half| all.iter().map(move |call| call[half].clone())).collect()
}

/// One event or item for each call.
fn each(calls: &[Call], make: impl Fn(&Call) -> Value) -> Vec<Value> {
    calls.iter().map(make).collect()
}

fn parsed(call: &Call) -> Value {
    serde_json::from_str(&call.arguments).expect("JSON")
}

fn chat(calls: &[Call]) -> Vec<Answer> {
    let said = |call: &Call, arguments: &str| {
        let function = json!({ "name": NAME, "arguments": arguments });
        json!({ "index": call.index, "id": call.id, "function": function })
    };
    let mut events = fragments(calls, |call, part| {
        let delta = json!({ "tool_calls": [said(call, part)] });
        json!({ "choices": [{ "delta": delta }] })
    });
    events.push(json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }));
    let message = json!({ "tool_calls": each(calls, |call| said(call, &call.arguments)) });
    let body = json!({ "choices": [{ "message": message, "finish_reason": "tool_calls" }] });
    vec![streamed(&events), whole(&body)]
}

fn responses(calls: &[Call]) -> Vec<Answer> {
    let id = |call: &Call| format!("fc_{}", call.id);
    let item = |call: &Call, arguments: &str| {
        json!({ "type": "function_call", "id": id(call), "call_id": call.id, "name": NAME,
            "arguments": arguments })
    };
    let begun = each(calls, |call| {
        json!({ "type": "response.output_item.added", "output_index": call.index,
            "item": item(call, "") })
    });
    let pieces = fragments(calls, |call, part| {
        json!({ "type": "response.function_call_arguments.delta", "output_index": call.index,
            "item_id": id(call), "delta": part })
    });
    let mut ends = each(calls, |call| {
        json!({ "type": "response.output_item.done", "output_index": call.index,
            "item": item(call, &call.arguments) })
    });
    let response = json!({ "status": "completed", "output": [] });
    ends.push(json!({ "type": "response.completed", "response": response }));
    let output = each(calls, |call| item(call, &call.arguments));
    vec![
        streamed(&[&begun[..], &pieces, &ends].concat()),
        // There are servers that tell of an item its end alone.
        streamed(&ends),
        whole(&json!({ "status": "completed", "output": output })),
    ]
}

fn anthropic(calls: &[Call]) -> Vec<Answer> {
    let block = |call: &Call, input: &Value| {
        let mut block = json!({ "type": "tool_use", "id": call.id, "name": NAME });
        block["input"] = input.clone();
        block
    };
    let begun = each(calls, |call| {
        json!({ "type": "content_block_start", "index": call.index,
            "content_block": block(call, &json!({})) })
    });
    let pieces = fragments(calls, |call, part| {
        let delta = json!({ "type": "input_json_delta", "partial_json": part });
        json!({ "type": "content_block_delta", "index": call.index, "delta": delta })
    });
    let mut ends = each(calls, |call| json!({ "type": "content_block_stop", "index": call.index }));
    ends.push(json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" } }));
    ends.push(json!({ "type": "message_stop" }));
    let content = each(calls, |call| block(call, &parsed(call)));
    let message = json!({ "type": "message", "stop_reason": "tool_use", "content": content });
    vec![streamed(&[&begun[..], &pieces, &ends].concat()), whole(&message)]
}

fn gemini(calls: &[Call]) -> Vec<Answer> {
    let parts = each(calls, |call| {
        let function = json!({ "id": call.id, "name": NAME, "args": parsed(call) });
        json!({ "functionCall": function })
    });
    let said = json!({ "candidates": [{ "content": { "parts": parts }, "finishReason": "STOP" }] });
    vec![streamed(std::slice::from_ref(&said)), whole(&said)]
}

#[tokio::test]
async fn calls_and_tools_are_estimated_alike_in_each_protocol_streamed_and_whole() {
    let calls = calls();
    let read = ToolSpec { description: "d".repeat(4_000), ..tool("workspace/read") };
    let tool_bytes = read.name.len() + read.description.len() + read.input_schema.len();
    let mut asked = hello();
    asked.tools = vec![read];
    asked.response_schema = Some(SCHEMA.to_owned());
    let read_bytes = "hello".len() + tool_bytes + SCHEMA.len();
    let said_bytes: usize = calls.iter().map(|call| NAME.len() + call.arguments.len()).sum();
    let tokens = |bytes: usize| bytes.div_ceil(4) as u64;
    let estimate = Usage { estimated: true, ..usage(tokens(read_bytes), tokens(said_bytes)) };
    for (wire, answers) in [
        ("openai-chat", chat(&calls)),
        ("openai", responses(&calls)),
        ("anthropic", anthropic(&calls)),
        ("gemini", gemini(&calls)),
    ] {
        for (place, (more, reply)) in answers.into_iter().enumerate() {
            let provider = Provider::start([reply]).await;
            let done = answer(model(wire, &provider, more).as_ref(), asked.clone()).await;
            let done = done.unwrap_or_else(|error| panic!("{wire}, {place}: {error}"));
            let made: Vec<&str> = done.message.tool_uses().map(|call| &*call.payload).collect();
            let wanted: Vec<&str> = calls.iter().map(|call| &*call.arguments).collect();
            assert_eq!(made, wanted, "{wire}, {place}");
            assert_eq!(done.usage, estimate, "{wire}, {place}");
        }
    }
}
