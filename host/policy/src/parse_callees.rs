//! Agents among the `tools` of an agent: `agent/NAME`.

use super::error::{PolicyErrorKind, shown, suggest};
use super::parse::{PolicyDraft, report_bad_value};
use super::read::{Section, Text};
use crate::pattern::AGENTS;
use crate::policy::MEMBERS_MAX;

/// Tells if an entry of `tools` speaks of an agent.
pub(super) fn is_callee(text: &str) -> bool {
    text == AGENTS || callee(text).is_some()
}

fn callee(text: &str) -> Option<&str> {
    text.strip_prefix(AGENTS)?.strip_prefix('/')
}

/// Tells if an entry of `tools` that speaks of agents means the one of this qualified name; `None` if
/// it speaks of functions.
pub(super) fn means_callee(text: &str, name: &str) -> Option<bool> {
    let named = callee(text)?;
    Some(callee(name).is_some_and(|callee| named == "*" || named == callee))
}

impl PolicyDraft<'_> {
    /// The agents that these entries name, each once.
    pub(super) fn callees(
        &self,
        section: &Section<'_, '_>,
        texts: &[Text<'_>],
        members: &[String],
    ) -> Vec<String> {
        let mut callees: Vec<String> = Vec::new();
        for text in texts {
            let named = match callee(text.value) {
                Some("*") if members.is_empty() => {
                    let help = "name agents under `members`, or write \"agent/NAME\"";
                    report_bad_value(section, text, "tool", "there are no `members`", help);
                    continue;
                }
                Some("*") => members.to_vec(),
                Some(name) if self.agents.contains(&name) => vec![name.to_owned()],
                Some(name) => {
                    let help = suggest(name, "agents", self.agents.iter().copied());
                    let kind = PolicyErrorKind::Unknown { what: "agent", name: shown(name) };
                    section.report(text.span.clone(), kind, help);
                    continue;
                }
                None => {
                    let help = "write \"agent/NAME\", or \"agent/*\" for all `members`";
                    report_bad_value(section, text, "tool", "it does not say which agent", help);
                    continue;
                }
            };
            let before = callees.len();
            callees.extend(named);
            let mut seen = std::collections::BTreeSet::new();
            callees.retain(|name| seen.insert(name.clone()));
            if callees.len() == before {
                let reason = "all of it is named before";
                report_bad_value(section, text, "tool", reason, "remove it");
            }
            if callees.len() > MEMBERS_MAX {
                let value = format!("agent {}", callees.len());
                let kind = PolicyErrorKind::OutOfRange { key: "tools".to_owned(), value };
                section.report(
                    text.span.clone(),
                    kind,
                    format!("name at most {MEMBERS_MAX} agents"),
                );
                break;
            }
        }
        callees
    }
}
