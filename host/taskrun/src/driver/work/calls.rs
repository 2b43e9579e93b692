//! The tool calls of the last turn, and what was asked of the outside.

use taskrun_journal::event::CallWait;
use taskrun_journal::message::RetryHint;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::{Answer, AwaitItem, Item};
use taskrun_journal::tool::ToolOutcome;

use super::Work;

/// A tool call of the last turn.
#[derive(Clone)]
pub(in crate::driver) struct Call {
    pub(in crate::driver) request: ToolRequest,
    /// Number of times that it began.
    pub(in crate::driver) attempts: u32,
    /// True if a consent to it is on record.
    pub(in crate::driver) authorized: bool,
    /// True if it may begin again after its host died.
    pub(in crate::driver) idempotent: bool,
    /// The thing that it waits for.
    pub(in crate::driver) parked: Option<CallWait>,
    /// Its outcome, once it has ended.
    pub(in crate::driver) outcome: Option<ToolOutcome>,
}

/// Something that was asked of the outside.
#[derive(Clone)]
pub(in crate::driver) struct QuestionState {
    pub(in crate::driver) item: Item,
    pub(in crate::driver) answer: Option<Answer>,
    /// The name of the person or run that gave it.
    pub(in crate::driver) by: String,
}

impl Work {
    /// The calls of the last turn that have begun.
    pub(in crate::driver) fn begun_calls(&self) -> u32 {
        let begun = self.calls.iter().filter(|call| call.attempts > 0).count();
        u32::try_from(begun).unwrap_or(u32::MAX)
    }

    /// Hints of the last calls that failed, in the order requested.
    pub(in crate::driver) fn hints(&self) -> Vec<RetryHint> {
        let hints = self.calls.iter().filter_map(|call| match call.outcome.as_ref()? {
            ToolOutcome::Failure(failure) => failure.retry_hint.as_deref().cloned(),
            ToolOutcome::Value(_) => None,
        });
        hints.collect()
    }

    /// True while a tool call has begun and has no result.
    pub(super) fn is_calling(&self) -> bool {
        self.open_calls().any(|call| call.attempts > 0)
    }

    pub(super) fn with_call(&mut self, id: &str, change: impl FnOnce(&mut Call)) {
        let has_id = |call: &&mut Call| call.id() == id && call.outcome.is_none();
        if let Some(call) = self.calls.iter_mut().find(has_id) {
            change(call);
        }
    }

    pub(super) fn answer(&mut self, id: &str, answer: &Answer, by: &str) {
        let open = |one: &&mut QuestionState| one.item.id() == id && one.answer.is_none();
        if let Some(asked) = self.asked.iter_mut().find(open) {
            asked.answer = Some(answer.clone());
            by.clone_into(&mut asked.by);
        }
        if self.asked.iter().all(|asked| asked.answer.is_some()) {
            // What the planner asked is part of the conversation, in the order asked, whatever
            // order the answers came in.
            let said = self.asked.iter().filter(|asked| asked.is_the_planners());
            for QuestionState { item, answer, .. } in said {
                if let Some(answer) = answer {
                    self.conversation.answered(item, answer);
                }
            }
        }
    }

    /// Calls without a result.
    pub(in crate::driver) fn open_calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| call.outcome.is_none())
    }

    /// True if something of this name was asked since the last plan step.
    pub(in crate::driver) fn was_asked(&self, id: &str) -> bool {
        self.asked.iter().any(|asked| asked.item.id() == id)
    }

    /// The answer to an item, if it was asked and answered.
    pub(in crate::driver) fn answer_to(&self, id: &str) -> Option<&Answer> {
        let asked = self.asked.iter().find(|asked| asked.item.id() == id);
        asked.and_then(|asked| asked.answer.as_ref())
    }
}

impl Call {
    pub(in crate::driver) fn id(&self) -> &str {
        self.request.tool_call_id.as_deref().unwrap_or_default()
    }
}

impl QuestionState {
    fn is_the_planners(&self) -> bool {
        let asked_by_host = matches!(self.item.what, AwaitItem::Confirmation { .. });
        self.item.tool_call_id.is_none() && !asked_by_host
    }
}
