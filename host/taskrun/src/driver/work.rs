//! Where the work of a run stands, folded from its journal: what a host needs to know to go on
//! with it, whether it has executed it from the beginning or takes it up after another one.

mod calls;
pub(super) mod fold;
mod guarded;
mod rulings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use taskrun_journal::checkpoint::Checkpoint;
use taskrun_journal::event::{
    AccountEvent, CallEvent, DecisionKind, DialogEvent, Event, EventRecord, EventView,
    LifecycleEvent, StepEvent, TapedEvent,
};
use taskrun_journal::ids::Seq;
use taskrun_journal::message::Labels;
use taskrun_journal::plan::{TerminationReason, ToolRequest};
use taskrun_journal::ruling::{Phase, ToolRuling};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::StoreError;

use crate::ports::planner::ConversationView;
use crate::scope::{LongCalls, QuestionDigests, Tape};

pub(super) use self::calls::{Call, QuestionState};
use self::guarded::Guarded;
use super::child_tracker::ChildTracker;
use super::conversation::{Conversation, Excerpt, InboxEntry};
use super::journal::Journal;
use super::windows::Windows;

/// The state of the work. As JSON it is that between two rounds, when nothing is under way
/// ([`fold`]).
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Work {
    /// The conversation.
    pub(super) conversation: Conversation,
    /// The tool calls of the last turn, in the order requested.
    #[serde(skip)]
    pub(super) calls: Vec<Call>,
    /// The questions to the outside since the last plan step, in that order.
    #[serde(skip)]
    pub(super) asked: Vec<QuestionState>,
    /// The tape of the plan step under way.
    #[serde(skip)]
    pub(super) tape: Tape,
    /// The pins of now of its agent and of those above it, as the work went on last.
    pub(super) pins_now: Vec<String>,
    /// The limit for which the planner was asked for its last word.
    #[serde(skip)]
    pub(super) finalize: Option<TerminationReason>,
    /// The inbox: messages that no step was shown, in their order.
    inbox: Vec<InboxEntry>,
    /// Calls of this run, where it is a tool call itself.
    pub(super) children: ChildTracker,
    /// True if the run is a tool call itself.
    is_call: bool,
    /// The last decision of the policy engines before a plan step, without its labels; it takes
    /// nothing away where they decided nothing.
    pub(super) decided: ToolRuling,
    /// The calls under which those belong that were just decided on, by the ids of these.
    #[serde(skip)]
    parents: BTreeMap<String, String>,
    /// True right after the decision to ask something: what is said next was said beside it.
    #[serde(skip)]
    asks: bool,
    /// Labels of all their decisions.
    pub(super) labels: Labels,
    /// The policy that the engines which decided about the calls of the last turn are of.
    #[serde(skip)]
    guarded: Guarded,
    /// Bytes of the journal that count: all of it, or those since the last round ended.
    pub(super) journal_bytes: u64,
    /// Bytes of the journal since the last fold of it was kept.
    unfolded_bytes: u64,
    /// Functions that somebody decided about for the whole run: whether they may be called, and
    /// who said so.
    standing: BTreeMap<String, (bool, String)>,
    /// The known context windows of its models.
    pub(super) windows: Windows,
    /// The digests of what it asked its models.
    #[serde(skip)]
    pub(super) digests: QuestionDigests,
    /// The components whose last call took long.
    #[serde(skip)]
    pub(super) long_calls: LongCalls,
}

/// Reads a journal, and says whether neither a step nor a call of the run is under way, nor was when
/// its host died.
///
/// # Errors
/// [`StoreError`].
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub async fn is_between_steps(journal: &Journal) -> Result<bool, StoreError> {
    let run = journal.run();
    let (mut work, after) = match fold::kept(journal).await? {
        Some(kept) => kept,
        None => (Work::new(&run.spec, run.pin()), 0),
    };
    journal.replay(after, |recorded| work.push_recorded(recorded)).await?;
    Ok(work.is_between())
}

