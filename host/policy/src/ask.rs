//! Which tool calls need the consent of a person.

use std::time::Duration;

use taskrun_journal::tool::ToolSpec;

use super::Location;
use crate::selector::ToolSelector;

/// How long consent is waited for unless the policy says otherwise.
pub const ASK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(24 * 3_600);
/// Longest wait for consent: thirty days, as long as a run may take.
pub(crate) const ASK_TIMEOUT_MAX: Duration = super::WALL_MAX;

/// One line of `ask`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskRule {
    /// What it is about.
    pub about: Asked,
    /// As written, such as `tool: mail/*`.
    pub text: String,
    /// Where it stands in the policy file.
    pub location: Location,
}

/// Which calls a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Those of every tool, written `tool: *`.
    Any,
    /// Those of a function, or of all functions of a tool.
    Tool(ToolSelector),
    /// Those of functions with this tag.
    Tag(String),
}

/// The rules of an agent, and how long somebody is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskRules {
    /// In the order of the file. At most [`RULES_MAX`](crate::policy::RULES_MAX).
    pub rules: Vec<AskRule>,
    /// When nobody has answered by then, the call is refused. Default [`ASK_TIMEOUT_DEFAULT`].
    pub timeout: Duration,
}

impl Default for AskRules {
    /// Nobody is asked.
    fn default() -> Self {
        Self { rules: Vec::new(), timeout: ASK_TIMEOUT_DEFAULT }
    }
}

impl AskRules {
    /// The first rule that wants calls of this function confirmed, if there is one. The function
    /// is named by its qualified name.
    #[must_use]
    pub fn about(&self, function: &ToolSpec) -> Option<&AskRule> {
        self.rules.iter().find(|rule| rule.about.is_about(function))
    }

    /// Adds the rules of somebody above, whose wait counts where it is shorter.
    pub fn add(&mut self, above: &Self) {
        if !above.rules.is_empty() {
            self.timeout = self.timeout.min(above.timeout);
            self.rules.extend(above.rules.iter().cloned());
        }
    }
}

impl Asked {
    fn is_about(&self, function: &ToolSpec) -> bool {
        match self {
            Self::Any => true,
            Self::Tool(selector) => function
                .name
                .split_once('/')
                .is_some_and(|(tool, function)| selector.matches(tool, function)),
            Self::Tag(tag) => function.is_tagged(std::slice::from_ref(tag)),
        }
    }
}
