//! Time-outs of calls of single functions.

use std::time::Duration;

use crate::pattern::Pattern;

/// Most time-outs of an agent: each is compared with each function that the agent may call.
pub(crate) const TIMEOUTS_MAX: usize = 256;

/// Time-outs by the names of functions: a name, or the beginning of names with a `*` behind it.
/// Of those about a function its own name wins, then the longest beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallTimeouts(Vec<(Pattern, Duration)>);

impl CallTimeouts {
    /// These; of equal patterns the last one counts.
    pub fn new(all: impl IntoIterator<Item = (Pattern, Duration)>) -> Self {
        Self(all.into_iter().collect())
    }

    /// Pattern and time-out of each, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, Duration)> {
        self.0.iter().map(|(pattern, timeout)| (pattern, *timeout))
    }

    /// The time-out of a function by its qualified name, `tool/function`.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<Duration> {
        let about = self.iter().filter(|(pattern, _)| pattern.matches_name(name));
        about.max_by_key(|(pattern, _)| pattern.precision()).map(|(_, timeout)| timeout)
    }

    /// The time-out that a pattern about the tools of the host, or about agents as tools, states for
    /// one of them: `*` speaks of calls, and says nothing of what a call waits for.
    #[must_use]
    pub fn of_wait(&self, name: &str) -> Option<Duration> {
        let about = self.iter().filter(|(pattern, _)| match pattern {
            Pattern::Name(known) => known == name,
            Pattern::Beginning(beginning) => {
                beginning.contains('/') && name.starts_with(beginning.as_str())
            }
            Pattern::Tag(_) => false,
        });
        about.max_by_key(|(pattern, _)| pattern.precision()).map(|(_, timeout)| timeout)
    }

    /// The same, none of them longer than `most`.
    #[must_use]
    pub(crate) fn within(&self, most: Option<Duration>) -> Self {
        let least = |timeout: Duration| most.map_or(timeout, |most| timeout.min(most));
        Self::new(self.0.iter().map(|(pattern, timeout)| (pattern.clone(), least(*timeout))))
    }
}
