//! Schemas as Anthropic takes them: of answers, and of the arguments of tools.

use serde_json::{Value, json};
use taskrun_journal::completion::CompletionRequest;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::tool::ToolSpec;

use crate::ask::{answer, hello, model, request, tool};
use crate::provider::rules::Strictness;
use crate::provider::{Provider, Reply};

/// The body of a request that a server by the rules of the protocol takes.
async fn taken(asked: CompletionRequest) -> Value {
    let whole = json!({ "type": "message", "content": [{ "type": "text", "text": "{}" }],
        "stop_reason": "end_turn", "usage": { "input_tokens": 2, "output_tokens": 3 } });
    let reply = Reply::new(200, whole.to_string());
    let provider = Provider::start_as(Strictness::ClaudeAdaptive, [reply]).await;
    let schema = asked.response_schema.clone();
    let answered = answer(model("anthropic", &provider, "").as_ref(), asked).await;
    assert!(answered.is_ok(), "{schema:?}: {answered:?}");
    provider.asked()[0].body.clone()
}

fn formed(schema: &Value) -> CompletionRequest {
    CompletionRequest { response_schema: Some(schema.to_string()), ..hello() }
}

#[tokio::test]
async fn an_object_that_names_its_members_is_closed_also_if_it_says_that_it_is_open() {
    let string = json!({ "type": "string" });
    for open in [json!(true), json!({})] {
        let inner = json!({ "type": ["object", "null"], "additionalProperties": open,
            "properties": { "a": string }, "required": ["a"] });
        let schema = json!({ "type": "object", "additionalProperties": open,
            "properties": { "list": { "type": "array", "items": { "$ref": "#/$defs/inner" } },
                "one": { "$ref": "#/$defs/inner" }, "not": { "not": { "const": 1 }, "type": "number" } },
            "$defs": { "inner": inner, "none": { "type": "object", "additionalProperties": false } } });
        let body = taken(formed(&schema)).await;
        let sent = &body["output_config"]["format"]["schema"];
        assert_eq!(sent["additionalProperties"], false, "{sent:#}");
        let inner = &sent["$defs"]["inner"];
        assert_eq!(
            (&inner["additionalProperties"], &inner["required"]),
            (&json!(false), &json!(["a"]))
        );
        assert_eq!(sent["properties"]["not"]["description"], "{\"not\":{\"const\":1}}");
        let said = body["messages"][0]["content"].as_array().map(Vec::len);
        assert_eq!(said, Some(1), "nothing is said in words: {body:#}");
    }
}

#[tokio::test]
async fn a_pattern_that_would_be_refused_is_said_in_the_description() {
    for (pattern, is_sent) in [
        (r"^[a-z]+-\d{1,4}$", true),
        (r"\bone\b", false),
        ("^(?!none)", false),
        ("^.{1,4000}$", false),
    ] {
        let schema = json!({ "type": "object", "properties": {
            "a": { "type": "string", "pattern": pattern } } });
        let body = taken(formed(&schema)).await;
        let sent = &body["output_config"]["format"]["schema"]["properties"]["a"];
        let told = json!({ "pattern": pattern });
        let expected = match is_sent {
            true => json!({ "type": "string", "pattern": pattern }),
            false => json!({ "type": "string", "description": told.to_string() }),
        };
        assert_eq!(*sent, expected);
    }
}

#[tokio::test]
async fn a_schema_that_would_be_refused_is_said_in_words_of_this_turn() {
    let named = |more: Value| {
        let mut object = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
            object.extend(more);
        }
        object
    };
    let tree =
        named(json!({ "properties": { "more": { "type": "array", "items": { "$ref": "#" } } } }));
    let circle = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "anyOf": [{ "$ref": "#/$defs/b" }] },
        "b": { "items": { "$ref": "#/$defs/a" } } } });
    let schemas = [
        // Whatever members they have, none could be left.
        json!({ "type": "object" }),
        json!({ "type": ["object", "null"], "properties": {} }),
        json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        json!({ "type": "array", "items": { "type": "object", "additionalProperties": true } }),
        named(
            json!({ "properties": { "b": { "anyOf": [{ "type": "object" }, { "type": "null" }] } } }),
        ),
        // Members that it does not name.
        named(json!({ "additionalProperties": { "type": "number" } })),
        named(json!({ "patternProperties": { "^x": { "type": "number" } } })),
        named(json!({ "required": ["b"] })),
        named(json!({ "minProperties": 2 })),
        named(json!({ "anyOf": [{ "required": ["b"] }, { "required": ["c"] }] })),
        named(json!({ "if": { "required": ["a"] }, "then": { "required": ["b"] } })),
        json!({ "allOf": [named(json!({}))] }),
        // No grammar can be made of them.
        tree,
        circle,
        json!({ "$ref": "https://x.test/schema" }),
        json!({ "$ref": "#/$defs/missing" }),
        json!({ "anyOf": [{ "type": "null" }], "oneOf": [{ "type": "null" }] }),
        json!({ "type": "array", "items": [{ "type": "null" }] }),
        json!({ "type": "array", "items": { "title": "Anything." } }),
        json!({ "enum": ["a", { "b": 1 }] }),
    ];
    for schema in schemas {
        let messages =
            vec![Message::text(Role::User, "hello"), Message::text(Role::System, "Note.")];
        let asked = CompletionRequest { messages, ..formed(&schema) };
        let body = taken(asked).await;
        assert_eq!(body["output_config"], Value::Null, "{schema}");
        let content = body["messages"][0]["content"].as_array().expect("blocks");
        let [said, _, demand] = &content[..] else { panic!("{content:#?}") };
        assert_eq!(said["cache_control"]["type"], "ephemeral", "it stands behind the mark");
        let demand = demand["text"].as_str().expect("a text");
        assert!(demand.contains(&schema.to_string()), "{schema}: {demand}");
    }
}

#[tokio::test]
async fn a_choice_at_the_top_of_a_tools_schema_is_said_in_its_description() {
    let choice = json!([{ "required": ["a"] }, { "required": ["b"] }]);
    let properties = json!({ "a": { "anyOf": [{ "type": "string" }] }, "b": {} });
    for word in ["anyOf", "oneOf", "allOf"] {
        let mut schema = json!({ "type": "object", "properties": properties });
        schema[word] = choice.clone();
        let tool = ToolSpec { input_schema: schema.to_string(), ..tool("workspace/read") };
        let messages = vec![Message::text(Role::User, "hello")];
        let asked = CompletionRequest { tools: vec![tool], ..request(messages) };
        let body = taken(asked).await;
        let description = json!({ word: choice }).to_string();
        let expected = json!({ "type": "object", "properties": properties,
            "description": description });
        assert_eq!(body["tools"][0]["input_schema"], expected, "what is within it stays");
    }
}
