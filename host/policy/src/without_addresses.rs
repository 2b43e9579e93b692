//! Texts of policies without what they say of models and subscribers: there operators write
//! addresses, headers, command lines and the places of keys, and no run of an earlier policy reads
//! any of it.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::parse_subscriber::SUBSCRIBER_TABLES;

/// The text of a policy in which only the names of models and subscribers are left of their tables.
/// All else stands where it stood, line and column, so that the places in what was recorded under
/// it are the same.
///
/// # Errors
/// The words of the parser, if the text is not TOML.
pub fn without_addresses(text: &str) -> Result<String, String> {
    let document = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
    let mut headers = Vec::new();
    headers_of(text, document.get_ref(), &mut headers);
    headers.sort_unstable();
    let mut bytes = text.as_bytes().to_vec();
    let blank = Blank { text, headers: &headers };
    let kinds = SUBSCRIBER_TABLES.iter().map(|(kind, _)| *kind);
    for kind in std::iter::once("model").chain(kinds) {
        if let Some(tables) = document.get_ref().get(kind) {
            blank.value(tables, 0, &mut bytes);
        }
    }
    // Only whole values were replaced by ASCII.
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// The names of the models of a policy, by its text.
///
/// # Errors
/// The words of the parser, if the text is not TOML.
pub fn model_names(text: &str) -> Result<Vec<String>, String> {
    let document = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
    let models = document.get_ref().get("model").and_then(|models| models.get_ref().as_table());
    let names = models.into_iter().flat_map(|models| models.keys());
    Ok(names.map(|name| name.get_ref().to_string()).collect())
}

/// The place of each header of a table in the text.
fn headers_of(text: &str, table: &DeTable<'_>, found: &mut Vec<(usize, usize)>) {
    for value in table.values() {
        headers_of_value(text, value, found);
    }
}

fn headers_of_value(text: &str, value: &Spanned<DeValue<'_>>, found: &mut Vec<(usize, usize)>) {
    match value.get_ref() {
        DeValue::Table(table) => {
            if is_header(text, &value.span()) {
                found.push((value.span().start, value.span().end));
            }
            headers_of(text, table, found);
        }
        DeValue::Array(array) => {
            array.iter().for_each(|value| headers_of_value(text, value, found));
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => {}
    }
}

/// True if the span of a table is that of its header, and not of its braces or its dotted keys.
fn is_header(text: &str, span: &Range<usize>) -> bool {
    text.get(span.clone()).is_some_and(|written| written.starts_with('['))
}

struct Blank<'t> {
    text: &'t str,
    headers: &'t [(usize, usize)],
}

impl Blank<'_> {
    /// Takes away what a value says; `level` counts the tables above it: the table of all models,
    /// or of all subscribers of a kind, is at 0, and that of one, whose name stays, at 1.
    fn value(&self, value: &Spanned<DeValue<'_>>, level: usize, bytes: &mut [u8]) {
        let span = value.span();
        let is_header = |value: &Spanned<DeValue<'_>>| is_header(self.text, &value.span());
        let DeValue::Table(table) = value.get_ref() else {
            let tables = value.get_ref().as_array().filter(|all| all.iter().any(is_header));
            return match tables {
                Some(tables) => tables.iter().for_each(|table| self.inner_headers(table, bytes)),
                None => replace(bytes, span, b"0"),
            };
        };
        if level > 0 && is_header(value) {
            // Also the comments in it, in which somebody may have left a header of a request.
            spaces(bytes, self.beneath(&span));
            // What is beneath has headers of its own, or is gone.
            return table.values().for_each(|inner| self.inner_headers(inner, bytes));
        }
        if level > 0 && self.text.get(span.clone()).is_some_and(|w| w.starts_with('{')) {
            return replace(bytes, span, b"{}");
        }
        table.values().for_each(|inner| self.value(inner, level + 1, bytes));
        if is_header(value) {
            comments(bytes, self.beneath(&span));
        }
    }

    /// The text from the end of a header to the next one.
    fn beneath(&self, header: &Range<usize>) -> Range<usize> {
        let next = self.headers.partition_point(|(start, _)| *start <= header.start);
        header.end..self.headers.get(next).map_or(self.text.len(), |(start, _)| *start)
    }

    /// Takes away what stands under the headers of the own tables of a model or a subscriber.
    fn inner_headers(&self, value: &Spanned<DeValue<'_>>, bytes: &mut [u8]) {
        match value.get_ref() {
            DeValue::Table(table) => {
                if is_header(self.text, &value.span()) {
                    self.value(value, 1, bytes);
                } else {
                    table.values().for_each(|inner| self.inner_headers(inner, bytes));
                }
            }
            DeValue::Array(array) => {
                array.iter().for_each(|inner| self.inner_headers(inner, bytes));
            }
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => {}
        }
    }
}

/// Puts a short value in the place of another one; lines stay.
fn replace(bytes: &mut [u8], span: Range<usize>, with: &[u8]) {
    let start = span.start;
    spaces(bytes, span);
    if let Some(place) = bytes.get_mut(start..start + with.len()) {
        place.copy_from_slice(with);
    }
}

/// The part of a line that a byte stands in.
#[derive(Clone, Copy)]
enum LinePart {
    Plain,
    /// A key in these quotes.
    Quoted(u8),
    /// The byte after a backslash in double quotes.
    Escaped,
    Comment,
}

