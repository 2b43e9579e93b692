//! From `policy` of an agent to what its tool calls are held to.

use super::error::PolicyErrorKind;
use super::parse::{Reading, report_bad_value};
use super::read::Section;
use super::tool_lists::ToolLists;
use super::{Location, ToolSelector};

const ENGINE_KEYS: [&str; 5] = ["allow", "block", "allow_tags", "block_tags", "hints"];
/// Most tags of one list: each tool's are compared with all of them, turn after turn.
const TAGS_MAX: usize = 256;

/// Who decides, turn by turn, which of its tools an agent may use: `policy` of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnginePolicy {
    /// The engine that is built in.
    pub lists: ToolLists,
    /// Of the table.
    pub location: Location,
}

impl Reading<'_> {
    /// `policy` of an agent that may call the functions of `tools`.
    pub(super) fn engine(
        &self,
        section: &Section<'_, '_>,
        tools: &[ToolSelector],
    ) -> Option<EnginePolicy> {
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
            hints: table.flag("hints").unwrap_or(true),
        };
        Some(EnginePolicy { lists, location })
    }

    /// Functions of a list, each of which the agent may call.
    fn tools_of_its_own(
        &self,
        table: &Section<'_, '_>,
        key: &'static str,
        tools: &[ToolSelector],
    ) -> Vec<ToolSelector> {
        let selected = self.tool_selectors(table, table.strings(key));
        for selector in &selected {
            if !tools.iter().any(|own| overlap(own, selector)) {
                let text =
                    table.strings(key).into_iter().find(|text| text.value == selector.to_string());
                let Some(text) = text else { continue };
                let help = "remove it, or name the function under `tools`";
                report_bad_value(table, &text, "tool", "the agent may call no such function", help);
            }
        }
        selected
    }
}

/// Whether there is a function that both select.
fn overlap(one: &ToolSelector, other: &ToolSelector) -> bool {
    one.tool == other.tool
        && (one.function.is_none() || other.function.is_none() || one.function == other.function)
}

fn tags(table: &Section<'_, '_>, key: &'static str) -> Vec<String> {
    let texts = table.strings(key);
    if let Some(text) = texts.get(TAGS_MAX) {
        let kind = PolicyErrorKind::OutOfRange {
            key: key.to_owned(),
            value: format!("{} tags long", texts.len()),
        };
        table.report(text.span.clone(), kind, format!("name at most {TAGS_MAX} tags"));
    }
    texts.into_iter().take(TAGS_MAX).map(|text| text.value.to_owned()).collect()
}
