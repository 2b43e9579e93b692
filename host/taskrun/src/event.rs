//! The journal of a run: what happened, append-only.
//!
//! Everything that is shown of a run (record, progress, transcript, log) is a fold of these.

use serde::{Deserialize, Serialize};

use crate::ids::HostId;
use crate::message::{Labels, LogLevel, Message, Thinking, Usage};
use crate::ports::planner::TerminationReason;
use crate::ports::tool::ToolOutput;
use crate::run::{Ending, RunSpec};
use crate::status::{BlockedOn, StopReason};
use crate::time::Timestamp;

/// Position in a run's journal, from 1, without gaps.
pub type Seq = u64;

/// An event in its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Its position.
    pub seq: Seq,
    /// Tells a repeated append from another one at the same place.
    pub id: u64,
    /// When it was recorded.
    pub at: Timestamp,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Event {
    /// The run was accepted. Always the first.
    Queued {
        /// What was asked for.
        spec: Box<RunSpec>,
    },
    /// A host claimed the run and begins to execute it.
    Started {
        /// The host.
        host: HostId,
        /// Number of the claim, from 1.
        epoch: u64,
        /// Session of the run.
        child_session_id: String,
        /// Names this execution in logs of others.
        request_id: String,
    },
    /// Part of the answer under construction.
    AssistantChunk {
        /// The part.
        text: String,
    },
    /// A whole message of the agent.
    AssistantMessage {
        /// The message; requests for tools are parts of it.
        message: Message,
        /// Tokens consumed for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        /// What the provider calls the model that wrote it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    /// A fragment of a tool call's arguments under construction.
    ToolCallArgsDelta {
        /// The call.
        tool_call_id: String,
        /// Its tool.
        name: String,
        /// The fragment.
        delta: String,
    },
    /// A block of a model's reasoning.
    ThinkingBlock {
        /// The block.
        block: Thinking,
    },
    /// A remark of the planner.
    PlannerNote {
        /// What is remarked.
        text: String,
        /// Keys and values to find it by.
        #[serde(default, skip_serializing_if = "Labels::is_empty")]
        labels: Labels,
    },
    /// Tokens consumed by a step that ended without a message.
    Usage {
        /// The tokens.
        usage: Usage,
    },
    /// A tool call passed every check and begins.
    ToolCallScheduled {
        /// Qualified name of the tool.
        name: String,
        /// Id of the call.
        tool_call_id: String,
        /// The arguments, as JSON.
        payload: String,
        /// Whether the call may be repeated after a crash.
        idempotent: bool,
    },
    /// A tool call ended, was refused, or was answered from outside.
    ToolResult {
        /// The call and its outcome.
        output: Box<ToolOutput>,
        /// How long it took.
        duration_ms: u64,
    },
    /// A rule of the policy decided something against the guest.
    PolicyDecision {
        /// Capability or tool.
        capability: String,
        /// What it was about: a path, a URL, a model's name.
        subject: String,
        /// The rule that decided, with its place in the policy.
        rule: String,
    },
    /// A line of the log.
    Log {
        /// How much it matters.
        level: LogLevel,
        /// Component that wrote it, or `host`.
        source: String,
        /// The line.
        message: String,
        /// Keys and values to find it by.
        #[serde(default, skip_serializing_if = "Labels::is_empty")]
        fields: Labels,
    },
    /// A plan step ended with a decision.
    PlanDecided {
        /// Number of the turn, from 1.
        turn: u32,
        /// What was decided, in a word.
        decision: DecisionKind,
        /// Changes of the run's state, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        state: Vec<(String, Option<String>)>,
        /// Child results to expect, where the planner said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected_children: Option<u32>,
    },
    /// A limit was met; the planner is asked for its last answer.
    FinalizeRequested {
        /// Which limit.
        reason: TerminationReason,
        /// The limit in words.
        message: String,
    },
    /// The run gives up its slot and waits.
    Blocked {
        /// What it waits for.
        on: BlockedOn,
    },
    /// What the run waited for is there.
    Unblocked,
    /// Somebody asked to cancel.
    CancelRequested {
        /// Who or what: `canceled_by_owner`, `canceled_by_parent` or `host_shutdown`.
        by: StopReason,
        /// In words, from whoever asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The guest is gone and the outcome is fixed.
    Finalizing {
        /// How the run will end.
        ending: Ending,
    },
    /// The run ended. Always the last.
    Finished {
        /// Metadata that a finalizer added.
        #[serde(default, skip_serializing_if = "Labels::is_empty")]
        metadata: Labels,
    },
}

/// What a plan step decided, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// Tools are to be called.
    ToolCalls,
    /// The run has its answer.
    FinalResponse,
    /// The run has the result of the tool call that it is.
    FinalToolResult,
    /// The run waits for somebody.
    Await,
}

impl Event {
    /// The word that the journal, `events --kind` and the JSON use.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Started { .. } => "started",
            Self::AssistantChunk { .. } => "assistant_chunk",
            Self::AssistantMessage { .. } => "assistant_message",
            Self::ToolCallArgsDelta { .. } => "tool_call_args_delta",
            Self::ThinkingBlock { .. } => "thinking_block",
            Self::PlannerNote { .. } => "planner_note",
            Self::Usage { .. } => "usage",
            Self::ToolCallScheduled { .. } => "tool_call_scheduled",
            Self::ToolResult { .. } => "tool_result",
            Self::PolicyDecision { .. } => "policy_decision",
            Self::Log { .. } => "log",
            Self::PlanDecided { .. } => "plan_decided",
            Self::FinalizeRequested { .. } => "finalize_requested",
            Self::Blocked { .. } => "blocked",
            Self::Unblocked => "unblocked",
            Self::CancelRequested { .. } => "cancel_requested",
            Self::Finalizing { .. } => "finalizing",
            Self::Finished { .. } => "finished",
        }
    }

    /// The words of [`Self::kind`], in the order in which the variants are documented.
    pub const KINDS: &'static [&'static str] = &[
        "queued",
        "started",
        "assistant_chunk",
        "assistant_message",
        "tool_call_args_delta",
        "thinking_block",
        "planner_note",
        "usage",
        "tool_call_scheduled",
        "tool_result",
        "policy_decision",
        "log",
        "plan_decided",
        "finalize_requested",
        "blocked",
        "unblocked",
        "cancel_requested",
        "finalizing",
        "finished",
    ];

    /// Bytes of guest-controlled text, for events that a guest may record itself.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let labels = |labels: &Labels| labels.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        match self {
            Self::AssistantChunk { text } => text.len(),
            Self::AssistantMessage { message, .. } => message.bytes(),
            Self::ToolCallArgsDelta { tool_call_id, name, delta } => {
                tool_call_id.len() + name.len() + delta.len()
            }
            Self::ThinkingBlock { block } => block.bytes(),
            Self::PlannerNote { text, labels: all } => text.len() + labels(all),
            Self::PolicyDecision { capability, subject, rule } => {
                capability.len() + subject.len() + rule.len()
            }
            Self::Log { source, message, fields, .. } => {
                source.len() + message.len() + labels(fields)
            }
            Self::Queued { .. }
            | Self::Started { .. }
            | Self::Usage { .. }
            | Self::ToolCallScheduled { .. }
            | Self::ToolResult { .. }
            | Self::PlanDecided { .. }
            | Self::FinalizeRequested { .. }
            | Self::Blocked { .. }
            | Self::Unblocked
            | Self::CancelRequested { .. }
            | Self::Finalizing { .. }
            | Self::Finished { .. } => 0,
        }
    }
}
