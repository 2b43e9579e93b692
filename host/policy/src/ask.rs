//! Rules about tool calls that need the consent of a person.

use std::time::Duration;

use taskrun_journal::tool::ToolSpec;

use super::Location;
use crate::pattern::Pattern;

/// The wait for consent unless the policy says otherwise.
pub const ASK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(24 * 3_600);
/// Longest wait for consent: thirty days, as long as a run may take.
pub(crate) const ASK_TIMEOUT_MAX: Duration = super::WALL_MAX;

/// One line of `ask`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskRule {
    /// The functions whose calls need consent.
    pub functions: Pattern,
    /// As written, such as `tool: mail/*`.
    pub text: String,
    /// Its place in the policy file.
    pub location: Location,
}

/// The rules of an agent, and how long an answer is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskRules {
    /// In the order of the file. At most [`RULES_MAX`](crate::RULES_MAX).
    pub rules: Vec<AskRule>,
    /// Without an answer by then, the call is refused. Default [`ASK_TIMEOUT_DEFAULT`].
    pub timeout: Duration,
}

impl Default for AskRules {
    /// No call needs consent.
    fn default() -> Self {
        Self { rules: Vec::new(), timeout: ASK_TIMEOUT_DEFAULT }
    }
}

impl AskRules {
    /// The first rule that wants calls of this function confirmed, if there is one. The function
    /// is named by its qualified name.
    #[must_use]
    pub fn about(&self, function: &ToolSpec) -> Option<&AskRule> {
        self.rules.iter().find(|rule| rule.functions.matches(function))
    }

    /// Adds the rules of an agent above, whose wait counts where it is shorter.
    pub fn add(&mut self, above: &Self) {
        if !above.rules.is_empty() {
            self.timeout = self.timeout.min(above.timeout);
            self.rules.extend(above.rules.iter().cloned());
        }
    }
}
