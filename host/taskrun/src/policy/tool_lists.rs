//! The engine that is built in: tools allowed and blocked by name and by tag, and what the hints
//! of failed calls ask for.

use std::time::Duration;

use async_trait::async_trait;

use super::ToolSelector;
use crate::message::{RetryHint, RetryReason};
use crate::ports::policy_engine::{
    POLICY_TIMEOUT, PolicyDecision, PolicyEngine, PolicyFailure, PolicyInput,
};
use crate::ports::tool::ToolSpec;

/// Lists of tools. The default allows every tool and heeds no hint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolLists {
    /// Names it in the journal.
    pub name: String,
    /// Tools that are allowed; together with [`Self::allow_tags`] all that are. `None` in both
    /// allows every tool.
    pub allow: Option<Vec<ToolSelector>>,
    /// Tags whose tools are allowed, where the policy states them of the tool: what a tool says of
    /// itself allows nothing.
    pub allow_tags: Option<Vec<String>>,
    /// Tools that are refused, whatever allows them.
    pub block: Vec<ToolSelector>,
    /// Tags whose tools are refused, whatever allows them.
    pub block_tags: Vec<String>,
    /// Whether hints of failed calls are heeded: one that wants to be tried again by the same tool
    /// alone leaves that tool and one call for the next turn; one that says that a tool is not
    /// available leaves it out for the next turn.
    pub hints: bool,
}

impl ToolLists {
    fn allows(&self, tool: &ToolSpec) -> bool {
        let listed = |list: &[ToolSelector]| list.iter().any(|one| selects(one, &tool.name));
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

fn selects(selector: &ToolSelector, name: &str) -> bool {
    name.split_once('/').is_some_and(|(tool, function)| selector.matches(tool, function))
}

#[async_trait]
impl PolicyEngine for ToolLists {
    fn name(&self) -> &str {
        &self.name
    }

    fn timeout(&self) -> Duration {
        POLICY_TIMEOUT
    }

    async fn decide(&self, input: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        let allowed = input.tools.iter().filter(|tool| self.allows(tool));
        let mut left: Vec<String> = allowed.map(|tool| tool.name.clone()).collect();
        let mut tool_calls = None;
        if self.hints {
            let gone = |hint: &&RetryHint| hint.reason == RetryReason::ToolUnavailable;
            for hint in input.hints.iter().filter(gone) {
                left.retain(|name| *name != hint.tool);
            }
            // A tool that is not there cannot take the others away.
            let asks = |hint: &&RetryHint| hint.restrict_to_tool && left.contains(&hint.tool);
            if let Some(hint) = input.hints.iter().find(asks) {
                left = vec![hint.tool.clone()];
                tool_calls = Some(1);
            }
        }
        Ok(PolicyDecision { allowed_tools: Some(left), tool_calls, ..PolicyDecision::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::tool::ToolHints;

    fn function(tags: &[&str], tags_stated: bool) -> ToolSpec {
        ToolSpec {
            name: "t/f".to_owned(),
            title: None,
            description: String::new(),
            input_schema: "{}".to_owned(),
            output_schema: None,
            hints: ToolHints::default(),
            timeout: None,
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            tags_stated,
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
