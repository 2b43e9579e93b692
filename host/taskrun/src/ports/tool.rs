//! The port to tools: their description and one call.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::autonomy::Mark;
use taskrun_journal::event::RunsReport;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::{Bounds, Labels, Telemetry};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::tool::{ToolFailure, ToolSpec};

use crate::scope::CallScope;

/// Something that answers tool calls: a tool's component under one agent's grants, or a stand-in.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Digest of the code that answers: `blake3:` and hex for a component.
    fn digest(&self) -> &str;

    /// True if the code can hear that it is asked to stop; if not, it is given no grace.
    fn hears_cancellation(&self) -> bool;

    /// Its functions under their own names, as described at load. Never changes.
    fn specs(&self) -> &[ToolSpec];

    /// Answers one call, in a fresh instance. When this returns, the instance is gone, however
    /// it ended.
    ///
    /// # Errors
    /// [`CallAbort`] when the guest was stopped or broke its contract. A failure that the tool
    /// itself returned is the inner `Err`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the instance at once.
    async fn call(
        &self,
        call: ToolCall,
        scope: Arc<CallScope>,
    ) -> Result<Result<ToolReply, ToolFailure>, CallAbort>;
}

/// The outcome of a call that did not fail.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolReply {
    /// Its result.
    Value(Box<ToolResult>),
    /// Its result, with a word of the run about itself, which is recorded with it. Only tools of the
    /// host itself answer so.
    Marked(Box<ToolResult>, Mark),
    /// Nothing yet: the run gives up its slot and waits, and what it waited for is the result.
    /// Only tools of the host itself answer so.
    Park(ToolWait),
}

/// The thing that a tool call waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolWait {
    /// Other runs; the result tells of them in this order.
    Runs {
        /// The runs.
        runs: Vec<RunId>,
        /// The number of them that have to end.
        mode: WaitMode,
        /// Longest wait; then the result says how the runs stand.
        timeout: Option<Duration>,
        /// The form of the result.
        report: RunsReport,
    },
    /// A run that was started for the call. The result is what it gives.
    Child {
        /// The run.
        run: RunId,
        /// Its agent.
        agent_name: String,
    },
    /// A person. The result is the answer, as a JSON string.
    Person {
        /// The question to the person.
        question: String,
        /// Longest wait; then the call fails.
        timeout: Option<Duration>,
    },
}

/// A call as the tool sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The function's own name.
    pub name: String,
    /// The arguments, as JSON.
    pub payload: String,
    /// The same for every attempt at this call.
    pub tool_call_id: String,
    /// Call this one belongs under in displays.
    pub parent_tool_call_id: Option<String>,
    /// Agent that calls.
    pub agent_name: String,
    /// Run that calls.
    pub run_id: String,
    /// Session of that run.
    pub session_id: String,
    /// Turn of that run, from 1.
    pub turn: u32,
    /// Labels of that run.
    pub labels: Labels,
    /// The time that the policy or the request states for calls of the function: the bound of a
    /// tool whose call waits after it has returned.
    pub timeout: Option<Duration>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    /// The result, as JSON.
    pub value: String,
    /// Data for the agent and the operator, as JSON; never given to a model.
    pub server_data: Option<String>,
    /// The part that this is of a larger result.
    pub bounds: Option<Bounds>,
    /// The time and tokens that it cost.
    pub telemetry: Option<Telemetry>,
    /// Images that belong to it, as their bytes.
    pub media: Vec<Vec<u8>>,
}
