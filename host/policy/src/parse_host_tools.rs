//! Tools of the host among the `tools` of an agent: `host/SET` and `host/NAME`; and `tree`.

use taskrun_journal::operation::Operation;
use taskrun_journal::spec::TreeBounds;

use super::error::{PolicyErrorKind, shown, suggest};
use super::grants::Grants;
use super::parse::{PolicyDraft, report_bad_value};
use super::read::{Section, Text};
use crate::capability::{Capability, Use};
use crate::defaults::Defaults;
use crate::host_tools::{
    HOST, HostFunction, HostToolSet, TREE_DEPTH_MAX, TREE_RUNS_MAX, TREE_SLOTS_MAX,
};
use crate::pattern::{AGENTS, Pattern};

/// Tells if an entry of `tools` speaks of the host.
pub(super) fn is_host_tool(text: &str) -> bool {
    text == HOST || named(text).is_some()
}

fn named(text: &str) -> Option<&str> {
    text.strip_prefix(HOST)?.strip_prefix('/')
}

/// Tells if an entry of `tools` that speaks of the host means the function of this qualified name;
/// `None` if it speaks of others.
pub(super) fn means_host_tool(text: &str, name: &str) -> Option<bool> {
    let entry = named(text)?;
    let function = named(name).and_then(HostFunction::parse);
    let of_set =
        function.is_some_and(|function| function.set().is_some_and(|set| set.as_str() == entry));
    Some(of_set || function.is_some_and(|function| function.as_str() == entry))
}

/// `tree` of an agent.
pub(super) fn read_tree(section: &Section<'_, '_>) -> TreeBounds {
    let Some(table) = section.section("tree") else { return TreeBounds::default() };
    table.expect_keys(&["depth", "runs", "slots"]);
    TreeBounds {
        depth: table.count("depth", 0..=TREE_DEPTH_MAX),
        runs: table.number("runs", 1..=TREE_RUNS_MAX),
        slots: table.count("slots", 1..=TREE_SLOTS_MAX),
    }
}

/// The tools of the host that an agent has without naming any: those of tasks, if it has `members`,
/// as far as its rules allow them.
pub(crate) fn default_host_tools(
    members: &[String],
    grants: &Grants,
    defaults: &Defaults,
) -> Vec<HostFunction> {
    if members.is_empty() {
        return Vec::new();
    }
    let may = |function: &HostFunction| {
        let operation = function.operation();
        operation.is_none_or(|operation| grants.decide(&Use::Operation(operation)).allowed)
    };
    defaults.functions(HostToolSet::Tasks).filter(may).collect()
}

