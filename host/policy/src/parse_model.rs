//! `[model.NAME]`: who answers, where, and with which key.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::error::{PolicyErrorKind, shown, suggest};
use super::files::FileUse;
use super::http::{HostPattern, parse_authority};
use super::limits::{CONTEXT_TOKENS_MAX, CONTEXT_TOKENS_MIN};
use super::model::{
    ANSWER_TOKENS_MAX, FAULTS_MAX, Fault, KeySource, MODEL_TIME_MAX, ModelPolicy, ModelTimeouts,
    PROVIDER_MODEL_BYTES_MAX, Provider, RESPONSE_BYTES_DEFAULT, RESPONSE_BYTES_MAX, Remote, Wire,
};
use super::parse::{PolicyDraft, is_path, report_bad_value, resolve};
use super::parse_limits::{read_model_retry, read_prices};
use super::parse_request::{read_request, read_server, read_thinking};
use super::read::{Section, Text};

const SCRIPTED_KEYS: &[&str] = &["provider", "model", "script", "strict", "record", "prices"];
const ECHO_KEYS: &[&str] = &["provider", "model", "record", "prices"];
const REPLAY_KEYS: &[&str] = &["provider", "file", "strict", "prices"];
const FAULTY_KEYS: &[&str] = &["provider", "of", "faults", "seed", "record", "prices"];
const REMOTE_KEYS: &[&str] = &[
    "provider",
    "model",
    "base_url",
    "insecure",
    "key_file",
    "key_env",
    "stream",
    "max_tokens",
    "max_tokens_field",
    "context_tokens",
    "thinking",
    "cache",
    "images",
    "effort",
    "parallel_tool_calls",
    "server",
    "reasoning_field",
    "headers",
    "query",
    "extra",
    "timeouts",
    "retry",
    "response_max",
    "record",
    "prices",
];
const PROVIDERS: [&str; 9] = [
    "openai",
    "openai-chat",
    "anthropic",
    "gemini",
    "ollama",
    "scripted",
    "echo",
    "replay",
    "faulty",
];

