//! `[webhook.NAME]`, `[command.NAME]` and `[file.NAME]`, and the subscribers of an agent.

use std::path::PathBuf;
use std::time::Duration;

use taskrun_journal::dispatch::{SUBSCRIPTIONS_MAX, TaskEvent};

use super::error::{PolicyErrorKind, shown, suggest};
use super::files::FileUse;
use super::http::{HostPattern, parse_authority};
use super::model::KeySource;
use super::parse::{PolicyDraft, is_path, report_bad_value, resolve};
use super::parse_model::{is_loopback, is_variable};
use super::read::{Section, Text, is_name};
use super::subscriber::{
    ANY_TRANSPORT, COMMAND_ARGS_MAX, COMMAND_BYTES_MAX, COMMAND_TIMEOUT_DEFAULT,
    COMMAND_TIMEOUT_MAX, SubscriberKind, SubscriberPolicy, TERMINAL, TRANSPORT,
    WEBHOOK_URL_BYTES_MAX,
};

/// The settings of a webhook.
pub(super) const WEBHOOK_KEYS: [&str; 7] = [
    "url",
    "secret_file",
    "secret_env",
    "old_secret_file",
    "old_secret_env",
    "events",
    "include_result",
];

/// The kinds of subscribers that a policy has tables of, with what each is called.
pub(super) const SUBSCRIBER_TABLES: [(&str, &str); 3] =
    [("webhook", "a webhook"), ("command", "a command"), ("file", "a file")];

impl PolicyDraft<'_> {
    /// A subscriber of this kind and name, as in `webhook/ci`.
    pub(super) fn subscriber(
        &mut self,
        name: &str,
        section: &Section<'_, '_>,
    ) -> Option<SubscriberPolicy> {
        let kind = match name.split_once('/').map(|(kind, _)| kind) {
            Some("webhook") => {
                section.expect_keys(&WEBHOOK_KEYS);
                self.webhook(section)
            }
            Some("command") => {
                section.expect_keys(&["run", "timeout", "events", "include_result"]);
                self.command(section)
            }
            _ => {
                section.expect_keys(&["path", "events", "include_result"]);
                let text = section.required_string("path", "events.jsonl");
                let text = text.filter(|text| is_path(section, text, "file"));
                text.map(|text| SubscriberKind::File { path: resolve(self.folder, text.value) })
            }
        };
        Some(SubscriberPolicy {
            name: name.to_owned(),
            events: events(section),
            include_result: section.flag("include_result").unwrap_or(false),
            location: section.problems.source.locate(section.span.start),
            kind: kind?,
        })
    }

    fn webhook(&mut self, section: &Section<'_, '_>) -> Option<SubscriberKind> {
        let url = section.required_string("url", "https://example.com/taskrun").and_then(|text| {
            let refused = url_fault(text.value);
            if let Some((reason, help)) = refused {
                // It may have a secret of the receiver's in it.
                let kind = PolicyErrorKind::BadValue {
                    what: "address",
                    value: "…".to_owned(),
                    reason: reason.to_owned(),
                };
                section.report(text.span.clone(), kind, help);
            }
            refused.is_none().then(|| text.value.to_owned())
        });
        let secret = self.secret(section, ("secret_file", "secret_env"));
        if !section.has("secret_file") && !section.has("secret_env") {
            let table = section.label.clone();
            let kind = PolicyErrorKind::MissingKey { key: "secret_file", table };
            section.report(section.span.clone(), kind, "add secret_file = \"webhook.key\"");
        }
        let old_secret = self.secret(section, ("old_secret_file", "old_secret_env"));
        Some(SubscriberKind::Webhook { url: url?, secret: secret?, old_secret })
    }

    /// `None` if none is named, or what is named is wrong, which is reported then.
    fn secret(
        &mut self,
        section: &Section<'_, '_>,
        (file, env): (&'static str, &'static str),
    ) -> Option<KeySource> {
        match (section.string(file), section.string(env)) {
            (None, None) => None,
            (Some(_), Some(text)) => {
                let reason = format!("the secret is in `{file}` already");
                let help = format!("leave `{file}` or `{env}` out");
                report_bad_value(section, &text, "variable", &reason, &help);
                None
            }
            (Some(text), None) => is_path(section, &text, "file")
                .then(|| KeySource::File(self.named(&text, FileUse::Key))),
            (None, Some(text)) => {
                is_variable(section, &text).then(|| KeySource::Env(text.value.to_owned()))
            }
        }
    }

    fn command(&mut self, section: &Section<'_, '_>) -> Option<SubscriberKind> {
        let words = section.strings("run");
        let (first, args) = match words.split_first() {
            Some((first, args)) => (first, args),
            None => {
                let table = section.label.clone();
                let kind = PolicyErrorKind::MissingKey { key: "run", table };
                let help = "add run = [\"./notify\", \"--quiet\"]";
                section.report(section.span.clone(), kind, help);
                return None;
            }
        };
        if !is_path(section, first, "program") {
            return None;
        }
        if !first.value.contains('/') {
            let reason = "no folders are searched for it";
            let help = "write its path, such as \"/usr/bin/logger\" or \"./notify\"";
            report_bad_value(section, first, "program", reason, help);
            return None;
        }
        let bytes: usize = words.iter().map(|word| word.value.len()).sum();
        if words.len() > COMMAND_ARGS_MAX || bytes > COMMAND_BYTES_MAX {
            let value = format!("{} words of {bytes} bytes", words.len());
            let kind = PolicyErrorKind::OutOfRange { key: "run".to_owned(), value };
            let help =
                format!("write at most {COMMAND_ARGS_MAX} words of {COMMAND_BYTES_MAX} bytes");
            section.report(section.value_span("run"), kind, help);
            return None;
        }
        if let Some(word) = words.iter().find(|word| word.value.contains('\0')) {
            report_bad_value(section, word, "argument", "it has a zero byte", "leave that out");
            return None;
        }
        let range = Duration::from_millis(1)..=COMMAND_TIMEOUT_MAX;
        Some(SubscriberKind::Command {
            program: resolve(self.folder, first.value),
            args: args.iter().map(|word| word.value.to_owned()).collect(),
            named: args.iter().flat_map(|word| self.named_by(word.value)).collect(),
            timeout: section.duration("timeout", range).unwrap_or(COMMAND_TIMEOUT_DEFAULT),
        })
    }

    /// The paths that an argument may name: itself, and what stands behind the first `=` of it.
    fn named_by(&self, argument: &str) -> Vec<PathBuf> {
        let value = argument.split_once('=').map(|(_, value)| value);
        let texts = std::iter::once(argument).chain(value).filter(|text| !text.is_empty());
        texts.map(|text| resolve(self.folder, text)).collect()
    }

    /// The subscribers that an agent's runs have, each known and named once.
    pub(super) fn subscribers_of(&self, section: &Section<'_, '_>) -> Vec<String> {
        section
            .names_once("subscribers", SUBSCRIPTIONS_MAX, |text| self.is_subscriber(section, text))
    }

    /// True for the name of a subscriber; otherwise that it is none is reported.
    pub(super) fn is_subscriber(&self, section: &Section<'_, '_>, text: &Text<'_>) -> bool {
        let is_known = is_transport(text.value)
            || text.value == TERMINAL
            || self.subscribers.iter().any(|name| name == text.value);
        if !is_known {
            let kind = PolicyErrorKind::Unknown { what: "subscriber", name: shown(text.value) };
            let all = self.subscribers.iter().map(String::as_str);
            section.report(text.span.clone(), kind, suggest(text.value, "subscribers", all));
        }
        is_known
    }
}

