//! One line of `allow` or `deny`: a capability and what of it the line is about.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use taskrun_journal::fact::MemoryScope;
use taskrun_journal::operation::Operation;

use super::error::{PolicyErrorKind, Problems, is_hostile, shown, suggest};
use super::http::HttpSelector;
use super::location::{Location, Source};
use super::memory::MemorySelector;
use super::metrics::MetricSelector;
use super::path_glob::PathGlob;
use super::read::Text;
use crate::verdict::Verdict;

/// What a component must be granted before it may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// Completions of language models; the interface `model`.
    Model,
    /// Listing and reading files; the interface `workspace-read`.
    WorkspaceRead,
    /// Creating, changing and removing files; the interface `workspace-write`. Does not include
    /// reading them.
    WorkspaceWrite,
    /// HTTP requests; the interface `http`.
    Http,
    /// Prompts of the policy, rendered; the interface `prompts`.
    Prompts,
    /// Starting and watching runs beneath one's own; the interface `controller`.
    Controller,
    /// Reading facts of the session and the tenant; the interface `memory`.
    Memory,
    /// Writing them; the interface `memory-write`. Does not include reading them.
    MemoryWrite,
    /// Counting and measuring; the interface `metrics`.
    Metrics,
}

/// One rule of an agent's policy, written `capability: selector`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Whether it stands under `allow` or `deny`.
    pub verdict: Verdict,
    /// What it is about.
    pub capability: Capability,
    /// What of it.
    pub selector: Selector,
    /// As written. For the rule that `model = "x"` on an agent implies, `model: x`.
    pub text: String,
    /// Where it stands in the policy file.
    pub location: Location,
    pub(super) span: Range<usize>,
}

/// What of a capability a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// Paths of the workspace, for the two workspace capabilities.
    Paths(PathGlob),
    /// Models of the policy, for [`Capability::Model`].
    Model(ModelSelector),
    /// Requests, for [`Capability::Http`].
    Http(HttpSelector),
    /// Prompts of the policy, for [`Capability::Prompts`].
    Prompts(PromptSelector),
    /// Operations, for [`Capability::Controller`].
    Operation(OperationSelector),
    /// Memories, for the two memory capabilities.
    Memory(MemorySelector),
    /// Metrics, for [`Capability::Metrics`].
    Metric(MetricSelector),
}

/// Which models a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSelector {
    /// All that the policy declares, written `*`.
    Any,
    /// The one that the policy declares under this name.
    Named(String),
}

/// Which prompts a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptSelector {
    /// All that the policy declares, written `*`.
    Any,
    /// The one that the policy declares under this id.
    Named(String),
}

/// What a policy declares that rules may name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Declared<'d> {
    /// Its models.
    pub models: &'d [&'d str],
    /// Its prompts.
    pub prompts: &'d [&'d str],
}

/// Which operations of the controller a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationSelector {
    /// All of them, written `*`.
    Any,
    /// This one.
    One(Operation),
}

impl OperationSelector {
    /// Whether it selects an operation.
    pub fn matches(self, operation: Operation) -> bool {
        match self {
            Self::Any => true,
            Self::One(known) => known == operation,
        }
    }
}

impl Capability {
    /// Every capability.
    pub const ALL: [Self; 9] = [
        Self::Model,
        Self::WorkspaceRead,
        Self::WorkspaceWrite,
        Self::Http,
        Self::Prompts,
        Self::Controller,
        Self::Memory,
        Self::MemoryWrite,
        Self::Metrics,
    ];

