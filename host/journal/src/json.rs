//! JSON as it comes from guests, models and people: one value, no key twice in an object, also not
//! in another spelling, nested at most [`DEPTH_MAX`] deep.
//!
//! Parsers disagree about what a repeated key means. Were one let through, what the host checks and
//! a person is shown could be another value than the one that a guest acts on.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::text::cut;

/// Deepest nesting: `[]` is 1 deep. Enough for what programs write, and shallow enough for whoever
/// reads it by recursion.
pub const DEPTH_MAX: usize = 128;
/// The parser counts levels, too, and refuses one of less than 128; what is deeper than this is
/// handed to a parser of its own.
const DEPTH_OF_ONE_PARSER: usize = 100;
/// Most bytes that are shown of a key that stands twice.
const KEY_SHOWN_BYTES: usize = 64;

/// Checks a text, of which nothing is kept.
///
/// # Errors
/// The fault and its place.
pub fn check(text: &str) -> Result<(), String> {
    read::<()>(text, &mut ValueBudget(usize::MAX))
}

/// The value of a text that holds at most so many values, those within others included.
///
/// # Errors
/// The fault and its place.
pub fn parse(text: &str, values_max: usize) -> Result<Value, String> {
    read(text, &mut ValueBudget(values_max))
}

fn read<T: Sink>(text: &str, room: &mut ValueBudget) -> Result<T, String> {
    let mut input = serde_json::Deserializer::from_str(text);
    let level = Level { depth: 0, room, keep: std::marker::PhantomData };
    let value = level.deserialize(&mut input).and_then(|value| input.end().map(|()| value));
    value.map_err(|error| error.to_string())
}

/// The number of values that there may still be.
struct ValueBudget(usize);

/// Either a value or nothing, of what was read.
trait Sink: Sized {
    type Items: Default;
    type Entries: Default;
    fn leaf(value: Value) -> Self;
    fn string(text: &str) -> Self;
    fn item(items: &mut Self::Items, item: Self);
    fn entry(entries: &mut Self::Entries, key: &str, value: Self);
    fn array(items: Self::Items) -> Self;
    fn object(entries: Self::Entries) -> Self;
}

impl Sink for () {
    type Items = ();
    type Entries = ();
    fn leaf(_: Value) {}
    fn string(_: &str) {}
    fn item((): &mut (), (): ()) {}
    fn entry((): &mut (), _: &str, (): ()) {}
    fn array((): ()) {}
    fn object((): ()) {}
}

impl Sink for Value {
    type Items = Vec<Self>;
    type Entries = Map<String, Self>;
    fn leaf(value: Value) -> Self {
        value
    }
    fn string(text: &str) -> Self {
        Self::String(text.to_owned())
    }
    fn item(items: &mut Vec<Self>, item: Self) {
        items.push(item);
    }
    fn entry(entries: &mut Map<String, Self>, key: &str, value: Self) {
        entries.insert(key.to_owned(), value);
    }
    fn array(items: Vec<Self>) -> Self {
        Self::Array(items)
    }
    fn object(entries: Map<String, Self>) -> Self {
        Self::Object(entries)
    }
}

/// A place in the text, so many arrays and objects deep.
struct Level<'r, T> {
    depth: usize,
    room: &'r mut ValueBudget,
    keep: std::marker::PhantomData<T>,
}

impl<T> Level<'_, T> {
    fn within(&mut self) -> Level<'_, T> {
        Level { depth: self.depth, room: self.room, keep: std::marker::PhantomData }
    }

    fn deeper<E: Error>(&mut self) -> Result<(), E> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(E::custom(format_args!("nested deeper than {DEPTH_MAX}")));
        }
        Ok(())
    }
}

