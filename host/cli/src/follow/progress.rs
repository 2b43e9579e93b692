//! The numbers of a run that are shown while it goes, counted from its events.

use std::collections::BTreeMap;

use taskrun_journal::event::{CallEvent, DialogEvent, Event, EventView, LifecycleEvent, StepEvent};
use taskrun_journal::message::Usage;
use taskrun_journal::status::Status;

use crate::output::escape::excerpt;
use crate::output::human;

/// Characters of the name of a tool being called that are shown.
const NAME_CHARS_MAX: usize = 60;

/// The progress of a run in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The status of the run, once an event said it.
    pub status: Option<Status>,
    /// Plan steps that decided.
    pub turns: u32,
    /// Tool calls that ended.
    pub tool_calls: u64,
    /// Tokens consumed so far.
    pub tokens: u64,
    /// The rounds of a run that goes on by itself.
    pub rounds: Option<Rounds>,
    /// The budget of which it has the least left, with the runs beneath it, once that was read.
    pub left: Option<String>,
    /// Tools being called, by call.
    pub calling: BTreeMap<String, String>,
}

/// The rounds of a run that goes on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// The number of the present one, from 1.
    pub number: u32,
    /// Most rounds.
    pub most: Option<u32>,
}

impl Progress {
    /// Takes one event into account.
    pub(super) fn count(&mut self, event: &Event) {
        match event.view() {
            EventView::Lifecycle(event) => self.count_lifecycle(event),
            EventView::Step(event) => match event {
                StepEvent::PlanDecided { turn, .. } | StepEvent::TurnSkipped { turn, .. } => {
                    self.turns = turn;
                }
                StepEvent::Usage { usage } => self.use_up(usage),
                StepEvent::PushedBack { usage, .. } => {
                    self.use_up(usage.unwrap_or_default());
                }
                StepEvent::RoundEnded { round, .. } => {
                    if let Some(rounds) = &mut self.rounds {
                        rounds.number = round + 1;
                    }
                }
                StepEvent::StepFailed { .. }
                | StepEvent::ReplayDiverged { .. }
                | StepEvent::FinalizeRequested { .. } => {}
            },
            EventView::Call(event) => match event {
                CallEvent::ToolCallScheduled { name, tool_call_id, .. } => {
                    self.calling.insert(tool_call_id.to_owned(), name.to_owned());
                }
                CallEvent::ToolResult { output, .. } => {
                    self.calling.remove(&output.tool_call_id);
                    self.tool_calls += 1;
                }
                CallEvent::ToolCallParked { tool_call_id, .. } => {
                    self.calling.remove(tool_call_id);
                }
                CallEvent::Marked { .. }
                | CallEvent::ToolCallRepeated { .. }
                | CallEvent::ChildRunLinked { .. }
                | CallEvent::ToolCallUpdated { .. }
                | CallEvent::ToolAuthorization { .. } => {}
            },
            EventView::Dialog(event) => match event {
                DialogEvent::AssistantMessage { usage, .. } => {
                    self.use_up(usage.unwrap_or_default());
                }
                DialogEvent::HistoryCarried { .. }
                | DialogEvent::Reported { .. }
                | DialogEvent::Asked { .. }
                | DialogEvent::Answered { .. }
                | DialogEvent::Injected { .. }
                | DialogEvent::InboxShown { .. } => {}
            },
            EventView::Taped(_) | EventView::Account(_) => {}
        }
    }

    fn use_up(&mut self, usage: Usage) {
        self.tokens = self.tokens.saturating_add(usage.total_tokens);
    }

    /// The round of a run that goes on by itself, and the budget of which it has the least left.
    fn in_rounds(&self, Rounds { number, most }: Rounds) -> Vec<String> {
        let round = match most {
            Some(most) => format!("round {number} of {most}"),
            None => format!("round {number}"),
        };
        let left = self.left.as_ref().map(|left| format!("{left} left"));
        std::iter::once(round).chain(left).collect()
    }

