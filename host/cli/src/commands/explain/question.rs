//! The use of a capability that is asked about, as it is typed.

use std::collections::BTreeMap;

use taskrun_journal::fact::MemoryScope;
use taskrun_journal::metrics::is_metric_name;
use taskrun_journal::operation::Operation;
use taskrun_policy::{AgentPolicy, Capability, Policy, Use};
use taskrun_runtime::RequestLine;

use crate::args::ExplainArgs;
use crate::failure::{Failure, Outcome};
use crate::lookup::nearest;

/// The word for calls of tools, which no rule of a capability is about.
pub(super) const TOOL: &str = "tool";

/// A use of a capability, or a call of a tool.
#[derive(Debug)]
pub(super) enum PolicyQuestion {
    /// A use that rules decide about.
    Use(OwnedUse),
    /// The call of a function, by its qualified name.
    Call(String),
}

/// A use of a capability.
#[derive(Debug)]
pub(super) enum OwnedUse {
    Path(Capability, String),
    Request(RequestLine),
    /// `None` is the agent's own.
    Model(Option<String>),
    Prompt(String),
    /// With the agent of which a run is to be started.
    Operation(Operation, Option<String>),
    Memory(Capability, MemoryScope),
    Metric(String),
}

/// The arguments of a question, by their keys.
struct Arguments<'a> {
    capability: &'a str,
    left: BTreeMap<&'a str, &'a str>,
}

impl PolicyQuestion {
    /// Reads a question.
    ///
    /// # Errors
    /// If the capability is none, or the arguments are not those that it takes.
    pub(super) fn read(args: &ExplainArgs) -> Outcome<Self> {
        let capability = args.capability.as_str();
        let mut left = BTreeMap::new();
        for (key, value) in &args.arguments {
            if left.insert(key.as_str(), value.as_str()).is_some() {
                return Err(wrong(capability, format!("{key:?} is given twice")));
            }
        }
        let mut given = Arguments { capability, left };
        let question = match Capability::ALL.into_iter().find(|one| one.as_str() == capability) {
            Some(capability) => Self::Use(OwnedUse::read(capability, &mut given)?),
            None if capability == TOOL => Self::Call(given.take("name")?.to_owned()),
            None => return Err(unknown_capability(capability)),
        };
        match given.left.keys().next() {
            None => Ok(question),
            Some(key) => Err(wrong(capability, format!("{capability} takes no {key:?}"))),
        }
    }

    /// The same, as an agent of this policy asks it.
    ///
    /// # Errors
    /// If the policy has no such model or prompt, or the agent no model of its own.
    pub(super) fn of_agent(self, policy: &Policy, agent: &AgentPolicy) -> Outcome<Self> {
        match self {
            Self::Use(asked) => Ok(Self::Use(asked.of_agent(policy, agent)?)),
            Self::Call(name) => Ok(Self::Call(name)),
        }
    }

    /// The capability and what is used of it, in words.
    pub(super) fn subject(&self) -> (String, String) {
        match self {
            Self::Use(asked) => {
                let used = asked.used();
                let subject = match asked {
                    OwnedUse::Operation(operation, Some(agent)) => format!("{operation} {agent}"),
                    OwnedUse::Operation(_, None)
                    | OwnedUse::Path(..)
                    | OwnedUse::Request(_)
                    | OwnedUse::Model(_)
                    | OwnedUse::Prompt(_)
                    | OwnedUse::Memory(..)
                    | OwnedUse::Metric(_) => used.subject().into_owned(),
                };
                (used.capability().to_string(), subject)
            }
            Self::Call(name) => (TOOL.to_owned(), name.clone()),
        }
    }
}

