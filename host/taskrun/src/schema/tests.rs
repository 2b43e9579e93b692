mod agreement;
mod bombs;
mod fuzz;

use serde_json::{Value, json};

use super::*;

pub(super) fn schema(text: &Value) -> Schema {
    Schema::new(text, &mut Allowance::default()).unwrap_or_else(|why| panic!("{why}: {text}"))
}

pub(super) fn refusal(text: &Value) -> String {
    Schema::new(text, &mut Allowance::default()).map(|_| ()).expect_err("refused")
}

fn issues(text: &Value, value: &Value) -> Vec<(String, Problem)> {
    let issues = schema(text).issues(value, &mut Fuel::new(10_000, 100)).expect("little to do");
    issues.into_iter().map(|Issue { field, problem }| (field, problem)).collect()
}

#[test]
fn each_keyword_allows_what_it_says_and_nothing_else() {
    let table = [
        (json!({ "type": "integer" }), json!([1, 1.0, -3]), json!([1.5, "1", null, true])),
        (json!({ "type": ["string", "null"] }), json!(["", null]), json!([1, [], {}])),
        (
            json!({ "enum": [1, "a", [1, { "x": 2 }]] }),
            json!([1.0, "a", [1, { "x": 2.0 }]]),
            json!([2, "b", [1]]),
        ),
        (
            json!({ "const": { "a": [1] } }),
            json!([{ "a": [1.0] }]),
            json!([{ "a": [1], "b": 2 }, {}]),
        ),
        (json!({ "minimum": 1, "maximum": 2.5 }), json!([1, 2.5, "x"]), json!([0.9, 2.6, -1])),
        (json!({ "exclusiveMinimum": 1, "exclusiveMaximum": 3 }), json!([2, 2.9]), json!([1, 3])),
        (json!({ "minimum": 1, "exclusiveMinimum": true }), json!([2]), json!([1])),
        (json!({ "multipleOf": 0.1 }), json!([0.3, 1, 1e3, 0]), json!([0.35, 1e-2])),
        (json!({ "multipleOf": 3 }), json!([9, -3.0, 0]), json!([1, 9.5])),
        (json!({ "minLength": 2, "maxLength": 3 }), json!(["äö", "abc", 1]), json!(["ä", "abcd"])),
        (json!({ "pattern": "^a\\d+$" }), json!(["a12"]), json!(["b", "a", "a\u{0661}"])),
        (json!({ "minItems": 1, "maxItems": 2 }), json!([[1], [1, 2], {}]), json!([[], [1, 2, 3]])),
        (
            json!({ "uniqueItems": true }),
            json!([[1, 2, "1", [1]], []]),
            json!([[1, 1.0], [{ "a": 1, "b": 2 }, { "b": 2, "a": 1 }]]),
        ),
        (json!({ "items": { "type": "null" } }), json!([[], [null]]), json!([[null, 1]])),
        (
            json!({ "prefixItems": [{ "type": "null" }], "items": false }),
            json!([[], [null]]),
            json!([[1], [null, null]]),
        ),
        (
            json!({ "items": [{ "type": "null" }], "additionalItems": { "type": "string" } }),
            json!([[null, "a"]]),
            json!([[null, 1]]),
        ),
        (json!({ "contains": { "type": "null" } }), json!([[1, null]]), json!([[], [1]])),
        (
            json!({ "contains": { "type": "null" }, "minContains": 2, "maxContains": 3 }),
            json!([[null, null]]),
            json!([[null], [null, null, null, null]]),
        ),
        (json!({ "contains": true, "minContains": 0 }), json!([[], [1]]), json!([])),
        (
            json!({ "required": ["a", "b"] }),
            json!([{ "a": 1, "b": 2 }, 3]),
            json!([{ "a": 1 }, {}]),
        ),
        (
            json!({ "minProperties": 1, "maxProperties": 1 }),
            json!([{ "a": 1 }]),
            json!([{}, { "a": 1, "b": 2 }]),
        ),
        (
            json!({ "properties": { "a": { "type": "null" } }, "patternProperties": { "^x": { "type": "string" } }, "additionalProperties": false }),
            json!([{ "a": null, "x1": "" }, {}]),
            json!([{ "a": 1 }, { "x1": 1 }, { "b": 1 }]),
        ),
        (json!({ "propertyNames": { "maxLength": 1 } }), json!([{ "a": 1 }]), json!([{ "ab": 1 }])),
        (
            json!({ "dependentRequired": { "a": ["b"] } }),
            json!([{ "b": 1 }, { "a": 1, "b": 1 }]),
            json!([{ "a": 1 }]),
        ),
        (
            json!({ "dependentSchemas": { "a": { "required": ["b"] } } }),
            json!([{}, { "a": 1, "b": 1 }]),
            json!([{ "a": 1 }]),
        ),
        (
            json!({ "dependencies": { "a": ["b"], "c": { "required": ["d"] } } }),
            json!([{}]),
            json!([{ "a": 1 }, { "c": 1 }]),
        ),
        (json!({ "allOf": [{ "minimum": 1 }, { "maximum": 2 }] }), json!([1]), json!([0, 3])),
        (json!({ "anyOf": [{ "type": "null" }, { "minimum": 2 }] }), json!([null, 2]), json!([1])),
        (json!({ "oneOf": [{ "minimum": 1 }, { "maximum": 2 }] }), json!([0, 3]), json!([1, 2])),
        (json!({ "not": { "type": "null" } }), json!([1]), json!([null])),
        (
            json!({ "if": { "type": "string" }, "then": { "minLength": 1 }, "else": { "type": "null" } }),
            json!(["a", null]),
            json!(["", 1]),
        ),
        (
            json!({ "$ref": "#/$defs/a%25~1b", "$defs": { "a%/b": { "type": "null" } } }),
            json!([null]),
            json!([1]),
        ),
        (
            json!({ "$id": "https://x.example/y", "$ref": "https://x.example/y#/$defs/a", "$defs": { "a": false } }),
            json!([]),
            json!([1]),
        ),
        (
            json!({ "$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "maximum": 1, "definitions": { "a": true } }),
            json!([2]),
            json!([]),
        ),
        (
            json!({ "properties": { "next": { "$ref": "#" }, "n": { "type": "integer" } }, "additionalProperties": false }),
            json!([{ "next": { "next": { "n": 1 } } }]),
            json!([{ "next": { "next": { "n": "" } } }]),
        ),
        (json!({ "format": "email", "title": 1, "x-own": [] }), json!(["x"]), json!([])),
    ];
    for (text, fitting, others) in table {
        for value in fitting.as_array().expect("a list") {
            assert_eq!(issues(&text, value), [], "{text} {value}");
        }
        for value in others.as_array().expect("a list") {
            assert_ne!(issues(&text, value), [], "{text} {value}");
        }
    }
}

#[test]
fn mistakes_are_told_with_their_places_and_few_of_them() {
    let text = json!({ "type": "object", "required": ["a", "b"], "additionalProperties": {
        "type": "array", "items": { "type": "string" } } });
    let value = json!({ "x/y": ["", 1], "c": 2 });
    let missing = |name: &str| (String::new(), Problem::Missing(name.to_owned()));
    let other = |field: &str, text: &str| (field.to_owned(), Problem::Other(text.to_owned()));
    let expected = [
        missing("a"),
        missing("b"),
        other("c", "2 is not of type \"array\""),
        other("x~1y/1", "1 is not of type \"string\""),
    ];
    assert_eq!(issues(&text, &value), expected);
    let many: Vec<u32> = (0..1_000).collect();
    assert_eq!(issues(&json!({ "items": false }), &json!(many)).len(), 8);
    let long = json!(["x".repeat(1 << 20), { "y".repeat(1 << 20): 1 }]);
    for (field, problem) in issues(&json!({ "items": { "type": "null" } }), &long) {
        assert!(format!("{field}{problem:?}").len() < 300);
    }
}

#[test]
fn what_is_not_understood_or_is_no_schema_is_refused_with_its_place() {
    for (text, said) in [
        (json!(1), "a schema is an object"),
        (json!({ "properties": { "a": 1 } }), "properties/a: a schema is an object"),
        (json!({ "type": "objekt" }), "there is no type \"objekt\""),
        (json!({ "required": true }), "\"required\" must be a list of texts"),
        (json!({ "minLength": -1 }), "\"minLength\" must be a whole number"),
        (json!({ "multipleOf": 0 }), "\"multipleOf\" must be a number of more than zero"),
        (json!({ "anyOf": {} }), "\"anyOf\" must be a list of schemas"),
        (json!({ "items": { "unevaluatedItems": false } }), "items: \"unevaluatedItems\" is not"),
        (json!({ "$dynamicRef": "#x" }), "\"$dynamicRef\" is not understood"),
        (json!({ "$schema": "https://x.example/own" }), "the dialect"),
        (json!({ "items": { "$id": "https://x.example/own" } }), "no \"$id\" of its own"),
        (json!({ "$ref": "https://x.example/other" }), "leaves the schema"),
        (json!({ "$ref": "file:///etc/passwd" }), "leaves the schema"),
        (json!({ "$ref": "#name" }), "is about a name"),
        (json!({ "$ref": "#/$defs/none" }), "there is no \"#/$defs/none\""),
        (json!({ "pattern": "(" }), "no pattern"),
        (json!({ "pattern": "(?=a)" }), "look-around"),
        (json!({ "pattern": "(a)\\1" }), "cannot be used"),
    ] {
        let refused = refusal(&text);
        assert!(refused.contains(said), "{text}: {refused}");
    }
}
