//! The conversation of a run, folded from its journal: what planners and models are shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use taskrun_journal::artifact::{ArtifactRef, digest};
use taskrun_journal::event::{CallEvent, DialogEvent, Event, EventView, StepEvent};
use taskrun_journal::message::{Message, Part, Role, ToolAnswer, ToolError, ToolUse};
use taskrun_journal::question::{Answer, AwaitItem, Item};
use taskrun_journal::reminders::Reminders;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::text::cut;
use taskrun_journal::tool::{ToolFailure, ToolOutcome, ToolOutput};

use super::advice::advice;

/// Most bytes of a tool's result in the conversation; of a larger one a preview stands there.
pub const CONVERSATION_RESULT_BYTES_MAX: usize = 64 << 10;
/// Bytes of that preview.
const PREVIEW_BYTES: usize = 1 << 10;
/// The message to a planner of which a turn was skipped.
pub(crate) const CONTINUATION: &str = "continue";
/// The heading of messages that came while the run worked or waited.
const INBOX: &str = "[Inbox]\n";
/// Why a result is left out that is too large by itself.
const TOO_LARGE: &str = "size_limit";
/// Why a result is left out for which the whole has no room.
const OVER_BUDGET: &str = "workflow_budget";

/// Messages, results and state so far. Results stand in the order in which the calls were
/// requested, whatever order they arrived in.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Arc<Vec<Message>>,
    outputs: Arc<Vec<ToolOutput>>,
    /// Calls of the last turn in the order requested, each with its result once there is one.
    open: Vec<(String, Option<ToolOutput>)>,
    state: BTreeMap<String, String>,
    reminders: Reminders,
    /// True if it begins with the words of earlier runs.
    told: bool,
    /// The place of the task among the messages.
    task: usize,
    /// True once a step came to its end, or the planner was asked for its last word: until then the
    /// task is the last message.
    begun: bool,
}

/// Something that a run was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// With the word to go on.
    Message(String),
    /// While it worked or waited.
    Injected(String),
}

impl Told {
    fn is_injected(&self) -> bool {
        match self {
            Self::Injected(_) => true,
            Self::Message(_) => false,
        }
    }
}

impl Conversation {
    /// The beginning: what the caller put before the task, and the task.
    #[must_use]
    pub fn new(spec: &RunSpec) -> Self {
        let mut messages = spec.context_messages.clone();
        let task = messages.len();
        messages.push(Message::text(Role::User, spec.task.clone()));
        Self {
            messages: Arc::new(messages),
            outputs: Arc::default(),
            open: Vec::new(),
            state: BTreeMap::new(),
            reminders: Reminders::default(),
            told: false,
            task,
            begun: false,
        }
    }

    /// True if it begins with the words of earlier runs of the session.
    pub(super) fn is_told(&self) -> bool {
        self.told
    }

    /// State that the planner keeps.
    #[must_use]
    pub fn state(&self) -> &BTreeMap<String, String> {
        &self.state
    }

    /// Notes that the planner keeps.
    #[must_use]
    pub fn reminders(&self) -> &Reminders {
        &self.reminders
    }

    /// Takes one event into account.
    pub fn push(&mut self, event: &Event) {
        match event.view() {
            EventView::Dialog(event) => match event {
                DialogEvent::AssistantMessage { message, .. } => {
                    self.open =
                        message.tool_uses().map(|u| (u.tool_call_id.clone(), None)).collect();
                    Arc::make_mut(&mut self.messages).push(message.clone());
                }
                // Said before anything of this run.
                DialogEvent::HistoryCarried { messages } => {
                    self.told = true;
                    self.task += messages.len();
                    Arc::make_mut(&mut self.messages).splice(0..0, messages.iter().cloned());
                }
                DialogEvent::Asked { .. }
                | DialogEvent::Answered { .. }
                | DialogEvent::Injected { .. }
                | DialogEvent::InboxShown { .. } => {}
            },
            EventView::Call(event) => match event {
                CallEvent::ToolResult { output, .. } => self.answer(output),
                CallEvent::ToolCallScheduled { .. }
                | CallEvent::ToolCallRepeated { .. }
                | CallEvent::ToolCallParked { .. }
                | CallEvent::ChildRunLinked { .. }
                | CallEvent::ToolCallUpdated { .. }
                | CallEvent::ToolAuthorization { .. } => {}
            },
            EventView::Step(event) => match event {
                StepEvent::TurnSkipped { .. } => {
                    self.begun = true;
                    let message = Message::text(Role::User, CONTINUATION);
                    Arc::make_mut(&mut self.messages).push(message);
                }
                StepEvent::FinalizeRequested { .. } => self.begun = true,
                StepEvent::PlanDecided { turn, state, reminders, .. } => {
                    self.begun = true;
                    self.reminders.decided(turn, reminders);
                    for (key, value) in state {
                        match value {
                            Some(value) => self.state.insert(key.clone(), value.clone()),
                            None => self.state.remove(key),
                        };
                    }
                }
                StepEvent::Usage { .. }
                | StepEvent::StepFailed { .. }
                | StepEvent::ReplayDiverged { .. } => {}
            },
            EventView::Lifecycle(_) | EventView::Taped(_) | EventView::Account(_) => {}
        }
    }

