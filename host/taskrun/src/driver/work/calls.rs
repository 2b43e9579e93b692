//! The tool calls of the last turn, and what was asked of the outside.

use std::time::Duration;

use taskrun_journal::event::{CallWait, Event, EventRecord};
use taskrun_journal::message::RetryHint;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::{Answer, AwaitItem, CONFIRM, Item};
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolOutcome;

use super::Work;

/// A tool call of the last turn.
#[derive(Clone)]
pub(in crate::driver) struct Call {
    pub(in crate::driver) request: ToolRequest,
    /// Number of times that it began.
    pub(in crate::driver) attempts: u32,
    /// The time at which it began first, as its record says.
    began_at: Option<Timestamp>,
    /// True if a consent to it is on record, and nobody was asked about it since.
    pub(in crate::driver) authorized: bool,
    /// The number of the lasting consent by which it is.
    pub(in crate::driver) consent: Option<u64>,
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
    /// Notes the time at which a call began. One that waits from its beginning is on record as
    /// parked alone.
    pub(super) fn note_beginning(&mut self, recorded: &EventRecord) {
        if let Event::ToolCallScheduled { tool_call_id, .. }
        | Event::ToolCallParked { tool_call_id, .. } = &recorded.event
        {
            self.with_call(tool_call_id, |call| {
                call.began_at.get_or_insert(recorded.at);
            });
        }
    }

    /// The time since an open call began.
    pub(in crate::driver) fn took(&self, id: &str, now: Timestamp) -> Duration {
        let call = self.open_calls().find(|call| call.id() == id);
        call.map_or(Duration::ZERO, |call| call.took(now))
    }

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

    /// Notes what is asked. Who is asked about a call anew has not consented to it yet.
    pub(super) fn ask(&mut self, item: &Item) {
        let asked = QuestionState { item: item.clone(), answer: None, by: String::new() };
        if let Some(call) = &item.tool_call_id
            && asked.consent_to(call).is_some()
        {
            self.with_call(call, |call| call.authorized = false);
        }
        self.asked.push(asked);
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
    /// That of a request, before anything is known of it.
    pub(super) fn new(request: ToolRequest) -> Self {
        Self {
            request,
            attempts: 0,
            began_at: None,
            authorized: false,
            consent: None,
            idempotent: false,
            parked: None,
            outcome: None,
        }
    }

    /// The time since it began; none if it has not.
    pub(in crate::driver) fn took(&self, now: Timestamp) -> Duration {
        self.began_at.map_or(Duration::ZERO, |began| now.since(began))
    }

    pub(in crate::driver) fn id(&self) -> &str {
        self.request.tool_call_id.as_deref().unwrap_or_default()
    }
}

impl QuestionState {
    /// The digest of the code that it names, if it is a question for consent to this call.
    pub(super) fn consent_to(&self, call: &str) -> Option<Option<&str>> {
        match &self.item.what {
            AwaitItem::Confirmation { id, tool_call_id, digest, .. }
                if id.starts_with(CONFIRM) && tool_call_id == call =>
            {
                Some(digest.as_deref())
            }
            AwaitItem::Confirmation { .. }
            | AwaitItem::Clarification { .. }
            | AwaitItem::Questions { .. }
            | AwaitItem::ExternalTools { .. } => None,
        }
    }

    fn is_the_planners(&self) -> bool {
        let asked_by_host = matches!(self.item.what, AwaitItem::Confirmation { .. });
        self.item.tool_call_id.is_none() && !asked_by_host
    }
}
