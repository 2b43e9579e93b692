//! Rules that say nothing: an operator who wrote one meant something else.

use std::ops::Range;

use super::error::{PolicyErrorKind, Problems};
use super::rule::Rule;
use super::selector::Selector;
use crate::verdict::Verdict;

/// Reports every rule that repeats another or can decide nothing. `implied` is the span of the
/// agent's `model` if that is what the first rule was made from. Rules of a policy that is kept are
/// compared as they are written, as they always were.
pub(super) fn check_rules(
    problems: &Problems<'_>,
    rules: &[Rule],
    (implied, is_kept): (Option<&Range<usize>>, bool),
) {
    for (index, rule) in rules.iter().enumerate() {
        if let Some(first) = rules[..index].iter().find(|first| is_same(first, rule)) {
            report_duplicate(problems, rule, first, implied);
        } else if let Some(deny) = covering_deny(rules, rule, is_kept) {
            let kind = PolicyErrorKind::NeverMatches {
                text: rule.text.clone(),
                deny_text: deny.text.clone(),
                deny: deny.location.clone(),
            };
            let help = match rule.verdict {
                Verdict::Allow if implied == Some(&rule.span) => {
                    "remove `model`, or deny other models only".to_owned()
                }
                Verdict::Allow => {
                    format!(
                        "remove it, or narrow deny \"{}\" so that it leaves this out",
                        deny.text
                    )
                }
                Verdict::Deny => "remove it".to_owned(),
            };
            problems.add(rule.span.clone(), kind, help);
        }
    }
}

/// Reports every deny rule for a part of a capability of which nothing is allowed.
pub(super) fn check_partial_denials(problems: &Problems<'_>, rules: &[Rule]) {
    for rule in rules {
        let partial = rule.verdict == Verdict::Deny && !rule.selector.is_everything();
        let cuts_something = rules.iter().any(|other| {
            other.capability == rule.capability
                && (other.verdict == Verdict::Allow || other.selector.is_everything())
        });
        if partial && !cuts_something {
            report_deny_without_allow(problems, rule);
        }
    }
}

fn is_same(one: &Rule, other: &Rule) -> bool {
    (one.verdict, one.capability, &one.selector)
        == (other.verdict, other.capability, &other.selector)
}

/// A deny rule, other than this one, that is about all that this one is about. A rule that allows
/// files is covered by every name that some file system takes for one that is denied.
fn covering_deny<'r>(rules: &'r [Rule], rule: &Rule, is_kept: bool) -> Option<&'r Rule> {
    let covers = |deny: &Selector| match rule.verdict {
        Verdict::Allow if !is_kept => deny.denies_all_of(&rule.selector),
        Verdict::Allow | Verdict::Deny => deny.covers(&rule.selector),
    };
    rules.iter().find(|other| {
        other.verdict == Verdict::Deny
            && other.capability == rule.capability
            && !is_same(other, rule)
            && covers(&other.selector)
    })
}

fn report_duplicate(
    problems: &Problems<'_>,
    rule: &Rule,
    first: &Rule,
    implied: Option<&Range<usize>>,
) {
    let kind = PolicyErrorKind::Duplicate {
        text: rule.text.clone(),
        first_text: first.text.clone(),
        first: first.location.clone(),
    };
    let help = if implied == Some(&first.span) {
        "remove it: the agent's `model` allows that model already"
    } else {
        "remove it"
    };
    problems.add(rule.span.clone(), kind, help);
}

fn report_deny_without_allow(problems: &Problems<'_>, rule: &Rule) {
    let kind = PolicyErrorKind::DenyWithoutAllow {
        text: rule.text.clone(),
        capability: rule.capability.as_str(),
    };
    let everything = rule.capability.everything_rule();
    let help =
        format!("write \"{everything}\" to refuse it always, or add an `allow` rule for the rest");
    problems.add(rule.span.clone(), kind, help);
}