    /// Takes into account what the run was told: messages of the user, and under one heading what
    /// came to the inbox. What it was told before its first step stands before its task, which is
    /// what an agent takes the last message for.
    pub(super) fn told(&mut self, told: &[Told]) {
        let mut said = Vec::new();
        for group in told.chunk_by(|one, next| one.is_injected() && next.is_injected()) {
            let mut text = String::new();
            for one in group {
                match one {
                    Told::Message(one) => text.push_str(one),
                    Told::Injected(one) => {
                        text.push_str(if text.is_empty() { INBOX } else { "\n" });
                        text.push_str(one);
                    }
                }
            }
            said.push(Message::text(Role::User, text));
        }
        let messages = Arc::make_mut(&mut self.messages);
        if self.begun {
            messages.extend(said);
        } else {
            let task = self.task;
            self.task += said.len();
            messages.splice(task..task, said);
        }
    }

    /// Takes an answer from outside into account that the planner asked for: text as a message of
    /// the user, a form and the results of tools outside as calls with their results.
    pub(super) fn answered(&mut self, item: &Item, answer: &Answer) {
        const NOBODY: &str = "nobody answered in time";
        let calls = match &item.what {
            AwaitItem::Clarification { question, .. } => {
                let text = match answer {
                    Answer::Text(text) => text.clone(),
                    Answer::TimedOut => format!("({NOBODY}: {question})"),
                    Answer::Choices(_)
                    | Answer::Results(_)
                    | Answer::Confirmed(_)
                    | Answer::ConfirmedForRun(_) => return,
                };
                Arc::make_mut(&mut self.messages).push(Message::text(Role::User, text));
                return;
            }
            AwaitItem::Questions { tool_name, tool_call_id, payload, .. } => {
                vec![(tool_name, tool_call_id, payload)]
            }
            AwaitItem::ExternalTools { items, .. } => {
                items.iter().map(|one| (&one.name, &one.tool_call_id, &one.payload)).collect()
            }
            AwaitItem::Confirmation { .. } => return,
        };
        let nobody = || {
            let error = ToolError::coded("timeout", NOBODY.to_owned());
            ToolOutcome::Failure(ToolFailure { error, retry_hint: None })
        };
        let parts = calls.iter().map(|(name, id, payload)| {
            Part::ToolUse(ToolUse {
                tool_call_id: (*id).clone(),
                name: (*name).clone(),
                payload: (*payload).clone(),
            })
        });
        let message = Message { role: Role::Assistant, parts: parts.collect() };
        self.open = message.tool_uses().map(|u| (u.tool_call_id.clone(), None)).collect();
        Arc::make_mut(&mut self.messages).push(message);
        for (name, id, payload) in calls {
            let outcome = match answer {
                Answer::Choices(given) => {
                    let text = serde_json::to_string(given).expect("a map of texts");
                    ToolOutcome::Value(text)
                }
                Answer::Results(given) => given.get(id).cloned().unwrap_or_else(nobody),
                Answer::Text(_)
                | Answer::Confirmed(_)
                | Answer::ConfirmedForRun(_)
                | Answer::TimedOut => nobody(),
            };
            self.answer(&ToolOutput::plain(name, id, payload, outcome));
        }
    }

    fn answer(&mut self, output: &ToolOutput) {
        let waits = |(id, has): &&mut (String, Option<ToolOutput>)| {
            *id == output.tool_call_id && has.is_none()
        };
        if let Some((_, place)) = self.open.iter_mut().find(waits) {
            *place = Some(output.clone());
        }
        if self.open.iter().all(|(_, output)| output.is_some()) {
            let mut outputs: Vec<_> =
                self.open.drain(..).filter_map(|(_, output)| output).collect();
            let answers = outputs.iter().map(|o| Part::ToolAnswer(shown(o)));
            let parts = answers.chain(advice(&outputs).map(Part::Text)).collect();
            for output in &mut outputs {
                if output.bytes() > CONVERSATION_RESULT_BYTES_MAX {
                    leave_out(output, TOO_LARGE);
                }
            }
            Arc::make_mut(&mut self.messages).push(Message { role: Role::Tool, parts });
            Arc::make_mut(&mut self.outputs).extend(outputs);
        }
    }

