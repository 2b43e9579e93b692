//! From `[model.NAME]` to what goes into each of the model's requests.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{PolicyErrorKind, shown, suggest};
use super::model::{ANSWER_TOKENS_MAX, ThinkingMode, Wire};
use super::parse::report_bad_value;
use super::read::{Section, Text};
use super::request_settings::{Effort, PAIR_BYTES_MAX, PAIRS_MAX, RequestSettings, Undisclosed};
use super::server::{MaxTokensField, OpenAiServer, ReasoningField, ServerKind};

/// Keys for chat completions only.
const CHAT_KEYS: [&str; 2] = ["server", "max_tokens_field"];
/// Keys for both protocols of OpenAI.
const OPENAI_KEYS: [&str; 2] = ["reasoning_field", "parallel_tool_calls"];

/// Headers that the host sets, or by which a connection is led. A key among them would go where
/// `key_file` and `key_env` would not send it, and would be kept in the policy.
const HEADERS_RESERVED: [&str; 22] = [
    "accept",
    "accept-encoding",
    "anthropic-version",
    "api-key",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
    "x-goog-api-key",
];
/// Parameters that the host sets, or that hold keys, which must not stand in an address.
const QUERY_RESERVED: [&str; 7] =
    ["access_token", "alt", "api-key", "api_key", "apikey", "key", "token"];
/// Members of a request's body that the host sets, in any of the protocols.
const EXTRA_RESERVED: [&str; 26] = [
    "background",
    "contents",
    "conversation",
    "function_call",
    "functions",
    "include",
    "input",
    "instructions",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "messages",
    "model",
    "n",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "reasoning_effort",
    "response_format",
    "store",
    "stream",
    "stream_options",
    "system",
    "systemInstruction",
    "tool_choice",
    "tools",
];

/// The settings of a remote model.
pub(super) fn read_request(section: &Section<'_, '_>, wire: Wire) -> RequestSettings {
    let none = "remove it: this protocol has no such setting; `extra` takes its own ones";
    match wire {
        Wire::Anthropic | Wire::Gemini => {
            refuse_keys(section, wire, &OPENAI_KEYS, none);
            refuse_keys(section, wire, &CHAT_KEYS, none);
        }
        Wire::OpenAi => {
            let help =
                "remove it, or write provider = \"openai-chat\" for a server of chat completions";
            refuse_keys(section, wire, &CHAT_KEYS, help);
        }
        Wire::OpenAiChat | Wire::Ollama => {}
    }
    match wire {
        Wire::Anthropic => {}
        Wire::Gemini => refuse_keys(section, wire, &["effort", "cache"], none),
        Wire::OpenAi | Wire::OpenAiChat | Wire::Ollama => {
            refuse_keys(section, wire, &["cache"], none);
            let help = "remove it: this protocol has no such setting; it may have `effort`";
            refuse_keys(section, wire, &["thinking"], help);
        }
    }
    let efforts: Vec<_> = Effort::ALL
        .into_iter()
        .filter(|(_, effort)| wire != Wire::Anthropic || effort.is_of_anthropic())
        .collect();
    RequestSettings {
        effort: word(section, "effort", &efforts),
        parallel_tool_calls: section.flag("parallel_tool_calls"),
        headers: pairs(section, "headers", header_fault),
        query: pairs(section, "query", query_fault),
        extra: extra(section),
    }
}

/// The way in which the model reasons: a word, or a number of tokens.
pub(super) fn read_thinking(section: &Section<'_, '_>) -> Option<ThinkingMode> {
    let value = section.value("thinking")?;
    if matches!(value.get_ref(), DeValue::Integer(_)) {
        return section.count("thinking", 1..=ANSWER_TOKENS_MAX).map(ThinkingMode::Budget);
    }
    word(section, "thinking", &[("adaptive", ThinkingMode::Adaptive), ("off", ThinkingMode::Off)])
}

/// The server at an address, as far as the table does not say it.
pub(super) fn read_server(section: &Section<'_, '_>, wire: Wire, base_url: &str) -> OpenAiServer {
    let kind = word(section, "server", &ServerKind::ALL);
    let mut server = OpenAiServer::of(kind.unwrap_or_else(|| ServerKind::of_address(base_url)));
    if let Some(field) = word(section, "max_tokens_field", &MaxTokensField::ALL) {
        server.max_tokens_field = field;
    }
    if wire == Wire::OpenAi {
        server.reasoning_field = Some(ReasoningField::EncryptedContent);
    }
    let fields: &[ReasoningField] = match wire {
        Wire::OpenAi => &[ReasoningField::EncryptedContent],
        Wire::OpenAiChat | Wire::Ollama | Wire::Anthropic | Wire::Gemini => {
            &[ReasoningField::ReasoningContent, ReasoningField::Reasoning]
        }
    };
    let stated = fields.iter().map(|field| (field.as_str(), Some(*field)));
    let words: Vec<_> = stated.chain([("none", None)]).collect();
    if let Some(field) = word(section, "reasoning_field", &words) {
        server.reasoning_field = field;
    }
    server
}