/// Takes away the comments of lines in which nothing is left of values, so that only keys have
/// quotes.
fn comments(bytes: &mut [u8], span: Range<usize>) {
    let mut part = LinePart::Plain;
    for byte in bytes.get_mut(span).into_iter().flatten() {
        part = match (part, *byte) {
            (_, b'\n') => LinePart::Plain,
            (LinePart::Comment, _) | (LinePart::Plain, b'#') => {
                *byte = b' ';
                LinePart::Comment
            }
            (LinePart::Plain, quote @ (b'"' | b'\'')) => LinePart::Quoted(quote),
            (LinePart::Quoted(quote), end) if quote == end => LinePart::Plain,
            (LinePart::Quoted(b'"'), b'\\') => LinePart::Escaped,
            (LinePart::Escaped, _) => LinePart::Quoted(b'"'),
            (part, _) => part,
        };
    }
}

/// Leaves nothing but line breaks.
fn spaces(bytes: &mut [u8], span: Range<usize>) {
    for byte in bytes.get_mut(span).into_iter().flatten().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::{model_names, without_addresses};
    use crate::policy::Policy;

    #[test]
    fn only_the_names_of_models_are_left_and_all_else_stands_where_it_stood() {
        let texts = [
            "# SECRET? no: this one is the policy's\n[model.m]\nprovider = \"openai\" # SECRET\n\
             headers = { x = \"SECRET\" }\nextra = '''\n[agent.none]\nSECRET'''\n\n\
             [model.m.timeouts]\nconnect = \"SECRET\"\n[agent.a]\ncomponent = \"c.wasm\"\n",
            "model.m = { provider = \"SECRET\" }\nmodel.n.base_url = \"SECRET\"\n\n\
             [agent.a]\ncomponent = \"c.wasm\"\n",
            "[model]\nm = { headers = { x = \"SECRET\" } }\nn.key = [\"SECRET\",\n\"SECRET\"]\n\
             [agent.a]\ncomponent = \"c.wasm\"\n",
            "[agent.a]\ncomponent = \"c.wasm\"\n[[model.m.faults]]\nof = \"SECRET\"\n\
             [[model.m.faults]]\nof = \"SECRET\"\n",
            "[agent.a]\ncomponent = \"c.wasm\"\n[model.m]\nkey = \"SECRET\"",
        ];
        for text in texts {
            let left = without_addresses(text).expect("it is TOML");
            assert_eq!(left.len(), text.len(), "{left}");
            let kept = text.split("[agent.a]").next().map_or(0, str::len);
            assert!(left[kept..].starts_with("[agent.a]\ncomponent = \"c.wasm\"\n"), "{left}");
            let said = left.replace("# SECRET? no", "");
            assert!(!said.contains("SECRET"), "{left}");
            let read =
                toml::from_str::<toml::Table>(&left).unwrap_or_else(|e| panic!("{left}: {e}"));
            assert!(model_names(&left).expect("TOML").contains(&"m".to_owned()), "{left}");
            assert!(read["model"].as_table().expect("a table").contains_key("m"), "{left}");
        }
    }

    #[test]
    fn only_the_names_of_subscribers_are_left_and_a_reader_of_kept_policies_takes_it() {
        let text = "[webhook.ci] # SECRET\nurl = \"https://example.com/SECRET\"\nsecret_file = \"SECRET\"\n\
                    [command]\nmail = { run = [\"./SECRET\", \"SECRET\"], timeout = \"5s\" }\n\
                    other.run = [\n\"./SECRET\",\n]\n[file.log]\npath = \"SECRET\"\n\n\
                    [channel.post]\nto = \"webhook/ci\"\n[agent.a]\ncomponent = \"c.wasm\"\n\
                    subscribers = [\"webhook/ci\", \"command/mail\", \"command/other\", \"file/log\"]\n";
        let left = without_addresses(text).expect("it is TOML");
        assert!(!left.contains("SECRET"), "{left}");
        let (before, after) = (text.find("[channel.post]"), left.find("[channel.post]"));
        assert_eq!((left.len(), after), (text.len(), before), "{left}");
        let (path, defaults) = (Path::new("/conf/taskrun.toml"), Arc::default());
        let whole = Policy::parse_without_models(text, path, &defaults).expect("a policy");
        let blank = Policy::parse_without_models(&left, path, &defaults).expect("a policy");
        assert_eq!((whole.subscribers.len(), blank.subscribers.len()), (4, 0));
        assert_eq!(whole.agents, blank.agents);
        assert_eq!(whole.channels, blank.channels);
        Policy::parse(&left, path).expect_err("a policy of now says where its subscribers are");
    }

    #[test]
    fn comments_beneath_the_header_of_all_are_gone_and_names_are_left() {
        let text = "[webhook] # SECRET\n# SECRET: 'x' \"y\n\
                    \"a#b\\\"c\".url = \"SECRET\" # SECRET\n\
                    'd#\"e' = { url = \"SECRET\" } # SECRET\n\n[agent.a] # it stays\n";
        let left = without_addresses(text).expect("it is TOML");
        assert!(!left.contains("SECRET") && left.ends_with("[agent.a] # it stays\n"), "{left}");
        assert_eq!(left.len(), text.len(), "{left}");
        let read = toml::from_str::<toml::Table>(&left).unwrap_or_else(|e| panic!("{left}: {e}"));
        let names: Vec<&String> = read["webhook"].as_table().expect("a table").keys().collect();
        assert_eq!(names, ["a#b\"c", "d#\"e"]);
    }

    #[test]
    fn what_is_no_toml_is_refused() {
        assert!(without_addresses("[model").is_err());
    }
}
