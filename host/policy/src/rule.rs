//! One line of `allow` or `deny`: a capability, and the part of it that the line is about.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use taskrun_journal::fact::MemoryScope;
use taskrun_journal::metrics::is_metric_name;
use taskrun_journal::operation::Operation;

use super::capability::Capability;
use super::error::{PolicyErrorKind, Problems, is_hostile, shown, suggest};
use super::http::HttpSelector;
use super::location::{Location, Source};
use super::path_glob::PathGlob;
use super::read::{Text, is_name};
use super::selector::Selector;
use crate::verdict::Verdict;

/// One rule of an agent's policy, written `capability: selector`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The list that it stands in: `allow` or `deny`.
    pub verdict: Verdict,
    /// The capability that it is about.
    pub capability: Capability,
    /// The part of that.
    pub(crate) selector: Selector,
    /// As written. For the rule that `model = "x"` on an agent implies, `model: x`.
    pub text: String,
    /// Its place in the policy file.
    pub location: Location,
    pub(super) span: Range<usize>,
}

/// The names that a policy declares and rules may use.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeclaredNames<'d> {
    /// Its models.
    pub models: &'d [&'d str],
    /// Its prompts.
    pub prompts: &'d [&'d str],
}

/// Prints `deny "workspace-write: **" (taskrun.toml:14:10)`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\" ({})", self.verdict, self.text, self.location)
    }
}

/// Reads a deny rule that stands in no policy file.
///
/// # Errors
/// The first thing that is wrong with it, with the words to write instead.
pub fn parse_denial(text: &str, declared: DeclaredNames<'_>) -> Result<Rule, String> {
    let source = Source::new(text, Path::new("request"));
    let problems = Problems::new(&source);
    let whole = Text { value: text, span: 0..text.len() };
    parse_rule(&problems, &whole, Verdict::Deny, declared).ok_or_else(|| {
        let problem = problems.into_errors().errors.into_iter().next();
        problem.map_or_else(|| "it is no rule".to_owned(), |p| format!("{}; {}", p.kind, p.help))
    })
}

/// Reads a denial that was accepted earlier. A model or a prompt that it names may have left the
/// policy since: a denial of what is not there takes nothing away.
///
/// # Errors
/// As of [`parse_denial`].
pub fn parse_accepted_denial(text: &str) -> Result<Rule, String> {
    let name = text.split_once(':').map(|(_, name)| name.trim()).filter(|name| is_name(name));
    let named: Vec<&str> = name.into_iter().collect();
    parse_denial(text, DeclaredNames { models: &named, prompts: &named })
}

/// The rule that allows all of a capability, which no policy can say of every one.
pub(super) fn everything(capability: Capability) -> Rule {
    let all = parse_denial(capability.everything_rule(), DeclaredNames::default());
    let all = all.expect("everything of each capability can be denied");
    Rule { verdict: Verdict::Allow, ..all }
}

/// Reads a rule; reports what is wrong with it.
pub(super) fn parse_rule(
    problems: &Problems<'_>,
    text: &Text<'_>,
    verdict: Verdict,
    declared: DeclaredNames<'_>,
) -> Option<Rule> {
    let (word, rest) = match text.value.split_once(':') {
        Some((word, rest)) => (word, Some(rest)),
        None => (text.value, None),
    };
    let Some(capability) = Capability::ALL.into_iter().find(|known| known.as_str() == word) else {
        let kind = PolicyErrorKind::Unknown { what: "capability", name: shown(word) };
        let known = Capability::ALL.map(Capability::as_str);
        let help = suggest(word.trim(), "capabilities", known);
        problems.add(text.part(problems, 0, word.len()), kind, help);
        return None;
    };
    let selector_text = rest.map_or("", str::trim);
    if selector_text.is_empty() {
        let kind = bad_value("rule", text.value, "it selects nothing");
        let everything = capability.everything_rule();
        let help = match (capability.example(), verdict) {
            (Some(example), Verdict::Allow) if capability == Capability::Http => {
                format!("write \"{example}\"")
            }
            (Some(example), _) if capability != Capability::Http => {
                format!("write \"{everything}\" for all of it, or a part as in \"{example}\"")
            }
            (Some(_) | None, _) => format!("write \"{everything}\" for all of it"),
        };
        problems.add(text.span.clone(), kind, help);
        return None;
    }
    let start = text.value.len() - rest.map_or(0, |rest| rest.trim_start().len());
    let span = text.part(problems, start, selector_text.len());
    let read = (capability, verdict, selector_text);
    let selector = parse_selector(problems, &span, read, declared)?;
    Some(Rule {
        verdict,
        capability,
        selector,
        text: text.value.to_owned(),
        location: problems.source.locate(text.span.start),
        span: text.span.clone(),
    })
}

fn parse_selector(
    problems: &Problems<'_>,
    span: &Range<usize>,
    (capability, verdict, text): (Capability, Verdict, &str),
    declared: DeclaredNames<'_>,
) -> Option<Selector> {
    let report = |what, reason: &str, help: String| {
        problems.add(span.clone(), bad_value(what, text, reason), help);
        None
    };
    // The name of one thing among those that are known, or `*`.
    let named = |what, all, known: &[&str]| {
        if text == "*" {
            return Some(Selector::Any);
        }
        if known.contains(&text) {
            return Some(Selector::Named(text.to_owned()));
        }
        let kind = PolicyErrorKind::Unknown { what, name: shown(text) };
        problems.add(span.clone(), kind, suggest(text, all, known.iter().copied()));
        None
    };
    if text.chars().any(is_hostile) {
        return report(
            "selector",
            "it contains a control character",
            "remove the character".to_owned(),
        );
    }
    match capability {
        Capability::WorkspaceRead | Capability::WorkspaceWrite => match PathGlob::parse(text) {
            Ok(glob) => Some(Selector::Paths(glob)),
            Err(bad) => report("path", &bad.reason, bad.help),
        },
        Capability::Http => match HttpSelector::parse(text, verdict) {
            Ok(http) => Some(Selector::Http(http)),
            Err(bad) => report("address", &bad.reason, bad.help),
        },
        Capability::Model if text == "**" => {
            report("model", "it is not a name", "write `*` for every model".to_owned())
        }
        Capability::Model => named("model", "models", declared.models),
        Capability::Prompts => named("prompt", "prompts", declared.prompts),
        Capability::Controller => {
            named("operation", "operations", &Operation::ALL.map(Operation::as_str))
        }
        Capability::Memory | Capability::MemoryWrite => {
            named("memory", "memories", &MemoryScope::ALL.map(MemoryScope::as_str))
        }
        Capability::Metrics if text == "*" => Some(Selector::Any),
        Capability::Metrics if is_metric_name(text) => Some(Selector::Named(text.to_owned())),
        Capability::Metrics => {
            let help = "write `*` for all, or a name of at most 64 of a-z, 0-9, `_` and `.`";
            report("metric", "it is not a name", help.to_owned())
        }
    }
}

fn bad_value(what: &'static str, value: &str, reason: &str) -> PolicyErrorKind {
    PolicyErrorKind::BadValue { what, value: shown(value), reason: reason.to_owned() }
}