    fn count_lifecycle(&mut self, event: LifecycleEvent<'_>) {
        match event {
            LifecycleEvent::Queued { .. } => self.status = Some(Status::Queued),
            LifecycleEvent::Started { .. } => self.status = Some(Status::Running),
            // What was being canceled or finalized when its host died, still is.
            LifecycleEvent::Resumed { .. } if self.status == Some(Status::Blocked) => {
                self.status = Some(Status::Running);
            }
            LifecycleEvent::Blocked { .. } => self.status = Some(Status::Blocked),
            LifecycleEvent::CancelRequested { .. } => self.status = Some(Status::Canceling),
            LifecycleEvent::Finalizing { .. } => self.status = Some(Status::Finalizing),
            LifecycleEvent::Resumed { .. }
            | LifecycleEvent::Lost { .. }
            | LifecycleEvent::PauseRequested { .. }
            | LifecycleEvent::Adopted { .. }
            | LifecycleEvent::PauseEnded { .. }
            | LifecycleEvent::FinalizerStarted
            | LifecycleEvent::Finished { .. } => {}
        }
    }

    /// In one line: `running, 2 turns, 5 tool calls, 1200 tokens, workspace/read`, and behind the
    /// status of a run that goes on by itself its round, and what it has left of the scarcest budget.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let mut parts = vec![match self.status {
            Some(status) => status.to_string(),
            None => "starting".to_owned(),
        }];
        parts.extend(self.rounds.into_iter().flat_map(|rounds| self.in_rounds(rounds)));
        if self.turns > 0 {
            parts.push(human::count(u64::from(self.turns), "turn"));
        }
        if self.tool_calls > 0 {
            parts.push(human::count(self.tool_calls, "tool call"));
        }
        if self.tokens > 0 {
            parts.push(human::count(self.tokens, "token"));
        }
        if let Some(name) = self.calling.values().next() {
            parts.push(excerpt(name, NAME_CHARS_MAX));
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::tool::{ToolOutcome, ToolOutput};

    use super::*;

    fn scheduled(name: &str) -> Event {
        Event::ToolCallScheduled {
            name: name.to_owned(),
            tool_call_id: name.to_owned(),
            payload: "{}".to_owned(),
            idempotent: true,
            is_own: false,
        }
    }

    fn round_ended(round: u32) -> Event {
        Event::RoundEnded {
            round,
            prompt: "continue".to_owned(),
            worked: true,
            wants_result: false,
            checkpoint: Box::default(),
        }
    }

    #[test]
    fn the_line_of_a_run_that_goes_on_by_itself_has_its_round_its_scarcest_budget_and_its_tool() {
        let rounds = Some(Rounds { number: 1, most: Some(9) });
        let mut progress = Progress { rounds, ..Progress::default() };
        assert_eq!(progress.text(), "starting, round 1 of 9");
        progress.status = Some(Status::Running);
        progress.left = Some("25% own usd".to_owned());
        progress.count(&Event::Usage { usage: Usage { total_tokens: 100, ..Usage::default() } });
        progress.count(&scheduled("shop/count"));
        assert_eq!(
            progress.text(),
            "running, round 1 of 9, 25% own usd left, 100 tokens, shop/count"
        );
        let output =
            ToolOutput::plain("shop/count", "shop/count", "{}", ToolOutcome::Value("1".to_owned()));
        progress.count(&Event::ToolResult {
            output: Box::new(output),
            duration_ms: 1,
            refused: None,
        });
        progress.count(&round_ended(1));
        let text = progress.text();
        assert_eq!(text, "running, round 2 of 9, 25% own usd left, 1 tool call, 100 tokens");
    }

    #[test]
    fn a_run_with_one_answer_has_no_rounds_in_its_line() {
        let mut unbounded = Progress::default();
        unbounded.count(&round_ended(3));
        assert_eq!(unbounded.text(), "starting");
        unbounded.rounds = Some(Rounds { number: 3, most: None });
        unbounded.count(&round_ended(3));
        assert_eq!(unbounded.text(), "starting, round 4");
    }
}
