//! From `timeouts` of an agent to the time-outs of its calls.

use std::time::Duration;

use super::error::{PolicyErrorKind, shown, suggest};
use super::limits::CALL_MAX;
use super::parse::PolicyDraft;
use super::read::{Section, Text, is_function_name};
use super::timeouts::{CallTimeouts, TIMEOUTS_MAX};
use crate::host_tools::HOST;
use crate::pattern::{AGENTS, Pattern};

impl PolicyDraft<'_> {
    /// The time-outs of an agent that may call the functions of `tools`.
    pub(super) fn timeouts(&self, section: &Section<'_, '_>, tools: &[Pattern]) -> CallTimeouts {
        const INSTANT: Duration = Duration::from_millis(1);
        let Some(table) = section.section("timeouts") else {
            return CallTimeouts::default();
        };
        let mut all = Vec::new();
        for name in table.keys() {
            let timeout = table.duration(name.value, INSTANT..=CALL_MAX);
            if all.len() == TIMEOUTS_MAX {
                let value = format!("time-out {}", TIMEOUTS_MAX + 1);
                let kind = PolicyErrorKind::OutOfRange { key: "timeouts".to_owned(), value };
                table.report(name.span, kind, format!("write at most {TIMEOUTS_MAX}"));
                break;
            }
            all.extend(self.timed(&table, &name, tools).zip(timeout));
        }
        CallTimeouts::new(all)
    }

    /// The pattern of a text about something that `tools` mean; reports why there is none.
    fn timed(
        &self,
        table: &Section<'_, '_>,
        text: &Text<'_>,
        tools: &[Pattern],
    ) -> Option<Pattern> {
        let (what, value) = ("pattern of functions", shown(text.value));
        let bad = |reason: &str, help: String| {
            let reason = reason.to_owned();
            let kind = PolicyErrorKind::BadValue { what, value: value.clone(), reason };
            table.report(text.span.clone(), kind, help);
            None
        };
        let pattern = Pattern::parse(text.value);
        if pattern == Pattern::any() {
            return Some(pattern);
        }
        let Some((tool, function)) = text.value.split_once('/') else {
            let help = "write \"TOOL/FUNCTION\", \"TOOL/*\", or \"*\" for all".to_owned();
            return bad("it does not say which function", help);
        };
        if tool == AGENTS || tool == HOST {
            let pattern = self.pattern_of_host(table, text, (tool, Some(function)))?;
            return match tools.iter().any(|own| own.overlaps(&pattern)) {
                true => Some(pattern),
                false => bad("the agent may call no such function", "remove it".to_owned()),
            };
        }
        if !self.tools.contains(&tool) {
            let kind = PolicyErrorKind::Unknown { what: "tool", name: shown(tool) };
            let help = suggest(tool, "tools", self.tools.iter().copied());
            table.report(text.span.clone(), kind, help);
            return None;
        }
        let beginning = function.strip_suffix('*');
        let named = beginning.unwrap_or(function);
        if !(is_function_name(named) || beginning == Some("")) {
            let help = format!("write \"{tool}/FUNCTION\", or \"{tool}/*\" for all of them");
            return bad("it does not name a function", help);
        }
        if !tools.iter().any(|own| own.overlaps(&pattern)) {
            return bad(
                "the agent may call no such function",
                "remove it, or name the function under `tools`".to_owned(),
            );
        }
        Some(pattern)
    }
}
