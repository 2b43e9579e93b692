//! Components that do not load.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use taskrun::agents::ToolsError;
use taskrun_journal::stop::CallAbort;
use taskrun_policy::{MEMORY_BYTES_MAX, toml_string};
use taskrun_runtime::{
    AgentError, CORE_INSTANCES_MAX, LoadError, MEMORIES_MAX, MissingGrant, NeedBound, Problem,
    TABLES_MAX,
};

use super::Failure;
use super::runtime::model_hint;
use crate::exit::Exit;
use crate::output::human;
use crate::paths::shown;
use crate::shell;

/// A component of `what` (an agent or a tool, by name) that does not load.
#[must_use]
pub(crate) fn load_failure(error: &LoadError, what: &str, path: &Path) -> Box<Failure> {
    let (place, file) = (shown(path), shell::path(path, "FILE"));
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
        LoadError::Kept { detail: _, kind } => {
            if let Some((code, hint)) = kind.and_then(disk_fault) {
                let problem = Problem::of_component(error, what, path);
                return of_problem(Exit::Unreachable, code, problem).hint(hint);
            }
            (
                "component-kept",
                "see `taskrun doctor --check`; the file that the policy names mends what is kept \
                 of it"
                    .to_owned(),
            )
        }
        LoadError::Shape { what, .. } if what.starts_with("locals") => (
            "component-refused",
            "build it with optimization: without, compilers keep each value in a local of its own"
                .to_owned(),
        ),
        LoadError::Proposal { .. } => (
            "component-refused",
            "build it without this proposal of WebAssembly: C++ with -fno-exceptions, no threads, \
             no relaxed SIMD, no 64-bit memories"
                .to_owned(),
        ),
        LoadError::Shape { .. }
        | LoadError::TooLarge { .. }
        | LoadError::CompileRefused { .. }
        | LoadError::CompileLimit => {
            ("component-refused", "build it smaller, or without what it does not use".to_owned())
        }
        LoadError::CompilerPanicked { .. } => (
            "component-refused",
            "build it with another version of its toolchain, or with less optimization".to_owned(),
        ),
        LoadError::TooMuch { bound, .. } => ("component-refused", smaller_need(*bound)),
        LoadError::Async { .. } => (
            "component-refused",
            "build it without async functions, futures and streams of the component model"
                .to_owned(),
        ),
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
                "see what it exports with `taskrun inspect {file}`; an agent needs the world `agent`, a tool the world `tool`"
            ),
        ),
        LoadError::Version { .. } => {
            ("component-version", format!("build {place} for this version of the interfaces"))
        }
        LoadError::Preopens { .. } | LoadError::Exposed { .. } => (
            "component-folders",
            format!("see what the agent is granted with `taskrun agent show {}`", agent_in(what)),
        ),
        LoadError::Workspace { .. } => {
            ("workspace", "make the folder, or correct `workspace` in the policy".to_owned())
        }
        LoadError::Describe(CallAbort::Memory { limit_bytes }) => (
            "component-describe",
            format!(
                "raise `memory` in the `limits` of the agent and of the tool, which is {} here, or \
                 have `describe` of the tool use less",
                human::bytes(*limit_bytes)
            ),
        ),
        LoadError::Describe(_) | LoadError::Description { .. } => {
            ("component-describe", "correct `describe` of the tool and build it again".to_owned())
        }
        LoadError::Starved { .. } => {
            ("component-starved", "do the same again when this machine has time for it".to_owned())
        }
        LoadError::NoAnswer { .. } => (
            "engine",
            "do the same again; where it stays so, the machine has too little memory or too few \
             threads for it, or something ends the worker"
                .to_owned(),
        ),
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
    // The words of the component.
    failure.has_places = !matches!(error, LoadError::Describe(_) | LoadError::Description { .. });
    if let LoadError::Worker { .. }
    | LoadError::NoAnswer { .. }
    | LoadError::Starved { .. }
    | LoadError::Internal(_) = error
    {
        failure.exit = Exit::Unexpected;
    }
    failure
}