impl OwnedUse {
    fn read(capability: Capability, given: &mut Arguments<'_>) -> Outcome<Self> {
        let word = |given: &mut Arguments<'_>, key, known: &[&'static str]| {
            let value = given.take(key)?;
            let found = known.iter().position(|one| *one == value);
            found.ok_or_else(|| {
                let message = format!("{value:?} is no {key} of {capability}");
                wrong(capability.as_str(), message).hint(format!("known: {}", known.join(", ")))
            })
        };
        Ok(match capability {
            Capability::WorkspaceRead | Capability::WorkspaceWrite => {
                Self::Path(capability, given.take("path")?.to_owned())
            }
            Capability::Http => {
                let method = given.left.remove("method").unwrap_or("GET");
                let line = RequestLine::parse(method, given.take("url")?);
                Self::Request(line.map_err(|error| {
                    let message = "the host sends no such request, whatever rules allow";
                    wrong(capability.as_str(), message.to_owned()).because(&error)
                })?)
            }
            Capability::Model => Self::Model(given.left.remove("name").map(str::to_owned)),
            Capability::Prompts => Self::Prompt(given.take("id")?.to_owned()),
            Capability::Controller => {
                let known = Operation::ALL.map(Operation::as_str);
                let operation = Operation::ALL[word(given, "operation", &known)?];
                let is_spawn = operation == Operation::Spawn;
                let agent = if is_spawn { given.left.remove("agent") } else { None };
                Self::Operation(operation, agent.map(str::to_owned))
            }
            Capability::Memory | Capability::MemoryWrite => {
                let known = MemoryScope::ALL.map(MemoryScope::as_str);
                Self::Memory(capability, MemoryScope::ALL[word(given, "scope", &known)?])
            }
            Capability::Metrics => {
                let name = given.take("name")?;
                if !is_metric_name(name) {
                    let message = format!("{name:?} is no name of a metric");
                    return Err(wrong(capability.as_str(), message)
                        .hint("write at most 64 of a-z, 0-9, _ and ."));
                }
                Self::Metric(name.to_owned())
            }
        })
    }

    /// The same, with the agent's own model where none is named.
    fn of_agent(self, policy: &Policy, agent: &AgentPolicy) -> Outcome<Self> {
        match &self {
            Self::Model(Some(name)) => check_declared(policy, "model", name, policy.models.keys())?,
            Self::Prompt(id) => check_declared(policy, "prompt", id, policy.prompts.keys())?,
            Self::Model(None) => {
                let own = agent.model.clone().ok_or_else(|| {
                    let message = format!("agent {} has no model of its own", agent.name);
                    Failure::usage("bad-question", message).hint("name one with --arg name=MODEL")
                })?;
                return Ok(Self::Model(Some(own)));
            }
            Self::Path(..)
            | Self::Request(_)
            | Self::Operation(..)
            | Self::Memory(..)
            | Self::Metric(_) => {}
        }
        Ok(self)
    }

    /// The use as rules are asked about it.
    pub(super) fn used(&self) -> Use<'_> {
        match self {
            Self::Path(capability, path) => Use::Path(*capability, path),
            Self::Request(line) => line.used(),
            Self::Model(name) => Use::Model(name.as_deref().unwrap_or("(its own)")),
            Self::Prompt(id) => Use::Prompt(id),
            Self::Operation(operation, _) => Use::Operation(*operation),
            Self::Memory(capability, scope) => Use::Memory(*capability, *scope),
            Self::Metric(name) => Use::Metric(name),
        }
    }
}

impl<'a> Arguments<'a> {
    fn take(&mut self, key: &'static str) -> Outcome<&'a str> {
        let value = self.left.remove(key);
        value.ok_or_else(|| wrong(self.capability, format!("it is not said which {key} is meant")))
    }
}

fn check_declared<'k>(
    policy: &Policy,
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'k String>,
) -> Outcome<()> {
    let known: Vec<&str> = known.map(String::as_str).collect();
    if known.contains(&name) {
        return Ok(());
    }
    let hint = match (nearest(name, known.iter().copied()), known.as_slice()) {
        (Some(near), _) => format!("did you mean {near}?"),
        (None, []) => format!("the policy has no {what}s"),
        (None, known) => format!("known: {}", known.join(", ")),
    };
    let message = format!("there is no {what} {name:?} in {}", policy.path.display());
    Err(Failure::usage("bad-question", message).hint(hint))
}

fn wrong(capability: &str, message: String) -> Box<Failure> {
    let example = match Capability::ALL.into_iter().find(|one| one.as_str() == capability) {
        Some(capability) => example(capability),
        None => "name=TOOL/FUNCTION",
    };
    Failure::usage("bad-question", message)
        .hint(format!("ask as in `--cap {capability} --arg {example}`"))
}

fn unknown_capability(name: &str) -> Box<Failure> {
    let known: Vec<&str> =
        Capability::ALL.into_iter().map(Capability::as_str).chain([TOOL]).collect();
    let message = format!("there is no capability {name:?}");
    let hint = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("known: {}", known.join(", ")),
    };
    Failure::usage("unknown-capability", message).hint(hint)
}

/// The arguments of a question about a capability.
fn example(capability: Capability) -> &'static str {
    match capability {
        Capability::WorkspaceRead | Capability::WorkspaceWrite => "path=docs/a.md",
        Capability::Http => "url=https://api.example.com/v1/x --arg method=POST",
        Capability::Model => "name=MODEL",
        Capability::Prompts => "id=PROMPT",
        Capability::Controller => "operation=spawn --arg agent=NAME",
        Capability::Memory | Capability::MemoryWrite => "scope=session",
        Capability::Metrics => "name=METRIC",
    }
}
