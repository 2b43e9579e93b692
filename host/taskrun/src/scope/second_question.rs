//! Questions to models that are asked once more, as nothing came of the first: the model asked for a
//! tool in a form that cannot be read, or its context window had no room.

use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::Event;
use taskrun_journal::message::{Message, Role};

use super::CallScope;
use super::model::ChosenModel;
use crate::compaction::{Layout, cut_newest, shown};

/// The hint for a model that asked for a tool in a form that cannot be read.
const HINT: &str = "Your last answer asked for a tool in a form that cannot be read, so nothing was \
                    called. Ask again: by the exact name of one of the tools, with arguments that \
                    are one JSON object and fit its schema.";
/// The reason for which results are left out of a question.
const NO_ROOM: &str = "context_window";

/// Why a question is asked once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A call cannot be read.
    MalformedCall,
    /// The context window has no room.
    NoRoom,
}

impl Cause {
    /// The cause that an answer gives which ended so.
    pub(super) fn of_stop(stop: &CompletionStop) -> Option<Self> {
        match stop {
            CompletionStop::MalformedCall => Some(Self::MalformedCall),
            CompletionStop::ContextWindow => Some(Self::NoRoom),
            CompletionStop::EndTurn
            | CompletionStop::ToolUse
            | CompletionStop::MaxTokens
            | CompletionStop::StopSequence
            | CompletionStop::Other(_) => None,
        }
    }

    /// The cause that an error gives.
    pub(super) fn of_error(error: &ModelError) -> Option<Self> {
        matches!(error, ModelError::ContextWindow(_)).then_some(Self::NoRoom)
    }

    /// The question as it is asked once more; `None` where it would be the same. `task` is the place
    /// of the task in it.
    fn question(self, first: &CompletionRequest, task: Option<usize>) -> Option<CompletionRequest> {
        let mut messages = first.messages.clone();
        match self {
            Self::MalformedCall => messages.push(Message::text(Role::System, HINT)),
            Self::NoRoom => {
                let layout = Layout::of(&messages, task);
                let half = layout.bytes() / 2;
                let compaction = layout.to(half);
                let gone = compaction.gone(&messages, task);
                messages = shown(&messages, (compaction, &gone), NO_ROOM, None);
                cut_newest(&mut messages, half, NO_ROOM);
                if messages == first.messages {
                    return None;
                }
            }
        }
        tracing::info!(model = first.model, cause = ?self, "a model is asked once more");
        Some(CompletionRequest { messages, ..first.clone() })
    }
}

impl CallScope {
    /// The question as it is asked once more, and of a plan step's own that its model had no room for
    /// it: the next step shows less.
    pub(super) fn second_question(
        &self,
        cause: Cause,
        first: &CompletionRequest,
        (model, call): (&ChosenModel, u32),
    ) -> Option<CompletionRequest> {
        if cause == Cause::NoRoom && self.is_journalled() {
            let bytes = first.messages.iter().map(Message::bytes).sum::<usize>() as u64;
            let model = model.name.clone();
            self.open().events.push(Event::ContextWindowMet { call, model, bytes });
            self.parts.wake.notify_one();
        }
        cause.question(first, self.task_in(&first.messages))
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
