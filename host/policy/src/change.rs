//! Changes of rules that turn a decision.

use crate::capability::Use;
use crate::grants::{Decision, Grants};
use crate::location::Location;
use crate::rule::Rule;

/// The change of a set of rules that turns its decision about one use. It says nothing of other
/// uses, which the same rules may be about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleChange<'r> {
    /// The rules to be taken out, in the order in which they decide.
    pub remove: Vec<&'r Rule>,
    /// The rule to be added.
    pub add: Option<MissingRule<'r>>,
}

/// A rule that no list has and that would allow a use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRule<'r> {
    /// As it is to be written under `allow`; with a placeholder where what a guest asks for could
    /// be taken for a pattern.
    pub text: String,
    /// The header of the agent's section.
    pub section: &'r Location,
}

impl Grants {
    /// Decides about one use, and says what would turn that decision: `None` if it is malformed,
    /// and no rule can allow it.
    pub(crate) fn decision_and_change(
        &self,
        used: &Use<'_>,
    ) -> (Decision<'_>, Option<RuleChange<'_>>) {
        let first = self.decide(used);
        let change = self.change(used, first.allowed);
        (first, change)
    }

    /// Takes out one deciding rule after the other until the decision is another one.
    fn change(&self, used: &Use<'_>, allowed: bool) -> Option<RuleChange<'_>> {
        let mut left = self.clone();
        let mut kept: Vec<&Rule> = self.rules.iter().collect();
        let mut remove = Vec::new();
        loop {
            let decision = left.decide(used);
            if decision.allowed != allowed {
                return Some(RuleChange { remove, add: None });
            }
            let Some(rule) = decision.rule else {
                let text = decision.missing_rule()?;
                let add = Some(MissingRule { text, section: &self.location });
                return Some(RuleChange { remove, add });
            };
            let at = left.rules.iter().position(|one| std::ptr::eq(one, rule))?;
            left.rules.remove(at);
            remove.push(kept.remove(at));
        }
    }
}
