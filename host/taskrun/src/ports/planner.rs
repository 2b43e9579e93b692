//! The port to agents: one plan step.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::call::{CallFailure, CallScope, RunContext};
use super::tool::ToolOutput;
use crate::message::{Bounds, Labels, Message, Telemetry};
use crate::reminders::Reminder;
use crate::run::{Ending, WaitMode};
use crate::wait::Answer;

/// Something that decides what a run does next: an agent's component, or a scripted stand-in.
#[async_trait]
pub trait Planner: Send + Sync {
    /// Digest of the code that decides: `blake3:` and hex for a component. Recorded with each
    /// run that uses it.
    fn digest(&self) -> &str;

    /// Whether the code can hear that it is asked to stop; if not, it is given no grace.
    fn hears_cancellation(&self) -> bool;

    /// Whether the code has a finalizer.
    fn has_finalizer(&self) -> bool;

    /// Lets the code add to the metadata of a run whose outcome is fixed, in a fresh instance.
    /// Asked once for each run, and only where [`Self::has_finalizer`].
    ///
    /// # Errors
    /// [`CallFailure`] when the guest was stopped or broke its contract. An error that the agent
    /// itself returned is the inner `Err`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the instance at once.
    async fn finalize(
        &self,
        input: FinalizeInput,
        scope: Arc<CallScope>,
    ) -> Result<Result<Labels, PlannerError>, CallFailure>;

    /// Decides one step, in a fresh instance. When this returns, the instance is gone, however
    /// it ended.
    ///
    /// # Errors
    /// [`CallFailure`] when the guest was stopped or broke its contract. An error that the agent
    /// itself returned is the inner `Err`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the instance at once.
    async fn plan(
        &self,
        input: PlanInput,
        scope: Arc<CallScope>,
    ) -> Result<Result<PlanResult, PlannerError>, CallFailure>;
}

/// Input of a finalizer.
#[derive(Clone, Debug)]
pub struct FinalizeInput {
    /// The run.
    pub run: RunContext,
    /// How the run will end.
    pub ending: Ending,
    /// The answer, as far as it is shown with the run.
    pub result: Option<String>,
    /// Metadata that the run was started with.
    pub metadata: Labels,
}

/// Input of a plan step.
#[derive(Clone, Debug)]
pub struct PlanInput {
    /// The conversation so far.
    pub messages: Arc<Vec<Message>>,
    /// The run it belongs to.
    pub run: RunContext,
    /// Notes that are due in this turn, what matters most first. They are not part of the
    /// conversation.
    pub reminders: Vec<Reminder>,
    /// `None` for the first step.
    pub resume: Option<Resume>,
}

/// What only later steps are told.
#[derive(Clone, Debug)]
pub struct Resume {
    /// Every tool call of the run so far, in the order requested.
    pub tool_outputs: Arc<Vec<ToolOutput>>,
    /// Set when the host ends the run.
    pub finalize: Option<Termination>,
}

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

/// The host's demand for a last answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Termination {
    /// Which limit was met.
    pub reason: TerminationReason,
    /// The limit in words, to be put before a model.
    pub message: String,
}

/// What a step answers.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanResult {
    /// What happens next.
    pub decision: Decision,
    /// Whether the final text already went out in chunks.
    pub streamed: bool,
    /// How many child results to expect in all.
    pub expected_children: Option<u32>,
    /// Remarks for whoever watches the run.
    pub notes: Vec<Annotation>,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Execute these in parallel, then ask again.
    ToolCalls(Vec<ToolRequest>),
    /// The run is done; this is its answer.
    FinalResponse(Message),
    /// The run is done, and was a tool call: this is that call's result.
    FinalToolResult(Box<FinalToolResult>),
    /// Wait for people or outside systems.
    Await(Vec<Ask>),
    /// Wait for runs beneath this one, without a slot.
    AwaitRuns(RunsWait),
}

/// A wait for runs. Its outcome is the result of one tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunsWait {
    /// Their ids; at least one, each once.
    pub runs: Vec<String>,
    /// Whether one of them is enough.
    pub mode: WaitMode,
    /// How long at most; `None` for ever.
    pub timeout: Option<Duration>,
    /// A model's call that it answers.
    pub call: Option<ToolRequest>,
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
    /// What part of a larger result this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
}

/// Something that is asked, and what becomes of it if nobody answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What.
    pub what: AwaitItem,
    /// How long an answer is waited for; `None` for ever.
    pub timeout: Option<Duration>,
    /// What is taken for the answer when that time is over.
    pub default: Option<Answer>,
}

impl From<AwaitItem> for Ask {
    /// Waited for until somebody answers.
    fn from(what: AwaitItem) -> Self {
        Self { what, timeout: None, default: None }
    }
}

/// Something only somebody outside can give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum AwaitItem {
    /// A free-text question.
    Clarification {
        /// Unique among the run's awaits.
        id: String,
        /// What is asked.
        question: String,
        /// Fields that the answer supplies.
        missing_fields: Vec<String>,
        /// Only tool to be used with the answer.
        restrict_to_tool: Option<String>,
        /// Arguments that would have been accepted, as JSON.
        example_input: Option<String>,
        /// How to put the question to a model.
        clarifying_prompt: Option<String>,
    },
    /// A form; its answers are the result of one tool call.
    Questions {
        /// Unique among the run's awaits.
        id: String,
        /// Tool that asks.
        tool_name: String,
        /// Call that the answers complete.
        tool_call_id: String,
        /// The call's arguments, as JSON.
        payload: String,
        /// Heading of the form.
        title: Option<String>,
        /// The fields.
        questions: Vec<Question>,
    },
    /// Tool calls that somebody outside executes.
    ExternalTools {
        /// Unique among the run's awaits.
        id: String,
        /// The calls.
        items: Vec<ExternalTool>,
    },
    /// Consent to a tool call. Only the host asks this.
    Confirmation {
        /// Unique among the run's awaits.
        id: String,
        /// What is asked.
        question: String,
        /// Tool to be called.
        tool_name: String,
        /// Its call.
        tool_call_id: String,
        /// The call's arguments, as JSON.
        payload: String,
    },
}

/// One field of a form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Unique in its form.
    pub id: String,
    /// What is asked.
    pub prompt: String,
    /// Id and label of each choice; empty for free text.
    pub options: Vec<(String, String)>,
    /// Whether several choices may be taken.
    pub allow_multiple: bool,
}

/// A tool call for somebody outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalTool {
    /// Name of the tool.
    pub name: String,
    /// Pairs it with its answer.
    pub tool_call_id: String,
    /// The arguments, as JSON.
    pub payload: String,
}

/// A remark for observers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Annotation {
    /// What is remarked.
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
    /// What went wrong.
    pub message: String,
    /// What led to it, the nearest cause first.
    pub causes: Vec<String>,
}
