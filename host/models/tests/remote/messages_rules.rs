//! The rules of the fake server of messages: for each, a request that breaks it and no other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::provider::Asked;
use crate::provider::rules::{MESSAGES, Strictness, broken};

use Strictness::{ClaudeAdaptive, ClaudeBudget, Common};

fn asked(body: Value) -> Asked {
    Asked { path: "/v1/messages".to_owned(), headers: BTreeMap::new(), body }
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn user(content: &[Value]) -> Value {
    json!({ "role": "user", "content": content })
}

fn said(content: &[Value]) -> Value {
    json!({ "role": "assistant", "content": content })
}

fn call(id: &str) -> Value {
    json!({ "type": "tool_use", "id": id, "name": "f", "input": {} })
}

fn result(id: &str) -> Value {
    json!({ "type": "tool_result", "tool_use_id": id, "content": "r", "is_error": false })
}

fn thought() -> Value {
    json!({ "type": "thinking", "thinking": "hm", "signature": "s" })
}

fn with(messages: &[Value]) -> Value {
    json!({ "model": "m", "max_tokens": 2000, "messages": messages })
}

fn hello() -> Value {
    with(&[user(&[text("a")])])
}

fn turn(calling: &[Value], results: &[Value]) -> Value {
    with(&[user(&[text("a")]), said(calling), user(results)])
}

fn and(mut body: Value, key: &str, value: Value) -> Value {
    body[key] = value;
    body
}

fn formed(schema: Value) -> Value {
    let format = json!({ "type": "json_schema", "schema": schema });
    and(hello(), "output_config", json!({ "format": format }))
}

fn marked(block: Value) -> Value {
    and(block, "cache_control", json!({ "type": "ephemeral" }))
}

fn enabled(tokens: u64) -> Value {
    json!({ "type": "enabled", "budget_tokens": tokens })
}

/// A request for each rule, in their order, and a server that has it.
fn wrong() -> Vec<(Strictness, Value)> {
    let two = [text("a"), thought(), call("x")];
    let no_signature = json!({ "type": "thinking", "thinking": "hm" });
    let five: Vec<Value> = ["a", "b", "c", "d", "e"].map(|t| marked(text(t))).into();
    let adaptive = json!({ "type": "adaptive" });
    let tool = json!([{ "name": "a/b", "input_schema": { "type": "object" } }]);
    let choosing = json!([{ "name": "f", "input_schema": { "type": "object", "anyOf": [] } }]);
    let back = json!({ "anyOf": [{ "$ref": "#/$defs/a" }, { "type": "null" }] });
    let circle = json!({ "$ref": "#/$defs/a", "$defs": { "a": back } });
    vec![
        (Common, json!({ "model": "m", "messages": [user(&[text("a")])] })),
        (Common, with(&[])),
        (Common, with(&[user(&[text("a")]), json!({ "role": "system", "content": [text("b")] })])),
        (Common, with(&[user(&[text("a")]), said(&[]), user(&[text("b")])])),
        (Common, with(&[user(&[text(" \n")])])),
        (Common, turn(&[call("x")], &[text("b")])),
        (Common, turn(&[text("b")], &[result("x")])),
        (Common, turn(&[call("x"), call("x")], &[result("x"), result("x")])),
        (Common, turn(&[call("f:0")], &[result("f:0")])),
        (Common, and(hello(), "tools", tool)),
        (Common, turn(&[call("x")], &[text("b"), result("x")])),
        (Common, and(hello(), "thinking", enabled(1000))),
        (Common, and(hello(), "thinking", enabled(2000))),
        (Common, and(and(hello(), "thinking", adaptive.clone()), "temperature", json!(0.5))),
        (Common, and(turn(&two, &[result("x")]), "thinking", enabled(1024))),
        (
            Common,
            and(and(hello(), "thinking", enabled(1024)), "tool_choice", json!({ "type": "any" })),
        ),
        (Common, turn(&[no_signature], &[text("b")])),
        (ClaudeAdaptive, and(hello(), "thinking", enabled(1024))),
        (ClaudeBudget, and(hello(), "thinking", adaptive)),
        (ClaudeBudget, and(hello(), "output_config", json!({ "effort": "low" }))),
        (Common, with(&[user(&five)])),
        (Common, turn(&[marked(thought())], &[text("b")])),
        (Common, formed(json!({ "type": "string", "minLength": 1 }))),
        (Common, formed(json!({ "type": "object", "properties": {} }))),
        (Common, formed(json!({ "type": "array", "items": { "type": "null" }, "minItems": 2 }))),
        (Common, formed(json!({ "type": "string", "pattern": r"^one\b" }))),
        (Common, formed(json!({ "enum": [{ "a": 1 }] }))),
        (Common, formed(circle)),
        (Common, and(hello(), "tools", choosing)),
    ]
}

#[test]
fn each_rule_refuses_the_request_that_breaks_it() {
    let wrong = wrong();
    assert_eq!(wrong.len(), MESSAGES.len(), "each rule has its request");
    for (rule, (server, body)) in MESSAGES.iter().zip(wrong) {
        let asked = asked(body);
        let broken = MESSAGES.iter().filter(|rule| rule.of.contains(&server));
        let broken: Vec<&str> =
            broken.filter(|rule| (rule.is_broken)(&asked)).map(|rule| rule.says).collect();
        assert_eq!(broken, [rule.says], "{server:?} {:#}", asked.body);
        assert!(rule.source.starts_with("https://"), "{}", rule.says);
    }
    let sentences: BTreeSet<&str> = MESSAGES.iter().map(|rule| rule.says).collect();
    assert_eq!(sentences.len(), MESSAGES.len(), "no rule stands twice");
}

#[test]
fn other_forms_of_what_is_refused_are_refused_too() {
    let marks = ["b", "c", "d"].map(|t| marked(text(t)));
    let mut full = and(with(&[user(&marks)]), "system", json!([marked(text("s"))]));
    let cases = [
        with(&[user(&[text("a")]), said(&[call("x")])]),
        turn(&[call("x"), call("y")], &[result("x")]),
        turn(&[call("x")], &[result("x"), result("x")]),
        with(&[user(&[result("x")])]),
        turn(&[call("")], &[result("")]),
        and(hello(), "system", json!([text("")])),
        marked(full.clone()),
        formed(json!({ "type": ["object", "null"], "additionalProperties": true })),
        formed(json!({ "anyOf": [{ "type": "object", "additionalProperties": {} }] })),
        formed(json!({ "items": { "properties": { "a": { "oneOf": [] } } } })),
        formed(json!({ "type": "null", "$defs": { "a": { "type": "integer", "minimum": 1 } } })),
        formed(json!({ "$ref": "https://json-schema.org/draft/2020-12/schema" })),
        formed(json!({ "items": { "$ref": "#" } })),
    ];
    for body in cases {
        let asked = asked(body);
        assert!(broken(&asked, Common).is_some(), "{:#}", asked.body);
    }
    full["max_tokens"] = json!(1);
    assert!(broken(&asked(full), Common).is_none(), "four marks are allowed");
}

#[test]
fn a_conversation_as_it_should_be_breaks_no_rule() {
    let calling = [thought(), text("b"), call("x"), thought(), call("y")];
    let body = turn(&calling, &[result("y"), result("x"), text("c")]);
    let budget = and(body.clone(), "thinking", enabled(1024));
    let adaptive = and(body, "thinking", json!({ "type": "adaptive" }));
    let schema = json!({ "type": "object", "additionalProperties": false,
        "properties": { "minimum": { "$ref": "#/$defs/a" }, "b": { "$ref": "#/$defs/a" } },
        "$defs": { "a": { "type": "array", "items": { "$ref": "#/$defs/c" } },
            "c": { "type": "string", "format": "date" } } });
    let output = json!({ "effort": "max", "format": { "type": "json_schema", "schema": schema } });
    let adaptive = and(marked(adaptive), "output_config", output);
    for (server, body) in [(ClaudeBudget, budget), (ClaudeAdaptive, adaptive)] {
        let found = broken(&asked(body), server).map(|rule| rule.says);
        assert_eq!(found, None, "{server:?}");
    }
}
