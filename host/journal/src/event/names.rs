//! The words by which events are called, and the room that a guest's own events take.

use super::{DialogEvent, Event, EventView, TapedEvent};
use crate::message::Labels;

/// Writes [`Event::kind`] and [`Event::KINDS`] from one list.
macro_rules! kinds {
    ($($variant:ident => $word:literal,)+) => {
        impl Event {
            /// The word that the journal, `events --kind` and the JSON use.
            #[must_use]
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $word,)+
                }
            }

            /// The words of [`Self::kind`], in the order in which the variants are documented.
            pub const KINDS: &'static [&'static str] = &[$($word,)+];
        }
    };
}

kinds! {
    Queued => "queued",
    Started => "started",
    Resumed => "resumed",
    Lost => "lost",
    HistoryCarried => "history_carried",
    Reported => "reported",
    AssistantChunk => "assistant_chunk",
    AssistantMessage => "assistant_message",
    ToolCallArgsDelta => "tool_call_args_delta",
    ThinkingBlock => "thinking_block",
    PlannerNote => "planner_note",
    PromptRendered => "prompt_rendered",
    Usage => "usage",
    ToolCallScheduled => "tool_call_scheduled",
    Marked => "marked",
    ToolResult => "tool_result",
    ToolCallRepeated => "tool_call_repeated",
    ToolCallParked => "tool_call_parked",
    ChildRunLinked => "child_run_linked",
    ToolCallUpdated => "tool_call_updated",
    HostAnswered => "host_answered",
    MemoryAppended => "memory_appended",
    MetricsRecorded => "metrics_recorded",
    ModelWait => "model_wait",
    ContextWindowMet => "context_window_met",
    OutsideAnswered => "outside_answered",
    ClockRead => "clock_read",
    RulesChanged => "rules_changed",
    Adopted => "adopted",
    StepRestarted => "step_restarted",
    ReplayDiverged => "replay_diverged",
    StepFailed => "step_failed",
    PushedBack => "pushed_back",
    TurnSkipped => "turn_skipped",
    RoundEnded => "round_ended",
    Asked => "asked",
    Answered => "answered",
    PolicyDecision => "policy_decision",
    ToolAuthorization => "tool_authorization",
    Log => "log",
    PlanDecided => "plan_decided",
    FinalToolResult => "final_tool_result",
    FinalizeRequested => "finalize_requested",
    Blocked => "blocked",
    PauseRequested => "pause_requested",
    PauseEnded => "pause_ended",
    Injected => "injected",
    InboxShown => "inbox_shown",
    CancelRequested => "cancel_requested",
    Finalizing => "finalizing",
    FinalizerStarted => "finalizer_started",
    Finished => "finished",
}

impl Event {
    /// Bytes of guest-controlled text, for events that a guest may record itself.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let labels = |labels: &Labels| labels.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        match self.view() {
            EventView::Dialog(DialogEvent::AssistantMessage { message, .. }) => message.bytes(),
            EventView::Taped(event) => match event {
                TapedEvent::AssistantChunk { text } => text.len(),
                TapedEvent::ToolCallArgsDelta { tool_call_id, name, delta } => {
                    tool_call_id.len() + name.len() + delta.len()
                }
                TapedEvent::ThinkingBlock { block } => block.bytes(),
                TapedEvent::PlannerNote { text, labels: all } => text.len() + labels(all),
                TapedEvent::PromptRendered { id, digest } => id.len() + digest.len(),
                TapedEvent::PolicyDecision { capability, subject, rule, told, decided: _ } => {
                    let told = told.map_or(0, str::len);
                    capability.len() + subject.len() + rule.len() + told
                }
                TapedEvent::Log { source, message, fields, level: _ } => {
                    source.len() + message.len() + labels(fields)
                }
                TapedEvent::HostAnswered { .. }
                | TapedEvent::OutsideAnswered { .. }
                | TapedEvent::ClockRead { .. }
                | TapedEvent::StepRestarted { .. } => 0,
            },
            EventView::Dialog(
                DialogEvent::HistoryCarried { .. }
                | DialogEvent::Reported { .. }
                | DialogEvent::Asked { .. }
                | DialogEvent::Answered { .. }
                | DialogEvent::Injected { .. }
                | DialogEvent::InboxShown { .. },
            )
            | EventView::Lifecycle(_)
            | EventView::Step(_)
            | EventView::Call(_)
            | EventView::Account(_) => 0,
        }
    }
}
