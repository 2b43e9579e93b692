//! How long calls of single tools may take.

use std::time::Duration;

/// Most time-outs of an agent: each is compared with each function that the agent may call.
pub(crate) const TIMEOUTS_MAX: usize = 256;

/// Time-outs by the names of functions: a name, or the beginning of names with a `*` behind it.
/// Of those about a function its own name wins, then the longest beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallTimeouts(Vec<(String, Duration)>);

impl CallTimeouts {
    /// These; of equal patterns the last one counts.
    pub fn new(all: impl IntoIterator<Item = (String, Duration)>) -> Self {
        Self(all.into_iter().collect())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Pattern and time-out of each, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.0.iter().map(|(pattern, timeout)| (pattern.as_str(), *timeout))
    }

    /// The time-out of a function by its qualified name, `tool/function`.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<Duration> {
        let about = self.iter().filter(|(pattern, _)| is_about(pattern, name));
        // A name is longer than each of its beginnings, and may be as long as one with its star.
        about.max_by_key(|(pattern, _)| rank(pattern)).map(|(_, timeout)| timeout)
    }

    /// The same, none of them longer than `most`.
    #[must_use]
    pub fn within(&self, most: Option<Duration>) -> Self {
        let least = |timeout: Duration| most.map_or(timeout, |most| timeout.min(most));
        Self::new(self.0.iter().map(|(pattern, timeout)| (pattern.clone(), least(*timeout))))
    }
}

/// Whether a pattern is about the function of this qualified name.
#[must_use]
pub fn is_about(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

fn rank(pattern: &str) -> (bool, usize) {
    match pattern.strip_suffix('*') {
        Some(beginning) => (false, beginning.len()),
        None => (true, pattern.len()),
    }
}
