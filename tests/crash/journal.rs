//! The rules that every journal keeps to, told from the events alone.

use std::collections::{BTreeMap, BTreeSet};

use taskrun_journal::event::{
    CallEvent, DialogEvent, Event, EventRecord, EventView, LifecycleEvent, StepEvent,
};
use taskrun_journal::question::Answer;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

/// A call in a journal.
#[derive(Default)]
struct Call {
    idempotent: bool,
    attempts: u32,
    results: u32,
}

/// The things that were seen of a journal on the way through it.
#[derive(Default)]
struct Seen {
    ids: BTreeSet<u64>,
    epoch: u64,
    turn: u32,
    held: bool,
    canceled: bool,
    paused: bool,
    finalizers: u32,
    finished: bool,
    calls: BTreeMap<String, Call>,
    asked: BTreeMap<String, u32>,
    answered: BTreeMap<String, u32>,
    /// Questions whether a call may begin again that somebody said yes to, each for one time.
    accepted: BTreeSet<String>,
    /// Calls of this turn that a run beneath was started for.
    children: BTreeSet<String>,
    /// The turn in which something was told that no step was shown yet.
    told_in: Option<u32>,
    wrong: Vec<String>,
}

/// Everything that is wrong with a journal; it may go on.
pub(crate) fn wrong(journal: &[EventRecord]) -> Vec<String> {
    let mut seen = Seen::default();
    for (place, recorded) in journal.iter().enumerate() {
        let expected = place as u64 + 1;
        if recorded.seq != expected {
            seen.say(recorded, format!("stands at {}, where {expected} comes", recorded.seq));
        }
        if !seen.ids.insert(recorded.id) {
            seen.say(recorded, "has the id of another event");
        }
        if seen.finished {
            seen.say(recorded, "comes after the end");
        }
        seen.push(recorded);
    }
    seen.wrong
}

impl Seen {
    fn say(&mut self, recorded: &EventRecord, what: impl AsRef<str>) {
        let (seq, kind) = (recorded.seq, recorded.event.kind());
        self.wrong.push(format!("event {seq}, {kind}: {}", what.as_ref()));
    }

    fn push(&mut self, recorded: &EventRecord) {
        match recorded.event.view() {
            EventView::Lifecycle(event) => self.push_lifecycle(recorded, event),
            EventView::Call(event) => match event {
                CallEvent::ToolCallScheduled { tool_call_id, idempotent, .. } => {
                    self.begin_call(recorded);
                    let call = Call { idempotent, attempts: 1, results: 0 };
                    if self.calls.insert(tool_call_id.to_owned(), call).is_some() {
                        self.say(recorded, format!("{tool_call_id} begins twice in its turn"));
                    }
                }
                CallEvent::ToolCallRepeated { tool_call_id, attempt } => {
                    self.begin_call(recorded);
                    self.repeated(recorded, tool_call_id, attempt);
                }
                CallEvent::ToolResult { output, .. } => self.result(recorded, output),
                CallEvent::ChildRunLinked { .. } => {
                    if let Event::ChildRunLinked { tool_call_id, .. } = &recorded.event
                        && !self.children.insert(tool_call_id.clone())
                    {
                        self.say(recorded, format!("{tool_call_id} starts a second run"));
                    }
                }
                CallEvent::Marked { .. }
                | CallEvent::ToolCallParked { .. }
                | CallEvent::ToolCallUpdated { .. }
                | CallEvent::ToolAuthorization { .. } => {}
            },
            EventView::Step(event) => match event {
                StepEvent::PlanDecided { turn, .. } => {
                    if turn != self.turn + 1 {
                        self.say(recorded, format!("turn {turn} is decided after {}", self.turn));
                    }
                    self.turn = turn;
                    self.calls.clear();
                    self.children.clear();
                    // The step that ends now had begun before, or was to show it.
                    if self.told_in.is_some_and(|told_in| turn > told_in + 1) {
                        self.say(recorded, "what the run was told was not shown to this step");
                    }
                }
                StepEvent::ReplayDiverged { .. } => {
                    self.say(recorded, "these agents are deterministic");
                }
                StepEvent::Usage { .. }
                | StepEvent::StepFailed { .. }
                | StepEvent::PushedBack { .. }
                | StepEvent::TurnSkipped { .. }
                | StepEvent::RoundEnded { .. }
                | StepEvent::FinalizeRequested { .. } => {}
            },
            EventView::Dialog(event) => match event {
                DialogEvent::Asked { item } => {
                    self.begin(recorded);
                    *self.asked.entry(item.id().to_owned()).or_default() += 1;
                }
                DialogEvent::Answered { item, answer, .. } => {
                    if *answer == Answer::Confirmed(true) {
                        self.accepted.insert(item.to_owned());
                    }
                    let answered = self.answered.entry(item.to_owned()).or_default();
                    *answered += 1;
                    if *answered > self.asked.get(item).copied().unwrap_or_default() {
                        self.say(recorded, format!("{item} is answered more often than asked"));
                    }
                }
                DialogEvent::HistoryCarried { .. }
                | DialogEvent::Reported { .. }
                | DialogEvent::AssistantMessage { .. } => {}
                DialogEvent::Injected { .. } => self.told_in = self.told_in.or(Some(self.turn)),
                DialogEvent::InboxShown { .. } => {
                    if self.told_in.take().is_none() {
                        self.say(recorded, "shows what was shown before, or nobody told");
                    }
                }
            },
            EventView::Taped(_) | EventView::Account(_) => {}
        }
    }

