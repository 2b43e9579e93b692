//! Reading a table of the policy key by key, reporting what is wrong with each value.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use taskrun_journal::money::parse_usd;
use taskrun_journal::quantity::{DurationDisplay, SizeDisplay};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{PolicyErrorKind, Problems, is_hostile, nearest, shown};
use super::quantity::{QuantityError, parse_duration, parse_size};

/// Most tags of one list: each tool's are compared with all of them, turn after turn.
const TAGS_MAX: usize = 256;

/// Most keys of a table that are listed beside the one that is meant: in more of them it is not found.
const LISTED_MAX: usize = 12;
/// The page that has a heading for each key but those of models.
const KEYS_PAGE: &str = "docs/policy.md";
/// The page that has one for each key of a model.
const MODEL_KEYS_PAGE: &str = "docs/models.md";

/// A table of the file, and how to name it to a person.
pub(super) struct Section<'t, 's> {
    pub(super) problems: &'t Problems<'s>,
    /// Such as `[agent.researcher]` or `limits of [agent.researcher]`.
    pub(super) label: String,
    /// Its header, or its braces.
    pub(super) span: Range<usize>,
    pub(super) table: &'t DeTable<'t>,
}

/// A string of the file.
#[derive(Clone)]
pub(super) struct Text<'t> {
    pub(super) value: &'t str,
    /// With its quotation marks.
    pub(super) span: Range<usize>,
}

impl Text<'_> {
    /// The span of a part of the value, or of all of it if it is written with escapes, so that
    /// its bytes are not those of the file.
    pub(super) fn part(&self, problems: &Problems<'_>, offset: usize, len: usize) -> Range<usize> {
        let written = problems.source.text.get(self.span.clone()).unwrap_or_default();
        let plain = written.len() == self.value.len() + 2
            && written.get(1..written.len() - 1) == Some(self.value);
        if !plain {
            return self.span.clone();
        }
        let start = self.span.start + 1 + offset;
        start..start + len
    }
}

impl<'t, 's> Section<'t, 's> {
    pub(super) fn root(problems: &'t Problems<'s>, table: &'t DeTable<'t>) -> Self {
        let end = problems.source.text.len();
        Self { problems, label: "the policy".to_owned(), span: end..end, table }
    }

    pub(super) fn report(
        &self,
        span: Range<usize>,
        kind: PolicyErrorKind,
        help: impl Into<String>,
    ) {
        self.problems.add(span, kind, help);
    }