impl Work {
    /// That of a run that has this pin, before anything is known of its journal.
    pub(super) fn new(spec: &RunSpec, pin: &str) -> Self {
        Self {
            conversation: Conversation::new(spec),
            calls: Vec::new(),
            asked: Vec::new(),
            asks: false,
            parents: BTreeMap::new(),
            tape: Tape::default(),
            pins_now: pins_of(spec, pin),
            finalize: None,
            inbox: Vec::new(),
            children: ChildTracker::default(),
            is_call: spec.parent_tool_call_id.is_some(),
            decided: ToolRuling::everything(Phase::Plan),
            labels: Labels::new(),
            guarded: Guarded::default(),
            journal_bytes: 0,
            unfolded_bytes: 0,
            standing: BTreeMap::new(),
            windows: Windows::default(),
            digests: QuestionDigests::default(),
            long_calls: LongCalls::default(),
        }
    }

    /// Takes what stands in the journal into account, as a store gives it: without its JSON, which is
    /// made again to count its bytes.
    pub(super) fn push_recorded(&mut self, recorded: &EventRecord) {
        self.push_with_bytes(recorded, recorded.event.journal_bytes());
    }

    /// The same where the bytes of its JSON are known.
    pub(super) fn push_with_bytes(&mut self, recorded: &EventRecord, bytes: u64) {
        self.journal_bytes = self.journal_bytes.saturating_add(bytes);
        self.unfolded_bytes = self.unfolded_bytes.saturating_add(bytes);
        self.push(&recorded.event, recorded.seq);
        self.note_beginning(recorded);
    }

    /// Takes one event into account, which stands at this position of the journal.
    pub(super) fn push(&mut self, event: &Event, place: Seq) {
        if let Event::TurnSkipped { .. } | Event::RoundEnded { .. } = event {
            // What the step said comes before what it is told.
            self.end_step();
        }
        if !is_said_by_a_step(event) || self.asks {
            self.conversation.push_at(event, place);
        }
        // What is said beside a question follows the decision to ask it.
        let asking = DecisionKind::Await;
        self.asks = matches!(event, Event::PlanDecided { decision, .. } if *decision == asking);
        match event.view() {
            EventView::Dialog(view) => self.push_dialog(view, event),
            EventView::Call(view) => self.push_call(view),
            EventView::Step(view) => match view {
                StepEvent::PlanDecided { decision, parents, .. } => {
                    self.parents.clone_from(parents);
                    self.guarded.decide_turn(&self.labels);
                    self.end_step();
                    self.asked.clear();
                    if decision != DecisionKind::ToolCalls {
                        self.calls.clear();
                    }
                }
                StepEvent::FinalizeRequested { reason, .. } => {
                    self.end_step();
                    self.finalize = Some(reason);
                }
                StepEvent::StepFailed { .. } => self.end_step(),
                // It runs again on its tape.
                StepEvent::PushedBack { .. }
                | StepEvent::Usage { .. }
                | StepEvent::TurnSkipped { .. }
                | StepEvent::ReplayDiverged { .. } => {}
                StepEvent::RoundEnded { checkpoint, .. } => self.leave_behind(checkpoint),
            },
            EventView::Lifecycle(view) => match view {
                LifecycleEvent::PauseEnded { messages, .. } => {
                    self.inbox.extend(messages.iter().cloned().map(InboxEntry::Message));
                }
                LifecycleEvent::Adopted { to, .. } => self.adopt(to, event),
                LifecycleEvent::Started { .. } | LifecycleEvent::Resumed { .. } => {
                    self.guarded.begin(false);
                }
                LifecycleEvent::Lost { crashed: true, .. } if self.may_be_in_step() => {
                    self.tape.cut_off();
                }
                LifecycleEvent::Lost { .. }
                | LifecycleEvent::Queued { .. }
                | LifecycleEvent::Blocked { .. }
                | LifecycleEvent::PauseRequested { .. }
                | LifecycleEvent::CancelRequested { .. }
                | LifecycleEvent::Finalizing { .. }
                | LifecycleEvent::FinalizerStarted
                | LifecycleEvent::Finished { .. } => {}
            },
            // The host's own word, no part of a plan step.
            EventView::Taped(TapedEvent::PolicyDecision { decided: Some(decided), .. }) => {
                self.decide(decided);
            }
            EventView::Taped(
                TapedEvent::AssistantChunk { .. }
                | TapedEvent::ToolCallArgsDelta { .. }
                | TapedEvent::ThinkingBlock { .. }
                | TapedEvent::PlannerNote { .. }
                | TapedEvent::PromptRendered { .. }
                | TapedEvent::PolicyDecision { decided: None, .. }
                | TapedEvent::Log { .. }
                | TapedEvent::OutsideAnswered { .. }
                | TapedEvent::ClockRead { .. }
                | TapedEvent::StepRestarted { .. },
            ) => self.record_on_tape(event),
            EventView::Taped(TapedEvent::HostAnswered { answer, .. }) => {
                self.windows.answered(answer);
                self.record_on_tape(event);
            }
            EventView::Account(AccountEvent::RulesChanged { pins }) => {
                pins.clone_into(&mut self.pins_now);
                self.guarded.change();
                self.tape.push(event);
            }
            EventView::Account(
                AccountEvent::FinalToolResult
                | AccountEvent::MemoryAppended
                | AccountEvent::MetricsRecorded { .. }
                | AccountEvent::ModelWait { .. },
            ) => {}
            EventView::Account(AccountEvent::ContextWindowMet { model, bytes }) => {
                self.windows.met(model, bytes);
            }
        }
    }

