//! The numbers of a run that are shown while it goes, counted from its events.

use std::collections::BTreeMap;

use taskrun_journal::event::{CallEvent, DialogEvent, Event, EventView, LifecycleEvent, StepEvent};
use taskrun_journal::message::Usage;
use taskrun_journal::money::UsdDisplay;
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
    /// Cost so far, in millionths of a US dollar.
    pub cost_microusd: u64,
    /// The consumption of the runs beneath it that the run has left behind, which counts as its own.
    pub settled: Usage,
    /// The present round of a run that goes on by itself, from 1.
    pub round: u32,
    /// The bounds of a run that goes on by itself.
    pub bounds: Option<Bounds>,
    /// Tools being called, by call.
    pub calling: BTreeMap<String, String>,
}

/// The budgets of a run that goes on by itself, as far as they are shown while it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Most rounds.
    pub rounds: Option<u32>,
    /// Most tokens.
    pub tokens: Option<u64>,
    /// Most money, in millionths of a US dollar.
    pub cost_microusd: Option<u64>,
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
                StepEvent::RoundEnded { round, checkpoint, .. } => {
                    self.round = round + 1;
                    self.settled = self.settled.plus(checkpoint.settled.usage);
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
        self.cost_microusd = self.cost_microusd.saturating_add(usage.cost_microusd);
    }

    /// The round, and the rest of the budgets, of a run that goes on by itself. Its journal does not
    /// say what runs beneath it consume before it has left them behind, so the rest is `(own)`.
    fn in_rounds(&self, bounds: Bounds) -> Vec<String> {
        let round = self.round;
        let mut parts = vec![match bounds.rounds {
            Some(most) => format!("round {round} of {most}"),
            None => format!("round {round}"),
        }];
        let used = Usage {
            total_tokens: self.tokens,
            cost_microusd: self.cost_microusd,
            ..Usage::default()
        };
        let used = used.plus(self.settled);
        let tokens = bounds.tokens.map(|most| most.saturating_sub(used.total_tokens));
        parts.extend(tokens.map(|left| format!("{} left (own)", human::count(left, "token"))));
        let cost = bounds.cost_microusd.map(|most| most.saturating_sub(used.cost_microusd));
        parts.extend(cost.map(|left| format!("${} left (own)", UsdDisplay(left))));
        parts
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
    /// status of a run that goes on by itself its round, and what it has itself left of its budgets.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let mut parts = vec![match self.status {
            Some(status) => status.to_string(),
            None => "starting".to_owned(),
        }];
        parts.extend(self.bounds.into_iter().flat_map(|bounds| self.in_rounds(bounds)));
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
    use taskrun_journal::checkpoint::{Checkpoint, Settled};
    use taskrun_journal::ids::RunId;
    use taskrun_journal::tool::{ToolOutcome, ToolOutput};

    use super::*;

    fn used(total_tokens: u64, cost_microusd: u64) -> Usage {
        Usage { total_tokens, cost_microusd, ..Usage::default() }
    }

    fn scheduled(name: &str) -> Event {
        Event::ToolCallScheduled {
            name: name.to_owned(),
            tool_call_id: name.to_owned(),
            payload: "{}".to_owned(),
            idempotent: true,
            is_own: false,
        }
    }

    /// The end of a round at which a run beneath was left behind that consumed this.
    fn round_ended(round: u32, usage: Usage) -> Event {
        let runs = vec![RunId::new("c").expect("an id")];
        let settled = Settled { runs, usage };
        Event::RoundEnded {
            round,
            prompt: "continue".to_owned(),
            worked: true,
            wants_result: false,
            checkpoint: Box::new(Checkpoint { settled, ..Checkpoint::default() }),
        }
    }

    #[test]
    fn the_line_of_a_run_that_goes_on_by_itself_has_its_round_its_budgets_and_its_tool() {
        let bounds =
            Bounds { rounds: Some(9), tokens: Some(1_000), cost_microusd: Some(2_000_000) };
        let mut progress = Progress { bounds: Some(bounds), round: 1, ..Progress::default() };
        let full = "starting, round 1 of 9, 1000 tokens left (own), $2.00 left (own)";
        assert_eq!(progress.text(), full);
        progress.status = Some(Status::Running);
        progress.count(&Event::Usage { usage: used(100, 250_000) });
        progress.count(&scheduled("shop/count"));
        assert_eq!(
            progress.text(),
            "running, round 1 of 9, 900 tokens left (own), $1.75 left (own), 100 tokens, shop/count"
        );
        let output =
            ToolOutput::plain("shop/count", "shop/count", "{}", ToolOutcome::Value("1".to_owned()));
        progress.count(&Event::ToolResult {
            output: Box::new(output),
            duration_ms: 1,
            refused: None,
        });
        progress.count(&round_ended(1, used(300, 500_000)));
        assert_eq!(
            progress.text(),
            "running, round 2 of 9, 600 tokens left (own), $1.25 left (own), 1 tool call, 100 tokens"
        );
        progress.count(&round_ended(2, used(5_000, 9_000_000)));
        let over = "running, round 3 of 9, 0 tokens left (own), $0.00 left (own)";
        assert!(progress.text().starts_with(over), "{}", progress.text());
    }

    #[test]
    fn a_budget_that_bounds_nothing_is_not_in_the_line() {
        let unbounded = Some(Bounds::default());
        let progress = Progress { bounds: unbounded, round: 4, ..Progress::default() };
        assert_eq!(progress.text(), "starting, round 4");
        assert_eq!(Progress::default().text(), "starting", "it does not go on by itself");
    }
}