impl<'de, T: Sink> DeserializeSeed<'de> for Level<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<T, D::Error> {
        self.room.0 =
            self.room.0.checked_sub(1).ok_or_else(|| {
                D::Error::custom("there are more values in it than can be looked at")
            })?;
        if self.depth > 0 && self.depth.is_multiple_of(DEPTH_OF_ONE_PARSER) {
            let text: &RawValue = serde::Deserialize::deserialize(input)?;
            let mut input = serde_json::Deserializer::from_str(text.get());
            return input.deserialize_any(self).map_err(D::Error::custom);
        }
        input.deserialize_any(self)
    }
}

impl<'de, T: Sink> Visitor<'de> for Level<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<T, E> {
        Ok(T::leaf(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<T, E> {
        Ok(T::leaf(Value::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<T, E> {
        Ok(T::leaf(Value::from(value)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        Ok(T::leaf(Value::Number(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::string(text))
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::leaf(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut input: A) -> Result<T, A::Error> {
        self.deeper()?;
        let mut items = T::Items::default();
        while let Some(item) = input.next_element_seed(self.within())? {
            T::item(&mut items, item);
        }
        Ok(T::array(items))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut input: A) -> Result<T, A::Error> {
        self.deeper()?;
        let mut entries = T::Entries::default();
        let mut keys: HashSet<String> = HashSet::new();
        while let Some(key) = input.next_key::<String>()? {
            let value = input.next_value_seed(self.within())?;
            if keys.contains(&key) {
                let key = cut(&key, KEY_SHOWN_BYTES);
                return Err(A::Error::custom(format_args!("the key {key:?} stands twice")));
            }
            T::entry(&mut entries, &key, value);
            keys.insert(key);
        }
        Ok(T::object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(deep: usize) -> [String; 3] {
        let objects = format!("{}1{}", r#"{"a":"#.repeat(deep), "}".repeat(deep));
        let mixed = format!("{}1{}", r#"[{"a":"#.repeat(deep / 2), "}]".repeat(deep / 2));
        [format!("{}{}", "[".repeat(deep), "]".repeat(deep)), objects, mixed]
    }

    #[test]
    fn case_50_values_of_every_kind_are_accepted_as_they_are() {
        for text in ["null", "true", "-1", "1.5e3", r#""ä""#, "[1,[2,{}]]", r#"{"a":{"a":1}}"#] {
            assert_eq!(check(text), Ok(()), "{text}");
            assert_eq!(parse(text, 10), Ok(serde_json::from_str(text).expect("JSON")));
        }
    }

    #[test]
    fn case_50_what_others_would_read_differently_is_refused() {
        let texts = [
            "",
            "{",
            "1 2",
            "NaN",
            "1e400",
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"x":{"a":1,"b":2,"a":1}}]"#,
            r#""\ud800""#,
            "\u{feff}1",
            "{'a':1}",
        ];
        for text in texts {
            assert!(check(text).is_err(), "{text}");
            assert!(parse(text, 10).is_err(), "{text}");
        }
        let long = format!(r#"{{"{0}":1,"{0}":1}}"#, "k".repeat(1 << 20));
        assert!(check(&long).expect_err("twice").len() < 200);
    }

    #[test]
    fn nesting_of_exactly_128_is_allowed_and_none_deeper() {
        for text in [nested(127), nested(128)].concat() {
            assert_eq!(check(&text), Ok(()), "{text}");
            assert!(parse(&text, 1_000).is_ok(), "{text}");
        }
        for deep in [130, 200, 100_000] {
            for text in nested(deep) {
                let refused = check(&text).expect_err("too deep");
                assert!(refused.contains("nested deeper than 128"), "{refused}");
                assert!(parse(&text, 1_000_000).is_err());
            }
        }
        let deep = nested(129);
        assert!(deep[..2].iter().all(|text| check(text).is_err()));
    }

    #[test]
    fn more_values_than_there_is_room_for_are_refused() {
        assert!(parse("[1,2,3]", 4).is_ok());
        assert!(parse("[1,2,3]", 3).is_err());
        assert!(parse(r#"{"a":[{}]}"#, 2).is_err());
    }
}
