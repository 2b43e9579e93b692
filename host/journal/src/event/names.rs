//! What events are called, and which of them are the agent's own.

use super::Event;
use crate::message::Labels;

impl Event {
    /// The word that the journal, `events --kind` and the JSON use.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Started { .. } => "started",
            Self::Resumed { .. } => "resumed",
            Self::Lost { .. } => "lost",
            Self::HistoryCarried { .. } => "history_carried",
            Self::AssistantChunk { .. } => "assistant_chunk",
            Self::AssistantMessage { .. } => "assistant_message",
            Self::ToolCallArgsDelta { .. } => "tool_call_args_delta",
            Self::ThinkingBlock { .. } => "thinking_block",
            Self::PlannerNote { .. } => "planner_note",
            Self::PromptRendered { .. } => "prompt_rendered",
            Self::Usage { .. } => "usage",
            Self::ToolCallScheduled { .. } => "tool_call_scheduled",
            Self::ToolResult { .. } => "tool_result",
            Self::ToolCallRepeated { .. } => "tool_call_repeated",
            Self::ToolCallParked { .. } => "tool_call_parked",
            Self::ChildRunLinked { .. } => "child_run_linked",
            Self::ToolCallUpdated { .. } => "tool_call_updated",
            Self::ModelAnswered { .. } => "model_answered",
            Self::ControllerAnswered { .. } => "controller_answered",
            Self::MemoryAnswered { .. } => "memory_answered",
            Self::MemoryAppended { .. } => "memory_appended",
            Self::MetricsRecorded { .. } => "metrics_recorded",
            Self::ModelWait { .. } => "model_wait",
            Self::ClockRead { .. } => "clock_read",
            Self::StepRestarted { .. } => "step_restarted",
            Self::ReplayDiverged { .. } => "replay_diverged",
            Self::StepFailed { .. } => "step_failed",
            Self::TurnSkipped { .. } => "turn_skipped",
            Self::Asked { .. } => "asked",
            Self::Answered { .. } => "answered",
            Self::PolicyDecision { .. } => "policy_decision",
            Self::ToolAuthorization { .. } => "tool_authorization",
            Self::Log { .. } => "log",
            Self::PlanDecided { .. } => "plan_decided",
            Self::FinalToolResult { .. } => "final_tool_result",
            Self::FinalizeRequested { .. } => "finalize_requested",
            Self::Blocked { .. } => "blocked",
            Self::PauseRequested { .. } => "pause_requested",
            Self::PauseEnded { .. } => "pause_ended",
            Self::Injected { .. } => "injected",
            Self::InboxShown { .. } => "inbox_shown",
            Self::CancelRequested { .. } => "cancel_requested",
            Self::Finalizing { .. } => "finalizing",
            Self::FinalizerStarted => "finalizer_started",
            Self::Finished { .. } => "finished",
        }
    }

    /// The words of [`Self::kind`], in the order in which the variants are documented.
    pub const KINDS: &'static [&'static str] = &[
        "queued",
        "started",
        "resumed",
        "lost",
        "history_carried",
        "assistant_chunk",
        "assistant_message",
        "tool_call_args_delta",
        "thinking_block",
        "planner_note",
        "prompt_rendered",
        "usage",
        "tool_call_scheduled",
        "tool_result",
        "tool_call_repeated",
        "tool_call_parked",
        "child_run_linked",
        "tool_call_updated",
        "model_answered",
        "controller_answered",
        "memory_answered",
        "memory_appended",
        "metrics_recorded",
        "model_wait",
        "clock_read",
        "step_restarted",
        "replay_diverged",
        "step_failed",
        "turn_skipped",
        "asked",
        "answered",
        "policy_decision",
        "tool_authorization",
        "log",
        "plan_decided",
        "final_tool_result",
        "finalize_requested",
        "blocked",
        "pause_requested",
        "pause_ended",
        "injected",
        "inbox_shown",
        "cancel_requested",
        "finalizing",
        "finalizer_started",
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
            Self::PromptRendered { id, digest, .. } => id.len() + digest.len(),
            Self::PolicyDecision { capability, subject, rule, decided: _ } => {
                capability.len() + subject.len() + rule.len()
            }
            Self::Log { source, message, fields, .. } => {
                source.len() + message.len() + labels(fields)
            }
            Self::Queued { .. }
            | Self::Started { .. }
            | Self::Resumed { .. }
            | Self::Lost { .. }
            | Self::HistoryCarried { .. }
            | Self::Usage { .. }
            | Self::ToolCallScheduled { .. }
            | Self::ToolResult { .. }
            | Self::ToolCallRepeated { .. }
            | Self::ToolCallParked { .. }
            | Self::ChildRunLinked { .. }
            | Self::ToolCallUpdated { .. }
            | Self::FinalToolResult { .. }
            | Self::ModelAnswered { .. }
            | Self::ControllerAnswered { .. }
            | Self::MemoryAnswered { .. }
            | Self::MemoryAppended { .. }
            | Self::MetricsRecorded { .. }
            | Self::ModelWait { .. }
            | Self::ClockRead { .. }
            | Self::StepRestarted { .. }
            | Self::ReplayDiverged { .. }
            | Self::StepFailed { .. }
            | Self::TurnSkipped { .. }
            | Self::Asked { .. }
            | Self::ToolAuthorization { .. }
            | Self::Answered { .. }
            | Self::PlanDecided { .. }
            | Self::FinalizeRequested { .. }
            | Self::Blocked { .. }
            | Self::PauseRequested { .. }
            | Self::PauseEnded { .. }
            | Self::Injected { .. }
            | Self::InboxShown { .. }
            | Self::CancelRequested { .. }
            | Self::Finalizing { .. }
            | Self::FinalizerStarted
            | Self::Finished { .. } => 0,
        }
    }
}
