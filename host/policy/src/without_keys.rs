//! Texts of policies without what may be a key: the excerpts that people are shown beside a mistake
//! are pasted into issues and kept in the logs of build servers.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::parse::ROOT_KEYS;
use super::parse_model::every_key;
use super::parse_subscriber::WEBHOOK_KEYS;

/// The settings under which operators write what a gateway has to be told.
const HIDDEN_KEYS: [&str; 3] = ["headers", "query", "extra"];
/// The kinds of tables that are written by people who have a key at hand.
const KINDS_WITH_KEYS: [&str; 2] = ["model", "webhook"];
/// The settings of those that are shown even in a text that is no TOML.
const HARMLESS_KEYS: [&str; 12] = [
    "provider",
    "model",
    "component",
    "key_file",
    "secret_file",
    "script",
    "stream",
    "max_tokens",
    "context_tokens",
    "response_max",
    "events",
    "include_result",
];

/// The text of a policy with stars in the place of what may be a key: the values of `headers`,
/// `query` and `extra`, an address with more in it than a place, and what stands under a name that
/// is no setting of a model or a webhook, or in no table that a policy has. In a text that is no
/// TOML only harmless settings of those tables are left. All else stands where it stood, byte by
/// byte.
#[must_use]
pub fn without_keys(text: &str) -> String {
    let (document, faults) = DeTable::parse_recoverable(text);
    let mut bytes = text.as_bytes().to_vec();
    for (kind, value) in document.get_ref() {
        if !is_free_of_keys(kind.get_ref()) {
            hide_keys(kind.get_ref(), Level::Names, value, &mut bytes);
        }
    }
    if !faults.is_empty() {
        hide_lines(text, &mut bytes);
    }
    // Only whole values and ends of lines were replaced, by ASCII.
    String::from_utf8(bytes).unwrap_or_default()
}

/// True of the kinds of tables that have no keys. One that no policy has may be a misspelt one.
fn is_free_of_keys(kind: &str) -> bool {
    ROOT_KEYS.contains(&kind) && !KINDS_WITH_KEYS.contains(&kind)
}

/// The meaning that the names of a table have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// They are those of models or webhooks.
    Names,
    /// They are those of the settings of one.
    Settings,
}

/// Hides in the tables of a kind what may be a key, wherever it stands in them.
fn hide_keys(kind: &str, level: Level, value: &Spanned<DeValue<'_>>, bytes: &mut [u8]) {
    if let Some(array) = value.get_ref().as_array() {
        array.iter().for_each(|inner| hide_keys(kind, level, inner, bytes));
    } else if let Some(table) = value.get_ref().as_table() {
        for (key, inner) in table {
            if level == Level::Names {
                hide_keys(kind, Level::Settings, inner, bytes);
            } else if may_be_key(kind, key.get_ref(), inner.get_ref()) {
                hide(inner, bytes);
            }
        }
    } else {
        hide(value, bytes);
    }
}

/// True if the value of a setting in a table of this kind may be a key, or have one in it.
fn may_be_key(kind: &str, key: &str, value: &DeValue<'_>) -> bool {
    let is_known = match kind {
        "webhook" => key != "url" && WEBHOOK_KEYS.contains(&key),
        _ => every_key().contains(&key),
    };
    let is_place = || value.as_str().is_some_and(|address| !address.contains(['@', '?']));
    // A key that was written where the name of its variable belongs.
    let is_variable = || {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        value.as_str().is_some_and(|name| name.bytes().all(is_of_name))
    };
    !is_known
        || HIDDEN_KEYS.contains(&key)
        || (key == "base_url" && !is_place())
        || (key.ends_with("_env") && !is_variable())
}

/// Hides all that a value says, but the names in it.
fn hide(value: &Spanned<DeValue<'_>>, bytes: &mut [u8]) {
    match value.get_ref() {
        DeValue::Table(table) => table.values().for_each(|inner| hide(inner, bytes)),
        DeValue::Array(array) => array.iter().for_each(|inner| hide(inner, bytes)),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => stars(bytes, value.span()),
    }
}

/// The lines of a table that are shown of a text that is no TOML.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Every line that does not speak of a setting that is hidden.
    All,
    /// The settings of [`HARMLESS_KEYS`].
    Harmless,
    Nothing,
}

