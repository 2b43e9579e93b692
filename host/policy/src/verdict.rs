//! Verdicts of rules.

use std::fmt;

/// The verdict of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Grants what it selects, unless a deny rule takes it away.
    Allow,
    /// Refuses what it selects, whatever else is allowed.
    Deny,
}

/// Prints `allow` or `deny`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}