    /// Messages and results as a planner is given them, in at most `max` bytes. Where they are
    /// more, the values of the oldest results are left out first. `None` if that is not enough.
    #[must_use]
    pub fn within(&self, max: usize) -> Option<Shown> {
        let (mut messages, mut outputs) = (Arc::clone(&self.messages), Arc::clone(&self.outputs));
        let mut bytes = messages.iter().map(Message::bytes).sum::<usize>()
            + outputs.iter().map(ToolOutput::bytes).sum::<usize>();
        let mut oldest = 0..outputs.len();
        while bytes > max {
            let output = &mut Arc::make_mut(&mut outputs)[oldest.next()?];
            bytes -= leave_out(output, OVER_BUDGET);
            let id = output.tool_call_id.clone();
            let omitted = serde_json::json!({
                "omitted": true,
                "reason": OVER_BUDGET,
                "artifact": output.artifact,
            });
            let omitted = omitted.to_string();
            let parts = Arc::make_mut(&mut messages).iter_mut().flat_map(|m| &mut m.parts);
            for part in parts {
                if let Part::ToolAnswer(answer) = part
                    && answer.tool_call_id == id
                {
                    // What is shorter than what would stand there instead stays.
                    if answer.content.len() > omitted.len() {
                        bytes = (bytes + omitted.len()).saturating_sub(answer.content.len());
                        answer.content.clone_from(&omitted);
                    }
                }
            }
        }
        Some((messages, outputs))
    }
}

/// Messages and results as a planner is given them.
pub type Shown = (Arc<Vec<Message>>, Arc<Vec<ToolOutput>>);

/// Leaves the value of a result out and says why; gives the bytes that this saves.
fn leave_out(output: &mut ToolOutput, reason: &str) -> usize {
    let before = output.bytes();
    if let ToolOutcome::Value(value) = &mut output.outcome {
        output.artifact.get_or_insert_with(|| named(value));
        "null".clone_into(value);
        output.result_omitted = Some(reason.to_owned());
    }
    output.server_data = None;
    before.saturating_sub(output.bytes())
}

/// The name of a result that is left out.
fn named(value: &str) -> ArtifactRef {
    ArtifactRef { hash: digest(value.as_bytes()), size: value.len() as u64 }
}

