//! `autonomous` of an agent.

use std::time::Duration;

use taskrun_journal::answers::{ANSWERS_BYTES_MAX, Answers};
use taskrun_journal::autonomy::{
    AutonomyMode, CONTINUATION_BYTES_MAX, DEFER_MAX, DONE_NAMES, DoneTool, MARK_BYTES_MAX,
    RESULT_SCHEMA_BYTES_MAX, ROUNDS_DEFAULT, ROUNDS_MAX, STATES_MAX,
};

use super::error::{PolicyErrorKind, shown, suggest};
use super::limits::Budget;
use super::parse::report_bad_value;
use super::read::{Section, Text, is_function_name};
use crate::host_tools::HostFunction;
use crate::settings::AutonomySettings;

const KEYS: [&str; 8] =
    ["mode", "rounds", "continuation", "result", "done", "states", "max_defer", "answers"];

/// The word for a bound that there is not.
const NONE: &str = "none";

pub(super) fn read_autonomy(
    section: &Section<'_, '_>,
    budget: &Budget,
) -> Option<AutonomySettings> {
    let table = section.section("autonomous")?;
    table.expect_keys(&KEYS);
    Some(AutonomySettings {
        mode: read_mode(&table),
        rounds: read_rounds(&table, budget),
        continuation: read_text(&table, "continuation", CONTINUATION_BYTES_MAX),
        result_schema: read_schema(&table),
        done: read_done(&table),
        states: read_states(&table),
        max_defer: table.duration("max_defer", Duration::ZERO..=DEFER_MAX),
        answers: read_answers(&table),
    })
}

/// The word for nobody who answers.
const NOBODY: &str = "nobody";

fn read_answers(table: &Section<'_, '_>) -> Option<Answers> {
    let text = table.string("answers")?;
    let answers = match text.value {
        NOBODY => Some(Answers::Nobody),
        other => Answers::named(other),
    };
    let reason = match &answers {
        None => "it names nobody".to_owned(),
        Some(Answers::Inbox | Answers::Nobody) => return answers,
        Some(Answers::Refuse { reason: text } | Answers::Fixed { text })
            if text.trim().is_empty() || text.len() > ANSWERS_BYTES_MAX =>
        {
            format!("its text has 1 to {ANSWERS_BYTES_MAX} bytes")
        }
        Some(Answers::Refuse { .. } | Answers::Fixed { .. }) => return answers,
    };
    let help = "write \"nobody\", \"inbox\", \"refuse\", \"refuse:WHY\" or \"fixed:TEXT\"";
    report_bad_value(table, &text, "`answers`", &reason, help);
    None
}

fn read_mode(table: &Section<'_, '_>) -> Option<AutonomyMode> {
    let text = table.string("mode")?;
    let known = AutonomyMode::ALL.into_iter().find(|mode| mode.as_str() == text.value);
    if known.is_none() {
        let kind = PolicyErrorKind::Unknown { what: "`mode` value", name: shown(text.value) };
        table.report(
            text.span,
            kind,
            suggest(text.value, "values", AutonomyMode::ALL.map(AutonomyMode::as_str)),
        );
    }
    known
}

/// A run whose rounds nothing bounds is bounded by what it may spend.
fn read_rounds(table: &Section<'_, '_>, budget: &Budget) -> Option<u32> {
    let is_text = table.value("rounds").is_some_and(|value| value.get_ref().as_str().is_some());
    if !is_text {
        return Some(table.count("rounds", 1..=ROUNDS_MAX).unwrap_or(ROUNDS_DEFAULT));
    }
    let text = table.string("rounds")?;
    if text.value != NONE {
        let help = "write a number, or \"none\"";
        report_bad_value(table, &text, "`rounds`", "it is no number", help);
    } else if budget.tokens.is_none() && budget.cost_microusd.is_none() {
        let reason = "nothing else bounds what the run spends";
        let help = "state `tokens` or `usd` under `budget`, or write a number";
        report_bad_value(table, &text, "`rounds`", reason, help);
    }
    None
}

fn read_text(table: &Section<'_, '_>, key: &'static str, most: usize) -> Option<String> {
    let text = table.text_block(key)?;
    let trimmed = text.value.trim();
    if trimmed.is_empty() || trimmed.len() > most {
        let reason = format!("it has 1 to {most} bytes");
        report_bad_value(table, &text, "text", &reason, "write what the agent is told");
        return None;
    }
    Some(trimmed.to_owned())
}

fn read_schema(table: &Section<'_, '_>) -> Option<String> {
    let text = table.text_block("result")?;
    let help = "write a JSON schema as text: result = '{\"type\":\"object\"}'";
    if text.value.len() > RESULT_SCHEMA_BYTES_MAX {
        let reason = format!("it has more than {RESULT_SCHEMA_BYTES_MAX} bytes");
        report_bad_value(table, &text, "schema", &reason, help);
        return None;
    }
    match taskrun_journal::json::check(text.value) {
        Ok(()) => Some(text.value.to_owned()),
        Err(problem) => {
            let reason = format!("it is not JSON: {problem}");
            report_bad_value(table, &text, "schema", &reason, help);
            None
        }
    }
}

fn read_done(table: &Section<'_, '_>) -> Option<DoneTool> {
    let done = table.section("done")?;
    done.expect_keys(&["name", "description"]);
    let name = done.string("name").filter(|text| is_own_name(&done, text));
    Some(DoneTool {
        name: name.map(|text| text.value.to_owned()),
        description: read_text(&done, "description", MARK_BYTES_MAX),
    })
}

fn is_own_name(section: &Section<'_, '_>, text: &Text<'_>) -> bool {
    let is_known =
        HostFunction::parse(text.value).is_some_and(|one| one != HostFunction::ReportDone);
    let reason = match (is_function_name(text.value), is_known) {
        (true, false) => return true,
        (true, true) => "another tool of the host has this name",
        (false, _) => "it is none of a function",
    };
    let help = format!("write one such as \"finish\", or \"{}\"", DONE_NAMES[0]);
    report_bad_value(section, text, "name", reason, &help);
    false
}

fn read_states(table: &Section<'_, '_>) -> Vec<String> {
    let texts = table.strings("states");
    for text in &texts {
        if !is_function_name(text.value) {
            let help = "write words of a-z, 0-9, `_` and `-`";
            report_bad_value(table, text, "state", "it is no word", help);
        }
    }
    if let Some(text) = texts.get(STATES_MAX) {
        let value = format!("{} states long", texts.len());
        let kind = PolicyErrorKind::OutOfRange { key: "states".to_owned(), value };
        table.report(text.span.clone(), kind, format!("name at most {STATES_MAX} states"));
    }
    texts.into_iter().map(|text| text.value.to_owned()).collect()
}