    /// Its word in a policy, which is also the name of its interface in the WIT.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::WorkspaceRead => "workspace-read",
            Self::WorkspaceWrite => "workspace-write",
            Self::Http => "http",
            Self::Prompts => "prompts",
            Self::Controller => "controller",
            Self::Memory => "memory",
            Self::MemoryWrite => "memory-write",
            Self::Metrics => "metrics",
        }
    }

    /// The rule that is about all of it.
    pub fn everything_rule(self) -> &'static str {
        match self {
            Self::Model => "model: *",
            Self::WorkspaceRead => "workspace-read: **",
            Self::WorkspaceWrite => "workspace-write: **",
            Self::Http => "http: *",
            Self::Prompts => "prompts: *",
            Self::Controller => "controller: *",
            Self::Memory => "memory: *",
            Self::MemoryWrite => "memory-write: *",
            Self::Metrics => "metrics: *",
        }
    }

    fn example(self) -> &'static str {
        match self {
            Self::Model => "model: *",
            Self::WorkspaceRead => "workspace-read: docs/**",
            Self::WorkspaceWrite => "workspace-write: notes/**",
            Self::Http => "http: GET https://api.example.com/**",
            Self::Prompts => "prompts: *",
            Self::Controller => "controller: spawn",
            Self::Memory => "memory: session",
            Self::MemoryWrite => "memory-write: session",
            Self::Metrics => "metrics: *",
        }
    }
}

/// Prints its word in a policy.
impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Prints `deny "workspace-write: **" (taskrun.toml:14:10)`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\" ({})", self.verdict, self.text, self.location)
    }
}

impl Selector {
    /// Whether it selects all of its capability.
    pub fn is_everything(&self) -> bool {
        match self {
            Self::Paths(glob) => glob.is_everything(),
            Self::Model(ModelSelector::Any) => true,
            Self::Model(ModelSelector::Named(_)) => false,
            Self::Http(http) => http.is_everything(),
            Self::Prompts(PromptSelector::Any) => true,
            Self::Prompts(PromptSelector::Named(_)) => false,
            Self::Operation(OperationSelector::Any) => true,
            Self::Operation(OperationSelector::One(_)) => false,
            Self::Memory(memory) => memory.is_everything(),
            Self::Metric(metric) => metric.is_everything(),
        }
    }

    /// Whether all that `other` selects is selected by this one too. `false` may mean "not
    /// known".
    pub(super) fn covers(&self, other: &Self) -> bool {
        match self {
            Self::Paths(ours) => matches!(other, Self::Paths(theirs) if ours.covers(theirs)),
            Self::Model(ModelSelector::Any) => matches!(other, Self::Model(_)),
            Self::Model(ModelSelector::Named(ours)) => {
                matches!(other, Self::Model(ModelSelector::Named(theirs)) if ours == theirs)
            }
            Self::Http(ours) => matches!(other, Self::Http(theirs) if ours.covers(theirs)),
            Self::Prompts(PromptSelector::Any) => matches!(other, Self::Prompts(_)),
            Self::Prompts(ours @ PromptSelector::Named(_)) => {
                matches!(other, Self::Prompts(theirs) if ours == theirs)
            }
            Self::Operation(OperationSelector::Any) => matches!(other, Self::Operation(_)),
            Self::Operation(ours @ OperationSelector::One(_)) => {
                matches!(other, Self::Operation(OperationSelector::One(one)) if ours.matches(*one))
            }
            Self::Memory(ours) => matches!(other, Self::Memory(theirs) if ours.covers(*theirs)),
            Self::Metric(ours) => matches!(other, Self::Metric(theirs) if ours.covers(theirs)),
        }
    }
}

/// Reads a deny rule that stands in no policy file.
///
/// # Errors
/// What is wrong with it, and what to write instead.
pub fn parse_denial(text: &str, declared: Declared<'_>) -> Result<Rule, String> {
    let source = Source::new(text, Path::new("request"));
    let problems = Problems::new(&source);
    let whole = Text { value: text, span: 0..text.len() };
    parse_rule(&problems, &whole, Verdict::Deny, declared).ok_or_else(|| {
        let problem = problems.into_errors().errors.into_iter().next();
        problem.map_or_else(|| "it is no rule".to_owned(), |p| format!("{}; {}", p.kind, p.help))
    })
}

