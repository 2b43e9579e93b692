//! Canonical JSON: one text for one content.
//!
//! UTF-8, the keys of an object sorted by their bytes, no spaces, and of values only texts,
//! booleans, whole numbers, lists and objects; a thing that is absent has no key. The writer is
//! our own, as the order of keys in `serde_json` depends on a feature that any crate of a program
//! can turn on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::time::Duration;

use taskrun_journal::time::millis;

/// A value of canonical JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Canonical {
    Flag(bool),
    /// A count, or a quantity in the unit that its key ends with.
    Number(u64),
    Text(String),
    List(Vec<Canonical>),
    Object(Object),
}

/// An object of canonical JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Object(BTreeMap<String, Canonical>);

impl Object {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Of two values of one key the later counts.
    pub(super) fn with(mut self, key: impl Into<String>, value: impl Into<Canonical>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// Writes nothing where there is no value.
    pub(super) fn with_some(self, key: &str, value: Option<impl Into<Canonical>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }
}

impl Canonical {
    /// A list whose order means nothing: sorted by bytes, without repetition.
    pub(super) fn set(all: impl IntoIterator<Item = impl Display>) -> Self {
        let sorted: BTreeSet<String> = all.into_iter().map(|one| one.to_string()).collect();
        Self::List(sorted.into_iter().map(Self::Text).collect())
    }
}

/// Prints the canonical text.
impl Display for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write_text(f, text),
            Self::List(all) => {
                f.write_str("[")?;
                for (index, one) in all.iter().enumerate() {
                    write!(f, "{}{one}", if index == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Self::Object(object) => write!(f, "{object}"),
        }
    }
}

/// Prints the canonical text.
impl Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        // The order of texts is that of their bytes.
        for (index, (key, value)) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            write_text(f, key)?;
            write!(f, ":{value}")?;
        }
        f.write_str("}")
    }
}

/// Writes a text as RFC 8785 has it: escaped are `"`, `\` and the control characters below a
/// space, in their short form where JSON has one.
fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for character in text.chars() {
        match character {
            '"' => f.write_str("\\\""),
            '\\' => f.write_str("\\\\"),
            '\u{8}' => f.write_str("\\b"),
            '\t' => f.write_str("\\t"),
            '\n' => f.write_str("\\n"),
            '\u{c}' => f.write_str("\\f"),
            '\r' => f.write_str("\\r"),
            control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control)),
            other => write!(f, "{other}"),
        }?;
    }
    f.write_str("\"")
}

impl From<bool> for Canonical {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u64> for Canonical {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Canonical {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

/// Whole milliseconds: policies have no finer times.
impl From<Duration> for Canonical {
    fn from(duration: Duration) -> Self {
        Self::Number(millis(duration))
    }
}

impl From<&str> for Canonical {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Canonical {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Object> for Canonical {
    fn from(object: Object) -> Self {
        Self::Object(object)
    }
}

/// A list whose order means something.
impl From<Vec<Self>> for Canonical {
    fn from(all: Vec<Self>) -> Self {
        Self::List(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_content_has_one_text() {
        let inner = Object::new().with_some("absent", None::<u64>).with_some("there", Some(true));
        let object = Object::new()
            .with("é", "\u{e9}\u{1f600}\u{7f}")
            .with("b", "\"\\/\u{8}\t\n\u{c}\r\0\u{1f}")
            .with("a", Canonical::set(["b", "a", "B", "b"]))
            .with("B", vec![Canonical::from(u64::MAX), Canonical::from(0_u32)])
            .with("c", Duration::from_millis(1_500))
            .with("aa", inner);
        assert_eq!(
            object.to_string(),
            "{\"B\":[18446744073709551615,0],\"a\":[\"B\",\"a\",\"b\"],\"aa\":{\"there\":true},\
             \"b\":\"\\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u001f\",\"c\":1500,\
             \"é\":\"\u{e9}\u{1f600}\u{7f}\"}"
        );
    }

    #[test]
    fn a_text_is_what_readers_of_json_read() {
        let text: String = (0..=0x2fff).filter_map(char::from_u32).collect();
        let written = Canonical::from(text.as_str()).to_string();
        assert_eq!(serde_json::from_str::<String>(&written).expect("it is JSON"), text);
        assert_eq!(written, serde_json::to_string(&text).expect("a text can be written"));
    }
}
