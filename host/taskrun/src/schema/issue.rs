//! A mistake in a value, in words that are short however large the value is.

use std::fmt::{self, Write};

use serde_json::Value;
use taskrun_journal::text::cut;

/// Most mistakes that are told of a value: it is a guest's, and could be wrong in a million places.
pub(super) const ISSUES_MAX: usize = 8;
/// Most bytes of a name, a value or a list in what is told.
const SHOWN_BYTES_MAX: usize = 120;

/// A mistake in a place of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Issue {
    /// The place as a JSON pointer without the leading slash; empty for the whole value.
    pub(crate) field: String,
    /// The kind of mistake.
    pub(crate) problem: Problem,
}

/// A kind of mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// A member of this name is missing.
    Missing(String),
    /// The value is none of these.
    NotListed(String),
    /// Anything else, said of the value.
    Other(String),
}

/// A step from a value to one within it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'v> {
    Member(&'v str),
    Item(usize),
}

/// The pointer to a place.
pub(super) fn pointer(path: &[Step<'_>]) -> String {
    let mut text = String::new();
    for step in path {
        if !text.is_empty() {
            text.push('/');
        }
        match step {
            Step::Member(name) => {
                text.push_str(&cut(name, SHOWN_BYTES_MAX).replace('~', "~0").replace('/', "~1"));
            }
            Step::Item(index) => write!(text, "{index}").expect("a text grows"),
        }
    }
    text
}

/// A value as JSON, as far as there is room.
pub(super) struct Shown<'v>(pub(super) &'v Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut short = Short { text: String::new() };
        // What has no room is left out.
        let whole = write_value(self.0, &mut short).is_ok();
        f.write_str(&short.text)?;
        f.write_str(if whole { "" } else { "..." })
    }
}

/// Values, separated by commas, as far as there is room.
pub(super) fn listed(values: &[Value]) -> String {
    let mut short = Short { text: String::new() };
    let written = values.iter().enumerate().try_for_each(|(index, value)| {
        short.write_str(if index == 0 { "" } else { ", " })?;
        match value.as_str() {
            Some(text) => short.write_str(text),
            None => write_value(value, &mut short),
        }
    });
    if written.is_err() {
        short.text.push_str("...");
    }
    short.text
}

/// A text that takes no more than there is room for.
struct Short {
    text: String,
}

impl Write for Short {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = SHOWN_BYTES_MAX.saturating_sub(self.text.len());
        self.text.push_str(cut(more, room));
        if more.len() > room { Err(fmt::Error) } else { Ok(()) }
    }
}

fn write_value(value: &Value, out: &mut Short) -> fmt::Result {
    match value {
        Value::Null => out.write_str("null"),
        Value::Bool(one) => write!(out, "{one}"),
        Value::Number(one) => write!(out, "{one}"),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.write_str("[")?;
            for (index, item) in items.iter().enumerate() {
                out.write_str(if index == 0 { "" } else { "," })?;
                write_value(item, out)?;
            }
            out.write_str("]")
        }
        Value::Object(members) => {
            out.write_str("{")?;
            for (index, (name, member)) in members.iter().enumerate() {
                out.write_str(if index == 0 { "" } else { "," })?;
                write_text(name, out)?;
                out.write_str(":")?;
                write_value(member, out)?;
            }
            out.write_str("}")
        }
    }
}

fn write_text(text: &str, out: &mut Short) -> fmt::Result {
    // Enough to fill the room, so that a long text is not escaped whole.
    let short = cut(text, SHOWN_BYTES_MAX);
    out.write_str(&Value::from(short).to_string())?;
    if short.len() < text.len() { Err(fmt::Error) } else { Ok(()) }
}
