//! Components that do not load.

use std::collections::BTreeSet;
use std::path::Path;

use taskrun::agents::ToolsError;
use taskrun_runtime::{AgentError, LoadError, MissingGrant, Problem};

use super::Failure;
use super::runtime::model_hint;
use crate::exit::Exit;

/// A component of `what` (an agent or a tool, by name) that does not load.
#[must_use]
pub(crate) fn load_failure(error: &LoadError, what: &str, path: &Path) -> Box<Failure> {
    let place = path.display();
    let (code, hint) = match error {
        LoadError::Read { .. } => (
            "component-unreadable",
            "build the component, or correct its path in the policy".to_owned(),
        ),
        LoadError::Truncated { .. } => {
            ("component-truncated", format!("build or copy {place} again; it is not whole"))
        }
        LoadError::Empty | LoadError::NotWasm => {
            ("component-broken", format!("build or copy {place} again; it is no component"))
        }
        LoadError::CoreModule => (
            "component-is-module",
            "link it as a component; a Rust guest needs `linker = \"wasm-component-ld\"` or \
             `--target wasm32-wasip2`"
                .to_owned(),
        ),
        LoadError::NotAFile { .. } => {
            ("component-unreadable", "correct its path in the policy".to_owned())
        }
        LoadError::Changed { .. } => {
            ("component-changed", "do the same again, with the component as it is now".to_owned())
        }
        LoadError::Kept { .. } => (
            "component-kept",
            "see `taskrun doctor --check`; the file that the policy names mends what is kept of it"
                .to_owned(),
        ),
        LoadError::Shape { .. } | LoadError::CompileRefused { .. } | LoadError::CompileLimit => {
            ("component-refused", "build it smaller, or without what it does not use".to_owned())
        }
        LoadError::CompilerPanicked { .. } => (
            "component-refused",
            "build it with another version of its toolchain, or with less optimization".to_owned(),
        ),
        LoadError::TooLarge { .. } | LoadError::TooMuch { .. } | LoadError::Async { .. } => {
            ("component-refused", format!("see what it is with `taskrun inspect {place}`"))
        }
        LoadError::Name { .. } => (
            "component-name",
            format!("do not trust {place}; what makes components from WIT gives no such name"),
        ),
        LoadError::Invalid { .. } | LoadError::Mismatch { .. } => {
            ("component-invalid", format!("build {place} again for the interfaces in wit/"))
        }
        LoadError::WrongWorld { .. } => (
            "component-world",
            format!(
                "see what it exports with `taskrun inspect {place}`; an agent needs the world `agent`, a tool the world `tool`"
            ),
        ),
        LoadError::Version { .. } => {
            ("component-version", format!("build {place} for this version of the interfaces"))
        }
        LoadError::Preopens { .. } | LoadError::Exposed { .. } => (
            "component-folders",
            "see what the agent is granted with `taskrun agent show`".to_owned(),
        ),
        LoadError::Workspace { .. } => {
            ("workspace", "make the folder, or correct `workspace` in the policy".to_owned())
        }
        LoadError::Describe(_) | LoadError::Description { .. } => {
            ("component-describe", "correct `describe` of the tool and build it again".to_owned())
        }
        LoadError::Starved { .. } => {
            ("component-starved", "do the same again when this machine has time for it".to_owned())
        }
        LoadError::Worker { .. } | LoadError::Internal(_) => {
            ("engine", "look at the whole installation with `taskrun doctor`".to_owned())
        }
        LoadError::Denied(missing) => {
            let problem = Problem::of_component(error, what, path);
            return of_problem(Exit::Denied, "denied", problem).hint(missing_hint(missing, path));
        }
    };
    let mut failure =
        of_problem(Exit::Usage, code, Problem::of_component(error, what, path)).hint(hint);
    if let LoadError::Worker { .. } | LoadError::Starved { .. } | LoadError::Internal(_) = error {
        failure.exit = Exit::Unexpected;
    }
    failure
}

fn of_problem(exit: Exit, code: &'static str, problem: Problem) -> Box<Failure> {
    let mut failure = Failure::new(exit, code, problem.message);
    failure.causes = problem.causes;
    failure
}

/// The rules that the missing grants need.
fn missing_hint(missing: &[MissingGrant], path: &Path) -> String {
    let allow: BTreeSet<&str> = missing.iter().filter_map(MissingGrant::rule).collect();
    let deny: BTreeSet<String> = missing.iter().filter_map(denial).collect();
    match missing.first().filter(|_| !allow.is_empty()) {
        None => format!("see what it asks for with `taskrun inspect {}`", path.display()),
        Some(MissingGrant { agent, .. }) => format!(
            "add to [agent.{agent}], narrowed: allow = [{}], or to refuse each use: deny = [{}]",
            listed(allow.into_iter()),
            listed(deny.iter().map(String::as_str))
        ),
    }
}

fn listed<'a>(rules: impl Iterator<Item = &'a str>) -> String {
    rules.map(|rule| format!("{rule:?}")).collect::<Vec<_>>().join(", ")
}

/// The rule under which an import loads and each use of it is refused.
fn denial(missing: &MissingGrant) -> Option<String> {
    missing.capability().map(|capability| capability.everything_rule().to_owned())
}

/// An agent that does not load.
#[must_use]
pub(crate) fn agent_failure(error: &AgentError) -> Box<Failure> {
    let problem = Problem::of_agent(error);
    let mut failure = match error {
        AgentError::Component { agent, path, source, .. } => {
            load_failure(source, &format!("agent {agent}"), path)
        }
        AgentError::Files { errors, .. } => {
            let hint = errors.errors.first().map_or("", |error| &error.help);
            Failure::usage("agent-files", problem.message).hint(hint)
        }
        AgentError::Model { model, place, .. } => {
            Failure::usage("model", problem.message).hint(model_hint(model, place))
        }
        AgentError::Tools { agent, source, .. } => {
            Failure::usage("tools", problem.message).hint(tools_hint(source, agent))
        }
    };
    failure.causes = problem.causes;
    failure
}

/// The remedy where the tools that an agent lists do not fit.
#[must_use]
pub(crate) fn tools_hint(error: &ToolsError, agent: &str) -> String {
    match error {
        ToolsError::UnknownFunction { tool, .. } => {
            format!("correct `tools` of [agent.{agent}]; see `taskrun tool show {tool}`")
        }
        ToolsError::Rule { key, .. } => {
            format!("correct `{key}` of [agent.{agent}]; see `taskrun agent show {agent}`")
        }
        ToolsError::Schema { .. } | ToolsError::OutputSchema { .. } => {
            "correct `describe` of the tool and build it again".to_owned()
        }
    }
}