/// The agent that these words name, or the word for one.
fn agent_in(what: &str) -> &str {
    what.rsplit_once("agent ").map_or("AGENT", |(_, agent)| agent)
}

/// The remedy for a component whose instances need more than this bound.
fn smaller_need(bound: NeedBound) -> String {
    match bound {
        NeedBound::Engine => format!(
            "build it with an initial memory (data and stack) of at most {} MiB, and at most \
             {MEMORIES_MAX} memories, {TABLES_MAX} tables and {CORE_INSTANCES_MAX} core instances",
            MEMORY_BYTES_MAX >> 20
        ),
        NeedBound::Host => "build it with a smaller initial memory (data and stack), or run the \
                            host on a machine, or in a control group, with more"
            .to_owned(),
        NeedBound::Limits => "raise `memory` in the `limits` of the agent and of the tool, or \
                              build it with a smaller initial memory (data and stack)"
            .to_owned(),
    }
}

/// The code and the remedy of an error of the operating system for which nothing can be kept in the
/// data directory, as in its store; `None` of another one.
pub(super) fn disk_fault(kind: ErrorKind) -> Option<(&'static str, &'static str)> {
    if matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
        let hint = "make room on that disk, of bytes or of files (`df`, `df -i`)";
        return Some(("store-full", hint));
    }
    let is_denied = matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem);
    is_denied.then_some((
        "store-read-only",
        "make it yours and writable (`chown`, `chmod`), run this as its owner, or give another \
         --data-dir",
    ))
}

fn of_problem(exit: Exit, code: &'static str, problem: Problem) -> Box<Failure> {
    let mut failure = Failure::new(exit, code, problem.message);
    failure.causes = problem.causes;
    failure.with_places()
}

/// The rules that the missing grants need.
fn missing_hint(missing: &[MissingGrant], path: &Path) -> String {
    let allow: BTreeSet<&str> = missing.iter().filter_map(MissingGrant::rule).collect();
    let deny: BTreeSet<String> = missing.iter().filter_map(denial).collect();
    match missing.first().filter(|_| !allow.is_empty()) {
        None => {
            format!("see what it asks for with `taskrun inspect {}`", shell::path(path, "FILE"))
        }
        Some(MissingGrant { agent, .. }) => format!(
            "add to [agent.{agent}], narrowed: allow = [{}], or to refuse each use: deny = [{}]",
            listed(allow.into_iter()),
            listed(deny.iter().map(String::as_str))
        ),
    }
}

fn listed<'a>(rules: impl Iterator<Item = &'a str>) -> String {
    rules.map(toml_string).collect::<Vec<_>>().join(", ")
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
            Failure::usage("agent-files", problem.message).with_places().hint(hint)
        }
        AgentError::Model { model, place, .. } => {
            Failure::usage("model", problem.message).with_places().hint(model_hint(model, place))
        }
        AgentError::Tools { agent, source, .. } => tools_failure(source, agent, problem.message),
    };
    failure.causes = problem.causes;
    failure
}

/// Tools that do not fit as an agent lists them, without the causes.
#[must_use]
pub(crate) fn tools_failure(error: &ToolsError, agent: &str, message: String) -> Box<Failure> {
    let failure = Failure::usage("tools", message).hint(tools_hint(error, agent));
    match error {
        ToolsError::UnknownFunction { .. } | ToolsError::Rule { .. } => failure.with_places(),
        // The words of the tool.
        ToolsError::Schema { .. } | ToolsError::OutputSchema { .. } => failure,
    }
}

