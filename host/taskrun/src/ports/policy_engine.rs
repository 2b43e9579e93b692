//! The port to policy engines: who decides, turn by turn, which of its tools a run may use.
//!
//! The rules of a policy say what an agent may ever do. An engine takes away from that, for one
//! turn: it is asked before the planner, which then sees only the tools that are left, and again
//! about the calls that the planner decided on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::message::{Labels, RetryHint};
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::ruling::Phase;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{POLICY_TIMEOUT, PolicyDecision, ToolLists};

use crate::scope::{Remaining, RunContext};

/// Something that decides which tools a run may use: lists of the policy, or a component.
#[async_trait]
pub trait PolicyEngine: Send + Sync {
    /// Names it in the journal, such as its place in the policy.
    fn name(&self) -> &str;

    /// The time that it may take.
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

/// The things that an engine decides about.
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
    /// The rest of the run's budget.
    pub remaining: Remaining,
    /// The calls that the planner decided on; none before it was asked.
    pub requested: Vec<ToolRequest>,
    /// Labels of earlier decisions about this run; of equal keys the last one.
    pub labels: Labels,
}

/// Why an engine did not decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyFailure(pub String);

#[async_trait]
impl PolicyEngine for ToolLists {
    fn name(&self) -> &str {
        &self.name
    }

    fn timeout(&self) -> Duration {
        POLICY_TIMEOUT
    }

    async fn decide(&self, input: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        Ok(ToolLists::decide(self, &input.tools, &input.hints))
    }
}
