//! The port to policy engines: who decides, turn by turn, which of its tools a run may use.
//!
//! The rules of a policy say what an agent may ever do. An engine takes away from that, for one
//! turn: it is asked before the planner, which then sees only the tools that are left, and again
//! about the calls that the planner decided on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::call::{Remaining, RunContext};
use super::planner::ToolRequest;
use super::tool::ToolSpec;
use crate::message::{Labels, RetryHint};

/// How long an engine may take unless the policy says otherwise. A decision takes a millisecond;
/// a second is what a host that is short of processors may need for it, and a run stands still
/// meanwhile.
pub const POLICY_TIMEOUT: Duration = Duration::from_secs(1);
/// Most labels, and most entries of metadata, of one decision.
pub const POLICY_LABELS_MAX: usize = 64;
/// Most bytes of all of them together: they are in the journal.
pub const POLICY_LABEL_BYTES_MAX: usize = 16 << 10;

/// Something that decides which tools a run may use: lists of the policy, or a component.
#[async_trait]
pub trait PolicyEngine: Send + Sync {
    /// Names it in the journal, such as its place in the policy.
    fn name(&self) -> &str;

    /// How long it may take.
    fn timeout(&self) -> Duration;

    /// Decides. What it cannot decide is refused: so are all tools where it fails or is too slow.
    ///
    /// # Errors
    /// Why there is no decision, for operators.
    ///
    /// # Cancel safety
    /// The future is dropped when its time is up.
    async fn decide(&self, input: &PolicyInput) -> Result<PolicyDecision, PolicyFailure>;
}

/// Before what an engine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before a plan step.
    Plan,
    /// Before the calls that it decided on are executed.
    Calls,
}

/// What an engine decides about.
#[derive(Clone, Debug)]
pub struct PolicyInput {
    /// Before what it is asked.
    pub phase: Phase,
    /// The run.
    pub run: RunContext,
    /// The tools that the run may use, sorted by name.
    pub tools: Arc<Vec<ToolSpec>>,
    /// Hints of the last calls that failed, in the order requested.
    pub hints: Vec<RetryHint>,
    /// What is left of the run's budget.
    pub remaining: Remaining,
    /// The calls that the planner decided on; none before it was asked.
    pub requested: Vec<ToolRequest>,
    /// Labels of earlier decisions about this run; of equal keys the last one.
    pub labels: Labels,
}

/// What an engine decides. The default takes nothing away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyDecision {
    /// The tools that are left, by their qualified names; `None` is all, an empty list none.
    /// Names that the run does not have mean nothing.
    pub allowed_tools: Option<Vec<String>>,
    /// Most calls that the turn may make; 0 is none.
    pub tool_calls: Option<u32>,
    /// Whether no tool at all may be used.
    pub disable_tools: bool,
    /// Kept with the run and shown to later decisions. At most [`POLICY_LABELS_MAX`].
    pub labels: Labels,
    /// For whoever reads the journal. At most [`POLICY_LABELS_MAX`].
    pub metadata: Labels,
}

/// Why an engine did not decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyFailure(pub String);

/// What was decided about the tools of a run, as its journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolsDecided {
    /// Before what. What was decided before a plan step holds until another such decision is
    /// recorded; the other one holds for the calls that were decided on.
    pub before: Phase,
    /// The tools that are left; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// Most calls of a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u32>,
    /// Whether no tool at all may be used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_tools: bool,
    /// Shown to later decisions.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// What the engine said beside it.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub metadata: Labels,
}

impl ToolsDecided {
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

    /// Whether it leaves the tool of this qualified name.
    #[must_use]
    pub fn leaves(&self, name: &str) -> bool {
        let listed = self.allowed_tools.as_ref();
        !self.disable_tools && listed.is_none_or(|list| list.iter().any(|one| one == name))
    }
}

/// Prints what is left: `only lookup/read; 1 tool call`.
impl fmt::Display for ToolsDecided {
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