/// The remedy where the tools that an agent lists do not fit.
fn tools_hint(error: &ToolsError, agent: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_this_host_does_not_run_is_told_how_to_be_another_one() {
        let of = |error: &LoadError| {
            let failure = load_failure(error, "agent worker", Path::new("worker.wasm"));
            assert_eq!((failure.exit, &*failure.code), (Exit::Usage, "component-refused"));
            failure.hint.expect("a hint")
        };
        let detail = "exceptions proposal not enabled (at offset 0x1b)".to_owned();
        let hint = of(&LoadError::Proposal { detail });
        assert!(hint.contains("-fno-exceptions") && !hint.contains("wit/"), "{hint}");
        for what in ["locals of a function", "locals times blocks in all"] {
            let hint = of(&LoadError::Shape { what, found: 2, limit: 1 });
            assert!(hint.contains("with optimization"), "{hint}");
        }
        let hint = of(&LoadError::Shape { what: "core modules", found: 2, limit: 1 });
        assert!(hint.contains("smaller"), "{hint}");
    }

    #[test]
    fn grants_are_looked_at_with_the_name_of_the_agent_that_has_them() {
        for (what, command) in [
            ("agent worker", "`taskrun agent show worker`"),
            ("tool files of agent worker", "`taskrun agent show worker`"),
            ("tool files", "`taskrun agent show AGENT`"),
        ] {
            let error = LoadError::Preopens { reason: "they are files".to_owned() };
            let hint = load_failure(&error, what, Path::new("files.wasm")).hint;
            assert!(hint.as_deref().is_some_and(|hint| hint.contains(command)), "{hint:?}");
        }
    }

    #[test]
    fn a_component_that_needs_too_much_is_told_how_much_it_may() {
        let of = |error: &LoadError| {
            let Failure { code, hint, .. } =
                *load_failure(error, "tool words", Path::new("words.wasm"));
            let hint = hint.expect("a hint");
            assert!(!hint.contains("taskrun inspect"), "that shows no remedy: {hint}");
            (code, hint)
        };
        let detail = || "it begins with too much".to_owned();
        for (bound, words) in [
            (NeedBound::Engine, "of at most 64 MiB, and at most 4 memories"),
            (NeedBound::Host, "a smaller initial memory"),
            (NeedBound::Limits, "raise `memory` in the `limits`"),
        ] {
            let (code, hint) = of(&LoadError::TooMuch { detail: detail(), bound });
            assert!(code == "component-refused" && hint.contains(words), "{hint}");
        }
        let (code, hint) = of(&LoadError::Async { detail: detail() });
        assert!(code == "component-refused" && hint.contains("without async"), "{hint}");
        let (code, hint) = of(&LoadError::TooLarge { bytes: 2, limit: 1 });
        assert!(code == "component-refused" && hint.contains("smaller"), "{hint}");
        let abort = CallAbort::Memory { limit_bytes: 8 << 20 };
        let (code, hint) = of(&LoadError::Describe(abort));
        assert!(code == "component-describe" && hint.contains("which is 8"), "{hint}");
    }

    #[test]
    fn a_disk_that_takes_nothing_is_no_fault_of_the_component() {
        let path = Path::new("components/worker.wasm");
        let of = |kind| {
            let detail = "it cannot be kept: .taskrun/blobs/tmp/1-0: denied".to_owned();
            load_failure(&LoadError::Kept { detail, kind: Some(kind) }, "agent worker", path)
        };
        for (kind, code) in [
            (ErrorKind::StorageFull, "store-full"),
            (ErrorKind::QuotaExceeded, "store-full"),
            (ErrorKind::PermissionDenied, "store-read-only"),
            (ErrorKind::ReadOnlyFilesystem, "store-read-only"),
        ] {
            let failure = of(kind);
            assert_eq!((failure.exit, &*failure.code), (Exit::Unreachable, code));
            assert!(failure.reason().contains(".taskrun/blobs/tmp"), "{}", failure.reason());
        }
        let damaged = of(ErrorKind::InvalidData);
        assert_eq!((damaged.exit, &*damaged.code), (Exit::Usage, "component-kept"));
    }
}
