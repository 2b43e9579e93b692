//! Plan steps: the calls they ask for, and how they and their run end.

use serde::{Deserialize, Serialize};

use crate::message::{Bounds, Labels, Telemetry};

/// Why the host ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminationReason {
    /// The time for starting work is used up.
    TimeBudget,
    /// No tool calls are left.
    ToolCap,
    /// Too many tool calls in a row failed.
    FailureCap,
    /// No turns are left.
    TurnCap,
    /// No tokens are left.
    TokenCap,
    /// No money is left.
    CostCap,
}

impl TerminationReason {
    /// The limit that was met, in words; `bound` is its number, and whose it is.
    #[must_use]
    pub(crate) fn exceeded(self, bound: Option<&str>) -> String {
        let met = match self {
            Self::TimeBudget => "time budget exceeded",
            Self::ToolCap => "tool call cap exceeded",
            Self::FailureCap => "consecutive failed tool call cap exceeded",
            Self::TurnCap => "turn cap exceeded",
            Self::TokenCap => "token budget exceeded",
            Self::CostCap => "cost budget exceeded",
        };
        bound.map_or_else(|| met.to_owned(), |bound| format!("{met}: {bound}"))
    }
}

/// The host's demand for a last answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Termination {
    /// Which limit was met.
    pub reason: TerminationReason,
    /// The limit in words, to be put before a model.
    pub message: String,
}

/// A wish to call a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolRequest {
    /// Qualified name, `tool/function`.
    pub name: String,
    /// The arguments, as JSON.
    pub payload: String,
    /// A model's own id for the call.
    pub tool_call_id: Option<String>,
    /// Call this one belongs under in displays.
    pub parent_tool_call_id: Option<String>,
}

/// The answer of a run that is a tool call of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinalToolResult {
    /// The result or the failure.
    pub outcome: super::tool::ToolOutcome,
    /// Data for the agent and the operator, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_data: Option<String>,
    /// The part of a larger result that this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
    /// The cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
}

/// A remark for observers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Annotation {
    /// The remark.
    pub text: String,
    /// Keys and values to find it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// The agent gave up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PlannerError {
    /// A short word for programs.
    pub code: Option<String>,
    /// The error.
    pub message: String,
    /// The causes, the nearest first.
    pub causes: Vec<String>,
    /// The least pause before another try.
    pub retry_after_ms: Option<u64>,
}
