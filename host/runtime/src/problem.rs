//! The problem that keeps a component from being used, in words for people.

use std::fmt;
use std::path::Path;

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
            (format!("{place} imports what the policy does not mention"), of_missing(missing))
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
