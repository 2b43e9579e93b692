//! Questions to models that are put again, as nothing came of them: the model asked for a tool in a
//! form that cannot be read, or its context window had no room.

use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::Event;
use taskrun_journal::message::{Message, Role};

use super::CallScope;
use super::model::ChosenModel;
use super::stated_room::StatedRoom;
use crate::compaction::{Layout, cut_newest, shown};

/// The hint for a model that asked for a tool in a form that cannot be read.
const HINT: &str = "Your last answer asked for a tool in a form that cannot be read, so nothing was \
                    called. Ask again: by the exact name of one of the tools, with arguments that \
                    are one JSON object and fit its schema.";
/// The reason for which results are left out of a question.
const NO_ROOM: &str = "context_window";
/// Most times that a question is put again. Halved twice and then quartered, the longest
/// conversation that a step is given comes to four thousand bytes, less than any window has.
const AGAIN_MAX: u32 = 5;
/// The first times of them, at which a provider is taken at its word about the room that it has,
/// and a question is halved otherwise. Later it is quartered.
const GENTLE_MAX: u32 = 2;
/// Most times that a question is tried to be shortened less, where it does not get shorter.
const MILDER_MAX: u32 = 3;

/// Why a question is put again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A call cannot be read.
    MalformedCall,
    /// The context window left no room for an answer. The question is paid for.
    NoRoomLeft,
    /// The context window has no room for the question, and this much, if its provider states it.
    NoRoom(Option<StatedRoom>),
}

impl Cause {
    /// The cause that an answer gives which ended so.
    pub(super) fn of_stop(stop: &CompletionStop) -> Option<Self> {
        match stop {
            CompletionStop::MalformedCall => Some(Self::MalformedCall),
            CompletionStop::ContextWindow => Some(Self::NoRoomLeft),
            CompletionStop::EndTurn
            | CompletionStop::ToolUse
            | CompletionStop::MaxTokens
            | CompletionStop::StopSequence
            | CompletionStop::Other(_) => None,
        }
    }

    /// The cause that an error gives.
    pub(super) fn of_error(error: &ModelError) -> Option<Self> {
        if let ModelError::ContextWindow(words) = error {
            Some(Self::NoRoom(StatedRoom::of(words)))
        } else {
            None
        }
    }
}

/// A question to a model of which nothing has come so far.
pub(super) struct OpenQuestion {
    /// The question as it was put first.
    first: CompletionRequest,
    pub(super) model: ChosenModel,
    /// Its number in the step.
    pub(super) call: u32,
    /// Bytes of the messages that were put last.
    bytes: usize,
    /// The number of times that it was put again.
    again: u32,
    /// True once it was put again after an answer that is paid for.
    is_paid_again: bool,
}

impl OpenQuestion {
    /// A question that is put to a model.
    pub(super) fn new(first: CompletionRequest, model: ChosenModel, call: u32) -> Self {
        let bytes = bytes_of(&first.messages);
        Self { first, model, call, bytes, again: 0, is_paid_again: false }
    }

    /// The question as it is put next; `None` where it would be the same, or was put often enough.
    /// `task` is the place of the task in it.
    fn next(&mut self, cause: Cause, task: Option<usize>) -> Option<CompletionRequest> {
        if self.again == AGAIN_MAX {
            return None;
        }
        let messages: Vec<Message> = match cause {
            Cause::MalformedCall if self.again == 0 => {
                // The second answer stands, whatever it is.
                self.again = AGAIN_MAX - 1;
                let hint = Message::text(Role::System, HINT);
                self.first.messages.iter().cloned().chain([hint]).collect()
            }
            Cause::NoRoomLeft if !self.is_paid_again => {
                self.is_paid_again = true;
                self.shortened(None, task)?
            }
            Cause::NoRoom(stated) => self.shortened(stated, task)?,
            Cause::MalformedCall | Cause::NoRoomLeft => return None,
        };
        self.again += 1;
        self.bytes = bytes_of(&messages);
        let (model, bytes) = (&self.model.name, self.bytes);
        tracing::info!(model, cause = ?cause, bytes, "a model is asked again");
        Some(CompletionRequest { messages, ..self.first.clone() })
    }

    /// The messages of the question with fewer bytes than were put last: as many as there is room
    /// for, if that is stated, and a part of them otherwise.
    fn shortened(&self, stated: Option<StatedRoom>, task: Option<usize>) -> Option<Vec<Message>> {
        let is_gentle = self.again < GENTLE_MAX;
        let target = match stated.filter(|_| is_gentle) {
            // Tools and instructions take room, too, and are as long as before.
            Some(room) => room.share_of(self.bytes) / 4 * 3,
            None if is_gentle => self.bytes / 2,
            None => self.bytes / 4,
        };
        let over = self.bytes.saturating_sub(target);
        let layout = Layout::of(&self.first.messages, task);
        // Less room may leave more: there are words that go only where that is enough.
        (0..=MILDER_MAX).find_map(|milder| {
            let max = self.bytes - (over >> milder);
            let compaction = layout.clone().to(max);
            let gone = compaction.gone(&self.first.messages, task);
            let mut left = shown(&self.first.messages, (compaction, &gone), NO_ROOM, None);
            cut_newest(&mut left, max, NO_ROOM);
            (bytes_of(&left) < self.bytes).then_some(left)
        })
    }
}

impl CallScope {
    /// The question as it is put next; `None` where that is not to be done. Of a plan step's own it
    /// is recorded that its model had no room for it: the next step shows less.
    pub(super) fn put_again(
        &self,
        question: &mut OpenQuestion,
        cause: Cause,
    ) -> Option<CompletionRequest> {
        let met = match cause {
            Cause::MalformedCall => None,
            Cause::NoRoom(Some(room)) if room.is_half() => Some(room.share_of(question.bytes)),
            // Words that leave less may mean other numbers. The next question relies on them, and
            // the rest of the run does not.
            Cause::NoRoomLeft | Cause::NoRoom(_) => Some(question.bytes),
        };
        if let Some(bytes) = met.filter(|_| self.is_journalled()) {
            let (call, model) = (question.call, question.model.name.clone());
            self.open().events.push(Event::ContextWindowMet { call, model, bytes: bytes as u64 });
            self.parts.wake.notify_one();
        }
        let task = self.task_in(&question.first.messages);
        question.next(cause, task)
    }
}

/// True for a part of an answer after which it stands: a second answer would say it again.
pub(super) fn is_said(chunk: &Chunk) -> bool {
    match chunk {
        Chunk::Text(text) => !text.is_empty(),
        Chunk::ToolCallDelta { .. } | Chunk::ToolCall(_) => true,
        Chunk::Thinking(_) | Chunk::Usage(_) | Chunk::Stop { .. } => false,
    }
}

fn bytes_of(messages: &[Message]) -> usize {
    messages.iter().map(Message::bytes).sum()
}
