//! From `policy`, `ask` and `ask_timeout` of an agent to the layers that hold its tool calls.

use std::time::Duration;

use super::ask::{ASK_TIMEOUT_MAX, AskRule, AskRules};
use super::error::{PolicyErrorKind, shown, suggest};
use super::files::FileUse;
use super::parse::{PolicyDraft, is_path, report_bad_value};
use super::read::{Section, Text};
use super::tool_lists::ToolLists;
use crate::engine::{ENGINE_TIMEOUT_MAX, EnginePolicy};
use crate::pattern::Pattern;
use crate::policy::RULES_MAX;
use crate::read::tags;

const ENGINE_KEYS: [&str; 7] =
    ["allow", "block", "allow_tags", "block_tags", "hints", "component", "timeout"];

impl PolicyDraft<'_> {
    /// `policy` of an agent that may call the functions of `tools`.
    pub(super) fn engine(
        &mut self,
        section: &Section<'_, '_>,
        tools: &[Pattern],
    ) -> Option<EnginePolicy> {
        const INSTANT: Duration = Duration::from_millis(1);
        let table = section.section("policy")?;
        table.expect_keys(&ENGINE_KEYS);
        let location = table.problems.source.locate(section.value_span("policy").start);
        let named = |key| table.has(key).then(|| self.tools_of_its_own(&table, key, tools));
        let lists = ToolLists {
            name: format!("policy ({location})"),
            allow: named("allow"),
            allow_tags: table.has("allow_tags").then(|| tags(&table, "allow_tags")),
            block: named("block").unwrap_or_default(),
            block_tags: tags(&table, "block_tags"),
            hints: table.flag("hints").unwrap_or(self.defaults.hints),
        };
        let timeout = table.duration("timeout", INSTANT..=ENGINE_TIMEOUT_MAX);
        let component = table.string("component");
        if let (None, Some(timeout)) =
            (&component, table.string("timeout").filter(|_| timeout.is_some()))
        {
            let help = "add `component`, or remove it";
            report_bad_value(&table, &timeout, "time-out", "no component decides", help);
        }
        let component = component.filter(|text| is_path(&table, text, "file"));
        let component = component.map(|text| self.named(&text, FileUse::Component));
        let timeout = timeout.unwrap_or(self.defaults.engine_timeout());
        Some(EnginePolicy { lists, component, timeout, location })
    }

    /// Functions of a list, each of which the agent may call.
    fn tools_of_its_own(
        &self,
        table: &Section<'_, '_>,
        key: &'static str,
        tools: &[Pattern],
    ) -> Vec<Pattern> {
        let selected = self.patterns(table, table.strings(key));
        for pattern in &selected {
            if !tools.iter().any(|own| own.overlaps(pattern)) {
                let text =
                    table.strings(key).into_iter().find(|text| text.value == pattern.to_string());
                let Some(text) = text else { continue };
                let help = "remove it, or name the function under `tools`";
                report_bad_value(table, &text, "tool", "the agent may call no such function", help);
            }
        }
        selected
    }

    /// `ask` and `ask_timeout` of an agent that may call the functions of `tools`.
    pub(super) fn ask(&self, section: &Section<'_, '_>, tools: &[Pattern]) -> AskRules {
        let least = Duration::from_secs(1);
        let timeout = section.duration("ask_timeout", least..=ASK_TIMEOUT_MAX);
        let timeout = timeout.or(self.ask_timeout).unwrap_or(self.defaults.ask_timeout());
        let mut rules: Vec<(AskRule, Text<'_>)> = Vec::new();
        for text in section.strings("ask") {
            if rules.len() == RULES_MAX {
                let value = format!("rule {}", RULES_MAX + 1);
                let kind = PolicyErrorKind::OutOfRange { key: "ask".to_owned(), value };
                section.report(text.span, kind, format!("write at most {RULES_MAX} rules"));
                break;
            }
            let Some(functions) = self.asked(section, &text, tools) else { continue };
            if let Some((_, first)) = rules.iter().find(|(rule, _)| rule.functions == functions) {
                let kind = PolicyErrorKind::Duplicate {
                    text: text.value.to_owned(),
                    first_text: first.value.to_owned(),
                    first: section.problems.source.locate(first.span.start),
                };
                section.report(text.span.clone(), kind, "remove it");
            }
            let location = section.problems.source.locate(text.span.start);
            rules.push((AskRule { functions, text: text.value.to_owned(), location }, text));
        }
        AskRules { rules: rules.into_iter().map(|(rule, _)| rule).collect(), timeout }
    }

    fn asked(
        &self,
        section: &Section<'_, '_>,
        text: &Text<'_>,
        tools: &[Pattern],
    ) -> Option<Pattern> {
        let (word, rest) = text.value.split_once(':').unwrap_or((text.value, ""));
        let rest = rest.trim();
        let bad = |reason: &str, help: &str| {
            report_bad_value(section, text, "rule", reason, help);
            None
        };
        match word {
            "tool" | "tag" if rest.is_empty() => {
                bad("it selects nothing", "write \"tool: TOOL/*\", \"tool: *\" or \"tag: TAG\"")
            }
            "tag" => Some(Pattern::Tag(rest.to_owned())),
            "tool" if rest == "*" => Some(Pattern::any()),
            "tool" => {
                let part = Text { value: rest, span: text.span.clone() };
                let pattern = self.pattern(section, &part)?;
                if !tools.iter().any(|own| own.overlaps(&pattern)) {
                    let help = "remove it, or name the function under `tools`";
                    return bad("the agent may call no such function", help);
                }
                Some(pattern)
            }
            other => {
                let kind = PolicyErrorKind::Unknown { what: "word of a rule", name: shown(other) };
                let help = suggest(other, "words", ["tool", "tag"]);
                section.report(text.part(section.problems, 0, other.len()), kind, help);
                None
            }
        }
    }
}
