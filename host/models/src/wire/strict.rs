//! Schemas of answers as providers want them: closed, and strict for OpenAI.

use serde_json::{Map, Value, json};

/// The schema with every object in it closed that names its members and does not say itself whether
/// it is: OpenAI takes no other as strict. An answer that fits it fits the schema that it is made
/// of.
pub(super) fn closed(mut schema: Value) -> Value {
    close(&mut schema, |members| {
        members.get("type") == Some(&json!("object")) && members.contains_key("properties")
    });
    schema
}

/// Closes the objects that `is_object` finds by the members of a schema.
pub(super) fn close(schema: &mut Value, is_object: fn(&Map<String, Value>) -> bool) {
    let Value::Object(members) = schema else { return };
    // What else may say something about members: they are not known by `properties` alone then.
    let others = ["$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties"];
    let is_alone = !others.iter().any(|key| members.contains_key(*key));
    if is_alone && is_object(members) {
        members.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    for key in ["properties", "$defs", "definitions"] {
        if let Some(Value::Object(all)) = members.get_mut(key) {
            all.values_mut().for_each(|inner| close(inner, is_object));
        }
    }
    if let Some(Value::Array(all)) = members.get_mut("anyOf") {
        all.iter_mut().for_each(|inner| close(inner, is_object));
    }
    if let Some(items) = members.get_mut("items") {
        close(items, is_object);
    }
}

/// Tells if OpenAI takes a schema as strict: every object names all its members, requires them and
/// has no others, and no word is used that it does not know
/// (<https://platform.openai.com/docs/guides/structured-outputs#supported-schemas>).
pub(super) fn is_strict(schema: &Value) -> bool {
    const UNKNOWN: [&str; 9] = [
        "allOf",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "not",
        "oneOf",
        "patternProperties",
        "then",
    ];
    let Value::Object(members) = schema else { return false };
    let all = |key: &str| members.get(key).and_then(Value::as_object);
    let list = |key: &str| members.get(key).and_then(Value::as_array);
    let properties = all("properties");
    let is_object = members.get("type") == Some(&json!("object")) || properties.is_some();
    let required = list("required");
    let requires = |name: &String| required.is_some_and(|all| all.contains(&json!(name)));
    let closed = !is_object
        || (members.get("additionalProperties") == Some(&Value::Bool(false))
            && properties.is_some_and(|all| all.keys().all(requires)));
    closed
        && !UNKNOWN.iter().any(|word| members.contains_key(*word))
        && properties.is_none_or(|all| all.values().all(is_strict))
        && all("$defs").is_none_or(|all| all.values().all(is_strict))
        && list("anyOf").is_none_or(|all| all.iter().all(is_strict))
        && members.get("items").is_none_or(is_strict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_closed_wherever_they_stand_and_open_ones_stay_so() {
        let object = |more: Value| {
            let mut object = json!({ "type": "object", "properties": { "a": {} } });
            if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
                object.extend(more);
            }
            object
        };
        let open = object(json!({}));
        let shut = object(json!({ "additionalProperties": false }));
        let around = |inner: &Value| {
            json!({ "type": "object", "additionalProperties": true, "properties": {
                "list": { "type": "array", "items": inner }, "any": { "anyOf": [inner] } },
                "$defs": { "d": inner } })
        };
        assert_eq!(closed(around(&open)), around(&shut));
        let free = json!({ "type": "object" });
        assert_eq!(closed(free.clone()), free);
    }

    #[test]
    fn a_schema_is_strict_if_openai_takes_it_as_such() {
        let closed = |properties: Value, required: Value| {
            json!({ "type": "object", "additionalProperties": false,
                "properties": properties, "required": required })
        };
        let inner = closed(json!({ "b": { "type": ["string", "null"] } }), json!(["b"]));
        let list = json!({ "type": "array", "items": inner });
        assert!(is_strict(&closed(json!({ "a": list }), json!(["a"]))));
        let open = json!({ "type": "object", "properties": {} });
        let wrong = [
            open.clone(),
            json!({ "type": "object", "additionalProperties": false }),
            closed(json!({ "a": { "type": "string" } }), json!([])),
            closed(json!({ "a": open }), json!(["a"])),
            closed(json!({ "a": { "type": "array", "items": open } }), json!(["a"])),
            closed(json!({ "a": { "anyOf": [open] } }), json!(["a"])),
            json!({ "oneOf": [{ "type": "string" }] }),
        ];
        for schema in wrong {
            assert!(!is_strict(&schema), "{schema}");
        }
    }
}