impl PolicyDraft<'_> {
    /// The tools of the host that these entries name, each once. For an agent without others to start
    /// runs of, sets have no tool that starts any. One whose operation a rule refuses
    /// is left out of its set; one of which no rule speaks is reported.
    pub(super) fn host_tools(
        &self,
        section: &Section<'_, '_>,
        texts: &[Text<'_>],
        (grants, starts_runs): (&Grants, bool),
    ) -> Vec<HostFunction> {
        let mut functions: Vec<HostFunction> = Vec::new();
        for text in texts {
            let entry = named(text.value).unwrap_or_default();
            let (named, of_set): (Vec<_>, bool) =
                match (HostToolSet::parse(entry), HostFunction::parse(entry)) {
                    (Some(set), _) => (self.defaults.functions(set).collect(), true),
                    (None, Some(function)) => (vec![function], false),
                    (None, None) => {
                        report_unknown(section, text, entry);
                        continue;
                    }
                };
            let starts = |function: &HostFunction| function.operation() == Some(Operation::Spawn);
            if !of_set && !starts_runs && named.iter().any(starts) {
                let help = "name agents under `members`";
                report_bad_value(section, text, "tool", "there are no `members`", help);
                continue;
            }
            let named: Vec<_> =
                named.into_iter().filter(|one| starts_runs || !starts(one)).collect();
            let allowed = allowed(section, text, (&named, of_set), grants);
            let fresh = named.iter().any(|function| !functions.contains(function));
            if !fresh {
                let reason = "all of it is named before";
                report_bad_value(section, text, "tool", reason, "remove it");
            }
            functions.extend(allowed);
            let mut seen = std::collections::BTreeSet::new();
            functions.retain(|function| seen.insert(*function));
        }
        functions
    }

    /// Reads `agent/NAME`, `agent/*`, `host/NAME` or `host/*` where functions of an agent are meant,
    /// `tool` being the part before the slash.
    pub(super) fn pattern_of_host(
        &self,
        section: &Section<'_, '_>,
        text: &Text<'_>,
        (tool, function): (&str, Option<&str>),
    ) -> Option<Pattern> {
        match function {
            Some("*") => Some(Pattern::all_of(tool)),
            Some(text) if tool == HOST && text.ends_with('*') => {
                Some(Pattern::parse(&format!("{HOST}/{text}")))
            }
            Some(name) if tool == AGENTS && self.agents.contains(&name) => {
                Some(Pattern::Name(text.value.to_owned()))
            }
            Some(name) if tool == HOST && HostFunction::parse(name).is_some() => {
                Some(Pattern::Name(text.value.to_owned()))
            }
            Some(name) if tool == AGENTS => {
                let help = suggest(name, "agents", self.agents.iter().copied());
                let kind = PolicyErrorKind::Unknown { what: "agent", name: shown(name) };
                section.report(text.span.clone(), kind, help);
                None
            }
            Some(name) => {
                let known = HostFunction::ALL.map(HostFunction::as_str);
                let help = suggest(name, "tools of the host", known);
                let kind = PolicyErrorKind::Unknown { what: "tool of the host", name: shown(name) };
                section.report(text.span.clone(), kind, help);
                None
            }
            None => {
                let help = format!("write \"{tool}/*\" for all of them");
                report_bad_value(section, text, "tool", "it does not say which one", &help);
                None
            }
        }
    }
}

/// Those of the functions that the rules allow; reports those of which no rule speaks.
fn allowed(
    section: &Section<'_, '_>,
    text: &Text<'_>,
    (functions, of_set): (&[HostFunction], bool),
    grants: &Grants,
) -> Vec<HostFunction> {
    let (mut allowed, mut missing) = (Vec::new(), Vec::new());
    for function in functions {
        let Some(operation) = function.operation() else {
            allowed.push(*function);
            continue;
        };
        let decision = grants.decide(&Use::Operation(operation));
        match (decision.allowed, decision.rule) {
            (true, _) => allowed.push(*function),
            (false, Some(_)) if of_set => {}
            (false, _) => {
                let rule = format!("\"{}: {operation}\"", Capability::Controller);
                if !missing.contains(&rule) {
                    missing.push(rule);
                }
            }
        }
    }
    if !missing.is_empty() {
        let help = format!("add {} to `allow`", missing.join(", "));
        report_bad_value(section, text, "tool", "no rule allows what it does", &help);
    }
    allowed
}

fn report_unknown(section: &Section<'_, '_>, text: &Text<'_>, entry: &str) {
    let sets = HostToolSet::ALL.map(HostToolSet::as_str);
    let known = sets.into_iter().chain(HostFunction::ALL.map(HostFunction::as_str));
    if entry.is_empty() || entry == "*" {
        let all: Vec<_> = sets.iter().map(|set| format!("\"{HOST}/{set}\"")).collect();
        let help = format!("write {}, or \"{HOST}/NAME\"", all.join(" or "));
        report_bad_value(section, text, "tool", "it does not say which set", &help);
        return;
    }
    let kind = PolicyErrorKind::Unknown { what: "tool of the host", name: shown(entry) };
    section.report(text.span.clone(), kind, suggest(entry, "tools of the host", known));
}
