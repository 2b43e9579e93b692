//! Equality of values, with numbers as values and members in no order.

use std::fmt::Write;

use serde_json::Value;

use super::number;

/// Bytes of strings that are compared in a step.
const BYTES_PER_STEP: u64 = 64;

/// True if two values are equal; takes no longer than the smaller one.
pub(super) fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(one), Value::Bool(other)) => one == other,
        (Value::Number(one), Value::Number(other)) => number::compare(one, other).is_eq(),
        (Value::String(one), Value::String(other)) => one == other,
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| equal(a, b))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(key, value): (&String, &Value)| {
                other.get(key).is_some_and(|other| equal(value, other))
            };
            one.len() == other.len() && one.iter().all(same)
        }
        (
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_),
            _,
        ) => false,
    }
}

/// The steps that it takes to look at all of a value.
pub(super) fn steps(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => text_steps(text),
        Value::Array(items) => 1 + items.iter().map(steps).sum::<u64>(),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| text_steps(name) + steps(value);
            1 + members.iter().map(member).sum::<u64>()
        }
    }
}

/// The steps that it takes to look at a text.
pub(super) fn text_steps(text: &str) -> u64 {
    1 + text.len() as u64 / BYTES_PER_STEP
}

/// A text that is the same for equal values, and for no others.
pub(super) fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(one) => text.push_str(if *one { "true" } else { "false" }),
        Value::Number(one) => number::canonical(one, text),
        Value::String(one) => write!(text, "{one:?}").expect("a text grows"),
        Value::Array(items) => {
            text.push('[');
            for item in items {
                canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(key, _)| *key);
            text.push('{');
            for (key, member) in sorted {
                write!(text, "{key:?}:").expect("a text grows");
                canonical(member, text);
                text.push(',');
            }
            text.push('}');
        }
    }
}
