//! The conversation of a run, folded from its journal: planners and models are shown it.

mod answers;
mod excerpt;
mod results;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use taskrun_journal::autonomy::CONTINUATION;
use taskrun_journal::event::{CallEvent, DialogEvent, Event, EventView, StepEvent};
use taskrun_journal::ids::Seq;
use taskrun_journal::media::Media;
use taskrun_journal::message::{Message, Part, Role};
use taskrun_journal::question::{Answer, Item};
use taskrun_journal::reminders::Reminders;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::tool::ToolOutput;

use self::answers::AnswerPart;
pub(crate) use self::answers::result_from_outside;
pub(crate) use self::excerpt::Excerpt;
use self::excerpt::{MessageExcerpt, OutputExcerpt};
pub use self::results::CONVERSATION_RESULT_BYTES_MAX;
use self::results::{TOO_LARGE, is_too_large, leave_out, name, shown};
use super::advice::advice;
use super::results::{INTERRUPTED, UNANSWERED, failure};
use crate::compaction::in_short;
use crate::scope::{ResultDigests, StepResults};

/// The heading of messages that came while the run worked or waited.
const INBOX: &str = "[Inbox]\n";

/// Messages, results and state so far. Results stand in the order in which the calls were
/// requested, whatever order they arrived in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Conversation {
    messages: Arc<Vec<Message>>,
    outputs: Arc<Vec<ToolOutput>>,
    /// The position of each of these results in the run's journal; `None` for that of a call which
    /// another run made, or that was answered from outside.
    places: Arc<Vec<Option<Seq>>>,
    /// Calls of the last turn in the order requested, each with its result once there is one.
    open: Vec<(String, Option<PlacedOutput>)>,
    state: BTreeMap<String, String>,
    reminders: Reminders,
    /// True if it begins with the words of earlier runs.
    has_history: bool,
    /// The message to the planner of which a turn was skipped.
    continuation: String,
    /// True for a run that goes on by itself.
    has_rounds: bool,
    /// The place of the task among the messages.
    task: usize,
    /// True once a step came to its end, or the planner was asked for its last word: until then the
    /// task is the last message.
    begun: bool,
    /// The length that it had when the step was given it that decided last.
    given: Length,
    /// The messages as they were shown last, where some were left out.
    #[serde(skip)]
    message_excerpt: Option<MessageExcerpt>,
    /// The results as they were shown last, where some were left out.
    #[serde(skip)]
    output_excerpt: Option<OutputExcerpt>,
    /// The digests of its results.
    #[serde(skip)]
    result_digests: ResultDigests,
}

/// A result with its position in the run's journal, as [`Conversation::places`] has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PlacedOutput {
    output: ToolOutput,
    place: Option<Seq>,
}

/// The number of messages and of results of a conversation, from its beginning on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Length {
    messages: usize,
    results: usize,
}

/// The task of a run with its images, as an agent is told.
pub(super) fn task_message(spec: &RunSpec) -> Message {
    let images = spec.images.iter().cloned().map(Part::Media);
    let parts = [Part::Text(spec.task.clone())].into_iter().chain(images).collect();
    Message { role: Role::User, parts }
}

/// A message that came to a run's inbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum InboxEntry {
    /// Given with the word to go on.
    Message(String),
    /// Injected while the run worked or waited.
    Injected(String),
}

impl InboxEntry {
    fn is_injected(&self) -> bool {
        match self {
            Self::Injected(_) => true,
            Self::Message(_) => false,
        }
    }
}

impl Conversation {
    /// A conversation at its beginning: the caller's messages before the task, and the task.
    #[must_use]
    pub(crate) fn new(spec: &RunSpec) -> Self {
        let autonomy = spec.autonomy.as_ref();
        let mut messages = spec.context_messages.clone();
        let task = messages.len();
        messages.push(task_message(spec));
        Self {
            messages: Arc::new(messages),
            outputs: Arc::default(),
            places: Arc::default(),
            open: Vec::new(),
            state: BTreeMap::new(),
            reminders: Reminders::default(),
            has_history: false,
            continuation: autonomy.map_or(CONTINUATION, |one| &one.continuation).to_owned(),
            has_rounds: autonomy.is_some(),
            task,
            begun: false,
            given: Length::default(),
            message_excerpt: None,
            output_excerpt: None,
            result_digests: ResultDigests::default(),
        }
    }

    /// True if it begins with the words of earlier runs of the session.
    pub(super) fn has_history(&self) -> bool {
        self.has_history
    }

    /// The prompt to go on.
    pub(super) fn continuation(&self) -> &str {
        &self.continuation
    }