    /// The conversation as a planner is given it, in at most `max` bytes and the window of a model that
    /// has so many tokens; `None` if it has no room in them.
    pub(super) fn excerpt(
        &mut self,
        max: usize,
        (model, tokens): (Option<&str>, Option<u32>),
        view: ConversationView,
    ) -> Option<Excerpt> {
        self.conversation.within(max, self.windows.of(model, tokens), view)
    }

    /// Leaves behind what the run does at the end of a round.
    fn leave_behind(&mut self, checkpoint: &Checkpoint) {
        self.journal_bytes = 0;
        if checkpoint.fold.is_some() {
            self.unfolded_bytes = 0;
        }
        if checkpoint.conversation_bytes.is_some() {
            self.windows.forget_counts();
        }
    }

    /// Goes on as another form of the agent: the rest of a step that was cut off may be another one,
    /// and no call that other code began is repeated without somebody who says so.
    fn adopt(&mut self, to: &str, event: &Event) {
        if let Some(own) = self.pins_now.first_mut() {
            to.clone_into(own);
        }
        self.guarded.change();
        self.tape.push(event);
        self.calls.iter_mut().for_each(|call| call.idempotent = false);
    }

    /// Goes on with this as the work of another run, which continues the one that has ended.
    pub(super) fn carry_on(&mut self, spec: &RunSpec, pin: &str) {
        self.end_step();
        let fresh = Self::new(spec, pin);
        let mut conversation = self.conversation.clone();
        let due = spec.continues.as_ref().and_then(|continued| continued.due.as_ref());
        let prompt = due.and_then(|due| due.prompt.as_deref());
        conversation.carry_on(prompt.unwrap_or(fresh.conversation.continuation()));
        *self = Self { conversation, ..fresh };
    }

    /// True if neither a step nor a call is under way, nor was when the host of the run died.
    fn is_between(&self) -> bool {
        let is_open = |call: &Call| call.attempts > 0 && call.parked.is_none();
        self.tape.is_empty() && !self.open_calls().any(is_open)
    }

    /// True if something is on record that the step under way did.
    pub(super) fn has_begun_step(&self) -> bool {
        !self.tape.clone().without_notes_of_host().is_empty()
    }

    /// True if a step may be under way, as no question is open. Where a call is open, its result ends
    /// what is noted of a step.
    fn may_be_in_step(&self) -> bool {
        self.asked.iter().all(|asked| asked.answer.is_some())
    }

    /// True if all that a step or a call leaves behind is gone: there is nothing but what a fold keeps.
    fn is_at_rest(&self) -> bool {
        let is_idle = self.calls.is_empty() && self.asked.is_empty() && self.parents.is_empty();
        is_idle && self.tape.is_empty() && !self.asks && self.finalize.is_none()
    }

