//! `delivery` and `max_nudges` of an agent.

use std::time::Duration;

use taskrun_journal::delivery::{
    DeliverySettings, IDLE_WAIT_MAX, PROMPT_BYTES_MAX, SEPARATOR_BYTES_MAX, Strategy,
};
use taskrun_journal::time::millis;

use super::error::{PolicyErrorKind, shown, suggest};
use super::limits::{NUDGES_DEFAULT, NUDGES_MAX};
use super::parse::{PolicyDraft, report_bad_value};
use super::read::{Section, Text};

/// The word of no strategy at all: nobody is told.
const NONE: &str = "none";

impl PolicyDraft<'_> {
    /// `delivery` of an agent.
    pub(super) fn delivery(&self, section: &Section<'_, '_>) -> DeliverySettings {
        let Some(table) = section.section("delivery") else { return DeliverySettings::default() };
        table.expect_keys(&[
            "strategy",
            "buffer",
            "timeout",
            "interrupt",
            "separator",
            "notify",
            "prompt",
        ]);
        let notify = table.string("notify").filter(|name| {
            let is_known = self.agents.contains(&name.value);
            if !is_known {
                let kind = PolicyErrorKind::Unknown { what: "agent", name: shown(name.value) };
                let help = suggest(name.value, "agents", self.agents.iter().copied());
                table.report(name.span.clone(), kind, help);
            }
            is_known
        });
        DeliverySettings {
            strategy: read_strategy(&table),
            notify: notify.map(|name| name.value.to_owned()),
            prompt: bounded(&table, "prompt", PROMPT_BYTES_MAX),
        }
    }
}

/// `max_nudges` of an agent.
pub(super) fn read_max_nudges(section: &Section<'_, '_>) -> u32 {
    section.count("max_nudges", 0..=NUDGES_MAX).unwrap_or(NUDGES_DEFAULT)
}

fn read_strategy(table: &Section<'_, '_>) -> Option<Strategy> {
    let word = table.string("strategy");
    if word.as_ref().is_some_and(|word| word.value == NONE) {
        report_others(table, NONE, &[]);
        return None;
    }
    let strategy = match &word {
        None => Strategy::default(),
        Some(word) => Strategy::of_word(word.value).unwrap_or_else(|| {
            let kind =
                PolicyErrorKind::Unknown { what: "`strategy` value", name: shown(word.value) };
            let words = Strategy::WORDS.into_iter().chain([NONE]);
            table.report(word.span.clone(), kind, suggest(word.value, "values", words));
            Strategy::default()
        }),
    };
    Some(with_its_keys(table, strategy))
}

/// The strategy with what the table says of it.
fn with_its_keys(table: &Section<'_, '_>, strategy: Strategy) -> Strategy {
    let time = |key| table.duration(key, Duration::ZERO..=IDLE_WAIT_MAX).map(millis);
    match strategy {
        strategy @ (Strategy::ContextOnly | Strategy::Immediate) => {
            report_others(table, strategy.word(), &[]);
            strategy
        }
        Strategy::WaitForIdle { buffer_ms, timeout_ms, .. } => {
            report_others(table, strategy.word(), &["buffer", "timeout", "interrupt"]);
            Strategy::WaitForIdle {
                buffer_ms: time("buffer").unwrap_or(buffer_ms),
                timeout_ms: time("timeout").unwrap_or(timeout_ms),
                interrupt: table.flag("interrupt").unwrap_or(false),
            }
        }
        Strategy::Queued { buffer_ms, timeout_ms, separator } => {
            report_others(table, "queued", &["buffer", "timeout", "separator"]);
            Strategy::Queued {
                buffer_ms: time("buffer").unwrap_or(buffer_ms),
                timeout_ms: time("timeout").unwrap_or(timeout_ms),
                separator: bounded(table, "separator", SEPARATOR_BYTES_MAX).unwrap_or(separator),
            }
        }
    }
}

/// Reports keys that a strategy does not have.
fn report_others(table: &Section<'_, '_>, word: &str, own: &[&'static str]) {
    let keys = ["buffer", "timeout", "interrupt", "separator"];
    for key in keys.into_iter().filter(|key| !own.contains(key)) {
        if let Some(span) = table.span_of(key) {
            let kind = PolicyErrorKind::Unknown { what: "key", name: shown(key) };
            table.report(span, kind, format!("strategy `{word}` has none of this name; remove it"));
        }
    }
}

fn bounded(table: &Section<'_, '_>, key: &'static str, max: usize) -> Option<String> {
    let text: Text<'_> = table.string(key)?;
    if text.value.len() > max {
        let reason = format!("it has more than {max} bytes");
        report_bad_value(table, &text, key, &reason, "write less");
    }
    Some(text.value.to_owned())
}
