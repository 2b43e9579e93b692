//! Schemas that cost more than they look (case 52).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Map, Value, json};

use super::{refusal, schema};
use crate::schema::{Allowance, Fuel, Schema, Spent};

/// So many definitions, the last one of which is `last`, and a reference to the first.
pub(super) fn chain(count: usize, step: impl Fn(Value) -> Value, last: Value) -> Value {
    let next = |n: usize| json!({ "$ref": format!("#/$defs/{n}") });
    let mut defs: Map<String, Value> =
        (0..count - 1).map(|n| (n.to_string(), step(next(n + 1)))).collect();
    defs.insert((count - 1).to_string(), last);
    json!({ "type": "object", "properties": { "a": next(0) }, "$defs": defs })
}

fn doubled(keyword: &'static str) -> impl Fn(Value) -> Value {
    move |next| json!({ keyword: [next.clone(), next] })
}

/// A value so deep.
fn nested(deep: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..deep).fold(json!(0), |value, _| wrap(value))
}

#[test]
fn case_52_schemas_that_double_in_place_do_not_load() {
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let refused = refusal(&chain(30, doubled(keyword), json!({ "type": "null" })));
        assert!(refused.contains("more than 10000 schemas"), "{refused}");
    }
    let both = |next: Value| json!({ "if": next.clone(), "then": next.clone(), "else": next });
    assert!(refusal(&chain(30, both, json!(true))).contains("more than 10000 schemas"));
    let with = |next: Value| json!({ "dependentSchemas": { "x": next.clone(), "y": next } });
    assert!(refusal(&chain(30, with, json!(true))).contains("more than 10000 schemas"));
}

#[test]
fn case_52_schemas_that_refer_to_themselves_in_place_do_not_load() {
    for text in [
        json!({ "$ref": "#" }),
        json!({ "allOf": [{ "$ref": "#" }] }),
        json!({ "properties": { "a": { "not": { "$ref": "#/properties/a" } } } }),
        chain(20, |next| next, json!({ "anyOf": [{ "$ref": "#/$defs/3" }, true] })),
    ] {
        let refused = refusal(&text);
        assert!(refused.contains("it refers to itself without a value between"), "{refused}");
    }
}

#[test]
fn case_52_long_chains_of_references_do_not_load() {
    let refused = refusal(&chain(3_000, |next| next, json!({ "items": { "$ref": "#/$defs/0" } })));
    assert!(refused.contains("more than 48 schemas within each other"), "{refused}");
}

#[test]
fn case_52_the_longest_chain_at_the_deepest_value_fits_its_stack() {
    let text = chain(47, |next| next, json!({ "items": { "$ref": "#/$defs/0" } }));
    let deepest = json!({ "a": nested(127, |value| json!([value])) });
    let look = move || schema(&text).issues(&deepest, &mut Fuel::new(1_000_000, 384));
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(look).expect("a thread");
    assert_eq!(thread.join().expect("no overflow"), Err(Spent::Depth));
}

#[test]
fn case_52_schemas_that_double_with_each_value_end_with_their_fuel() {
    let item = json!({ "$ref": "#/$defs/t" });
    let text = json!({ "type": "object", "properties": { "a": item }, "$defs": { "t": {
        "allOf": [{ "items": item }, { "items": item }] } } });
    let value = json!({ "a": nested(60, |value| json!([value])) });
    let mut fuel = Fuel::new(1_000_000, 384);
    assert_eq!(schema(&text).issues(&value, &mut fuel), Err(Spent::Steps));
    assert_eq!(fuel.left(), 0);
}

#[test]
fn case_52_a_tree_is_as_dear_as_it_is_large() {
    let text = json!({ "$ref": "#/$defs/t", "$defs": { "t": { "type": "object", "properties": {
        "left": { "$ref": "#/$defs/t" }, "right": { "$ref": "#/$defs/t" } } } } });
    let mut tree = json!({});
    for _ in 0..10 {
        tree = json!({ "left": tree, "right": tree });
    }
    let mut fuel = Fuel::new(1_000_000, 384);
    assert_eq!(schema(&text).issues(&tree, &mut fuel), Ok(Vec::new()));
    assert!(fuel.left() > 980_000, "{}", fuel.left());
}

#[test]
fn case_52_floods_of_mistakes_are_told_by_a_few() {
    let all: Vec<Value> = (0..4_000).map(|_| json!({ "items": { "type": "null" } })).collect();
    let value = json!(vec![1; 100_000]);
    let mut fuel = Fuel::new(4_000_000, 384);
    let issues = schema(&json!({ "allOf": all })).issues(&value, &mut fuel).expect("soon wrong");
    assert_eq!(issues.len(), 8);
    let mut fuel = Fuel::new(4_000_000, 384);
    let any: Vec<Value> = (0..4_000).map(|_| json!({ "items": { "type": "integer" } })).collect();
    let none = json!({ "not": { "allOf": any } });
    assert_eq!(schema(&none).issues(&value, &mut fuel), Err(Spent::Steps));
}

#[test]
fn case_52_patterns_take_linear_time_and_little_room() {
    let evil = schema(&json!({ "pattern": "^(a+)+$" }));
    let text = json!(format!("{}b", "a".repeat(100_000)));
    assert_eq!(evil.issues(&text, &mut Fuel::new(1_000_000, 10)).expect("linear").len(), 1);
    for pattern in ["a{1,100}{1,100}{1,100}{1,100}", "(a{0,1000}){0,1000}", "\\p{L}{5000}"] {
        assert!(refusal(&json!({ "pattern": pattern })).contains("too large"));
    }
    let long = "\\d".repeat(2_000);
    assert!(refusal(&json!({ "pattern": long })).contains("at most 1000 bytes"));
    let large = schema(&json!({ "pattern": "^.{1,300}x$" }));
    let text = json!("y".repeat(1 << 20));
    assert_eq!(large.issues(&text, &mut Fuel::new(1_000_000, 10)), Err(Spent::Steps));
}

#[test]
fn case_52_thousands_of_patterns_do_not_load() {
    let each = |n: usize| (format!("^p{n}"), json!({ "pattern": format!("{n}$") }));
    let all: Map<String, Value> = (0..2_000).map(each).collect();
    let refused = refusal(&json!({ "patternProperties": all }));
    assert!(refused.contains("are too many, or too large"), "{refused}");
    // Nor in the schemas of many functions.
    let mut allowance = Allowance::default();
    let loaded = (0..20).map_while(|n| {
        Schema::new(&json!({ "pattern": format!("^.{{{n},900}}") }), &mut allowance).ok()
    });
    assert_eq!(loaded.count(), 8);
}

#[test]
fn case_52_lists_compared_item_by_item_are_counted() {
    let unique = schema(
        &json!({ "uniqueItems": true, "items": { "enum": (0..2_000).collect::<Vec<_>>() } }),
    );
    let value = json!((0..2_000).collect::<Vec<_>>());
    assert_eq!(unique.issues(&value, &mut Fuel::new(1_000_000, 10)), Err(Spent::Steps));
}

#[test]
fn case_52_a_look_ends_when_somebody_asks_to_stop() {
    let text = json!({ "items": { "anyOf": [{ "type": "null" }, { "type": "integer" }] } });
    let value = json!(vec![1; 100_000]);
    let stop = Arc::new(AtomicBool::new(true));
    let mut fuel = Fuel::new(u64::MAX, 10).stopped_by(stop);
    assert_eq!(schema(&text).issues(&value, &mut fuel), Err(Spent::Stopped));
    assert!(u64::MAX - fuel.left() < 10_000);
}