/// The rule that allows all of a capability, which no policy can say of every one.
pub(super) fn everything(capability: Capability) -> Rule {
    let all = parse_denial(capability.everything_rule(), Declared::default());
    let all = all.expect("everything of each capability can be denied");
    Rule { verdict: Verdict::Allow, ..all }
}

/// Reads a rule; reports what is wrong with it.
pub(super) fn parse_rule(
    problems: &Problems<'_>,
    text: &Text<'_>,
    verdict: Verdict,
    declared: Declared<'_>,
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
        let help = match (capability, verdict) {
            (Capability::Http, Verdict::Allow) => format!("write \"{}\"", capability.example()),
            (
                Capability::Http | Capability::Model | Capability::Prompts | Capability::Metrics,
                _,
            ) => {
                format!("write \"{everything}\" for all of it")
            }
            (
                Capability::WorkspaceRead
                | Capability::WorkspaceWrite
                | Capability::Controller
                | Capability::Memory
                | Capability::MemoryWrite,
                _,
            ) => {
                format!(
                    "write \"{everything}\" for all of it, or a part as in \"{}\"",
                    capability.example()
                )
            }
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
    declared: Declared<'_>,
) -> Option<Selector> {
    let Declared { models, prompts } = declared;
    let report = |what, reason: &str, help: String| {
        problems.add(span.clone(), bad_value(what, text, reason), help);
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
        Capability::Model if text == "*" => Some(Selector::Model(ModelSelector::Any)),
        Capability::Model if models.contains(&text) => {
            Some(Selector::Model(ModelSelector::Named(text.to_owned())))
        }
        Capability::Model if text == "**" => {
            report("model", "it is not a name", "write `*` for every model".to_owned())
        }
        Capability::Model => {
            let kind = PolicyErrorKind::Unknown { what: "model", name: shown(text) };
            problems.add(span.clone(), kind, suggest(text, "models", models.iter().copied()));
            None
        }
        Capability::Prompts if text == "*" => Some(Selector::Prompts(PromptSelector::Any)),
        Capability::Prompts if prompts.contains(&text) => {
            Some(Selector::Prompts(PromptSelector::Named(text.to_owned())))
        }
        Capability::Prompts => {
            let kind = PolicyErrorKind::Unknown { what: "prompt", name: shown(text) };
            problems.add(span.clone(), kind, suggest(text, "prompts", prompts.iter().copied()));
            None
        }
        Capability::Memory | Capability::MemoryWrite => {
            let memory = MemorySelector::parse(text);
            if memory.is_none() {
                let kind = PolicyErrorKind::Unknown { what: "memory", name: shown(text) };
                let words = MemoryScope::ALL.map(MemoryScope::as_str);
                problems.add(span.clone(), kind, suggest(text, "memories", words));
            }
            memory.map(Selector::Memory)
        }
        Capability::Metrics => match MetricSelector::parse(text) {
            Some(metric) => Some(Selector::Metric(metric)),
            None => {
                let help = "write `*` for all, or a name of at most 64 of a-z, 0-9, `_` and `.`";
                report("metric", "it is not a name", help.to_owned())
            }
        },
        Capability::Http => match HttpSelector::parse(text, verdict) {
            Ok(http) => Some(Selector::Http(http)),
            Err(bad) => report("address", &bad.reason, bad.help),
        },
        Capability::Controller if text == "*" => Some(Selector::Operation(OperationSelector::Any)),
        Capability::Controller => {
            let known = Operation::ALL.into_iter().find(|operation| operation.as_str() == text);
            if known.is_none() {
                let kind = PolicyErrorKind::Unknown { what: "operation", name: shown(text) };
                let words = Operation::ALL.map(Operation::as_str);
                problems.add(span.clone(), kind, suggest(text, "operations", words));
            }
            known.map(|operation| Selector::Operation(OperationSelector::One(operation)))
        }
    }
}

fn bad_value(what: &'static str, value: &str, reason: &str) -> PolicyErrorKind {
    PolicyErrorKind::BadValue { what, value: shown(value), reason: reason.to_owned() }
}
