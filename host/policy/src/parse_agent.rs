//! From `[agent.NAME]` to the policy of an agent.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::capability::Capability;
use super::check::{check_partial_denials, check_rules};
use super::error::{PolicyErrorKind, shown, suggest};
use super::files::{FileUse, NamedFile};
use super::grants::Grants;
use super::named_function::named_functions;
use super::parse::{PolicyDraft, is_path, report_bad_value, resolve};
use super::parse_autonomy::read_autonomy;
use super::parse_callees::is_callee;
use super::parse_delivery::read_max_nudges;
use super::parse_host_tools::{default_host_tools, is_host_tool, read_tree};
use super::parse_limits::{
    AGENT_LIMIT_KEYS, read_budget, read_conversation, read_heartbeat, read_limits, read_retry,
};
use super::read::{Section, Text, is_function_name};
use super::rule::{DeclaredNames, Rule, parse_rule};
use super::selector::Selector;
use crate::defaults::{Defaults, LimitsOf};
use crate::host_tools::HOST;
use crate::pattern::{AGENTS, Pattern};
use crate::policy::{AgentPolicy, DESCRIPTION_BYTES_MAX, MEMBERS_MAX, RULES_MAX, functions};
use crate::verdict::Verdict;
use crate::{MissingFields, Upgrade};

const AGENT_KEYS: [&str; 28] = [
    "component",
    "description",
    "tools",
    "members",
    "tree",
    "model",
    "workspace",
    "allow",
    "deny",
    "limits",
    "budget",
    "durable",
    "retry",
    "autonomous",
    "heartbeat",
    "delivery",
    "max_nudges",
    "timeouts",
    "conversation",
    "policy",
    "ask",
    "ask_timeout",
    "on_missing_fields",
    "upgrade",
    "interrupts",
    "subscribers",
    "channels",
    "delegation",
];

