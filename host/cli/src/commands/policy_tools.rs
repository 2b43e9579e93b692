//! The tools that no agent of a policy lists, as `taskrun policy check` looks at them.

use taskrun_policy::ToolPolicy;
use taskrun_runtime::{FunctionsError, Loader, callers};

use super::agent::{LoadCheck, tell};
use crate::args::OutputFormat;
use crate::context::Context;
use crate::failure::{Failure, load_failure, tools_failure};

/// Loads each tool that no agent lists and tells whether it does; gives the fault of the first that
/// does not, too.
pub(super) async fn check_unlisted(
    context: &Context,
    loader: &Loader,
) -> (Vec<LoadCheck>, Option<Box<Failure>>) {
    let policy = loader.policy();
    let is_unlisted = |tool: &&ToolPolicy| callers(policy, &tool.name).next().is_none();
    let unlisted: Vec<&ToolPolicy> = policy.tools.values().filter(is_unlisted).collect();
    let (mut checks, mut first) = (Vec::new(), None);
    for tool in unlisted {
        let failure = loader.check_unlisted(tool).await.err().map(|error| failure(&error, tool));
        if matches!(context.printer.format(), OutputFormat::Table) {
            tell(context, &format!("tool {}", tool.name), failure.as_deref(), None);
        }
        checks.push(LoadCheck::of(&tool.name, failure.as_deref()));
        first = first.or(failure);
    }
    (checks, first)
}

/// The names of those that do not load, in words; `None` if each does.
pub(super) fn unusable(checks: &[LoadCheck]) -> Option<String> {
    let names = checks.iter().filter(|check| !check.ok).map(|check| check.name.as_str());
    let names: Vec<&str> = names.collect();
    match names.as_slice() {
        [] => None,
        [name] => Some(format!("the tool {name}, which no agent lists, does not load")),
        names => Some(format!("the tools {}, which no agent lists, do not load", names.join(", "))),
    }
}

fn failure(error: &FunctionsError, tool: &ToolPolicy) -> Box<Failure> {
    let what = format!("tool {}", tool.name);
    let mut failure = match error {
        FunctionsError::Component(error) => load_failure(error, &what, &tool.component),
        FunctionsError::Tools(error) => {
            tools_failure(error, &tool.name, format!("{what} cannot be used")).because(error)
        }
    };
    failure.causes.push(format!("named at {}", tool.location));
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_that_do_not_load_are_named() {
        let bad = Failure::usage("tools", "it has no component");
        let told = |names: &[&str]| {
            let mut checks = vec![LoadCheck::of("fine", None)];
            checks.extend(names.iter().map(|name| LoadCheck::of(name, Some(&*bad))));
            unusable(&checks)
        };
        assert_eq!(told(&[]), None);
        assert_eq!(
            told(&["z"]).as_deref(),
            Some("the tool z, which no agent lists, does not load")
        );
        assert_eq!(
            told(&["y", "z"]).as_deref(),
            Some("the tools y, z, which no agent lists, do not load")
        );
    }
}