fn shown(output: &ToolOutput) -> ToolAnswer {
    let (content, is_error) = match &output.outcome {
        ToolOutcome::Value(value) if value.len() > CONVERSATION_RESULT_BYTES_MAX => {
            let omitted = serde_json::json!({
                "omitted": true,
                "reason": TOO_LARGE,
                "bytes": value.len(),
                "preview": cut(value, PREVIEW_BYTES),
                "bounds": output.bounds,
                "artifact": named(value),
            });
            (omitted.to_string(), false)
        }
        ToolOutcome::Value(value) => (value.clone(), false),
        ToolOutcome::Failure(failure) => {
            let mut text = failure.error.message.clone();
            if let Some(hint) = &failure.retry_hint {
                let advice = [&hint.message, &hint.clarifying_question];
                for advice in advice.into_iter().flatten() {
                    text.push('\n');
                    text.push_str(advice);
                }
            }
            (cut(&text, CONVERSATION_RESULT_BYTES_MAX).to_owned(), true)
        }
    };
    ToolAnswer { tool_call_id: output.tool_call_id.clone(), content, is_error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_journal::message::{RetryHint, RetryReason};

    fn asked(ids: &[&str]) -> Event {
        let parts = ids.iter().map(|id| {
            Part::ToolUse(ToolUse {
                tool_call_id: (*id).to_owned(),
                name: "t/f".to_owned(),
                payload: "{}".to_owned(),
            })
        });
        let message = Message { role: Role::Assistant, parts: parts.collect() };
        Event::AssistantMessage { message, usage: None, model: None }
    }

    fn answered(id: &str, outcome: ToolOutcome) -> Event {
        let result_bytes = match &outcome {
            ToolOutcome::Value(value) => value.len() as u64,
            ToolOutcome::Failure(_) => 0,
        };
        let output = Box::new(ToolOutput {
            name: "t/f".to_owned(),
            tool_call_id: id.to_owned(),
            payload: "{}".to_owned(),
            outcome,
            result_bytes,
            result_omitted: None,
            server_data: None,
            bounds: None,
            telemetry: None,
            children_count: 0,
            run_link: None,
            artifact: None,
        });
        Event::ToolResult { output, duration_ms: 0, refused: None }
    }

    fn value(bytes: usize) -> ToolOutcome {
        ToolOutcome::Value(format!("\"{}\"", "x".repeat(bytes - 2)))
    }

    fn conversation(events: &[Event]) -> Conversation {
        let mut conversation = Conversation {
            messages: Arc::new(vec![Message::text(Role::User, "task")]),
            outputs: Arc::default(),
            open: Vec::new(),
            state: BTreeMap::new(),
            reminders: Reminders::default(),
            told: false,
            task: 0,
            begun: false,
        };
        events.iter().for_each(|event| conversation.push(event));
        conversation
    }

    fn omitted(outputs: &[ToolOutput]) -> Vec<Option<&str>> {
        outputs.iter().map(|output| output.result_omitted.as_deref()).collect()
    }

    #[test]
    fn results_stand_in_the_order_requested() {
        let said =
            conversation(&[asked(&["a", "b"]), answered("b", value(10)), answered("a", value(20))]);
        let ids: Vec<_> = said.outputs.iter().map(|o| o.tool_call_id.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(said.messages.len(), 3);
    }

    #[test]
    fn a_large_result_is_left_out_and_its_size_is_kept() {
        let bytes = CONVERSATION_RESULT_BYTES_MAX + 1_024;
        let said = conversation(&[asked(&["a"]), answered("a", value(bytes))]);
        assert_eq!(omitted(&said.outputs), [Some(TOO_LARGE)]);
        assert_eq!(said.outputs[0].result_bytes, bytes as u64);
        let Part::ToolAnswer(answer) = &said.messages[2].parts[0] else { panic!("an answer") };
        assert!(answer.content.contains("\"preview\"") && answer.content.len() < 4_096);
    }

    #[test]
    fn l_077_what_a_result_is_a_part_of_and_how_to_try_again_stands_behind_the_results() {
        let event =
            |id: &str, outcome: ToolOutcome, bounds: Option<taskrun_journal::message::Bounds>| {
                let output = ToolOutput { bounds, ..ToolOutput::plain("t/f", id, "{}", outcome) };
                Event::ToolResult { output: Box::new(output), duration_ms: 0, refused: None }
            };
        let bounds = |truncated| taskrun_journal::message::Bounds {
            returned: 2,
            total: Some(9),
            truncated,
            continuation: Some("{\"after\":2}".to_owned()),
            refinement: None,
        };
        let mut hint = RetryHint::new(RetryReason::MissingFields, "t/f");
        hint.missing_fields = vec!["q".to_owned()];
        hint.example_input = Some("{\"q\":\"...\"}".to_owned());
        let error = ToolError::coded("x", "no q");
        let failure = ToolFailure { error, retry_hint: Some(Box::new(hint)) };
        let said = conversation(&[
            asked(&["a", "b", "c"]),
            event("a", value(10), Some(bounds(true))),
            event("b", value(10), Some(bounds(false))),
            event("c", ToolOutcome::Failure(failure), None),
        ]);
        let [Part::ToolAnswer(_), Part::ToolAnswer(_), Part::ToolAnswer(_), Part::Text(text)] =
            said.messages[2].parts.as_slice()
        else {
            panic!("three results and what is said to them: {:?}", said.messages[2])
        };
        let expected = "The result of t/f is a part: 2 of 9 items. To go on, call it with \
                        {\"after\":2}.\nTo call t/f again: Missing: q. Arguments such as \
                        {\"q\":\"...\"} are accepted.";
        assert_eq!(text, expected);
        let plain = conversation(&[asked(&["a"]), event("a", value(10), None)]);
        assert_eq!(plain.messages[2].parts.len(), 1, "nothing is said where nothing is to be said");
    }

    #[test]
    fn an_error_without_end_is_cut() {
        let error = ToolError::coded("x", "e".repeat(10 * CONVERSATION_RESULT_BYTES_MAX));
        let failure = ToolOutcome::Failure(ToolFailure { error, retry_hint: None });
        let said = conversation(&[asked(&["a"]), answered("a", failure)]);
        let Part::ToolAnswer(answer) = &said.messages[2].parts[0] else { panic!("an answer") };
        assert_eq!(answer.content.len(), CONVERSATION_RESULT_BYTES_MAX);
    }

    #[test]
    fn where_there_is_no_room_the_oldest_results_go_first() {
        let events: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .flat_map(|id| [asked(&[id]), answered(id, value(10_000))])
            .collect();
        let said = conversation(&events);
        let (messages, outputs) = said.within(60_000).expect("less than the results");
        assert_eq!(omitted(&outputs), [Some(OVER_BUDGET), None, None]);
        let total = messages.iter().map(Message::bytes).sum::<usize>()
            + outputs.iter().map(ToolOutput::bytes).sum::<usize>();
        assert!(total <= 60_000, "{total}");
        let (_, outputs) = said.within(1_000).expect("without any result");
        assert_eq!(omitted(&outputs), [Some(OVER_BUDGET); 3]);
        assert!(said.within(10).is_none(), "the requests alone are more");
        assert_eq!(omitted(&said.outputs), [None; 3], "the conversation itself is whole");
    }
}
