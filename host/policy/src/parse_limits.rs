//! From `limits`, `budget`, `retry`, `heartbeat` and `conversation` to what a call and a run may
//! use, when, and what it is told.

use std::time::Duration;

use taskrun_journal::history::History;
use taskrun_journal::money::Price;

use super::error::{PolicyErrorKind, shown, suggest};
use super::limits::{self, Budget, LimitSettings, Reserve};
use super::limits::{
    CALL_MAX, EVENTS_MAX, GRACE_MAX, HEARTBEAT_INTERVAL_MAX, HEARTBEAT_INTERVAL_MIN,
    HEARTBEAT_PROMPT_BYTES_MAX, HOST_CALL_BYTES_MAX, HOST_CALLS_MAX, LOG_BYTES_MAX,
    MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, NEW_FILES_MAX, RESULT_BYTES_MAX, RETRY_ATTEMPTS_MAX,
    RETRY_ON_MAX, RETRY_PATIENCE_DEFAULT, RETRY_PATIENCE_MAX, RETRY_PAUSE_MAX, RETRY_SKIPS_MAX,
    RETRY_WORD_BYTES_MAX, STEP_MAX, TABLE_ELEMENTS_MAX, TOOL_CALLS_MAX, WRITE_BYTES_MAX,
};
use super::parse::report_bad_value;
use super::read::Section;
use crate::beat_times::{BeatTimes, CronFault, CronTimes, ZONE_DEFAULT};
use crate::defaults::Defaults;
use crate::{Heartbeat, Retry, RetryExhaustion, RetryOn};

/// The last six are for agents only.
pub(super) const AGENT_LIMIT_KEYS: [&str; 17] = [
    "memory",
    "call",
    "grace",
    "result",
    "log",
    "table_elements",
    "host_calls",
    "host_call_bytes",
    "events",
    "write",
    "new_files",
    "step",
    "last_step",
    "tool_calls",
    "tool_failures",
    "turn_calls",
    "journal",
];
pub(super) const TOOL_LIMIT_KEYS: &[&str] = AGENT_LIMIT_KEYS.split_at(11).0;

pub(super) fn read_limits(section: &Section<'_, '_>, known: &[&str]) -> LimitSettings {
    const INSTANT: Duration = Duration::from_millis(1);
    let Some(table) = section.section("limits") else {
        return LimitSettings::default();
    };
    table.expect_keys(known);
    LimitSettings {
        memory_bytes: table.size("memory", MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX),
        call: table.duration("call", INSTANT..=CALL_MAX),
        step: table.duration("step", INSTANT..=STEP_MAX),
        last_step: table.duration("last_step", INSTANT..=STEP_MAX),
        grace: table.duration("grace", Duration::ZERO..=GRACE_MAX),
        tool_calls: table.count("tool_calls", 0..=TOOL_CALLS_MAX),
        turn_calls: table.count("turn_calls", 0..=TOOL_CALLS_MAX),
        tool_failures: table.count("tool_failures", 1..=limits::TOOL_FAILURES_MAX),
        result_bytes: table.size("result", 1..=RESULT_BYTES_MAX),
        log_bytes: table.size("log", 0..=LOG_BYTES_MAX),
        table_elements: table.count("table_elements", 1..=TABLE_ELEMENTS_MAX),
        host_calls: table.count("host_calls", 0..=HOST_CALLS_MAX),
        host_call_bytes: table.size("host_call_bytes", 1..=HOST_CALL_BYTES_MAX),
        events: table.count("events", 0..=EVENTS_MAX),
        journal_bytes: table.size("journal", limits::JOURNAL_BYTES_MIN..=limits::JOURNAL_BYTES_MAX),
        write_bytes: table.size("write", 0..=WRITE_BYTES_MAX),
        new_files: table.count("new_files", 0..=NEW_FILES_MAX),
    }
}

pub(super) fn read_budget(section: &Section<'_, '_>, defaults: &Defaults) -> Budget {
    let mut budget = defaults.budget();
    let Some(table) = section.section("budget") else {
        return budget;
    };
    table.expect_keys(&[
        "turns",
        "tokens",
        "prompt_tokens",
        "completion_tokens",
        "usd",
        "wall",
        "round",
        "reserve",
    ]);
    budget.turns = table.count("turns", 1..=limits::TURNS_MAX).or(budget.turns);
    budget.tokens = table.number("tokens", 1..=limits::TOKENS_MAX);
    budget.prompt_tokens = table.number("prompt_tokens", 1..=limits::TOKENS_MAX);
    budget.completion_tokens = table.number("completion_tokens", 1..=limits::TOKENS_MAX);
    budget.wall =
        table.duration("wall", Duration::from_millis(1)..=limits::WALL_MAX).or(budget.wall);
    budget.round = table.duration("round", Duration::from_millis(1)..=limits::WALL_MAX);
    budget.cost_microusd = table.usd("usd", 1);
    if budget.cost_microusd.is_some() {
        budget.subagent_cost_microusd = None;
    }
    if let Some(reserve) = table.section("reserve") {
        reserve.expect_keys(&["turns", "tokens", "usd"]);
        // There is one last word.
        let turns = reserve.count("turns", 1..=1);
        let tokens = reserve.number("tokens", 1..=limits::TOKENS_MAX);
        let money = reserve.usd("usd", 1);
        budget.reserve = Reserve {
            turns: turns.unwrap_or_default(),
            tokens: tokens.unwrap_or_default(),
            cost_microusd: money.unwrap_or_default(),
        };
        check_reserve(&reserve, "turns", turns.map(u64::from), budget.turns.map(u64::from));
        check_reserve(&reserve, "tokens", tokens, budget.tokens);
        check_reserve(&reserve, "usd", money, budget.cost_microusd);
    }
    budget
}

