//! Schemas that Anthropic refuses.

use serde_json::Value;

use super::super::{Asked, list, members};

/// The words of a schema of which the provider can make a grammar, and those that only describe.
const KEYWORDS: [&str; 23] = [
    "$comment",
    "$defs",
    "$id",
    "$ref",
    "$schema",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "default",
    "definitions",
    "deprecated",
    "description",
    "enum",
    "examples",
    "format",
    "items",
    "minItems",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
];

pub(super) fn has_unknown_keyword(asked: &Asked) -> bool {
    let all = within(of_answer(asked));
    all.into_iter().flat_map(members).any(|keyword| !KEYWORDS.contains(&keyword))
}

pub(super) fn has_open_object(asked: &Asked) -> bool {
    within(of_answer(asked)).into_iter().any(|schema| {
        let kinds = list(&schema["type"]);
        let is_object = schema["type"] == "object" || kinds.iter().any(|kind| kind == "object");
        is_object && schema["additionalProperties"] != false
    })
}

pub(super) fn has_long_list(asked: &Asked) -> bool {
    within(of_answer(asked)).iter().any(|schema| {
        let least = schema.get("minItems");
        least.is_some_and(|least| least.as_u64().is_none_or(|least| least > 1))
    })
}

/// Tells of patterns with word boundaries, look-around or references to their groups, and of those
/// that repeat something a thousand times.
pub(super) fn has_complex_pattern(asked: &Asked) -> bool {
    let all = within(of_answer(asked));
    all.into_iter().filter_map(|schema| schema["pattern"].as_str()).any(|pattern| {
        // A backslash behind another one makes nothing of what follows.
        let pattern = pattern.replace(r"\\", "");
        let mut escaped = pattern.split('\\').skip(1);
        let mut counts = pattern.split('{').skip(1).flat_map(|counts| counts.split([',', '}']));
        ["(?=", "(?!", "(?<"].iter().any(|look| pattern.contains(look))
            || escaped.any(|rest| rest.starts_with(['b', 'B']) || starts_with_digit(rest))
            || counts.any(|count| count.parse::<u32>().is_ok_and(|count| count >= 1_000))
    })
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit())
}

pub(super) fn has_complex_enum(asked: &Asked) -> bool {
    let all = within(of_answer(asked));
    let mut values = all.into_iter().flat_map(|schema| list(&schema["enum"]));
    values.any(|value| value.is_array() || value.is_object())
}

pub(super) fn has_endless_reference(asked: &Asked) -> bool {
    let root = of_answer(asked);
    let mut open = vec![("#".to_owned(), references(root))];
    for group in ["$defs", "definitions"] {
        for (name, schema) in root[group].as_object().into_iter().flatten() {
            open.push((format!("#/{group}/{name}"), references(schema)));
        }
    }
    let known: Vec<String> = open.iter().map(|(pointer, _)| pointer.clone()).collect();
    let leads_elsewhere = |pointer: &&str| !known.iter().any(|known| known == pointer);
    if open.iter().flat_map(|(_, pointers)| pointers).any(leads_elsewhere) {
        return true;
    }
    // Those that lead to none that is open are done; what leads back to itself stays.
    loop {
        let before = open.len();
        let names: Vec<String> = open.iter().map(|(pointer, _)| pointer.clone()).collect();
        let is_open = |pointer: &&str| names.iter().any(|name| name == pointer);
        open.retain(|(_, pointers)| pointers.iter().any(is_open));
        if open.len() == before {
            return before > 0;
        }
    }
}

pub(super) fn has_choice_at_the_top_of_a_tool(asked: &Asked) -> bool {
    let mut schemas = list(&asked.body["tools"]).iter().map(|tool| &tool["input_schema"]);
    schemas.any(|schema| ["allOf", "anyOf", "oneOf"].iter().any(|word| schema.get(word).is_some()))
}

fn of_answer(asked: &Asked) -> &Value {
    &asked.body["output_config"]["format"]["schema"]
}

/// A schema and all within it, but for the definitions beside it.
fn without_definitions(schema: &Value) -> Vec<&Value> {
    let (mut all, mut open) = (Vec::new(), vec![schema]);
    while let Some(schema) = open.pop() {
        if !schema.is_object() {
            continue;
        }
        all.push(schema);
        open.extend(schema["properties"].as_object().into_iter().flat_map(|all| all.values()));
        open.extend(["allOf", "anyOf"].iter().flat_map(|word| list(&schema[*word])));
        open.push(&schema["items"]);
    }
    all
}

/// A schema and all within it.
fn within(schema: &Value) -> Vec<&Value> {
    let groups = ["$defs", "definitions"].iter().filter_map(|group| schema[*group].as_object());
    let definitions = groups.flat_map(|all| all.values()).flat_map(without_definitions);
    without_definitions(schema).into_iter().chain(definitions).collect()
}

fn references(schema: &Value) -> Vec<&str> {
    let all = without_definitions(schema).into_iter();
    all.filter_map(|schema| schema["$ref"].as_str()).collect()
}
