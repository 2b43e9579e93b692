//! The canonical form of rules and of patterns over functions: without their places, and without
//! a difference in writing that is none in meaning.

use super::canonical::{Canonical, Object};
use crate::ask::{AskRule, AskRules};
use crate::grants::Grants;
use crate::http::{HostPattern, HttpSelector};
use crate::pattern::Pattern;
use crate::rule::Rule;
use crate::selector::Selector;
use crate::timeouts::CallTimeouts;
use crate::tool_lists::ToolLists;
use crate::verdict::Verdict;

/// The rules of `allow`, or those of `deny`. Their order decides which of them a refusal names,
/// and never if there is one.
pub(super) fn rules(grants: &Grants, wanted: Verdict) -> Canonical {
    let Grants { rules, location: _ } = grants;
    Canonical::set(rules.iter().filter(|rule| rule.verdict == wanted).map(rule))
}

/// A rule as its list takes it: read again in the list of its verdict, it selects the same.
fn rule(rule: &Rule) -> String {
    let Rule { verdict: _, capability, selector, text: _, location: _, span: _ } = rule;
    let part = match selector {
        Selector::Paths(glob) => glob.normal(),
        Selector::Http(http) => http_selector(http),
        Selector::Any => "*".to_owned(),
        Selector::Named(name) => name.clone(),
    };
    format!("{capability}: {part}")
}

/// Requests, with the port and the path that the rule means, if it means one. Without a port are
/// rules that deny every port.
fn http_selector(selector: &HttpSelector) -> String {
    let HttpSelector { methods, scheme, host, port, path } = selector;
    let methods = methods.as_ref().map_or(String::new(), |methods| {
        let mut methods: Vec<&str> = methods.iter().map(String::as_str).collect();
        methods.sort_unstable();
        methods.join(",") + " "
    });
    let host = match host {
        // There is one form without a host, which has nothing else either.
        HostPattern::Any => return methods + "*",
        HostPattern::Exact(name) if name.contains(':') => format!("[{name}]"),
        HostPattern::Exact(name) => name.clone(),
        HostPattern::Below(parent) => format!("*.{parent}"),
    };
    let scheme = scheme.map_or("*".to_owned(), |scheme| scheme.to_string());
    let port = port.map_or(String::new(), |port| format!(":{port}"));
    format!("{methods}{scheme}://{host}{port}/{}", path.normal())
}

/// Rules about consent, and how long it is waited for. The wait counts for the rules of agents
/// above as well, so it is there without a rule.
pub(super) fn ask(rules: &AskRules) -> Object {
    let AskRules { rules, timeout } = rules;
    let rule = |rule: &AskRule| {
        let AskRule { functions, text: _, location: _ } = rule;
        match functions {
            Pattern::Name(_) | Pattern::Beginning(_) => format!("tool: {functions}"),
            Pattern::Tag(tag) => format!("tag: {tag}"),
        }
    };
    Object::new().with("rules", Canonical::set(rules.iter().map(rule))).with("timeout_ms", *timeout)
}

/// Time-outs by their patterns: of equal ones the last counts in a decision too.
pub(super) fn timeouts(timeouts: &CallTimeouts) -> Object {
    let add =
        |all: Object, (pattern, timeout): (&Pattern, _)| all.with(pattern.to_string(), timeout);
    timeouts.iter().fold(Object::new(), add)
}

/// The lists of the engine that is built in. Their name has a place in it.
pub(super) fn lists(lists: &ToolLists) -> Object {
    let ToolLists { name: _, allow, allow_tags, block, block_tags, hints } = lists;
    Object::new()
        .with_some("allow", allow.as_ref().map(Canonical::set))
        .with_some("allow_tags", allow_tags.as_ref().map(Canonical::set))
        .with("block", Canonical::set(block))
        .with("block_tags", Canonical::set(block_tags))
        .with("hints", *hints)
}
