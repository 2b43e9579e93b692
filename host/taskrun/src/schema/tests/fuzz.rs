//! Schemas and arguments made of pieces at random.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::*;

/// Keywords, and what is none.
const KEYS: [&str; 24] = [
    "type",
    "properties",
    "required",
    "items",
    "prefixItems",
    "additionalProperties",
    "patternProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "$ref",
    "$defs",
    "enum",
    "const",
    "pattern",
    "minimum",
    "multipleOf",
    "uniqueItems",
    "contains",
    "a",
];

/// Values that stand alone.
fn leaf(pick: u8) -> Value {
    match pick % 14 {
        0 => json!("string"),
        1 => json!("object"),
        2 => json!("#"),
        3 => json!("#/$defs/a"),
        4 => json!("(a|b)*c{0,40}"),
        5 => json!("["),
        6 => json!(0),
        7 => json!(-1.5),
        8 => json!(1e300),
        9 => json!(u64::MAX),
        10 => json!(true),
        11 => json!(false),
        12 => json!("aaaaaaaaaaaaaaaaaaaaaaaa"),
        _ => Value::Null,
    }
}

/// A value of as many pieces as there are bytes.
fn value_of(bytes: &mut std::slice::Iter<'_, u8>, depth: u32) -> Value {
    let Some(pick) = bytes.next().copied() else { return json!({}) };
    match pick % 8 {
        0..=3 if depth > 0 => {
            let mut object = Map::new();
            for _ in 0..pick / 8 % 5 {
                let Some(key) = bytes.next() else { break };
                let key = KEYS[usize::from(*key) % KEYS.len()].to_owned();
                object.insert(key, value_of(bytes, depth - 1));
            }
            object.into()
        }
        4 | 5 if depth > 0 => {
            let count = pick / 8 % 6;
            (0..count).map(|_| value_of(bytes, depth - 1)).collect()
        }
        _ => leaf(pick / 8),
    }
}

/// The schema of a tool, and arguments that fit it and that do not.
#[derive(Deserialize)]
struct Example {
    schema: Value,
    fits: Vec<Value>,
    misfits: Vec<Value>,
}

/// Schemas as tools have them.
fn examples() -> Vec<Example> {
    serde_json::from_str(include_str!("corpus.json")).expect("examples")
}

#[test]
fn each_schema_of_the_corpus_tells_arguments_that_fit_from_others() {
    for Example { schema, fits, misfits } in examples() {
        for value in fits {
            assert_eq!(super::issues(&schema, &value), [], "{schema} {value}");
        }
        for value in misfits {
            assert_ne!(super::issues(&schema, &value), [], "{schema} {value}");
        }
    }
}

/// The places of a value, its own and those within it, as JSON pointers.
fn places(value: &Value, own: &str, all: &mut Vec<String>) {
    all.push(own.to_owned());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                places(item, &format!("{own}/{index}"), all);
            }
        }
        Value::Object(members) => {
            for (key, member) in members {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(member, &format!("{own}/{key}"), all);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A value with others at one or two of its places, or none.
fn changed(value: &Value, changes: &[(u8, Vec<u8>)]) -> Value {
    let mut value = value.clone();
    for (at, with) in changes.iter().take(changes.len() % 3) {
        let mut all = Vec::new();
        places(&value, "", &mut all);
        let place = value.pointer_mut(&all[usize::from(*at) % all.len()]);
        *place.expect("one of its places") = value_of(&mut with.iter(), 3);
    }
    value
}

type Changes = Vec<(u8, Vec<u8>)>;

#[test]
fn fuzz_arguments_of_tools_with_changes_are_held_to_a_schema_in_the_steps_there_are() {
    let examples = examples();
    let inputs = bolero::check!().with_type::<(u8, u8, Changes, Changes)>();
    inputs.for_each(|(pick, value, schema_changes, changes): &(u8, u8, Changes, Changes)| {
        let Example { schema, fits, misfits } = &examples[usize::from(*pick) % examples.len()];
        let value = usize::from(*value) % (fits.len() + misfits.len());
        let value = fits.iter().chain(misfits).nth(value).expect("there are as many");
        is_held_in_the_steps_there_are(&changed(schema, schema_changes), &changed(value, changes));
    });
}

#[test]
fn fuzz_any_arguments_are_held_to_any_schema_in_the_steps_there_are() {
    let inputs = bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>();
    inputs.for_each(|(schema, value): &(Vec<u8>, Vec<u8>)| {
        let (schema, value) = (value_of(&mut schema.iter(), 8), value_of(&mut value.iter(), 8));
        is_held_in_the_steps_there_are(&schema, &value);
    });
}

fn is_held_in_the_steps_there_are(schema: &Value, value: &Value) {
    const STEPS: u64 = 20_000;
    let Ok(read) = Schema::new(schema, &mut Allowance::default()) else { return };
    let look = |steps| {
        let mut fuel = Fuel::new(steps, 64);
        let issues = read.issues(value, &mut fuel);
        (issues, steps - fuel.left())
    };
    let (issues, taken) = look(STEPS);
    assert_eq!(look(STEPS), (issues.clone(), taken), "{schema} {value}");
    match issues {
        // With fewer steps than it takes nothing is said; with as many the same.
        Ok(issues) => {
            assert_eq!(look(taken), (Ok(issues), taken), "{schema} {value}");
            if let Some(fewer) = taken.checked_sub(1) {
                assert_eq!(look(fewer).0, Err(Spent::Steps), "{schema} {value}");
            }
        }
        Err(spent) => assert_ne!(spent, Spent::Stopped, "{schema} {value}"),
    }
}
