//! The rules of Responses: for each, a request that breaks it and no other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::provider::Asked;
use crate::provider::responses::sealed;
use crate::provider::rules::{RESPONSES, Strictness, broken};

fn asked(body: Value) -> Asked {
    Asked { path: "/v1/responses".to_owned(), headers: BTreeMap::new(), body }
}

fn user() -> Value {
    json!({ "type": "message", "role": "user", "content": "a" })
}

fn said() -> Value {
    json!({ "type": "message", "role": "assistant", "content": "b" })
}

fn call(id: &str) -> Value {
    json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": "{}" })
}

fn output(id: &str) -> Value {
    json!({ "type": "function_call_output", "call_id": id, "output": "r" })
}

fn reasoning(id: &str) -> Value {
    json!({ "type": "reasoning", "id": id, "summary": [], "encrypted_content": sealed(id) })
}

fn with(input: &[Value]) -> Value {
    json!({ "model": "m", "input": input, "store": false })
}

fn and(mut value: Value, key: &str, more: Value) -> Value {
    value[key] = more;
    value
}

/// A request for each rule, in their order, and a server that has it.
fn wrong() -> Vec<(Strictness, Value)> {
    use Strictness::{Common, OpenAi, OpenAiWithoutReasoning};
    let hello = || with(&[user()]);
    let tool = |strict: Value, parameters: Value| json!([{ "type": "function", "name": "f", "strict": strict, "parameters": parameters }]);
    let part = json!([{ "type": "input_text", "text": "b" }]);
    let long = "c".repeat(65);
    let bare = json!({ "type": "reasoning", "id": "rs_1", "summary": [] });
    let forged = and(reasoning("rs_1"), "encrypted_content", json!(sealed("rs_2")));
    vec![
        (Common, and(hello(), "messages", json!([]))),
        (Common, with(&[])),
        (Common, with(&[user(), json!({ "type": "tool_use" })])),
        (Common, with(&[and(user(), "role", json!("tool"))])),
        (Common, with(&[and(user(), "tool_calls", json!([]))])),
        (Common, with(&[user(), and(call("c"), "status", Value::Null), output("c")])),
        (Common, with(&[user(), and(said(), "content", part)])),
        (Common, with(&[and(user(), "phase", json!("commentary"))])),
        (Common, with(&[user(), and(call("c"), "name", json!("a/b")), output("c")])),
        (Common, and(hello(), "tools", tool(Value::Null, json!({ "type": "object" })))),
        (Common, with(&[user(), and(call("c"), "arguments", json!({})), output("c")])),
        (Common, with(&[user(), call("c"), and(output("c"), "output", json!({}))])),
        (Common, with(&[user(), call(&long), output(&long)])),
        (Common, with(&[user(), call("c"), call("d"), output("d")])),
        (Common, with(&[user(), output("c")])),
        (Common, with(&[user(), bare, said()])),
        (Common, with(&[user(), forged, said()])),
        (Common, with(&[user(), reasoning("rs_1"), user()])),
        (OpenAi, with(&[user(), and(call("c"), "id", json!("fc_1")), output("c")])),
        (Common, with(&[user(), and(call("c"), "id", json!("msg_1")), output("c")])),
        (OpenAiWithoutReasoning, and(hello(), "include", json!(["reasoning.encrypted_content"]))),
        (OpenAiWithoutReasoning, and(hello(), "reasoning", json!({ "effort": "low" }))),
        (OpenAi, and(hello(), "temperature", json!(0.5))),
        (Common, and(hello(), "max_output_tokens", json!(15))),
    ]
}

#[test]
fn each_rule_of_responses_refuses_the_request_that_breaks_it() {
    let wrong = wrong();
    assert_eq!(wrong.len(), RESPONSES.len(), "each rule has its request");
    for (rule, (server, body)) in RESPONSES.iter().zip(wrong) {
        let asked = asked(body);
        let found = broken(&asked, server).map(|rule| rule.says);
        assert_eq!(found, Some(rule.says), "{server:?} {:#}", asked.body);
        assert!(rule.source.starts_with("https://"), "{}", rule.says);
    }
    let sentences: BTreeSet<&str> = RESPONSES.iter().map(|rule| rule.says).collect();
    assert_eq!(sentences.len(), RESPONSES.len(), "no rule stands twice");
}

#[test]
fn other_forms_of_what_responses_refuse_are_refused_too() {
    let strict = json!({ "format": { "type": "json_schema", "name": "n", "strict": true,
        "schema": { "type": "object" } } });
    let cases = [
        and(with(&[user()]), "stop", json!(["END"])),
        with(&[user(), call("c"), call("c"), output("c")]),
        with(&[user(), call("c"), output("c"), output("c")]),
        with(&[user(), output("c"), call("c")]),
        with(&[user(), reasoning("rs_1")]),
        with(&[user(), reasoning("rs_1"), reasoning("rs_2"), output("c")]),
        with(&[user(), and(said(), "phase", json!("thought"))]),
        and(with(&[user()]), "text", strict),
    ];
    for body in cases {
        let asked = asked(body);
        assert!(broken(&asked, Strictness::Common).is_some(), "{:#}", asked.body);
    }
}

#[test]
fn a_conversation_of_responses_as_it_should_be_breaks_no_rule() {
    let all = [
        json!({ "type": "message", "role": "system", "content": "s" }),
        user(),
        reasoning("rs_1"),
        and(said(), "phase", json!("commentary")),
        and(call("c"), "id", json!("fc_1")),
        reasoning("rs_2"),
        reasoning("rs_3"),
        call("d"),
        output("d"),
        output("c"),
        said(),
        user(),
    ];
    for server in [Strictness::Common, Strictness::OpenAi, Strictness::OpenAiWithoutReasoning] {
        let found = broken(&asked(with(&all)), server).map(|rule| rule.says);
        assert_eq!(found, None, "{server:?}");
    }
}