    /// Goes on in another run, with a prompt to do so: calls that the one which ended left open have
    /// failed.
    pub(super) fn carry_on(&mut self, prompt: &str) {
        (self.begun, self.given) = (true, Length::default());
        let open: Vec<String> = self
            .open
            .iter()
            .filter(|(_, output)| output.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        let calls: Vec<_> = self.messages.iter().flat_map(Message::tool_uses).cloned().collect();
        for id in open {
            let Some(call) = calls.iter().rev().find(|call| call.tool_call_id == id) else {
                continue;
            };
            let outcome = failure(INTERRUPTED, UNANSWERED);
            self.answer(&ToolOutput::plain(&call.name, &id, &call.payload, outcome), None);
        }
        self.places = Arc::new(vec![None; self.outputs.len()]);
        self.result_digests = ResultDigests::default();
        self.add(Message::text(Role::User, prompt));
    }

    /// Adds a message to its end.
    fn add(&mut self, message: Message) {
        Arc::make_mut(&mut self.messages).push(message);
    }

    /// The messages, to change those that are there: what was shown of them last is void.
    fn rewrite(&mut self) -> &mut Vec<Message> {
        self.message_excerpt = None;
        Arc::make_mut(&mut self.messages)
    }

    /// State that the planner keeps.
    #[must_use]
    pub(crate) fn state(&self) -> &BTreeMap<String, String> {
        &self.state
    }

    /// Notes that the planner keeps.
    #[must_use]
    pub(crate) fn reminders(&self) -> &Reminders {
        &self.reminders
    }

    /// The messages but the task, up to the turn whose calls are under way.
    pub(super) fn before_turn(&self) -> impl DoubleEndedIterator<Item = &Message> {
        let calls = |message: &Message| message.tool_uses().next().is_some();
        let turn = self.messages.iter().rposition(calls).unwrap_or(self.messages.len());
        let before = self.messages[..turn].iter().enumerate();
        before.filter(|(place, _)| *place != self.task).map(|(_, message)| message)
    }

    /// The images of the result of a call.
    pub(super) fn images_of(&self, tool_call_id: &str) -> &[Media] {
        let result = self.outputs.iter().rfind(|output| output.tool_call_id == tool_call_id);
        result.map_or(&[], |output| &output.media)
    }

    /// Takes one event into account, which stands at this position of the run's journal.
    pub(super) fn push_at(&mut self, event: &Event, place: Seq) {
        if let Event::ToolResult { output, .. } = event {
            self.answer(output, Some(place));
        } else {
            self.push(event);
        }
    }

    /// Takes one event into account. A result that comes so is shown to steps, and none of them reads it
    /// by its hash.
    pub(crate) fn push(&mut self, event: &Event) {
        match event.view() {
            EventView::Dialog(event) => match event {
                DialogEvent::AssistantMessage { message, .. } => {
                    self.open =
                        message.tool_uses().map(|u| (u.tool_call_id.clone(), None)).collect();
                    self.add(message.clone());
                }
                // Said before anything of this run.
                DialogEvent::HistoryCarried { messages } => {
                    self.has_history = true;
                    self.task += messages.len();
                    self.rewrite().splice(0..0, messages.iter().cloned());
                }
                DialogEvent::Reported { text, .. } => {
                    self.tell(vec![Message::text(Role::User, text)]);
                }
                DialogEvent::Asked { .. }
                | DialogEvent::Answered { .. }
                | DialogEvent::Injected { .. }
                | DialogEvent::InboxShown { .. } => {}
            },
            EventView::Call(event) => match event {
                CallEvent::ToolResult { output, .. } => self.answer(output, None),
                CallEvent::ToolCallScheduled { .. }
                | CallEvent::Marked { .. }
                | CallEvent::ToolCallRepeated { .. }
                | CallEvent::ToolCallParked { .. }
                | CallEvent::ChildRunLinked { .. }
                | CallEvent::ToolCallUpdated { .. }
                | CallEvent::ToolAuthorization { .. } => {}
            },
            EventView::Step(event) => match event {
                StepEvent::TurnSkipped { .. } => {
                    self.begun = true;
                    // Where there are rounds it ends one, which has the prompt of the next.
                    if !self.has_rounds {
                        self.add(Message::text(Role::User, self.continuation.as_str()));
                    }
                }
                StepEvent::RoundEnded { prompt, checkpoint, .. } => {
                    if let Some(most) = checkpoint.conversation_bytes {
                        self.leave_behind(usize::try_from(most).unwrap_or(usize::MAX));
                    }
                    self.add(Message::text(Role::User, prompt));
                }
                StepEvent::FinalizeRequested { .. } => self.begun = true,
                StepEvent::PlanDecided { turn, state, reminders, .. } => {
                    self.begun = true;
                    self.given =
                        Length { messages: self.messages.len(), results: self.outputs.len() };
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
                | StepEvent::PushedBack { .. }
                | StepEvent::ReplayDiverged { .. } => {}
            },
            EventView::Lifecycle(_) | EventView::Taped(_) | EventView::Account(_) => {}
        }
    }

    /// Bytes of its messages.
    pub(super) fn bytes(&self) -> usize {
        self.messages.iter().map(Message::bytes).sum()
    }

    /// The results that it has, for a step that reads one by its digest.
    pub(super) fn results(&self) -> StepResults {
        let (outputs, places) = (Arc::clone(&self.outputs), Arc::clone(&self.places));
        StepResults::new(outputs, places, self.result_digests.clone())
    }

    /// Leaves what is oldest out for good, until at most `most` bytes of messages are left: as a whole,
    /// from what followed on the task to where the user speaks again. The last such place at which
    /// somebody answered stays.
    fn leave_behind(&mut self, most: usize) {
        let first = self.task + 1;
        let is_place = |at: &usize| {
            self.messages[*at].role == Role::User && self.messages[*at - 1].role != Role::User
        };
        let places: Vec<usize> = (first + 1..self.messages.len()).filter(is_place).collect();
        let bytes_from = |at: usize| self.messages[at..].iter().map(Message::bytes).sum::<usize>();
        let before: usize = self.messages[..first].iter().map(Message::bytes).sum();
        let has_room = |at: &&usize| before + bytes_from(**at) <= most;
        let Some(end) = places.iter().find(has_room).or(places.last()).copied() else { return };
        let messages = self.rewrite();
        let short = in_short(&messages[first..end]);
        messages.splice(first..end, [short]);
        let answers = messages[first..].iter().flat_map(|message| &message.parts);
        let kept = answers.filter(|part| matches!(part, Part::ToolAnswer(_))).count();
        let gone = self.outputs.len().saturating_sub(kept);
        self.output_excerpt = None;
        self.result_digests = ResultDigests::default();
        Arc::make_mut(&mut self.outputs).drain(..gone);
        Arc::make_mut(&mut self.places).drain(..gone);
        // One message stands there instead of those that are gone.
        let Length { messages, results } = self.given;
        let messages =
            if messages < end { messages.min(first) } else { messages + first + 1 - end };
        self.given = Length { messages, results: results.saturating_sub(gone) };
    }

    /// Takes the run's inbox into account: messages of the user, and the injected ones under one
    /// heading. Those that came before its first step stand before its task, as an agent takes the
    /// last message for the task.
    pub(super) fn receive(&mut self, entries: &[InboxEntry]) {
        let mut said = Vec::new();
        for group in entries.chunk_by(|one, next| one.is_injected() && next.is_injected()) {
            let mut text = String::new();
            for one in group {
                match one {
                    InboxEntry::Message(one) => text.push_str(one),
                    InboxEntry::Injected(one) => {
                        text.push_str(if text.is_empty() { INBOX } else { "\n" });
                        text.push_str(one);
                    }
                }
            }
            said.push(Message::text(Role::User, text));
        }
        self.tell(said);
    }

    /// Takes what the run is told into account: before its first step that stands before its task, as
    /// an agent takes the last message for the task.
    fn tell(&mut self, said: Vec<Message>) {
        if self.begun {
            said.into_iter().for_each(|message| self.add(message));
        } else {
            let task = self.task;
            self.task += said.len();
            self.rewrite().splice(task..task, said);
        }
    }

    /// Takes an answer from outside into account that the planner asked for: text as a message of
    /// the user, a form and the results of tools outside as calls with their results.
    pub(super) fn answered(&mut self, item: &Item, answer: &Answer) {
        match answers::given(item, answer) {
            AnswerPart::Nothing => {}
            AnswerPart::Text(text) => {
                self.add(Message::text(Role::User, text));
            }
            AnswerPart::Results { calls, outputs } => {
                self.open = calls.tool_uses().map(|u| (u.tool_call_id.clone(), None)).collect();
                let messages = self.rewrite();
                let words = messages.last_mut().filter(|last| last.role == Role::Assistant);
                // A model said them in one breath, and some want them back so.
                match words.filter(|last| last.tool_uses().next().is_none()) {
                    Some(words) => {
                        words.parts.extend(calls.parts);
                        // New as a whole, also where a step was given the words alone.
                        let words = messages.len() - 1;
                        self.given.messages = self.given.messages.min(words);
                    }
                    None => messages.push(calls),
                }
                outputs.iter().for_each(|output| self.answer(output, None));
            }
        }
    }

    fn answer(&mut self, output: &ToolOutput, place: Option<Seq>) {
        let waits = |(id, has): &&mut (String, Option<PlacedOutput>)| {
            *id == output.tool_call_id && has.is_none()
        };
        if let Some((_, result)) = self.open.iter_mut().find(waits) {
            *result = Some(PlacedOutput { output: output.clone(), place });
        }
        if self.open.iter().all(|(_, result)| result.is_some()) {
            let results = self.open.drain(..).filter_map(|(_, result)| result);
            let (mut outputs, places): (Vec<_>, Vec<_>) =
                results.map(|PlacedOutput { output, place }| (output, place)).unzip();
            // What is shown of one has its name in it.
            outputs.iter_mut().filter(|output| is_too_large(output)).for_each(name);
            let answers = outputs.iter().map(|o| Part::ToolAnswer(shown(o)));
            let parts = answers.chain(advice(&outputs).map(Part::Text)).collect();
            for output in outputs.iter_mut().filter(|output| is_too_large(output)) {
                leave_out(output, TOO_LARGE);
            }
            self.add(Message { role: Role::Tool, parts });
            Arc::make_mut(&mut self.outputs).extend(outputs);
            Arc::make_mut(&mut self.places).extend(places);
        }
    }

    /// The number of its messages.
    pub(super) fn messages(&self) -> usize {
        self.messages.len()
    }
}
