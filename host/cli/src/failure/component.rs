//! Components that do not load.

use std::collections::BTreeSet;
use std::path::Path;

use taskrun::agents::ToolsError;
use taskrun_engine::{AgentError, LoadError, MissingGrant};
use taskrun_policy::Capability;

use super::Failure;
use crate::exit::Exit;

/// A component of `what` (an agent or a tool, by name) that does not load.
#[must_use]
pub fn load_failure(error: &LoadError, what: &str, path: &Path) -> Box<Failure> {
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
        LoadError::Shape { .. } | LoadError::CompileRefused { .. } | LoadError::CompileLimit => {
            ("component-refused", "build it smaller, or without what it does not use".to_owned())
        }
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
        LoadError::Worker { .. } | LoadError::Internal(_) => {
            ("engine", "look at the whole installation with `taskrun doctor`".to_owned())
        }
        LoadError::Denied(missing) => return denied(missing, what, path),
    };
    let mut failure =
        Failure::usage(code, format!("{what} does not load: {place}")).because(error).hint(hint);
    if let LoadError::Worker { .. } | LoadError::Internal(_) = error {
        failure.exit = Exit::Unexpected;
    }
    failure
}

fn denied(missing: &[MissingGrant], what: &str, path: &Path) -> Box<Failure> {
    let message = format!(
        "{what} does not load: {} imports what the policy does not mention",
        path.display()
    );
    let mut failure = Failure::new(Exit::Denied, "denied", message);
    failure.causes = missing.iter().take(MISSING_SHOWN_MAX).map(cause).collect();
    if let Some(more) = missing.len().checked_sub(MISSING_SHOWN_MAX).filter(|more| *more > 0) {
        failure.causes.push(format!("and {more} more"));
    }
    let allow: BTreeSet<&str> = missing.iter().filter_map(MissingGrant::rule).collect();
    let deny: BTreeSet<String> = missing.iter().filter_map(denial).collect();
    failure.hint(match missing.first().filter(|_| !allow.is_empty()) {
        None => format!("see what it asks for with `taskrun inspect {}`", path.display()),
        Some(MissingGrant { agent, .. }) => format!(
            "add to [agent.{agent}], narrowed: allow = [{}], or to refuse each use: deny = [{}]",
            listed(allow.into_iter()),
            listed(deny.iter().map(String::as_str))
        ),
    })
}

/// Most imports that a refusal names; a component may have thousands.
const MISSING_SHOWN_MAX: usize = 8;

/// The missing grant, without the line that gives it: the hint has that, once for all.
fn cause(missing: &MissingGrant) -> String {
    match missing.capability() {
        Some(capability) => format!("{} needs a rule for {capability}", missing.import),
        None => missing.to_string(),
    }
}

fn listed<'a>(rules: impl Iterator<Item = &'a str>) -> String {
    rules.map(|rule| format!("{rule:?}")).collect::<Vec<_>>().join(", ")
}

/// The rule under which an import loads and each use of it is refused.
fn denial(missing: &MissingGrant) -> Option<String> {
    let capability = missing.capability()?;
    let everything = match capability {
        Capability::Model
        | Capability::Http
        | Capability::Prompts
        | Capability::Controller
        | Capability::Memory
        | Capability::MemoryWrite
        | Capability::Metrics => "*",
        Capability::WorkspaceRead | Capability::WorkspaceWrite => "**",
    };
    Some(format!("{capability}: {everything}"))
}

/// An agent that does not load.
#[must_use]
pub fn agent_failure(error: &AgentError) -> Box<Failure> {
    match error {
        AgentError::Component { agent, path, location, source } => {
            let mut failure = load_failure(source, &format!("agent {agent}"), path);
            failure.causes.push(format!("named at {location}"));
            failure
        }
        AgentError::Tools { agent, location, source } => {
            let hint = match source {
                ToolsError::UnknownFunction { tool, .. } => {
                    format!("correct `tools` of [agent.{agent}]; see `taskrun tool show {tool}`")
                }
                ToolsError::Schema { .. } => {
                    "correct `describe` of the tool and build it again".to_owned()
                }
            };
            Failure::usage("tools", format!("the tools of agent {agent} do not fit ({location})"))
                .because(source)
                .hint(hint)
        }
    }
}