    /// Records on the tape what a plan step did; what a tool reports is no part of one.
    fn record_on_tape(&mut self, event: &Event) {
        if !self.is_calling() {
            self.tape.push(event);
        }
    }

    fn push_dialog(&mut self, view: DialogEvent<'_>, event: &Event) {
        match view {
            DialogEvent::AssistantMessage { message, .. }
                if message.tool_uses().next().is_some() =>
            {
                if self.is_call {
                    let ids = message.tool_uses().map(|call| call.tool_call_id.as_str());
                    self.children.found(ids);
                }
                self.calls = message
                    .tool_uses()
                    .map(|call| {
                        Call::new(ToolRequest {
                            name: call.name.clone(),
                            payload: call.payload.clone(),
                            tool_call_id: Some(call.tool_call_id.clone()),
                            parent_tool_call_id: self.parents.get(&call.tool_call_id).cloned(),
                        })
                    })
                    .collect();
            }
            DialogEvent::AssistantMessage { .. } => self.record_on_tape(event),
            DialogEvent::Asked { item } => {
                self.tape = Tape::default();
                self.ask(item);
            }
            DialogEvent::Answered { item, answer, by, .. } => self.answer(item, answer, by),
            DialogEvent::Injected { text, .. } => {
                self.inbox.push(InboxEntry::Injected(text.to_owned()))
            }
            DialogEvent::InboxShown { .. } => {
                self.tape.begin_anew();
                let inbox = std::mem::take(&mut self.inbox);
                self.conversation.receive(&inbox);
            }
            DialogEvent::Reported { .. } => self.tape.begin_anew(),
            DialogEvent::HistoryCarried { .. } => {}
        }
    }

    fn push_call(&mut self, view: CallEvent<'_>) {
        match view {
            CallEvent::ToolCallScheduled { tool_call_id, idempotent, .. } => {
                self.with_call(tool_call_id, |call| {
                    call.attempts = 1;
                    call.idempotent = idempotent;
                });
            }
            CallEvent::ToolCallRepeated { tool_call_id, attempt } => {
                self.with_call(tool_call_id, |call| call.attempts = attempt);
            }
            CallEvent::ToolCallParked { tool_call_id, waits, .. } => {
                self.with_call(tool_call_id, |call| call.parked = Some(waits.clone()));
            }
            CallEvent::ToolResult { output, .. } => {
                self.tape = Tape::default();
                let outcome = &output.outcome;
                self.with_call(&output.tool_call_id, |call| call.outcome = Some(outcome.clone()));
            }
            CallEvent::ToolCallUpdated { expected_children_total } => {
                self.children.mark(expected_children_total);
            }
            CallEvent::ToolAuthorization {
                tool_call_id,
                name,
                approved,
                decided_by,
                for_run,
                consent,
            } => {
                self.with_call(tool_call_id, |call| {
                    (call.authorized, call.consent) = (approved, consent);
                });
                if for_run {
                    self.standing.insert(name.to_owned(), (approved, decided_by.to_owned()));
                }
            }
            CallEvent::Marked { .. } | CallEvent::ChildRunLinked { .. } => {}
        }
    }

    /// Makes the words of a step part of the conversation, as the step is over: one that runs again
    /// is given the conversation that it was given before.
    fn end_step(&mut self) {
        let tape = std::mem::take(&mut self.tape);
        self.windows.end_step(self.conversation.messages());
        tape.emitted().filter(|event| is_said_by_a_step(event)).for_each(|event| {
            self.conversation.push(event);
        });
    }
}

/// The pins that are in force for a run, as an event has those of now.
fn pins_of(spec: &RunSpec, own: &str) -> Vec<String> {
    let above = spec.ancestors.iter().map(|ancestor| ancestor.pin.clone());
    std::iter::once(own.to_owned()).chain(above).collect()
}

/// True for a message that a step sent on its way, or a run's last one; the one with the
/// calls that a step decided on follows that decision.
fn is_said_by_a_step(event: &Event) -> bool {
    matches!(event, Event::AssistantMessage { message, .. } if message.tool_uses().next().is_none())
}