/// Hides in a text that is no TOML what the parser may have lost: what stands behind the `=` in
/// tables that may have keys, and the lines that such a value goes on in.
fn hide_lines(text: &str, bytes: &mut [u8]) {
    let (mut start, mut open, mut is_in_string) = (0, 0_usize, false);
    // Before the first header nobody knows whose the settings are.
    let mut shown = Shown::Harmless;
    for line in text.split_inclusive('\n') {
        let end = start + line.len();
        let is_named = HIDDEN_KEYS.iter().any(|key| line.contains(key));
        let code = line.trim_start();
        let is_header = code.starts_with('[') && !is_in_string;
        let hidden_from = if is_header {
            let (kind, name_end) = header(line);
            if ROOT_KEYS.contains(&kind) {
                open = 0;
            }
            shown = match is_free_of_keys(kind) {
                _ if is_named => Shown::Nothing,
                true => Shown::All,
                false => Shown::Harmless,
            };
            // In a value that goes on it is the beginning of an inner list.
            (shown != Shown::All).then_some(if open > 0 { 0 } else { name_end })
        } else {
            // A header may have lost its first bracket.
            let may_begin_table = KINDS_WITH_KEYS
                .iter()
                .any(|kind| code.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.')));
            if shown == Shown::All && may_begin_table {
                shown = Shown::Harmless;
            }
            let is_shown = match shown {
                Shown::All => !is_named,
                Shown::Harmless => is_harmless(line),
                Shown::Nothing => false,
            };
            let is_continued = open > 0 || is_in_string;
            let from = if is_continued { 0 } else { value_start(line) };
            (is_continued || !is_shown).then_some(from)
        };
        if let Some(from) = hidden_from {
            stars(bytes, start + from..end);
        }
        if hidden_from.is_some() && !is_header {
            open = (open + line.matches(['{', '[']).count())
                .saturating_sub(line.matches(['}', ']']).count());
            let quotes = line.matches("\"\"\"").count() + line.matches("'''").count();
            is_in_string ^= quotes % 2 == 1;
        }
        start = end;
    }
}

/// The kind of tables that a header is of, empty if it is not seen, and the place where the name
/// ends.
fn header(line: &str) -> (&str, usize) {
    let name = line.trim_start_matches(['[', ' ', '\t']);
    let is_end = |character: char| !character.is_ascii_alphanumeric() && !"_-.".contains(character);
    let len = name.find(is_end).unwrap_or(name.len());
    let kind = name.get(..len).and_then(|name| name.split('.').next()).unwrap_or_default();
    (kind, line.len() - name.len() + len)
}

/// True of a line that is a whole harmless setting, and nothing more.
fn is_harmless(line: &str) -> bool {
    line.split_once('=').is_some_and(|(key, value)| {
        let has_more = value.contains(['=', '{', '#', '@', '?']);
        let is_whole = value.matches('[').count() == value.matches(']').count()
            && !value.contains("\"\"\"")
            && !value.contains("'''");
        HARMLESS_KEYS.contains(&key.trim()) && !has_more && is_whole
    })
}

/// The place in a line behind the `=` of a setting; its beginning if it may be a part of a value,
/// such as one in base64, which has that sign at its end.
fn value_start(line: &str) -> usize {
    let is_of_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-. \t".contains(&byte);
    match line.split_once('=') {
        Some((key, value)) if key.bytes().all(is_of_name) && !value.starts_with('=') => {
            key.len() + 1
        }
        Some(_) | None => 0,
    }
}

/// Leaves nothing but the marks that values are written with.
fn stars(bytes: &mut [u8], span: Range<usize>) {
    let is_hidden = |byte: &&mut u8| !b"\"'{}[], \t\r\n".contains(&**byte);
    for byte in bytes.get_mut(span).into_iter().flatten().filter(is_hidden) {
        *byte = b'*';
    }
}

#[cfg(test)]
mod tests {
    use super::without_keys;

    #[test]
    fn values_that_may_be_keys_are_hidden_and_all_else_stands_where_it_stood() {
        let text = "[model.m]\nmodel = \"gpt\"\nbase_url = \"https://SECRET@a.example\"\n\
                    api_key = \"SECRET\"\nheaders = { x = \"SECRET ü\", y = 'SECRET' }\n\
                    query.v = \"SECRET\"\n[model.m.extra]\n\
                    user = [\"SECRET\", { z = \"SECRET\" }]\n\
                    [model.n]\nbase_url = \"https://b.example/v1\"\n\
                    [webhook.ci]\nurl = \"https://hooks.example/SECRET\"\nsecret_env = \"NAME\"\n\
                    secret = \"SECRET\"\n[agent.query]\ncomponent = \"c.wasm\"\n\
                    tools = [\"db/query\"]\n";
        let left = without_keys(text);
        assert_eq!(left.len(), text.len(), "{left}");
        assert!(!left.contains("SECRET") && !left.contains('ü'), "{left}");
        for kept in [
            "model = \"gpt\"\n",
            "api_key = \"******\"\n",
            "headers = { x = \"****** **\", y = '******' }\n",
            "base_url = \"https://b.example/v1\"\n",
            "secret_env = \"NAME\"\n",
            "[agent.query]\ncomponent = \"c.wasm\"\ntools = [\"db/query\"]\n",
        ] {
            assert!(left.contains(kept), "{kept} is not in {left}");
        }
    }

    #[test]
    fn they_are_hidden_where_the_text_is_no_toml_too() {
        for broken in [
            "headers = { x = \"SECRET }\n",
            "headers = { x = SECRET, y = \"SECRET\" }\n",
            "headers = {\n  x = SECRET,\n  \"SECRET\"\n}\n",
            "query = \"SECRET\nprovider = \"echo\"\n",
            "[model.m.headers]\nx = SECRET\ny = \"SECRET\n",
            "# headers = { x = \"SECRET\" }\nprovider = echo\n",
        ] {
            let text = format!("[model.m]\nprovider = \"openai\"\n{broken}");
            let left = without_keys(&text);
            assert_eq!(left.len(), text.len(), "{left}");
            assert!(!left.contains("SECRET"), "{left}");
            assert!(left.starts_with("[model.m]\nprovider = \"openai\"\n"), "{left}");
        }
    }

    #[test]
    fn they_are_hidden_in_the_copy_of_a_table_too() {
        for copied in [
            "[webhook.ci]\nurl = \"https://hooks.example/SECRET\"\n",
            "[model.m]\nbase_url = \"https://user:SECRET@a.example\"\n",
            "[model.m]\napi_key = \"SECRET\"\n",
            "[model.m]\napi_key = \"\"\"\nSECRET=\nprovider = SECRET\n[agent.a]\nSECRET\"\"\"\n",
            "[model.m]\napi_key = [\n\"SECRET==\",\nprovider = SECRET,\n]\n",
            "[model.m]\napi_key = [\n[SECRET],\n]\n",
            "[model.m]\nprovider = \"echo\" api_key = \"SECRET\"\n",
            "[model.m] SECRET\n# api_key = \"SECRET\"\n",
            "[models.m]\napi_key = \"SECRET\"\n",
        ] {
            let text = format!("{copied}{copied}");
            let left = without_keys(&text);
            assert_eq!(left.len(), text.len(), "{left}");
            assert!(!left.contains("SECRET"), "{left}");
        }
    }

    #[test]
    fn they_are_hidden_behind_a_header_that_is_none() {
        for broken in [
            "url = \"https://hooks.example/SECRET\"\n[agent.b\n",
            "[]\nurl = \"https://hooks.example/SECRET\"\n",
            "[agent.b]\ncomponent = \"b.wasm\"\nmodel.m]\napi_key = \"SECRET\"\n",
            "[\"model\".m\napi_key = \"SECRET\"\n",
            "model = { m = { api_key = \"SECRET\" }\n",
        ] {
            let left = without_keys(broken);
            assert_eq!(left.len(), broken.len(), "{left}");
            assert!(!left.contains("SECRET"), "{left}");
        }
    }

    #[test]
    fn a_mistake_in_a_table_without_keys_is_shown_as_it_stands() {
        let kept = "[agent.a]\ncomponent = \"a.wasm\"\nlimits = { turns = 1x }\n";
        let text = format!("[model.m]\nprovider = \"echo\"\n{kept}");
        assert_eq!(without_keys(&text), text);
        let text = "[agent.a.limits]\nturns = -1\n[model.m]\nmax_tokens = -1\n";
        assert_eq!(without_keys(text), text);
    }

    #[test]
    fn they_are_hidden_in_tables_that_no_policy_has() {
        for odd in [
            "[model]\nprovider = \"openai\"\napi_key = \"SECRET\"\n",
            "[webhook]\nurl = \"https://hooks.example/SECRET\"\n",
            "[[model.m]]\napi_key = \"SECRET\"\n[[model.m]]\nheaders = { x = \"SECRET\" }\n",
            "[[webhook]]\nurl = \"https://hooks.example/SECRET\"\n",
            "api_key = \"SECRET\"\nkeys = [\"SECRET\"]\nheaders.x = \"SECRET\"\n",
            "model = \"SECRET\"\n",
            "[models.m]\napi_key = \"SECRET\"\nbase_url = \"https://a.example?k=SECRET\"\n",
            "[webhooks.ci]\nurl = \"https://hooks.example/SECRET\"\n",
            "[model.m]\nkey_env = \"sk-SECRET\"\n",
            "[model.m]\nbase_url = [\"https://user:SECRET@a.example\"]\n",
        ] {
            let left = without_keys(odd);
            assert_eq!(left.len(), odd.len(), "{left}");
            assert!(!left.contains("SECRET"), "{left}");
        }
    }
}