impl PolicyDraft<'_> {
    pub(super) fn model(&mut self, name: &str, section: &Section<'_, '_>) -> Option<ModelPolicy> {
        let provider = self.provider(name, section);
        let model = section.string("model").map(|text| text.value.to_owned());
        let record = self.record(section);
        let price = read_prices(section);
        let location = section.problems.source.locate(section.span.start);
        let name = name.to_owned();
        Some(ModelPolicy { name, provider: provider?, model, price, record, location })
    }

    fn provider(&mut self, name: &str, section: &Section<'_, '_>) -> Option<Provider> {
        let Some(provider) = section.required_string("provider", "openai-chat") else {
            section.expect_keys(&every_key());
            return None;
        };
        match provider.value {
            "openai" => self.remote(section, Wire::OpenAi),
            "openai-chat" => self.remote(section, Wire::OpenAiChat),
            "anthropic" => self.remote(section, Wire::Anthropic),
            "gemini" => self.remote(section, Wire::Gemini),
            "ollama" => self.remote(section, Wire::Ollama),
            "scripted" => {
                section.expect_keys(SCRIPTED_KEYS);
                let strict = section.flag("strict").unwrap_or(false);
                let script =
                    self.file(section, "script", "models/script.jsonl", FileUse::Script)?;
                Some(Provider::Scripted { script, strict })
            }
            "echo" => {
                section.expect_keys(ECHO_KEYS);
                Some(Provider::Echo)
            }
            "replay" => {
                section.expect_keys(REPLAY_KEYS);
                let strict = section.flag("strict").unwrap_or(true);
                let file = self.file(section, "file", "models/run.jsonl", FileUse::Cassette)?;
                Some(Provider::Replay { file, strict })
            }
            "faulty" => self.faulty(name, section),
            other => {
                section.expect_keys(&every_key());
                let kind = PolicyErrorKind::Unknown { what: "provider", name: shown(other) };
                section.report(provider.span, kind, suggest(other, "providers", PROVIDERS));
                None
            }
        }
    }

    fn remote(&mut self, section: &Section<'_, '_>, wire: Wire) -> Option<Provider> {
        section.expect_keys(REMOTE_KEYS);
        let model = section.required_string("model", "smollm2");
        let named = model.is_some_and(|text| is_model_name(section, &text));
        let base_url = base_url(section, wire);
        let server = read_server(section, wire, base_url.as_deref().unwrap_or_default());
        let request = read_request(section, wire);
        let key = self.key(section);
        let (retry, patience) = read_model_retry(section);
        let remote = Remote {
            wire,
            base_url: base_url?,
            key: key?,
            stream: section.flag("stream").unwrap_or(true),
            max_tokens: section.count("max_tokens", 1..=ANSWER_TOKENS_MAX),
            context_tokens: section
                .count("context_tokens", CONTEXT_TOKENS_MIN..=CONTEXT_TOKENS_MAX),
            thinking: read_thinking(section),
            cache: section.flag("cache").unwrap_or(true),
            images: section.flag("images").unwrap_or(true),
            server,
            request,
            timeouts: timeouts(section),
            retry,
            patience,
            response_bytes: section
                .size("response_max", 1..=RESPONSE_BYTES_MAX)
                .unwrap_or(RESPONSE_BYTES_DEFAULT),
        };
        named.then(|| Provider::Remote(Box::new(remote)))
    }

    /// `Some(None)` if there is no key, `None` if what is said of it is wrong.
    fn key(&mut self, section: &Section<'_, '_>) -> Option<Option<KeySource>> {
        let (file, env) = (section.string("key_file"), section.string("key_env"));
        match (file, env) {
            (None, None) => Some(None),
            (Some(_), Some(env)) => {
                let reason = "the key is in `key_file` already";
                let help = "leave `key_file` or `key_env` out";
                report_bad_value(section, &env, "variable", reason, help);
                None
            }
            (Some(file), None) => {
                if !is_path(section, &file, "file") {
                    return None;
                }
                let path = self.named(&file, FileUse::Key);
                Some(Some(KeySource::File(path)))
            }
            (None, Some(env)) => {
                is_variable(section, &env).then(|| Some(KeySource::Env(env.value.to_owned())))
            }
        }
    }

    fn record(&mut self, section: &Section<'_, '_>) -> Option<PathBuf> {
        let text = section.string("record").filter(|text| is_path(section, text, "file"))?;
        Some(resolve(self.folder, text.value))
    }

    fn faulty(&mut self, name: &str, section: &Section<'_, '_>) -> Option<Provider> {
        section.expect_keys(FAULTY_KEYS);
        let seed = section.number("seed", 0..=u64::MAX);
        let of = section.required_string("of", "default");
        let of = of.filter(|of| {
            let known = self.models.contains(&of.value) && of.value != name;
            if !known {
                let kind = PolicyErrorKind::Unknown { what: "model", name: shown(of.value) };
                let others = self.models.iter().copied().filter(|model| *model != name);
                section.report(of.span.clone(), kind, suggest(of.value, "other models", others));
            }
            known
        });
        let words = section.strings("faults");
        if words.is_empty() || words.len() > FAULTS_MAX {
            let kind = PolicyErrorKind::BadValue {
                what: "schedule of faults",
                value: format!("{} words", words.len()),
                reason: format!("it has from 1 to {FAULTS_MAX}"),
            };
            let help = "write faults = [\"ok\", \"429\", \"500\", \"timeout\", \"cut\"]";
            section.report(section.value_span("faults"), kind, help);
        }
        let faults: Vec<Fault> =
            words.iter().take(FAULTS_MAX).filter_map(|word| fault(section, word)).collect();
        let of = of?.value.to_owned();
        (!faults.is_empty()).then_some(Provider::Faulty { of, faults, seed })
    }
}

