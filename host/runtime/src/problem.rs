//! The problem that keeps a component from being used, in words for people.

use std::fmt;
use std::path::Path;

use taskrun::agents::ToolsError;
use taskrun_engine::{AgentError, LoadError, MissingGrant};

/// Most imports that a refusal names; a component may have thousands.
const MISSING_SHOWN_MAX: usize = 8;

/// A component that does not load, in words that every front door shows alike. `Display` prints all
/// of it in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The problem in one line.
    pub message: String,
    /// Its causes, the nearest first.
    pub causes: Vec<String>,
    /// The message without its beginning `NAME does not load: `, where it has that.
    reason: String,
}

impl Problem {
    /// A component of `what` (an agent or a tool, by name) that does not load.
    #[must_use]
    pub fn of_component(error: &LoadError, what: &str, path: &Path) -> Self {
        let place = path.display();
        let (reason, causes) = if let LoadError::Denied(missing) = error {
            let is_for_a_rule = missing.iter().any(|missing| missing.capability().is_some());
            let what = match is_for_a_rule {
                true => "what the policy does not mention",
                false => "what no policy can give it",
            };
            (format!("{place} imports {what}"), of_missing(missing))
        } else {
            (place.to_string(), chain(error))
        };
        Self { message: format!("{what} does not load: {reason}"), causes, reason }
    }

    /// An agent that does not load.
    #[must_use]
    pub fn of_agent(error: &AgentError) -> Self {
        match error {
            AgentError::Component { agent, path, location, source } => {
                let mut problem = Self::of_component(source, &format!("agent {agent}"), path);
                problem.causes.push(format!("named at {location}"));
                problem
            }
            AgentError::Files { agent, errors } => {
                let reason = "what the policy names for it cannot be used".to_owned();
                let message = format!("agent {agent} does not load: {reason}");
                let causes = errors.errors.iter().map(ToString::to_string).collect();
                Self { message, causes, reason }
            }
            AgentError::Model { agent, model, place, source } => {
                let reason = format!("its model {model} cannot be used");
                let message = format!("agent {agent} does not load: {reason}");
                let mut causes = chain(&**source);
                causes.push(format!("named at {place}"));
                Self { message, causes, reason }
            }
            AgentError::Tools { agent, location, source } => {
                let reason = format!("the tools of agent {agent} do not fit ({location})");
                Self { message: reason.clone(), causes: chain(source), reason }
            }
        }
    }

    /// All of it in one line, for a record that begins with `agent NAME does not load: ` itself.
    pub(crate) fn reason(&self) -> String {
        self.causes.iter().fold(self.reason.clone(), |reason, cause| format!("{reason}: {cause}"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.causes.iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}

/// The reason for guests and models that an agent does not load: it names no place of the host.
pub(crate) fn reason_for_guest(error: &AgentError) -> String {
    match error {
        AgentError::Component { source, .. } => {
            // The other ones are about files and folders.
            let is_about_files =
                matches!(**source, LoadError::Preopens { .. } | LoadError::Exposed { .. });
            if let LoadError::Denied(missing) = &**source {
                let missing = of_missing(missing).join("; ");
                format!("a component of it imports what it may not have: {missing}")
            } else if is_about_files {
                "its rules about files are none that a component of it can be held to".to_owned()
            } else if source.is_of_component() {
                chain(&**source).join(": ")
            } else {
                "a component of it cannot be loaded now".to_owned()
            }
        }
        AgentError::Files { .. } => "what the policy names for it cannot be used".to_owned(),
        AgentError::Model { .. } => "its model cannot be used".to_owned(),
        AgentError::Tools { source, .. } => match source {
            ToolsError::Rule { key, unknown, .. } => format!("`{key}`: {unknown}"),
            ToolsError::UnknownFunction { .. }
            | ToolsError::Schema { .. }
            | ToolsError::OutputSchema { .. } => source.to_string(),
        },
    }
}

/// The missing grants, without the lines that give them: a hint has those, once for all.
fn of_missing(missing: &[MissingGrant]) -> Vec<String> {
    let one = |missing: &MissingGrant| match missing.capability() {
        Some(capability) => format!("{} needs a rule for {capability}", missing.import),
        None => missing.to_string(),
    };
    let mut causes: Vec<String> = missing.iter().take(MISSING_SHOWN_MAX).map(one).collect();
    if let Some(more) = missing.len().checked_sub(MISSING_SHOWN_MAX).filter(|more| *more > 0) {
        causes.push(format!("and {more} more"));
    }
    causes
}

/// The kind of the operating system's error among an error and its causes, if there is one.
#[must_use]
pub fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<std::io::ErrorKind> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind)
}

/// An error and its causes.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use taskrun_engine::Need;
    use taskrun_journal::stop::CallAbort;
    use taskrun_policy::{Capability, Location};