impl PolicyDraft<'_> {
    pub(super) fn agent(&mut self, name: &str, section: &Section<'_, '_>) -> Option<AgentPolicy> {
        section.expect_keys(&AGENT_KEYS);
        let description = read_description(section);
        let members = self.members(section);
        let (agents, tools): (Vec<_>, Vec<_>) =
            section.strings("tools").into_iter().partition(|text| is_callee(text.value));
        let (of_host, tools): (Vec<_>, Vec<_>) =
            tools.into_iter().partition(|text| is_host_tool(text.value));
        let tools = self.patterns(section, tools);
        let callees = self.callees(section, &agents, &members);
        let (model, grants) = self.grants(section);
        let host_tools = match of_host.is_empty() {
            true => default_host_tools(&members, &grants, &self.defaults),
            false => {
                let starts_runs = !members.is_empty() || !callees.is_empty();
                self.host_tools(section, &of_host, (&grants, starts_runs))
            }
        };
        let functions = functions(&tools, &callees, &host_tools);
        let stated_limits = read_limits(section, &AGENT_LIMIT_KEYS);
        let timeouts = self.timeouts(section, &functions);
        let engine = self.engine(section, &functions);
        let ask = self.ask(section, &functions);
        let budget = read_budget(section, &self.defaults);
        let autonomous = read_autonomy(section, &budget);
        let durable = section.flag("durable").unwrap_or(self.defaults.durable);
        let (retry, retry_on) = read_retry(section, &self.defaults);
        let heartbeat = read_heartbeat(section);
        let delivery = self.delivery(section);
        let max_nudges = read_max_nudges(section);
        let conversation = read_conversation(section, &self.defaults);
        let on_missing_fields = read_missing_fields(section, &self.defaults);
        let upgrade = read_upgrade(section);
        let (workspace, workspace_root) = self.agent_workspace(section);
        let component =
            self.file(section, "component", "components/agent.wasm", FileUse::Component)?;
        Some(AgentPolicy {
            name: name.to_owned(),
            description,
            component,
            tools,
            callees,
            host_tools,
            tree: read_tree(section),
            members,
            model,
            workspace,
            workspace_root,
            workspace_limits: self.workspace_limits,
            location: grants.location.clone(),
            grants: Arc::new(grants),
            limits: self.defaults.limits(&stated_limits, LimitsOf::Agent),
            stated_limits,
            timeouts,
            budget,
            durable,
            retry,
            retry_on,
            autonomous,
            heartbeat,
            delivery,
            max_nudges,
            conversation,
            engine,
            ask,
            named_functions: match self.is_kept {
                true => Vec::new(),
                false => named_functions(section),
            },
            on_missing_fields,
            upgrade,
            interrupts: section.flag("interrupts").unwrap_or(true),
            subscribers: self.subscribers_of(section),
            channels: self.channels_of(section),
            delegation: self.delegation(section),
            defaults: Arc::clone(&self.defaults),
        })
    }

    /// Gives the folder of an agent, and the one that it must not lead out of, if it has its own.
    fn agent_workspace(&mut self, section: &Section<'_, '_>) -> (PathBuf, Option<PathBuf>) {
        let Some(text) =
            section.string("workspace").filter(|text| is_path(section, text, "folder"))
        else {
            return (self.root.clone(), None);
        };
        let leaves = Path::new(text.value)
            .components()
            .any(|part| !matches!(part, Component::CurDir | Component::Normal(_)));
        if leaves {
            let help = "write a folder below `root` of [workspace], without `..` and leading `/`";
            report_bad_value(section, &text, "folder", "it leaves the workspace's root", help);
            return (self.root.clone(), None);
        }
        let path = resolve(&self.root, text.value);
        let usage = FileUse::AgentWorkspace { root: self.root.clone() };
        self.files.push(NamedFile { path: path.clone(), span: text.span, usage });
        (path, Some(self.root.clone()))
    }

    pub(super) fn patterns(&self, section: &Section<'_, '_>, texts: Vec<Text<'_>>) -> Vec<Pattern> {
        let mut patterns: Vec<(Pattern, Text<'_>)> = Vec::new();
        for text in texts {
            let Some(pattern) = self.pattern(section, &text) else {
                continue;
            };
            let covering = patterns.iter().find(|(first, _)| first.covers(&pattern));
            if let Some((_, first)) = covering {
                let kind = PolicyErrorKind::Duplicate {
                    text: text.value.to_owned(),
                    first_text: first.value.to_owned(),
                    first: section.problems.source.locate(first.span.start),
                };
                section.report(text.span.clone(), kind, "remove it");
            }
            patterns.push((pattern, text));
        }
        patterns.into_iter().map(|(pattern, _)| pattern).collect()
    }

    /// Reads `tool/function` or `tool/*` about a tool of the policy; reports what is wrong with it.
    pub(super) fn pattern(&self, section: &Section<'_, '_>, text: &Text<'_>) -> Option<Pattern> {
        let (tool, function) = match text.value.split_once('/') {
            Some((tool, function)) => (tool, Some(function)),
            None => (text.value, None),
        };
        if tool == AGENTS || tool == HOST {
            return self.pattern_of_host(section, text, (tool, function));
        }
        if !self.tools.contains(&tool) {
            let kind = PolicyErrorKind::Unknown { what: "tool", name: shown(tool) };
            let help = if self.agents.contains(&tool) {
                format!("`{tool}` is an agent: write \"{AGENTS}/{tool}\" to call it as a tool")
            } else {
                suggest(tool, "tools", self.tools.iter().copied())
            };
            section.report(text.part(section.problems, 0, tool.len()), kind, help);
            return None;
        }
        match function {
            Some("*") => Some(Pattern::all_of(tool)),
            Some(function) if is_function_name(function) => {
                Some(Pattern::Name(text.value.to_owned()))
            }
            Some(_) => {
                let help = format!("write \"{tool}/FUNCTION\", or \"{tool}/*\" for all of them");
                report_bad_value(section, text, "tool", "it does not name a function", &help);
                None
            }
            None => {
                let help = format!("write \"{tool}/*\" for all of its functions");
                report_bad_value(section, text, "tool", "it does not say which function", &help);
                None
            }
        }
    }

    fn members(&self, section: &Section<'_, '_>) -> Vec<String> {
        let texts = section.strings("members");
        let mut members: Vec<&Text<'_>> = Vec::new();
        for text in &texts {
            if text.value == "*" {
                if let [_] = texts.as_slice() {
                    return self.every_agent(section, text);
                }
                let help = "write [\"*\"] alone for all agents, or remove it";
                report_bad_value(section, text, "member", "there are others beside it", help);
            } else if !self.agents.contains(&text.value) {
                self.report_no_agent(section, text);
            } else if let Some(first) = members.iter().find(|first| first.value == text.value) {
                let kind = PolicyErrorKind::Duplicate {
                    text: text.value.to_owned(),
                    first_text: first.value.to_owned(),
                    first: section.problems.source.locate(first.span.start),
                };
                section.report(text.span.clone(), kind, "remove it");
            } else if members.len() == MEMBERS_MAX {
                report_too_many(section, text, format!("member {}", MEMBERS_MAX + 1));
                break;
            } else {
                members.push(text);
            }
        }
        members.into_iter().map(|text| text.value.to_owned()).collect()
    }

    fn every_agent(&self, section: &Section<'_, '_>, star: &Text<'_>) -> Vec<String> {
        if self.agents.len() > MEMBERS_MAX {
            report_too_many(section, star, format!("{} agents", self.agents.len()));
            return Vec::new();
        }
        self.agents.iter().map(|name| (*name).to_owned()).collect()
    }

    fn report_no_agent(&self, section: &Section<'_, '_>, text: &Text<'_>) {
        let tool = text.value.split_once('/').map_or(text.value, |(tool, _)| tool);
        let help = if self.tools.contains(&tool) {
            format!("`{tool}` is a tool: name its functions under `tools`")
        } else {
            suggest(text.value, "agents", self.agents.iter().copied())
        };
        let kind = PolicyErrorKind::Unknown { what: "agent", name: shown(text.value) };
        section.report(text.part(section.problems, 0, text.value.len()), kind, help);
    }

    /// The agent's own model, and its rules with the one that the model implies.
    fn grants(&self, section: &Section<'_, '_>) -> (Option<String>, Grants) {
        let mut rules = Vec::new();
        let model = section.string("model");
        let mut implied = None;
        if let Some(model) = &model {
            if self.models.contains(&model.value) {
                implied = Some(model.span.clone());
                rules.push(implied_rule(section, model));
            } else {
                let kind = PolicyErrorKind::Unknown { what: "model", name: shown(model.value) };
                let help = suggest(model.value, "models", self.models.iter().copied());
                section.report(model.span.clone(), kind, help);
            }
        }
        let problems_before = section.problems.count();
        let mut written = 0;
        for (key, verdict) in [("allow", Verdict::Allow), ("deny", Verdict::Deny)] {
            for text in section.strings(key) {
                written += 1;
                if written > RULES_MAX {
                    let value = format!("rule {written}");
                    let kind = PolicyErrorKind::OutOfRange { key: key.to_owned(), value };
                    section.report(text.span, kind, "write at most 256 rules for an agent");
                    break;
                }
                let declared = DeclaredNames { models: &self.models, prompts: &self.prompts };
                rules.extend(parse_rule(section.problems, &text, verdict, declared));
            }
        }
        let all_read = section.problems.count() == problems_before;
        check_rules(section.problems, &rules, (implied.as_ref(), self.is_kept));
        if all_read {
            // Otherwise the allow rule that a deny rule cuts may be one that could not be read.
            check_partial_denials(section.problems, &rules);
        }
        let location = section.problems.source.locate(section.span.start);
        (model.map(|text| text.value.to_owned()), Grants { rules, location })
    }
}

