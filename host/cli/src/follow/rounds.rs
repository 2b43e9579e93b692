//! The rounds of a run that goes on by itself: an object for each, for programs, or a line of text.

use serde::Serialize;
use taskrun_journal::event::{
    CallEvent, DialogEvent, EventRecord, EventView, LifecycleEvent, StepEvent,
};
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Usage;
use taskrun_journal::money::UsdDisplay;

use crate::output::escape::excerpt;
use crate::output::human;

/// Characters of an agent's words that stand in a line for people.
const TEXT_CHARS_MAX: usize = 100;

/// A round that ended. The numbers are those of the run so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RoundLine {
    run_id: RunId,
    /// Its number, from 1.
    round: u32,
    /// True if a tool was called in it that is none of the run's own.
    worked: bool,
    turns: u32,
    tool_calls: u64,
    tokens: u64,
    cost_microusd: u64,
    /// The last words of the agent in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl RoundLine {
    /// In one line, for people: `· round 2 ended: 3 turns, 1 tool call, 420 tokens; Nothing to do.`
    pub(crate) fn text(&self) -> String {
        let Self { run_id: _, round, worked: _, turns, tool_calls, tokens, cost_microusd, text } =
            self;
        let mut parts = vec![human::count(u64::from(*turns), "turn")];
        parts.push(human::count(*tool_calls, "tool call"));
        parts.push(human::count(*tokens, "token"));
        if *cost_microusd > 0 {
            parts.push(format!("${}", UsdDisplay(*cost_microusd)));
        }
        let said = text.as_deref().map(|text| excerpt(text, TEXT_CHARS_MAX));
        let said = said.map_or_else(String::new, |said| format!("; {said}"));
        format!("· round {round} ended: {}{said}", parts.join(", "))
    }
}

/// Makes objects of events, which must come in order.
pub(crate) struct RoundLines {
    line: RoundLine,
    has_begun: bool,
}

impl RoundLines {
    /// Those of a run.
    #[must_use]
    pub(crate) fn new(run_id: RunId) -> Self {
        let line = RoundLine {
            run_id,
            round: 1,
            worked: false,
            turns: 0,
            tool_calls: 0,
            tokens: 0,
            cost_microusd: 0,
            text: None,
        };
        Self { line, has_begun: false }
    }

    /// The round that an event ends; the last one ends with the run.
    pub(crate) fn of(&mut self, recorded: &EventRecord) -> Option<RoundLine> {
        let line = &mut self.line;
        match recorded.event.view() {
            EventView::Step(event) => match event {
                StepEvent::PlanDecided { turn, .. } | StepEvent::TurnSkipped { turn, .. } => {
                    (line.turns, self.has_begun) = (turn, true);
                }
                StepEvent::RoundEnded { worked, .. } => {
                    line.worked = worked;
                    return Some(self.next());
                }
                StepEvent::Usage { usage } | StepEvent::PushedBack { usage: Some(usage), .. } => {
                    self.count(usage);
                }
                StepEvent::PushedBack { usage: None, .. }
                | StepEvent::StepFailed { .. }
                | StepEvent::ReplayDiverged { .. }
                | StepEvent::FinalizeRequested { .. } => {}
            },
            EventView::Dialog(DialogEvent::AssistantMessage { message, usage }) => {
                let text = message.joined_text();
                line.text = Some(text).filter(|text| !text.is_empty()).or(line.text.take());
                self.count(usage.unwrap_or_default());
            }
            EventView::Call(CallEvent::ToolCallScheduled { is_own: false, .. }) => {
                (line.worked, line.tool_calls) = (true, line.tool_calls + 1);
            }
            EventView::Lifecycle(LifecycleEvent::Finalizing { .. }) if self.has_begun => {
                return Some(self.next());
            }
            EventView::Lifecycle(_)
            | EventView::Dialog(_)
            | EventView::Call(_)
            | EventView::Taped(_)
            | EventView::Account(_) => {}
        }
        None
    }

    fn count(&mut self, usage: Usage) {
        self.line.tokens = self.line.tokens.saturating_add(usage.total_tokens);
        self.line.cost_microusd = self.line.cost_microusd.saturating_add(usage.cost_microusd);
    }

    /// The round that ended, and the next one in its place.
    fn next(&mut self) -> RoundLine {
        let ended = self.line.clone();
        self.line.round += 1;
        (self.line.worked, self.line.text, self.has_begun) = (false, None, false);
        ended
    }
}
