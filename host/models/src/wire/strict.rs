//! Schemas that OpenAI takes as strict.

use serde_json::{Value, json};

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