/// Reports a reserve that leaves nothing, or that is a part of nothing.
fn check_reserve(table: &Section<'_, '_>, key: &'static str, kept: Option<u64>, of: Option<u64>) {
    if kept.is_some_and(|kept| of.is_none_or(|of| kept >= of)) {
        let kind = PolicyErrorKind::BadValue {
            what: "reserve",
            value: key.to_owned(),
            reason: format!("it is not less than `{key}` of the budget"),
        };
        table.report(table.value_span(key), kind, format!("keep less, or state a larger `{key}`"));
    }
}

/// The price of a model's tokens: dollars for a million of them.
pub(super) fn read_prices(section: &Section<'_, '_>) -> Option<Price> {
    let table = section.section("prices")?;
    table.expect_keys(&["prompt", "completion", "cached", "cache_write"]);
    let (prompt, completion) = (table.usd("prompt", 0), table.usd("completion", 0));
    let (cached, cache_write) = (table.usd("cached", 0), table.usd("cache_write", 0));
    for key in ["prompt", "completion"] {
        if table.span_of(key).is_none() {
            let kind = PolicyErrorKind::BadValue {
                what: "price",
                value: key.to_owned(),
                reason: "it is missing".to_owned(),
            };
            let help = "write both, as in prices = { prompt = 0.15, completion = 0.60 }";
            table.report(table.span.clone(), kind, help);
        }
    }
    let price = Price::new(prompt?, completion?);
    Some(Price {
        cached: cached.unwrap_or(price.cached),
        cache_write: cache_write.unwrap_or(price.cache_write),
        ..price
    })
}

pub(super) fn read_retry(section: &Section<'_, '_>, defaults: &Defaults) -> (Retry, RetryOn) {
    let Some(table) = section.section("retry") else {
        return (defaults.retry(), defaults.retry_on());
    };
    table.expect_keys(&["attempts", "pause", "then", "skips", "on"]);
    let attempts = read_attempts(&table, defaults.retry());
    (Retry { then: read_then(&table, defaults), ..attempts }, read_retry_on(&table, defaults))
}

/// The words of failures; a code may have at most as many bytes as the name of a function.
fn read_retry_on(table: &Section<'_, '_>, defaults: &Defaults) -> RetryOn {
    if !table.has("on") {
        return defaults.retry_on();
    }
    let words = table.strings("on");
    if words.len() > RETRY_ON_MAX {
        let kind = PolicyErrorKind::OutOfRange {
            key: "on".to_owned(),
            value: format!("{} words", words.len()),
        };
        table.report(table.value_span("on"), kind, format!("write at most {RETRY_ON_MAX}"));
    }
    for word in &words {
        if word.value.is_empty() || word.value.len() > RETRY_WORD_BYTES_MAX {
            let reason = "it is no word of a failure";
            let help = "write the code of an error, `uncoded`, or a kind such as `deadline`";
            report_bad_value(table, word, "`on` value", reason, help);
        }
    }
    RetryOn::new(words.iter().map(|word| word.value))
}

/// That of a model, which has no turn to skip, and the time for which a run is put off for it.
pub(super) fn read_model_retry(section: &Section<'_, '_>) -> (Retry, Duration) {
    let Some(table) = section.section("retry") else {
        return (Retry::default(), RETRY_PATIENCE_DEFAULT);
    };
    table.expect_keys(&["attempts", "pause", "patience"]);
    let patience = table.duration("patience", Duration::ZERO..=RETRY_PATIENCE_MAX);
    (read_attempts(&table, Retry::default()), patience.unwrap_or(RETRY_PATIENCE_DEFAULT))
}

fn read_attempts(table: &Section<'_, '_>, default: Retry) -> Retry {
    Retry {
        attempts: table.count("attempts", 1..=RETRY_ATTEMPTS_MAX).unwrap_or(default.attempts),
        pause: table.duration("pause", Duration::ZERO..=RETRY_PAUSE_MAX).unwrap_or(default.pause),
        ..default
    }
}