    /// Reports every key that is not one of `known`.
    pub(super) fn expect_keys(&self, known: &[&str]) {
        for key in self.table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let name = key.get_ref().as_ref();
            let kind = PolicyErrorKind::UnknownKey { key: shown(name), table: self.label.clone() };
            let all = || format!("known keys: `{}`", known.join("`, `"));
            let help = match nearest(name, known) {
                Some(near) if known.len() > LISTED_MAX => {
                    format!("did you mean `{near}`? all keys: {}", self.keys_page())
                }
                Some(near) => format!("did you mean `{near}`? {}", all()),
                None => all(),
            };
            self.report(key.span(), kind, help);
        }
    }

    /// The page that has a heading for each key of this table.
    fn keys_page(&self) -> &'static str {
        // A table in another one is named before that.
        let outermost = self.label.rsplit(" of ").next();
        match outermost.is_some_and(|table| table.starts_with("[model.")) {
            true => MODEL_KEYS_PAGE,
            false => KEYS_PAGE,
        }
    }

    /// The names of a table of named things, and the table of each. Reports names that are none.
    pub(super) fn named(
        &self,
        key: &'static str,
        what: &'static str,
    ) -> Vec<(String, Section<'t, 's>)> {
        let Some(group) = self.section(key) else {
            return Vec::new();
        };
        let mut sections = Vec::new();
        for (name, value) in group.table {
            let text = name.get_ref().as_ref();
            if !is_name(text) {
                let kind = PolicyErrorKind::BadName { what, name: shown(text) };
                let help = "write at most 64 of a-z, 0-9, `_` and `-`, beginning with a letter";
                self.report(name.span(), kind, help);
            }
            let label = format!("[{key}.{}]", shown(text));
            if let Some(section) = self.as_section(label, value) {
                sections.push((text.to_owned(), section));
            }
        }
        sections
    }

    /// The table under `key`; `None` if absent.
    pub(super) fn section(&self, key: &'static str) -> Option<Section<'t, 's>> {
        let value = self.table.get(key)?;
        let label = match self.label.as_str() {
            "the policy" => format!("[{key}]"),
            label => format!("`{key}` of {label}"),
        };
        self.as_section(label, value)
    }

    /// The tables of the list under `key`; empty if absent.
    pub(super) fn sections(&self, key: &'static str) -> Vec<Section<'t, 's>> {
        let Some(value) = self.table.get(key) else {
            return Vec::new();
        };
        let Some(list) = value.get_ref().as_array() else {
            self.wrong_type(key, "a list of tables", value);
            return Vec::new();
        };
        let label = |index: usize| format!("{key} {} of {}", index + 1, self.label);
        list.iter()
            .enumerate()
            .filter_map(|(index, item)| self.as_section(label(index), item))
            .collect()
    }

    /// Tells if there is anything under `key`.
    pub(super) fn has(&self, key: &'static str) -> bool {
        self.table.contains_key(key)
    }

    fn as_section(
        &self,
        label: String,
        value: &'t Spanned<DeValue<'t>>,
    ) -> Option<Section<'t, 's>> {
        match value.get_ref().as_table() {
            Some(table) => {
                Some(Section { problems: self.problems, label, span: value.span(), table })
            }
            None => {
                self.wrong_type(&label, "a table", value);
                None
            }
        }
    }

    /// The string under `key`, with nothing in it that cannot be shown; `None` if absent or
    /// wrong.
    pub(super) fn string(&self, key: &'static str) -> Option<Text<'t>> {
        self.as_text(key, "a string", self.table.get(key)?)
    }

    /// The string under `key`, which may have several lines; `None` if absent or wrong.
    pub(super) fn text_block(&self, key: &'static str) -> Option<Text<'t>> {
        let value = self.table.get(key)?;
        let is_space = |character: char| matches!(character, '\n' | '\r' | '\t');
        self.as_text_but_for(key, "a string", value, is_space)
    }

    /// The string under `key`, which must be there.
    pub(super) fn required_string(&self, key: &'static str, example: &str) -> Option<Text<'t>> {
        if self.table.get(key).is_none() {
            let kind = PolicyErrorKind::MissingKey { key, table: self.label.clone() };
            self.report(self.span.clone(), kind, format!("add: {key} = \"{example}\""));
        }
        self.string(key)
    }

    /// The keys, in their order.
    pub(super) fn keys(&self) -> Vec<Text<'t>> {
        let texts = self.table.keys();
        texts.map(|key| Text { value: key.get_ref().as_ref(), span: key.span() }).collect()
    }

    /// Where the value under `key` stands; `None` if absent.
    pub(super) fn span_of(&self, key: &'static str) -> Option<Range<usize>> {
        self.table.get(key).map(Spanned::span)
    }

    /// The strings of the list under `key`; empty if absent.
    pub(super) fn strings(&self, key: &'static str) -> Vec<Text<'t>> {
        let Some(value) = self.table.get(key) else {
            return Vec::new();
        };
        let Some(list) = value.get_ref().as_array() else {
            self.wrong_type(key, "a list of strings", value);
            return Vec::new();
        };
        list.iter().filter_map(|item| self.as_text(key, "a list of strings", item)).collect()
    }

    /// The names under `key` that are known, each once; at most `max`. `is_known` reports others.
    pub(super) fn names_once(
        &self,
        key: &'static str,
        max: usize,
        is_known: impl Fn(&Text<'t>) -> bool,
    ) -> Vec<String> {
        let mut known: Vec<Text<'t>> = Vec::new();
        for text in self.strings(key) {
            if let Some(first) = known.iter().find(|first| first.value == text.value) {
                let kind = PolicyErrorKind::Duplicate {
                    text: text.value.to_owned(),
                    first_text: first.value.to_owned(),
                    first: self.problems.source.locate(first.span.start),
                };
                self.report(text.span.clone(), kind, "remove it");
            } else if known.len() == max {
                let value = format!("name {}", max + 1);
                let kind = PolicyErrorKind::OutOfRange { key: key.to_owned(), value };
                self.report(text.span.clone(), kind, format!("name at most {max}"));
                break;
            } else if is_known(&text) {
                known.push(text);
            }
        }
        known.into_iter().map(|text| text.value.to_owned()).collect()
    }

    fn as_text(
        &self,
        key: &str,
        expected: &'static str,
        value: &'t Spanned<DeValue<'t>>,
    ) -> Option<Text<'t>> {
        self.as_text_but_for(key, expected, value, |_| false)
    }

    fn as_text_but_for(
        &self,
        key: &str,
        expected: &'static str,
        value: &'t Spanned<DeValue<'t>>,
        is_allowed: impl Fn(char) -> bool,
    ) -> Option<Text<'t>> {
        let Some(text) = value.get_ref().as_str() else {
            self.wrong_type(key, expected, value);
            return None;
        };
        if text.chars().any(|character| is_hostile(character) && !is_allowed(character)) {
            let reason = "it contains a control character".to_owned();
            let kind = PolicyErrorKind::BadValue { what: "string", value: shown(text), reason };
            self.report(value.span(), kind, "remove the character");
            return None;
        }
        Some(Text { value: text, span: value.span() })
    }

    /// The value under `key`; `None` if absent.
    pub(super) fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table.get(key)
    }

    /// Where the value under `key` stands; the table itself if there is none.
    pub(super) fn value_span(&self, key: &str) -> Range<usize> {
        self.table.get(key).map_or_else(|| self.span.clone(), Spanned::span)
    }

    /// The truth value under `key`; `None` if absent or wrong.
    pub(super) fn flag(&self, key: &'static str) -> Option<bool> {
        let value = self.table.get(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.wrong_type(key, "`true` or `false`", value);
        }
        flag
    }

    /// The whole number under `key`; `None` if absent or wrong.
    pub(super) fn number(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.table.get(key)?;
        let Some(number) = value.get_ref().as_integer() else {
            self.wrong_type(key, "a whole number", value);
            return None;
        };
        let parsed = u64::from_str_radix(number.as_str(), number.radix()).ok();
        let fitting = parsed.filter(|number| range.contains(number));
        if fitting.is_none() {
            self.out_of_range(key, &number.to_string(), value, range);
        }
        fitting
    }

    /// The amount of US dollars under `key`, in millionths and at least `least` of them; `None` if
    /// absent or wrong.
    pub(super) fn usd(&self, key: &'static str, least: u64) -> Option<u64> {
        let value = self.table.get(key)?;
        let text = match (value.get_ref().as_integer(), value.get_ref().as_float()) {
            (Some(number), _) if number.radix() == 10 => number.as_str(),
            (_, Some(number)) => number.as_str(),
            (Some(_) | None, None) => {
                self.wrong_type(key, "an amount in US dollars such as 1.50", value);
                return None;
            }
        };
        let amount = parse_usd(text).and_then(|amount| match amount < least {
            true => Err("it is too little"),
            false => Ok(amount),
        });
        amount
            .map_err(|reason| {
                let reason = reason.to_owned();
                let kind = PolicyErrorKind::BadValue { what: "amount", value: shown(text), reason };
                self.report(value.span(), kind, "write US dollars, such as 1.50");
            })
            .ok()
    }

    /// [`Section::number`] for numbers that are kept in 32 bits.
    pub(super) fn count(&self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let wide = u64::from(*range.start())..=u64::from(*range.end());
        self.number(key, wide).and_then(|number| u32::try_from(number).ok())
    }

    /// The size under `key`, in bytes; `None` if absent or wrong.
    pub(super) fn size(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let (text, value) = self.quantity(key, "a size such as \"64MiB\"")?;
        let bytes = self.parsed(&text, "size", parse_size(text.value))?;
        if !range.contains(&bytes) {
            let bounds = SizeDisplay(*range.start())..=SizeDisplay(*range.end());
            self.out_of_range(key, text.value, value, bounds);
            return None;
        }
        Some(bytes)
    }

    /// The duration under `key`; `None` if absent or wrong.
    pub(super) fn duration(&self, key: &str, range: RangeInclusive<Duration>) -> Option<Duration> {
        let (text, value) = self.quantity(key, "a duration such as \"10s\"")?;
        let duration = self.parsed(&text, "duration", parse_duration(text.value))?;
        if !range.contains(&duration) {
            let bounds = DurationDisplay(*range.start())..=DurationDisplay(*range.end());
            self.out_of_range(key, text.value, value, bounds);
            return None;
        }
        Some(duration)
    }

    fn quantity(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Option<(Text<'t>, &'t Spanned<DeValue<'t>>)> {
        let value = self.table.get(key)?;
        Some((self.as_text(key, expected, value)?, value))
    }

    fn parsed<T>(
        &self,
        text: &Text<'_>,
        what: &'static str,
        result: Result<T, QuantityError>,
    ) -> Option<T> {
        result
            .map_err(|bad| {
                let value = shown(text.value);
                let kind = PolicyErrorKind::BadValue { what, value, reason: bad.reason };
                self.report(text.span.clone(), kind, bad.help);
            })
            .ok()
    }

    fn out_of_range<T: fmt::Display>(
        &self,
        key: &str,
        written: &str,
        value: &Spanned<DeValue<'_>>,
        bounds: RangeInclusive<T>,
    ) {
        let kind = PolicyErrorKind::OutOfRange { key: key.to_owned(), value: shown(written) };
        self.report(
            value.span(),
            kind,
            format!("write a value from {} to {}", bounds.start(), bounds.end()),
        );
    }

    fn wrong_type(&self, key: &str, expected: &'static str, value: &Spanned<DeValue<'_>>) {
        let found = match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "a truth value",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let kind = PolicyErrorKind::WrongType { key: key.to_owned(), expected, found };
        self.report(value.span(), kind, format!("write {expected}"));
    }
}

/// Tells if `text` is of the form `[a-z][a-z0-9_-]{0,63}`.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase()) && is_function_name(text)
}

/// Tells if `text` is of the form `[a-z0-9_-]{1,64}`, which is that of a tool's functions.
pub(super) fn is_function_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
}

/// Tags of a list.
pub(super) fn tags(table: &Section<'_, '_>, key: &'static str) -> Vec<String> {
    let texts = table.strings(key);
    if let Some(text) = texts.get(TAGS_MAX) {
        let kind = PolicyErrorKind::OutOfRange {
            key: key.to_owned(),
            value: format!("{} tags long", texts.len()),
        };
        table.report(text.span.clone(), kind, format!("name at most {TAGS_MAX} tags"));
    }
    texts.into_iter().take(TAGS_MAX).map(|text| text.value.to_owned()).collect()
}