    use super::*;

    #[test]
    fn an_import_that_no_rule_gives_is_not_told_as_one_that_a_rule_is_missing_for() {
        let of = |needs: &[(&str, Need)]| {
            let missing = needs.iter().map(|(import, need)| MissingGrant {
                import: (*import).to_owned(),
                agent: "a".to_owned(),
                need: *need,
            });
            let error = LoadError::Denied(missing.collect());
            Problem::of_component(&error, "agent a", Path::new("a.wasm"))
        };
        let output = ("wasi:cli/stdout@0.3.0", Need::OtherWasi);
        let http = ("taskrun:plugin/http@0.1.0", Need::Rule(Capability::Http));
        let never = of(&[output, ("plain", Need::Unknown)]);
        assert_eq!(
            never.message,
            "agent a does not load: a.wasm imports what no policy can give it"
        );
        let cause = "wasi:cli/stdout@0.3.0: this host speaks WASI 0.2 and no preview of it";
        assert_eq!(never.causes, [cause, "plain: the host does not know this interface"]);
        let some = of(&[http, output]);
        assert!(some.message.ends_with("imports what the policy does not mention"), "{some}");
    }

    #[test]
    fn guests_are_told_no_place_of_the_host_for_which_an_agent_does_not_load() {
        let location = Location { file: Path::new("/w/t.toml").into(), line: 3, column: 1 };
        let of = |source: LoadError| AgentError::Component {
            agent: "a".to_owned(),
            path: "/w/a.wasm".into(),
            location: location.clone(),
            source: Box::new(source),
        };
        let told = |error: &AgentError| {
            let told = reason_for_guest(error);
            assert!(!told.contains("/w/"), "{told}");
            told
        };
        let trap = CallAbort::Trap { code: "unreachable".to_owned() };
        let described = told(&of(LoadError::Describe(trap)));
        assert_eq!(described, "the tool did not describe itself: trapped: unreachable");
        let missing = MissingGrant {
            import: "taskrun:plugin/http@0.1.0".to_owned(),
            agent: "a".to_owned(),
            need: Need::Rule(Capability::Http),
        };
        assert!(told(&of(LoadError::Denied(vec![missing]))).contains("needs a rule for http"));
        let reason = "\"workspace-read: *.md\" (/w/t.toml:4:9) is none".to_owned();
        told(&of(LoadError::Preopens { reason }));
        told(&of(LoadError::Exposed { folder: "/w".into(), file: "/w/t.toml".into() }));
        told(&of(LoadError::NotAFile { path: "/w/a.wasm".into() }));
        told(&of(LoadError::Internal("/w/cache".to_owned())));
        let (tool, function, known) = ("st".to_owned(), "nosuch".to_owned(), "f".to_owned());
        let unknown = Box::new(ToolsError::UnknownFunction { tool, function, known });
        let source = ToolsError::Rule { key: "ask", location: location.clone(), unknown };
        let tools = AgentError::Tools { agent: "a".to_owned(), location, source };
        let expected = "`ask`: tool st has no function \"nosuch\"; it has: f";
        assert_eq!(told(&tools), expected);
    }
}