fn read_then(table: &Section<'_, '_>, defaults: &Defaults) -> RetryExhaustion {
    let skips = table.count("skips", 1..=RETRY_SKIPS_MAX);
    let in_a_row = skips.unwrap_or(defaults.skips);
    let skip = RetryExhaustion::Skip { in_a_row };
    let then = match table.string("then") {
        None => defaults.then(in_a_row),
        Some(text) => match text.value {
            "abort" => RetryExhaustion::Abort,
            "skip" => skip,
            other => {
                let kind = PolicyErrorKind::Unknown { what: "`then` value", name: shown(other) };
                table.report(text.span, kind, suggest(other, "values", ["abort", "skip"]));
                // The operator's intent is not known: `skips` beside it is no second mistake.
                skip
            }
        },
    };
    if let (RetryExhaustion::Abort, Some(skips), Some(span)) = (then, skips, table.span_of("skips"))
    {
        let value = skips.to_string();
        let reason = "no turn is skipped".to_owned();
        let kind = PolicyErrorKind::BadValue { what: "number of `skips`", value, reason };
        table.report(span, kind, "write `then = \"skip\"` beside it, or remove it");
    }
    then
}

/// An interval of zero is none; so is one that is missing or cannot be read, which is reported.
pub(super) fn read_heartbeat(section: &Section<'_, '_>) -> Option<Heartbeat> {
    let table = section.section("heartbeat")?;
    table.expect_keys(&["interval", "cron", "zone", "prompt"]);
    let prompt = read_prompt(&table);
    if table.has("cron") {
        let times = BeatTimes::Cron(Box::new(read_cron(&table)?));
        return Some(Heartbeat { times, prompt });
    }
    if let Some(zone) = table.string("zone") {
        let reason = "an interval is the same in every time zone";
        report_bad_value(&table, &zone, "`zone`", reason, "write `cron` instead of `interval`");
    }
    table.required_string("interval", "60s")?;
    let interval = table.duration("interval", Duration::ZERO..=HEARTBEAT_INTERVAL_MAX)?;
    if interval.is_zero() {
        return None;
    }
    // Reports one that is too short; zero was no mistake.
    let interval = table.duration("interval", HEARTBEAT_INTERVAL_MIN..=HEARTBEAT_INTERVAL_MAX)?;
    Some(Heartbeat { times: BeatTimes::Every(interval), prompt })
}

fn read_cron(table: &Section<'_, '_>) -> Option<CronTimes> {
    let pattern = table.string("cron")?;
    if let Some(interval) = table.string("interval") {
        let reason = "there is `cron`, too";
        report_bad_value(table, &interval, "`interval`", reason, "remove one of them");
        return None;
    }
    let zone = table.string("zone");
    let zone_name = zone.as_ref().map_or(ZONE_DEFAULT, |zone| zone.value);
    match (CronTimes::new(pattern.value, zone_name), zone) {
        (Ok(times), _) => Some(times),
        (Err(CronFault::Zone), Some(zone)) => {
            let reason = "this machine knows no time zone of this name";
            let help = "write a name such as \"Europe/Berlin\", or leave it out for UTC";
            report_bad_value(table, &zone, "`zone`", reason, help);
            None
        }
        (Err(CronFault::Pattern(fault)), _) => {
            let help = "write minute, hour, day, month and weekday: \"0 9 * * 1-5\"";
            report_bad_value(table, &pattern, "`cron`", &fault, help);
            None
        }
        (Err(CronFault::Zone), None) => None,
    }
}

fn read_prompt(table: &Section<'_, '_>) -> Option<String> {
    let text = table.string("prompt")?;
    if text.value.len() > HEARTBEAT_PROMPT_BYTES_MAX {
        let kind = PolicyErrorKind::OutOfRange {
            key: "prompt".to_owned(),
            value: format!("{} bytes long", text.value.len()),
        };
        let help = format!("write at most {HEARTBEAT_PROMPT_BYTES_MAX} bytes");
        table.report(text.span, kind, help);
        return None;
    }
    let trimmed = text.value.trim();
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

/// Without the key, and with a word that is none, which is reported, the default.
pub(super) fn read_conversation(section: &Section<'_, '_>, defaults: &Defaults) -> History {
    let Some(text) = section.string("conversation") else { return defaults.conversation };
    let known = History::ALL.into_iter().find(|history| history.as_str() == text.value);
    known.unwrap_or_else(|| {
        let kind =
            PolicyErrorKind::Unknown { what: "`conversation` value", name: shown(text.value) };
        let words = History::ALL.map(History::as_str);
        section.report(text.span, kind, suggest(text.value, "values", words));
        defaults.conversation
    })
}