/// Where it is not known who answers, any key may be right.
pub(super) fn every_key() -> Vec<&'static str> {
    let mut all = REMOTE_KEYS.to_vec();
    for keys in [SCRIPTED_KEYS, ECHO_KEYS, REPLAY_KEYS, FAULTY_KEYS] {
        all.extend(keys.iter().filter(|key| !REMOTE_KEYS.contains(key)));
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn fault(section: &Section<'_, '_>, word: &Text<'_>) -> Option<Fault> {
    let found = Fault::ALL.iter().find(|(known, _)| *known == word.value);
    if found.is_none() {
        let kind = PolicyErrorKind::Unknown { what: "fault", name: shown(word.value) };
        let known = Fault::ALL.iter().map(|(known, _)| *known);
        section.report(word.span.clone(), kind, suggest(word.value, "faults", known));
    }
    found.map(|(_, fault)| *fault)
}

fn timeouts(section: &Section<'_, '_>) -> ModelTimeouts {
    const INSTANT: Duration = Duration::from_millis(1);
    let default = ModelTimeouts::default();
    let Some(table) = section.section("timeouts") else {
        return default;
    };
    table.expect_keys(&["connect", "first_byte", "between", "whole"]);
    let read = |key, default| table.duration(key, INSTANT..=MODEL_TIME_MAX).unwrap_or(default);
    ModelTimeouts {
        connect: read("connect", default.connect),
        first_byte: read("first_byte", default.first_byte),
        between: read("between", default.between),
        whole: read("whole", default.whole),
    }
}

fn is_model_name(section: &Section<'_, '_>, text: &Text<'_>) -> bool {
    // Gemini has it in the path of its address: there it must not lead anywhere else.
    let bytes = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/@+".contains(&byte);
    let reason = if text.value.is_empty() {
        "it is empty"
    } else if text.value.len() > PROVIDER_MODEL_BYTES_MAX {
        "it is too long"
    } else if !text.value.bytes().all(bytes) || text.value.split('/').any(is_dots) {
        "it has a character that no name of a model has"
    } else {
        return true;
    };
    let help = "write the name that the provider knows it by, such as \"smollm2\"";
    report_bad_value(section, text, "model", reason, help);
    false
}

fn is_dots(segment: &str) -> bool {
    matches!(segment, "" | "." | "..")
}

pub(super) fn is_variable(section: &Section<'_, '_>, text: &Text<'_>) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins = text.value.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if begins && text.value.len() <= 128 && text.value.bytes().all(good) {
        return true;
    }
    // The text may be a secret key that was put in the wrong place: it is not repeated.
    let kind = PolicyErrorKind::BadValue {
        what: "variable",
        value: "…".to_owned(),
        reason: "it is not the name of an environment variable".to_owned(),
    };
    let help = "write the name of the variable that holds the key, such as \"OPENAI_API_KEY\"";
    section.report(text.span.clone(), kind, help);
    false
}

fn base_url(section: &Section<'_, '_>, wire: Wire) -> Option<String> {
    let insecure = section.flag("insecure").unwrap_or(false);
    let Some(text) = section.string("base_url") else {
        return Some(wire.default_base_url().to_owned());
    };
    let refuse = |span: Range<usize>, reason: String, help: String| {
        // A query may have a key in it, and is not repeated.
        let value = shown(text.value.split('?').next().unwrap_or_default());
        let kind = PolicyErrorKind::BadValue { what: "address", value, reason };
        section.report(span, kind, help);
    };
    let form = || format!("write it as in \"{}\"", wire.default_base_url());
    let refuse_form = |reason: &str| {
        refuse(text.span.clone(), reason.to_owned(), form());
        None
    };
    let (secure, rest) = match text.value.split_once("://") {
        Some(("https", rest)) => (true, rest),
        Some(("http", rest)) => (false, rest),
        Some(_) | None => return refuse_form("it begins with neither `https://` nor `http://`"),
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        // Whatever stands before the `@` may be a password: it is not repeated.
        let kind = PolicyErrorKind::BadValue {
            what: "address",
            value: "…".to_owned(),
            reason: "it names a user".to_owned(),
        };
        section.report(text.span.clone(), kind, "name the key's file with `key_file` instead");
        return None;
    }
    let host = match parse_authority(authority) {
        Ok((HostPattern::Exact(host), _)) => host,
        Ok((HostPattern::Any | HostPattern::Below(_), _)) => {
            return refuse_form("it does not name one host");
        }
        Err(bad) => return refuse_form(&bad.reason),
    };
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/:@+%".contains(&byte);
    if !path.bytes().all(good) || path.trim_end_matches('/').split('/').any(|s| s == "..") {
        return refuse_form("its path has something else than names in it, such as a query");
    }
    if !secure && !insecure && !is_loopback(&host) {
        let reason = "plain `http` would send the key and the conversation readable by others";
        let help = "write https://, or add `insecure = true` if the way there is private";
        refuse(text.span.clone(), reason.to_owned(), help.to_owned());
        return None;
    }
    Some(text.value.trim_end_matches('/').to_owned())
}

/// Tells if a host in its normal form is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
