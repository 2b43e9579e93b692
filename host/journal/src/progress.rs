//! Counts of what a run has done, folded from the journal.

use serde::{Deserialize, Serialize};

use crate::event::{CallEvent, DialogEvent, EventRecord, EventView, StepEvent, TapedEvent};
use crate::message::Usage;
use crate::money::sum_of_costs;
use crate::status::Status;
use crate::time::Timestamp;

/// A small snapshot of what a run has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Events of the agent: messages, parts of messages, reasoning, results of tools.
    pub event_count: u64,
    /// Requests for tools in whole messages.
    pub tool_call_count: u64,
    /// Results of tools.
    pub tool_result_count: u64,
    /// Tokens read.
    pub prompt_tokens: u64,
    /// Tokens written.
    pub completion_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// Of those read, the tokens that providers had in their caches.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Of those read, the tokens that providers put into their caches.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Of those written, the tokens of reasoning.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// The cost, in millionths of a US dollar and rounded up, as far as prices are known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cost_microusd: u64,
    /// The part of that which is there by rounding, as in [`Usage::cost_rounding`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cost_rounding: u64,
    /// True if some of the tokens are estimated, as a provider did not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub usage_estimated: bool,
    /// Of all tokens, those that a component says it consumed elsewhere.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reported_tokens: u64,
    /// Of those read, the tokens that a component says so of.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reported_prompt_tokens: u64,
    /// Of those written, the tokens that a component says so of.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reported_completion_tokens: u64,
    /// When the last event was recorded; RFC 3339 in JSON.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::time::rfc3339::option"
    )]
    pub last_event_at: Option<Timestamp>,
    /// Runs directly beneath it: as many as the planner said it will start, or as were started if
    /// those are more; never less than before. In a record only what the planner said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_children: Option<u64>,
    /// Those of them that have ended. Not in a record: the end of a run is not written to the one
    /// above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_children: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Runs that were started directly beneath another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Children {
    /// All of them.
    pub started: u64,
    /// Those that have ended.
    pub finished: u64,
}

impl Children {
    /// Counts one, which has this status.
    pub fn count(&mut self, status: Status) {
        self.started += 1;
        self.finished += u64::from(status.is_terminal());
    }
}

impl Progress {
    /// The same with the runs beneath it; both counts are absent if there are none.
    #[must_use]
    pub fn with(&self, children: Children) -> Self {
        let expected = self.expected_children.unwrap_or(0).max(children.started);
        let (expected_children, finished_children) = match expected {
            0 => (None, None),
            expected => (Some(expected), Some(children.finished)),
        };
        Self { expected_children, finished_children, ..self.clone() }
    }

    /// Counts one event. Parts of messages count as events and add neither tools nor tokens.
    pub(crate) fn count(&mut self, recorded: &EventRecord) {
        match recorded.event.view() {
            EventView::Taped(event) => match event {
                TapedEvent::AssistantChunk { .. }
                | TapedEvent::ToolCallArgsDelta { .. }
                | TapedEvent::ThinkingBlock { .. } => {}
                TapedEvent::PlannerNote { .. }
                | TapedEvent::PromptRendered { .. }
                | TapedEvent::PolicyDecision { .. }
                | TapedEvent::Log { .. }
                | TapedEvent::HostAnswered { .. }
                | TapedEvent::OutsideAnswered { .. }
                | TapedEvent::ClockRead { .. }
                | TapedEvent::StepRestarted { .. } => return,
            },
            EventView::Dialog(event) => match event {
                DialogEvent::AssistantMessage { message, usage } => {
                    self.tool_call_count += message.tool_uses().count() as u64;
                    self.add(usage.unwrap_or_default());
                }
                DialogEvent::HistoryCarried { .. }
                | DialogEvent::Reported { .. }
                | DialogEvent::Asked { .. }
                | DialogEvent::Answered { .. }
                | DialogEvent::Injected { .. }
                | DialogEvent::InboxShown { .. } => return,
            },
            EventView::Call(event) => match event {
                CallEvent::ToolResult { .. } => self.tool_result_count += 1,
                CallEvent::ToolCallScheduled { .. }
                | CallEvent::Marked { .. }
                | CallEvent::ToolCallRepeated { .. }
                | CallEvent::ToolCallParked { .. }
                | CallEvent::ChildRunLinked { .. }
                | CallEvent::ToolCallUpdated { .. }
                | CallEvent::ToolAuthorization { .. } => return,
            },
            EventView::Step(event) => {
                match event {
                    StepEvent::Usage { usage }
                    | StepEvent::PushedBack { usage: Some(usage), .. } => self.add(usage),
                    StepEvent::PlanDecided { expected_children: Some(expected), .. } => {
                        let expected = u64::from(expected).max(self.expected_children.unwrap_or(0));
                        self.expected_children = (expected > 0).then_some(expected);
                    }
                    StepEvent::PlanDecided { expected_children: None, .. }
                    | StepEvent::PushedBack { usage: None, .. }
                    | StepEvent::StepFailed { .. }
                    | StepEvent::TurnSkipped { .. }
                    | StepEvent::RoundEnded { .. }
                    | StepEvent::ReplayDiverged { .. }
                    | StepEvent::FinalizeRequested { .. } => {}
                }
                return;
            }
            EventView::Lifecycle(_) | EventView::Account(_) => return,
        }
        self.event_count += 1;
        self.last_event_at = Some(recorded.at);
    }

    /// Tokens consumed.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            total_tokens: self.total_tokens,
            cached_tokens: self.cached_tokens,
            cache_write_tokens: self.cache_write_tokens,
            reasoning_tokens: self.reasoning_tokens,
            cost_microusd: self.cost_microusd,
            cost_rounding: self.cost_rounding,
            estimated: self.usage_estimated,
            reported_tokens: self.reported_tokens,
            reported_prompt_tokens: self.reported_prompt_tokens,
            reported_completion_tokens: self.reported_completion_tokens,
        }
    }

    pub(crate) fn add(&mut self, usage: Usage) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(usage.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(usage.completion_tokens);
        self.total_tokens = self.total_tokens.saturating_add(usage.total_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(usage.cached_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(usage.cache_write_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(usage.reasoning_tokens);
        (self.cost_microusd, self.cost_rounding) = sum_of_costs(
            (self.cost_microusd, self.cost_rounding),
            (usage.cost_microusd, usage.cost_rounding),
        );
        self.usage_estimated |= usage.estimated;
        self.reported_tokens = self.reported_tokens.saturating_add(usage.reported_tokens);
        self.reported_prompt_tokens =
            self.reported_prompt_tokens.saturating_add(usage.reported_prompt_tokens);
        self.reported_completion_tokens =
            self.reported_completion_tokens.saturating_add(usage.reported_completion_tokens);
    }
}
