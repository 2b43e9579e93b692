//! Decisions of policy engines, as the journal keeps them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::message::Labels;

/// Before what an engine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before a plan step.
    Plan,
    /// Before the calls that it decided on are executed.
    Calls,
}

/// The decision about the tools of a run, as its journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolRuling {
    /// Before what. What was decided before a plan step holds until another such decision is
    /// recorded; the other one holds for the calls that were decided on.
    pub before: Phase,
    /// The tools that are left; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// Most calls of a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u32>,
    /// True if no tool at all may be used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_tools: bool,
    /// Shown to later decisions.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The engine's words beside it.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub metadata: Labels,
}

impl ToolRuling {
    /// A decision that takes nothing away.
    #[must_use]
    pub fn everything(before: Phase) -> Self {
        Self {
            before,
            allowed_tools: None,
            tool_calls: None,
            disable_tools: false,
            labels: Labels::new(),
            metadata: Labels::new(),
        }
    }

    /// True if it leaves the tool of this qualified name.
    #[must_use]
    pub fn leaves(&self, name: &str) -> bool {
        let listed = self.allowed_tools.as_ref();
        !self.disable_tools && listed.is_none_or(|list| list.iter().any(|one| one == name))
    }
}

/// Prints what is left: `only lookup/read; 1 tool call`.
impl fmt::Display for ToolRuling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.allowed_tools, self.disable_tools) {
            (_, true) => f.write_str("tools disabled")?,
            (None, false) => f.write_str("all tools")?,
            (Some(list), false) if list.is_empty() => f.write_str("no tools")?,
            (Some(list), false) => write!(f, "only {}", list.join(", "))?,
        }
        match self.tool_calls {
            None => {}
            Some(1) => f.write_str("; 1 tool call")?,
            Some(count) => write!(f, "; {count} tool calls")?,
        }
        for (what, labels) in [("labels", &self.labels), ("metadata", &self.metadata)] {
            if !labels.is_empty() {
                let pairs: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
                write!(f, "; {what} {}", pairs.join(", "))?;
            }
        }
        Ok(())
    }
}
