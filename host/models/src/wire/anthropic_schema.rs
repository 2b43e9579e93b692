//! Schemas as Anthropic takes them: of answers, and of the arguments of tools.
//!
//! It makes a grammar of the schema of an answer, and answers 400 where a word in it is not among
//! those that it can make one of
//! (<https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations>).
//! Of those of tools, which are not sent as strict, it makes none.

use serde_json::{Map, Value, json};

use super::anthropic_grammar::is_of_objects;
use super::anthropic_pattern::is_plain;
use super::strict::close;

/// Words that are refused wherever they stand: the document names some of them and the others by
/// their kinds, and the provider's own libraries take all of them out. At most, more fits a schema
/// without them.
const REFUSED: [&str; 20] = [
    "contains",
    "dependentRequired",
    "discriminator",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];
/// Words that are refused at the top of the schema of a tool
/// (<https://github.com/anthropics/claude-code/issues/40075>).
const REFUSED_AT_THE_TOP: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// The formats of texts that are taken.
const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// The schema of an answer without the words that are refused, and with its objects closed; it is
/// one of which a grammar can be made. The model reads in a description what was taken out, and the
/// host holds its answer to the whole schema.
pub(super) fn to_wire_schema(mut schema: Value) -> Value {
    take_out(&mut schema);
    close(&mut schema, is_object);
    schema
}

/// The schema of a tool without what is refused there, which the model reads in its description.
/// The host holds arguments to the whole schema.
pub(super) fn to_wire_tool_schema(mut schema: Value) -> Value {
    if let Value::Object(members) = &mut schema {
        let out = REFUSED_AT_THE_TOP.iter().filter_map(|word| members.remove_entry(*word));
        let out = out.collect();
        tell(members, out);
    }
    schema
}

/// True for the members of a schema that objects fit and that names theirs: any other would be left
/// none at all.
fn is_object(members: &Map<String, Value>) -> bool {
    members.contains_key("properties") && is_of_objects(members)
}

/// Says in the description of a schema what was taken out of it.
fn tell(members: &mut Map<String, Value>, out: Map<String, Value>) {
    if out.is_empty() {
        return;
    }
    let told = members.get("description").and_then(Value::as_str);
    let told = told.map_or_else(String::new, |told| format!("{told}\n\n"));
    members.insert("description".to_owned(), json!(format!("{told}{}", Value::Object(out))));
}

fn take_out(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    let mut out = Map::new();
    for word in REFUSED {
        out.extend(members.remove_entry(word));
    }
    if members.get("format").is_some_and(|format| !FORMATS.iter().any(|known| format == known)) {
        out.extend(members.remove_entry("format"));
    }
    let is_taken = |pattern: &Value| pattern.as_str().is_some_and(is_plain);
    if members.get("pattern").is_some_and(|pattern| !is_taken(pattern)) {
        out.extend(members.remove_entry("pattern"));
    }
    // Only 0 and 1 are taken, and an answer with three items has one.
    if members.get("minItems").and_then(Value::as_f64).is_some_and(|least| least > 1.0) {
        out.extend(members.remove_entry("minItems"));
        members.insert("minItems".to_owned(), json!(1));
    }
    // The provider's libraries leave nothing beside a reference.
    if !members.contains_key("$ref") {
        tell(members, out);
    }
    // An object that says that it is open is closed like one that says nothing.
    let more = members.get("additionalProperties");
    if more.is_some_and(|more| *more == json!(true) || *more == json!({})) {
        members.remove("additionalProperties");
    }
    // An answer that fits one of them alone fits one of them at least, which is all that is taken.
    if !members.contains_key("anyOf")
        && let Some(all) = members.remove("oneOf")
    {
        members.insert("anyOf".to_owned(), all);
    }
    // Only here stand schemas: the name of a member, a constant or a default may be such a word.
    for word in ["$defs", "definitions", "properties"] {
        if let Some(Value::Object(all)) = members.get_mut(word) {
            all.values_mut().for_each(take_out);
        }
    }
    for word in ["allOf", "anyOf"] {
        if let Some(Value::Array(all)) = members.get_mut(word) {
            all.iter_mut().for_each(take_out);
        }
    }
    if let Some(items) = members.get_mut("items") {
        take_out(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_provider_refuses_is_taken_out_wherever_a_schema_stands_and_said_in_words() {
        let bounded = || json!({ "type": "string", "description": "A name.", "minLength": 1 });
        let told = || {
            let description = "A name.\n\n{\"minLength\":1}";
            json!({ "type": "string", "description": description })
        };
        let around = |inner: fn() -> Value, one: &str| {
            json!({ "type": "array", "minItems": 1, "items": {
                "type": "object", "additionalProperties": false,
                "properties": { "a": { one: [inner()] }, "b": { "allOf": [inner()] } } },
                "$defs": { "c": inner() }, "definitions": { "d": { "items": inner() } } })
        };
        assert_eq!(to_wire_schema(around(bounded, "oneOf")), around(told, "anyOf"));
        let whole = json!({ "type": "integer", "format": "uint32", "minimum": 0, "maximum": 9,
            "exclusiveMinimum": 0, "exclusiveMaximum": 9, "multipleOf": 3 });
        let list = json!({ "type": "array", "minItems": 2, "maxItems": 3, "uniqueItems": true });
        let word = json!({ "type": "string", "pattern": "\\bone\\b" });
        for (schema, left) in [
            (whole, json!({ "type": "integer" })),
            (list, json!({ "type": "array", "minItems": 1 })),
            (word, json!({ "type": "string" })),
        ] {
            let mut sent = to_wire_schema(schema.clone());
            let told = sent.as_object_mut().and_then(|sent| sent.remove("description"));
            let told = told.expect("a description").to_string();
            let out = schema.as_object().expect("an object").keys();
            for word in out.filter(|word| *word != "type") {
                assert!(told.contains(word), "{word}: {told}");
            }
            assert_eq!(sent, left);
        }
        let mut beside = json!({ "$ref": "#/$defs/c" });
        let sent = beside.clone();
        beside["maxLength"] = json!(3);
        assert_eq!(to_wire_schema(beside), sent, "nothing is said beside a reference");
    }

    #[test]
    fn names_and_values_that_are_such_words_and_what_is_taken_stay() {
        let schema = json!({ "type": "object", "additionalProperties": false,
            "properties": {
                "minimum": { "type": "number", "default": { "maximum": 1 } },
                "format": { "const": { "minLength": 1 } },
                "maxItems": { "enum": ["minItems"] },
                "at": { "type": "string", "format": "date-time", "pattern": "^2" },
            },
            "$defs": { "maxLength": { "type": "null" } } });
        assert_eq!(to_wire_schema(schema.clone()), schema);
    }

    #[test]
    fn an_object_that_names_its_members_is_closed_also_beside_other_kinds_and_no_other_is() {
        for kind in [json!("object"), json!(["object", "null"])] {
            let mut schema = json!({ "type": kind, "properties": { "a": { "type": "null" } } });
            let sent = to_wire_schema(schema.clone());
            for open in [json!(true), json!({})] {
                schema["additionalProperties"] = open;
                assert_eq!(to_wire_schema(schema.clone()), sent, "it says itself that it is open");
            }
            schema["additionalProperties"] = json!(false);
            assert_eq!(sent, schema);
            let any = json!({ "type": kind });
            assert_eq!(to_wire_schema(any.clone()), any, "nothing but an empty one would be left");
        }
    }
}
