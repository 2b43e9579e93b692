//! The engine that is built in: tools allowed and blocked by name and by tag, and what the hints
//! of failed calls ask for.

use taskrun_journal::message::{Labels, RetryHint, RetryReason};
use taskrun_journal::tool::ToolSpec;

use crate::pattern::Pattern;

/// Most labels, and most entries of metadata, of one decision.
pub const POLICY_LABELS_MAX: usize = 64;
/// Most bytes of all of them together: they are in the journal.
pub const POLICY_LABEL_BYTES_MAX: usize = 16 << 10;

/// Lists of tools. The default allows every tool and heeds no hint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolLists {
    /// Names it in the journal.
    pub name: String,
    /// Tools that are allowed; together with [`Self::allow_tags`] all that are. `None` in both
    /// allows every tool.
    pub allow: Option<Vec<Pattern>>,
    /// Tags whose tools are allowed, where the policy states them of the tool: what a tool says of
    /// itself allows nothing.
    pub allow_tags: Option<Vec<String>>,
    /// Tools that are refused, whatever allows them.
    pub block: Vec<Pattern>,
    /// Tags whose tools are refused, whatever allows them.
    pub block_tags: Vec<String>,
    /// Heed the hints of failed calls: one that wants to be tried again by the same tool
    /// alone leaves that tool and one call for the next turn; one that says that a tool is not
    /// available leaves it out for the next turn.
    pub hints: bool,
}

impl ToolLists {
    /// Decides about these tools of a turn, after failures of the last calls that came with these
    /// hints.
    #[must_use]
    pub fn decide(&self, tools: &[ToolSpec], hints: &[RetryHint]) -> PolicyDecision {
        let allowed = tools.iter().filter(|tool| self.allows(tool));
        let mut left: Vec<String> = allowed.map(|tool| tool.name.clone()).collect();
        let mut tool_calls = None;
        if self.hints {
            let gone = |hint: &&RetryHint| hint.reason == RetryReason::ToolUnavailable;
            for hint in hints.iter().filter(gone) {
                left.retain(|name| *name != hint.tool);
            }
            // A tool that is not there cannot take the others away.
            let asks = |hint: &&RetryHint| hint.restrict_to_tool && left.contains(&hint.tool);
            if let Some(hint) = hints.iter().find(asks) {
                left = vec![hint.tool.clone()];
                tool_calls = Some(1);
            }
        }
        PolicyDecision { allowed_tools: Some(left), tool_calls, ..PolicyDecision::default() }
    }

    fn allows(&self, tool: &ToolSpec) -> bool {
        let listed = |list: &[Pattern]| list.iter().any(|one| one.matches(tool));
        if listed(&self.block) || tool.is_tagged(&self.block_tags) {
            return false;
        }
        match (&self.allow, &self.allow_tags) {
            (None, None) => true,
            (names, tags) => {
                names.as_deref().is_some_and(listed)
                    || tags.as_deref().is_some_and(|tags| tool.is_stated_as(tags))
            }
        }
    }
}

/// A decision of an engine. The default takes nothing away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyDecision {
    /// The tools that are left, by their qualified names; `None` is all, an empty list none.
    /// Names that the run does not have mean nothing.
    pub allowed_tools: Option<Vec<String>>,
    /// Most calls that the turn may make; 0 is none.
    pub tool_calls: Option<u32>,
    /// No tool at all may be used.
    pub disable_tools: bool,
    /// Kept with the run and shown to later decisions. At most [`POLICY_LABELS_MAX`].
    pub labels: Labels,
    /// For people who read the journal. At most [`POLICY_LABELS_MAX`].
    pub metadata: Labels,
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_journal::tool::ToolHints;

    fn function(tags: &[&str], tags_stated: bool) -> ToolSpec {
        let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
        ToolSpec {
            name: "t/f".to_owned(),
            title: None,
            description: String::new(),
            input_schema: "{}".to_owned(),
            output_schema: None,
            hints: ToolHints::default(),
            timeout: None,
            stated_tags: if tags_stated { tags.clone() } else { Vec::new() },
            tags,
        }
    }

    #[test]
    fn case_49_a_tag_that_a_tool_claims_takes_away_and_allows_nothing() {
        let look = || vec!["look".to_owned()];
        let allowing = ToolLists { allow_tags: Some(look()), ..ToolLists::default() };
        let blocking = ToolLists { block_tags: look(), ..ToolLists::default() };
        for (lists, claimed, stated) in [(allowing, false, true), (blocking, false, false)] {
            assert_eq!(lists.allows(&function(&["look"], false)), claimed);
            assert_eq!(lists.allows(&function(&["look"], true)), stated);
        }
    }
}