/// True for the name of a subscriber that a program registers: nothing is known of those here.
pub fn is_transport(name: &str) -> bool {
    let own = name.split_once('/').filter(|(kind, _)| *kind == TRANSPORT);
    name == ANY_TRANSPORT || own.is_some_and(|(_, name)| is_name(name))
}

fn events(section: &Section<'_, '_>) -> Vec<TaskEvent> {
    if !section.has("events") {
        return TaskEvent::ALL.to_vec();
    }
    let words = section.strings("events");
    for word in &words {
        if TaskEvent::ALL.iter().all(|event| event.as_str() != word.value) {
            let kind = PolicyErrorKind::Unknown { what: "event", name: shown(word.value) };
            let known = TaskEvent::ALL.map(TaskEvent::as_str);
            section.report(word.span.clone(), kind, suggest(word.value, "events", known));
        }
    }
    let is_named = |event: &TaskEvent| words.iter().any(|word| word.value == event.as_str());
    TaskEvent::ALL.into_iter().filter(is_named).collect()
}

/// The fault of a webhook's address, and what to write instead.
fn url_fault(url: &str) -> Option<(&'static str, &'static str)> {
    let form = "write it as in \"https://example.com/taskrun\"";
    if url.len() > WEBHOOK_URL_BYTES_MAX {
        return Some(("it is too long", "write a shorter one"));
    }
    let (is_secure, rest) = match url.split_once("://") {
        Some(("https", rest)) => (true, rest),
        Some(("http", rest)) => (false, rest),
        Some(_) | None => return Some(("it begins with neither `https://` nor `http://`", form)),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Some(("it names a user", "leave that out: requests are signed"));
    }
    let host = match parse_authority(authority) {
        Ok((HostPattern::Exact(host), _)) => host,
        Ok((HostPattern::Any | HostPattern::Below(_), _)) | Err(_) => {
            return Some(("it does not name one host", form));
        }
    };
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) || url.contains('#') {
        return Some(("it has a character that no address has", form));
    }
    if !is_secure && !is_loopback(&host) {
        return Some(("plain `http` would send it readable by others", "write https://"));
    }
    None
}
