//! Schemas and arguments made of pieces at random.

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

#[test]
fn fuzz_any_arguments_are_held_to_any_schema_in_the_steps_there_are() {
    const STEPS: u64 = 20_000;
    let inputs = bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>();
    inputs.for_each(|(schema, value): &(Vec<u8>, Vec<u8>)| {
        let (schema, value) = (value_of(&mut schema.iter(), 8), value_of(&mut value.iter(), 8));
        let Ok(read) = Schema::new(&schema, &mut Allowance::default()) else { return };
        let look = |steps| {
            let mut fuel = Fuel::new(steps, 64);
            let issues = read.issues(&value, &mut fuel);
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
    });
}