fn report_too_many(section: &Section<'_, '_>, text: &Text<'_>, value: String) {
    let kind = PolicyErrorKind::OutOfRange { key: "members".to_owned(), value };
    section.report(text.span.clone(), kind, format!("name at most {MEMBERS_MAX} agents"));
}

fn implied_rule(section: &Section<'_, '_>, model: &Text<'_>) -> Rule {
    Rule {
        verdict: Verdict::Allow,
        capability: Capability::Model,
        selector: Selector::Named(model.value.to_owned()),
        text: format!("model: {}", model.value),
        location: section.problems.source.locate(model.span.start),
        span: model.span.clone(),
    }
}

fn read_missing_fields(section: &Section<'_, '_>, defaults: &Defaults) -> MissingFields {
    let Some(text) = section.string("on_missing_fields") else {
        return defaults.on_missing_fields;
    };
    match text.value {
        "resume" => MissingFields::Resume,
        "await_clarification" => MissingFields::AwaitClarification,
        "finalize" => MissingFields::Finalize,
        other => {
            let what = "`on_missing_fields` value";
            let kind = PolicyErrorKind::Unknown { what, name: shown(other) };
            let known = ["resume", "await_clarification", "finalize"];
            section.report(text.span, kind, suggest(other, "values", known));
            defaults.on_missing_fields
        }
    }
}

fn read_upgrade(section: &Section<'_, '_>) -> Upgrade {
    let Some(text) = section.string("upgrade") else { return Upgrade::default() };
    match text.value {
        "pinned" => Upgrade::Pinned,
        "adopt" => Upgrade::Adopt,
        other => {
            let kind = PolicyErrorKind::Unknown { what: "`upgrade` value", name: shown(other) };
            section.report(text.span, kind, suggest(other, "values", ["pinned", "adopt"]));
            Upgrade::default()
        }
    }
}

fn read_description(section: &Section<'_, '_>) -> Option<String> {
    let text = section.string("description")?;
    if text.value.len() > DESCRIPTION_BYTES_MAX {
        let kind = PolicyErrorKind::OutOfRange {
            key: "description".to_owned(),
            value: format!("{} bytes long", text.value.len()),
        };
        section.report(text.span, kind, format!("write at most {DESCRIPTION_BYTES_MAX} bytes"));
        return None;
    }
    Some(text.value.to_owned())
}