fn refuse_keys(section: &Section<'_, '_>, wire: Wire, keys: &[&'static str], help: &str) {
    for key in keys.iter().copied().filter(|key| section.has(key)) {
        let kind = PolicyErrorKind::UnknownKey {
            key: key.to_owned(),
            table: format!("{} of provider {}", section.label, wire.as_str()),
        };
        section.report(section.value_span(key), kind, help);
    }
}

/// The meaning of one of a few words; `None` if absent or wrong.
fn word<T: Copy>(
    section: &Section<'_, '_>,
    key: &'static str,
    known: &[(&'static str, T)],
) -> Option<T> {
    let text = section.string(key)?;
    let found = known.iter().find(|(word, _)| *word == text.value).map(|(_, value)| *value);
    if found.is_none() {
        let kind = PolicyErrorKind::Unknown { what: key, name: shown(text.value) };
        let words = known.iter().map(|(word, _)| *word);
        section.report(text.span.clone(), kind, suggest(text.value, "words", words));
    }
    found
}

/// The names and texts of a table, with those left out that `fault` finds one with.
fn pairs(
    section: &Section<'_, '_>,
    key: &'static str,
    fault: fn(&str) -> Option<&'static str>,
) -> BTreeMap<String, Undisclosed> {
    let Some(table) = section.section(key) else { return BTreeMap::new() };
    let names = table.keys();
    if names.len() > PAIRS_MAX {
        let value = format!("{} entries long", names.len());
        let kind = PolicyErrorKind::OutOfRange { key: key.to_owned(), value };
        table.report(table.span.clone(), kind, format!("write at most {PAIRS_MAX}"));
    }
    let mut all = BTreeMap::new();
    for name in names {
        let lower = name.value.to_ascii_lowercase();
        let repeated = all.contains_key(&lower).then_some("it stands there twice");
        if let Some(reason) = fault(&lower).or(repeated) {
            let help = "remove it; a key is named by `key_file` or `key_env`";
            report_bad_value(&table, &name, "name", reason, help);
            continue;
        }
        let Some(text) = plain_text(&table, &name) else { continue };
        // Names of parameters, unlike those of headers, have a case.
        let kept = if key == "headers" { lower } else { name.value.to_owned() };
        all.insert(kept, Undisclosed::new(text));
    }
    all
}

/// A text that is not repeated where it is wrong, as it may be a secret.
fn plain_text<'t>(table: &Section<'t, '_>, name: &Text<'t>) -> Option<&'t str> {
    let value = table.value(name.value)?;
    let text = value.get_ref().as_str();
    let good = |text: &&str| {
        (1..=PAIR_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
    };
    let text = text.filter(good);
    if text.is_none() {
        let reason = format!("it is not a text of 1 to {PAIR_BYTES_MAX} printable characters");
        let kind = PolicyErrorKind::BadValue { what: "value", value: "…".to_owned(), reason };
        table.report(value.span(), kind, "write it in quotation marks, in ASCII");
    }
    text
}

/// Tells if a name needs no escape, neither among headers nor in an address.
fn is_plain(name: &str) -> bool {
    let mark = |byte: u8| b"-._".contains(&byte);
    (1..=128).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || mark(byte))
}

fn header_fault(name: &str) -> Option<&'static str> {
    if !is_plain(name) {
        Some("it is no name of a header")
    } else if HEADERS_RESERVED.contains(&name) || name.starts_with("proxy-") {
        Some("the host itself sets this header, or the connection does")
    } else {
        None
    }
}

fn query_fault(name: &str) -> Option<&'static str> {
    if !is_plain(name) {
        Some("it is no name of a parameter")
    } else if QUERY_RESERVED.contains(&name) {
        Some("the host itself sets this parameter, or it holds a key")
    } else {
        None
    }
}

fn extra(section: &Section<'_, '_>) -> Map<String, Value> {
    let Some(table) = section.section("extra") else { return Map::new() };
    for name in table.keys().iter().filter(|name| EXTRA_RESERVED.contains(&name.value)) {
        let help = "remove it: other keys of the model's table say what can be chosen";
        report_bad_value(&table, name, "setting", "the host itself sets it", help);
    }
    let refuse = |span: Range<usize>, found| {
        let expected = "a value that JSON has";
        let kind = PolicyErrorKind::WrongType { key: "extra".to_owned(), expected, found };
        section.report(span, kind, "write a string, a number, a truth value, a list or a table");
    };
    object(table.table, &refuse)
}

fn object(table: &DeTable<'_>, refuse: &dyn Fn(Range<usize>, &'static str)) -> Map<String, Value> {
    let members = table.iter();
    let member = |(name, value): (&Spanned<_>, _)| {
        let name: &std::borrow::Cow<'_, str> = name.get_ref();
        Some((name.clone().into_owned(), json(value, refuse)?))
    };
    members.filter_map(member).collect()
}

/// A value of TOML as JSON; the depth is bounded by TOML's parser.
fn json(
    value: &Spanned<DeValue<'_>>,
    refuse: &dyn Fn(Range<usize>, &'static str),
) -> Option<Value> {
    let refused = |found| {
        refuse(value.span(), found);
        None
    };
    match value.get_ref() {
        DeValue::String(text) => Some(Value::String(text.clone().into_owned())),
        DeValue::Boolean(flag) => Some(Value::Bool(*flag)),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix()).ok();
            parsed.map_or_else(|| refused("a number that is too large"), |n| Some(n.into()))
        }
        DeValue::Float(number) => {
            let parsed = number.as_str().parse::<f64>().ok();
            let parsed = parsed.and_then(serde_json::Number::from_f64).map(Value::Number);
            parsed.map_or_else(|| refused("a number that is none"), Some)
        }
        DeValue::Array(list) => {
            Some(Value::Array(list.iter().filter_map(|item| json(item, refuse)).collect()))
        }
        DeValue::Table(table) => Some(Value::Object(object(table, refuse))),
        DeValue::Datetime(_) => refused("a date"),
    }
}