    fn push_lifecycle(&mut self, recorded: &EventRecord, event: LifecycleEvent<'_>) {
        match event {
            LifecycleEvent::Queued { .. } if recorded.seq != 1 => {
                self.say(recorded, "is not the first");
            }
            LifecycleEvent::Started { epoch, .. } | LifecycleEvent::Resumed { epoch, .. } => {
                self.change_hands(recorded, epoch, true);
            }
            LifecycleEvent::Lost { epoch, .. } => self.change_hands(recorded, epoch, false),
            LifecycleEvent::CancelRequested { .. } => {
                if self.canceled {
                    self.say(recorded, "is there twice");
                }
                self.canceled = true;
            }
            LifecycleEvent::FinalizerStarted => {
                self.finalizers += 1;
                if self.finalizers > 1 {
                    self.say(recorded, "is there twice");
                }
            }
            LifecycleEvent::Blocked { .. } => self.held = false,
            LifecycleEvent::PauseRequested { .. } => {
                if std::mem::replace(&mut self.paused, true) {
                    self.say(recorded, "comes while it is paused");
                }
            }
            LifecycleEvent::PauseEnded { .. } => {
                if !std::mem::replace(&mut self.paused, false) {
                    self.say(recorded, "ends no pause");
                }
            }
            LifecycleEvent::Finalizing { .. } if self.paused => {
                self.say(recorded, "comes while it is paused");
            }
            LifecycleEvent::Finished { .. } => self.finished = true,
            LifecycleEvent::Queued { .. }
            | LifecycleEvent::Adopted { .. }
            | LifecycleEvent::Finalizing { .. } => {}
        }
    }

    fn change_hands(&mut self, recorded: &EventRecord, epoch: u64, held: bool) {
        if epoch != self.epoch + 1 {
            self.say(recorded, format!("epoch {epoch} comes after {}", self.epoch));
        }
        if self.held == held {
            self.say(recorded, "the run changes hands without having been let go, or held");
        }
        self.epoch = epoch;
        self.held = held;
    }

    fn begin_call(&mut self, recorded: &EventRecord) {
        self.begin(recorded);
        if self.paused {
            self.say(recorded, "begins while it is paused");
        }
    }

    /// Something begins outside of the journal.
    fn begin(&mut self, recorded: &EventRecord) {
        if self.canceled {
            self.say(recorded, "begins after the cancellation");
        }
        if !self.held {
            self.say(recorded, "begins while nobody holds the run");
        }
    }

    fn repeated(&mut self, recorded: &EventRecord, id: &str, attempt: u32) {
        let accepted = &mut self.accepted;
        let mut may = |call: &Call| {
            let asked = format!("repeat:{}:{id}", call.attempts);
            let allowed = call.idempotent || accepted.remove(&asked);
            allowed && call.results == 0 && attempt == call.attempts + 1
        };
        match self.calls.get_mut(id).filter(|call| may(call)) {
            Some(call) => call.attempts = attempt,
            None => self.say(recorded, format!("{id} must not begin again")),
        }
    }

    fn result(&mut self, recorded: &EventRecord, output: &ToolOutput) {
        let id = &output.tool_call_id;
        let call = self.calls.entry(id.clone()).or_default();
        call.results += 1;
        if call.results > 1 {
            self.say(recorded, format!("{id} has a second result"));
        } else if call.attempts == 0 && is_value(output) {
            self.say(recorded, format!("{id} has a result and never began"));
        }
    }
}

fn is_value(output: &ToolOutput) -> bool {
    matches!(output.outcome, ToolOutcome::Value(_))
}

/// True if a call was answered for a tool that a crash cut off.
pub(crate) fn is_interrupted(output: &ToolOutput) -> bool {
    match &output.outcome {
        ToolOutcome::Value(_) => false,
        ToolOutcome::Failure(failure) => failure.error.code.as_deref() == Some("interrupted"),
    }
}

/// The last events of a journal, for people.
pub(crate) fn tail(journal: &[EventRecord], count: usize) -> String {
    let from = journal.len().saturating_sub(count);
    let lines = journal[from..].iter().map(|one| {
        let event = serde_json::to_string(&one.event).unwrap_or_else(|error| error.to_string());
        let short: String = event.chars().take(260).collect();
        format!("      {:>4} {} {short}", one.seq, one.at)
    });
    lines.collect::<Vec<_>>().join("\n")
}
