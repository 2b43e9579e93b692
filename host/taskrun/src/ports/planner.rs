//! The port to agents: one plan step.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::ending::Ending;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::message::{Labels, Message};
use taskrun_journal::plan::{Annotation, FinalToolResult, PlannerError, Termination, ToolRequest};
use taskrun_journal::question::Ask;
use taskrun_journal::reminders::Reminder;
use taskrun_journal::stop::CallAbort;
use taskrun_journal::tool::ToolOutput;

use crate::scope::{CallScope, RunContext};

/// Something that decides what a run does next: an agent's component, or a scripted stand-in.
#[async_trait]
pub trait Planner: Send + Sync {
    /// Digest of the code that decides: `blake3:` and hex for a component. Recorded with each
    /// run that uses it.
    fn digest(&self) -> &str;

    /// True if the code can hear that it is asked to stop; if not, it is given no grace.
    fn hears_cancellation(&self) -> bool;

    /// The part of the conversation that its later steps are given.
    fn view(&self) -> ConversationView;

    /// True if the code has a finalizer.
    fn has_finalizer(&self) -> bool;

    /// Lets the code add to the metadata of a run whose outcome is fixed, in a fresh instance.
    /// Asked once for each run, and only where [`Self::has_finalizer`].
    ///
    /// # Errors
    /// [`CallAbort`] when the guest was stopped or broke its contract. An error that the agent
    /// itself returned is the inner `Err`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the instance at once.
    async fn finalize(
        &self,
        input: FinalizeInput,
        scope: Arc<CallScope>,
    ) -> Result<Result<Labels, PlannerError>, CallAbort>;

    /// Decides one step, in a fresh instance. When this returns, the instance is gone, however
    /// it ended.
    ///
    /// It has to return once its [`CallScope::stop`] is forced, and soon after it is asked where
    /// [`Self::hears_cancellation`]: whatever it began is to be gone then, so the host waits for it
    /// and does not drop it. The run of one that never returns keeps its slot and stays what it is,
    /// running or canceling, past every time-out, until its host ends.
    ///
    /// # Errors
    /// [`CallAbort`] when the guest was stopped or broke its contract. An error that the agent
    /// itself returned is the inner `Err`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the instance at once.
    async fn plan(
        &self,
        input: PlanInput,
        scope: Arc<CallScope>,
    ) -> Result<Result<PlanResult, PlannerError>, CallAbort>;
}

/// The part of a run's conversation that a later step is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversationView {
    /// All of it.
    Whole,
    /// The part that the step was not given which decided last: its own words and calls, their results,
    /// and all that was said since.
    New,
}

/// Input of a finalizer.
#[derive(Clone, Debug)]
pub struct FinalizeInput {
    /// The run.
    pub run: RunContext,
    /// The end that the run will have.
    pub ending: Ending,
    /// The answer, as far as it is shown with the run.
    pub result: Option<String>,
    /// Metadata that the run was started with.
    pub metadata: Labels,
}

/// Input of a plan step.
#[derive(Clone, Debug)]
pub struct PlanInput {
    /// The conversation so far, or in a later step what its [`ConversationView`] has of it.
    pub messages: Arc<Vec<Message>>,
    /// The run it belongs to.
    pub run: RunContext,
    /// Notes that are due in this turn, what matters most first. They are not part of the
    /// conversation.
    pub reminders: Vec<Reminder>,
    /// `None` for the first step.
    pub resume: Option<Resume>,
}

/// The things that only later steps are told.
#[derive(Clone, Debug)]
pub struct Resume {
    /// Every tool call of the run so far, in the order requested; or those of the view.
    pub tool_outputs: Arc<Vec<ToolOutput>>,
    /// Set when the host ends the run.
    pub finalize: Option<Termination>,
}

/// The answer of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanResult {
    /// The next thing to happen.
    pub decision: Decision,
    /// True if the final text already went out in chunks.
    pub streamed: bool,
    /// The number of child results to expect in all.
    pub expected_children: Option<u32>,
    /// Remarks for whoever watches the run.
    pub notes: Vec<Annotation>,
}

/// The decision of a plan step.
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
    /// The number of them that have to end.
    pub mode: WaitMode,
    /// The longest wait; `None` for ever.
    pub timeout: Option<Duration>,
    /// A model's call that it answers.
    pub call: Option<ToolRequest>,
}
