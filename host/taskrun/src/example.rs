//! Arguments that a schema accepts, as an example for whoever gave others.

use serde_json::{Map, Value};

/// Most bytes of an example: it stands in the conversation with each refusal.
const EXAMPLE_BYTES_MAX: usize = 1 << 10;
/// Objects within objects that are filled in.
const DEPTH_MAX: u32 = 4;

/// The least that the schema says has to be there, or what it names as an example itself. `None`
/// where that is not accepted, or too large.
pub(crate) fn example(schema: &Value, accepts: impl FnOnce(&Value) -> bool) -> Option<String> {
    let value = value(schema, DEPTH_MAX)?;
    let text = value.to_string();
    (text.len() <= EXAMPLE_BYTES_MAX && accepts(&value)).then_some(text)
}

fn value(schema: &Value, depth: u32) -> Option<Value> {
    let first = |key: &str| schema.get(key)?.as_array()?.first().cloned();
    let stated = first("examples").or_else(|| schema.get("const").cloned());
    if let Some(stated) =
        stated.or_else(|| schema.get("default").cloned()).or_else(|| first("enum"))
    {
        return Some(stated);
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("object") | None => object(schema, depth.checked_sub(1)?),
        Some("string") => Some(Value::from("...")),
        Some("integer" | "number") => {
            Some(schema.get("minimum").cloned().unwrap_or_else(|| Value::from(0)))
        }
        Some("boolean") => Some(Value::Bool(false)),
        Some("array") => Some(Value::Array(Vec::new())),
        Some(_) => Some(Value::Null),
    }
}

fn object(schema: &Value, depth: u32) -> Option<Value> {
    let required = schema.get("required").and_then(Value::as_array);
    let mut filled = Map::new();
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        let of = schema.get("properties").and_then(|all| all.get(name)).unwrap_or(&Value::Null);
        filled.insert(name.to_owned(), value(of, depth)?);
    }
    Some(Value::Object(filled))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn l_076_an_example_is_the_least_that_is_accepted_or_what_the_schema_names() {
        let list = json!({ "type": "array", "items": { "type": "string" } });
        let required = json!({ "type": "object", "required": ["a", "b", "c", "d"], "properties": {
            "a": { "type": "string" },
            "b": { "enum": ["x", "y"] },
            "c": { "type": "object", "required": ["n"], "properties": {
                "n": { "type": "integer", "minimum": 3 } } },
            "d": list, "e": { "type": "string" } } });
        let named = json!({ "type": "object", "examples": [{ "q": 1 }] });
        let strict = json!({ "type": "object", "required": ["a"], "properties": {
            "a": { "type": "string", "minLength": 10 } } });
        for (schema, expected) in [
            (required, Some(r#"{"a":"...","b":"x","c":{"n":3},"d":[]}"#)),
            (named, Some(r#"{"q":1}"#)),
            (json!({ "type": "object" }), Some("{}")),
            (strict, None),
        ] {
            let accepts = crate::schema::Schema::new(&schema, &mut Default::default());
            let accepts = accepts.expect("a schema");
            let fits = |value: &Value| {
                let issues = accepts.issues(value, &mut crate::schema::Fuel::new(1_000, 10));
                issues.is_ok_and(|issues| issues.is_empty())
            };
            assert_eq!(example(&schema, fits).as_deref(), expected, "{schema}");
        }
    }
}
