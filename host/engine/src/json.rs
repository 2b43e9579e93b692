//! JSON as it comes from guests: one value, no key twice, nested at most 128 deep.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Checks a text.
///
/// # Errors
/// What is wrong with it, and where.
pub(crate) fn check(text: &str) -> Result<(), String> {
    // The parser itself refuses to go deeper than 128.
    serde_json::from_str::<Checked>(text).map(|_| ()).map_err(|error| error.to_string())
}

/// A JSON value of which nothing is kept.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(CheckVisitor)
    }
}

struct CheckVisitor;

impl<'de> Visitor<'de> for CheckVisitor {
    type Value = Checked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_str<E>(self, _: &str) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_unit<E>(self) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Checked, A::Error> {
        while items.next_element::<Checked>()?.is_some() {}
        Ok(Checked)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Checked, A::Error> {
        let mut keys = HashSet::new();
        while let Some((key, _)) = entries.next_entry::<String, Checked>()? {
            if let Some(key) = keys.replace(key) {
                let key = taskrun::ports::call::cut(&key, 64);
                return Err(serde::de::Error::custom(format_args!("the key {key:?} stands twice")));
            }
        }
        Ok(Checked)
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn values_of_every_kind_are_accepted() {
        for text in ["null", "true", "-1", "1.5e3", r#""ä""#, "[1,[2,{}]]", r#"{"a":{"a":1}}"#] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        let deep = format!("{}{}", "[".repeat(127), "]".repeat(127));
        assert_eq!(check(&deep), Ok(()));
    }

    #[test]
    fn what_others_would_read_differently_is_refused() {
        let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
        let texts = [
            "",
            "{",
            "1 2",
            "NaN",
            "1e400",
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#""\ud800""#,
            "\u{feff}1",
            "{'a':1}",
            &deep,
        ];
        for text in texts {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
