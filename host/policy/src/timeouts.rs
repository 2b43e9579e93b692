//! How long calls of single tools may take.

use std::time::Duration;

use super::ToolSelector;
use super::error::{PolicyErrorKind, shown, suggest};
use super::limits::CALL_MAX;
use super::parse::Reading;
use super::read::{Section, Text, is_function_name};

/// Most time-outs of an agent: each is compared with each function that the agent may call.
pub const TIMEOUTS_MAX: usize = 256;

/// Time-outs by the names of functions: a name, or the beginning of names with a `*` behind it.
/// Of those about a function its own name wins, then the longest beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallTimeouts(Vec<(String, Duration)>);

impl CallTimeouts {
    /// These; of equal patterns the last one counts.
    pub fn new(all: impl IntoIterator<Item = (String, Duration)>) -> Self {
        Self(all.into_iter().collect())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Pattern and time-out of each, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.0.iter().map(|(pattern, timeout)| (pattern.as_str(), *timeout))
    }

    /// The time-out of a function by its qualified name, `tool/function`.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<Duration> {
        let about = self.iter().filter(|(pattern, _)| is_about(pattern, name));
        // A name is longer than each of its beginnings, and may be as long as one with its star.
        about.max_by_key(|(pattern, _)| rank(pattern)).map(|(_, timeout)| timeout)
    }

    /// The same, none of them longer than `most`.
    #[must_use]
    pub fn within(&self, most: Option<Duration>) -> Self {
        let least = |timeout: Duration| most.map_or(timeout, |most| timeout.min(most));
        Self::new(self.0.iter().map(|(pattern, timeout)| (pattern.clone(), least(*timeout))))
    }
}

/// Whether a pattern is about the function of this qualified name.
#[must_use]
pub fn is_about(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

fn rank(pattern: &str) -> (bool, usize) {
    match pattern.strip_suffix('*') {
        Some(beginning) => (false, beginning.len()),
        None => (true, pattern.len()),
    }
}

impl Reading<'_> {
    /// The time-outs of an agent that may call the functions of `tools`.
    pub(super) fn timeouts(
        &self,
        section: &Section<'_, '_>,
        tools: &[ToolSelector],
    ) -> CallTimeouts {
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
            if self.is_pattern(&table, &name, tools)
                && let Some(timeout) = timeout
            {
                all.push((name.value.to_owned(), timeout));
            }
        }
        CallTimeouts::new(all)
    }

    /// Whether a text is a pattern about something that `tools` select; reports why not.
    fn is_pattern(&self, table: &Section<'_, '_>, text: &Text<'_>, tools: &[ToolSelector]) -> bool {
        let (what, value) = ("pattern of functions", shown(text.value));
        let bad = |reason: &str, help: String| {
            let reason = reason.to_owned();
            let kind = PolicyErrorKind::BadValue { what, value: value.clone(), reason };
            table.report(text.span.clone(), kind, help);
            false
        };
        if text.value == "*" {
            return true;
        }
        let Some((tool, function)) = text.value.split_once('/') else {
            let help = "write \"TOOL/FUNCTION\", \"TOOL/*\", or \"*\" for all".to_owned();
            return bad("it does not say which function", help);
        };
        if !self.tools.contains(&tool) {
            let kind = PolicyErrorKind::Unknown { what: "tool", name: shown(tool) };
            let help = suggest(tool, "tools", self.tools.iter().copied());
            table.report(text.span.clone(), kind, help);
            return false;
        }
        let beginning = function.strip_suffix('*');
        let named = beginning.unwrap_or(function);
        if !(is_function_name(named) || beginning == Some("")) {
            let help = format!("write \"{tool}/FUNCTION\", or \"{tool}/*\" for all of them");
            return bad("it does not name a function", help);
        }
        let selected = tools.iter().filter(|selector| selector.tool == tool).any(|selector| {
            let own = selector.function.as_deref();
            own.is_none_or(|own| is_about(function, own))
        });
        if !selected {
            return bad(
                "the agent may call no such function",
                "remove it, or name the function under `tools`".to_owned(),
            );
        }
        true
    }
}
