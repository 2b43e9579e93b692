//! The rules of the fake servers: for each, a request that breaks it and no other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::provider::Asked;
use crate::provider::rules::{CHAT, Strictness, broken};

fn asked(body: Value) -> Asked {
    let headers = BTreeMap::from([("api-key".to_owned(), "k".to_owned())]);
    Asked { path: "/v1/chat/completions?api-version=2026-01-01".to_owned(), headers, body }
}

fn user() -> Value {
    json!({ "role": "user", "content": "a" })
}

fn said(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

fn call(id: &str, name: &str, arguments: impl Into<Value>) -> Value {
    let arguments: Value = arguments.into();
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn calling(calls: &[Value]) -> Value {
    json!({ "role": "assistant", "content": null, "tool_calls": calls })
}

fn result(id: &str) -> Value {
    json!({ "role": "tool", "tool_call_id": id, "content": "r" })
}

fn with(messages: &[Value]) -> Value {
    json!({ "model": "m", "messages": messages })
}

fn and(mut body: Value, key: &str, value: Value) -> Value {
    body[key] = value;
    body
}

const ID: &str = "abcDEF123";

/// A request for each rule, in their order, and a server that has it.
fn wrong() -> Vec<(Strictness, Asked)> {
    use Strictness::{Azure, Common, DeepSeek, Kimi, Mistral, OpenAi, Template};
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let hello = || with(&[user()]);
    let turn = |between: &[Value]| {
        let mut all = vec![user(), calling(&[call(ID, "f", "{}")]), result(ID)];
        all.extend_from_slice(between);
        with(&all)
    };
    let mut azure = [asked(hello()), asked(hello())];
    azure[0].path = "/v1/chat/completions".to_owned();
    azure[1].headers = BTreeMap::from([("authorization".to_owned(), "Bearer k".to_owned())]);
    let [no_version, bearer] = azure;
    let reasoned = json!({ "role": "assistant", "content": "b", "reasoning_content": "c" });
    let bodies = [
        (Common, with(&[])),
        (Common, and(hello(), "tools", json!([]))),
        (Common, with(&[user(), calling(&[call(ID, "a/b", "{}")]), result(ID)])),
        (Common, with(&[user(), said(""), user()])),
        (Common, with(&[user(), calling(&[call(ID, "f", "{}")]), user()])),
        (Common, with(&[user(), result(ID)])),
        (Common, with(&[user(), calling(&[call(ID, "f", json!({}))]), result(ID)])),
        (Common, and(hello(), "parallel_tool_calls", json!(true))),
        (Common, and(hello(), "stream_options", json!({}))),
        (OpenAi, and(hello(), "max_tokens", json!(1))),
        (OpenAi, and(hello(), "tools", tools)),
        (OpenAi, and(hello(), "top_k", json!(1))),
        (Azure, Value::Null),
        (Azure, Value::Null),
        (Mistral, and(and(hello(), "stream", json!(true)), "stream_options", json!({}))),
        (Mistral, and(hello(), "max_completion_tokens", json!(1))),
        (Mistral, with(&[user(), reasoned, user()])),
        (Mistral, with(&[user(), calling(&[call("call_1", "f", "{}")]), result("call_1")])),
        (Mistral, turn(&[user()])),
        (Mistral, with(&[user(), json!({ "role": "system", "content": "s" }), user()])),
        (Mistral, with(&[user(), said("b")])),
        (Template, with(&[user(), user()])),
        (Template, with(&[user(), calling(&[call(ID, "f", "{\"x\":")]), result(ID)])),
        (DeepSeek, turn(&[])),
        (Kimi, turn(&[])),
    ];
    let mut wrong: Vec<_> = bodies.map(|(server, body)| (server, asked(body))).into();
    wrong[12].1 = no_version;
    wrong[13].1 = bearer;
    wrong
}

#[test]
fn each_rule_refuses_the_request_that_breaks_it() {
    let wrong = wrong();
    assert_eq!(wrong.len(), CHAT.len(), "each rule has its request");
    for (rule, (server, asked)) in CHAT.iter().zip(&wrong) {
        let found = broken(asked, *server).map(|rule| rule.says);
        assert_eq!(found, Some(rule.says), "{server:?} {:#}", asked.body);
        assert!(rule.source.starts_with("https://"), "{}", rule.says);
    }
    let sentences: BTreeSet<&str> = CHAT.iter().map(|rule| rule.says).collect();
    assert_eq!(sentences.len(), CHAT.len(), "no rule stands twice");
}

#[test]
fn other_forms_of_what_is_refused_are_refused_too() {
    let call = |id: &str| call(id, "f", "{}");
    let cases = [
        with(&[user(), calling(&[call("a"), call("a")]), result("a"), result("a")]),
        with(&[user(), calling(&[call("a"), call("b")]), result("a"), result("a")]),
        with(&[user(), calling(&[call("a"), call("b")]), result("a")]),
        with(&[user(), calling(&[call("a")]), result("b")]),
        with(&[user(), calling(&[call("a")]), result("a"), result("a")]),
        with(&[user(), calling(&[call("a")]), result("a"), said("b"), result("a")]),
        with(&[said("b"), user()]),
        with(&[user(), said("b"), said("c"), user()]),
    ];
    for body in cases {
        let asked = asked(body);
        assert!(broken(&asked, Strictness::Template).is_some(), "{:#}", asked.body);
    }
}

#[test]
fn a_conversation_as_it_should_be_breaks_no_rule() {
    let calls = [call(ID, "f", "{}"), call("abcDEF124", "g", "{\"x\":1}")];
    let mut calling = calling(&calls);
    let system = json!({ "role": "system", "content": "s" });
    for server in [Strictness::Template, Strictness::Mistral, Strictness::DeepSeek] {
        if server == Strictness::DeepSeek {
            calling["reasoning_content"] = json!("");
        }
        let all = [
            system.clone(),
            user(),
            calling.clone(),
            result("abcDEF124"),
            result(ID),
            said("b"),
            user(),
        ];
        let found = broken(&asked(with(&all)), server).map(|rule| rule.says);
        assert_eq!(found, None, "{server:?}");
    }
}
