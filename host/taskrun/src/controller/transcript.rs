//! The conversation of a run, for reading.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use serde::Serialize;
use taskrun_journal::answers::no_user;
use taskrun_journal::event::{
    CallEvent, DialogEvent, Event, EventRecord, EventView, LifecycleEvent, StepEvent,
};
use taskrun_journal::ids::Seq;
use taskrun_journal::media::Media;
use taskrun_journal::message::{Message, Role, ToolError, ToolUse};
use taskrun_journal::question::{Answer, AwaitItem, ExternalTool, Question};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::text::first_chars;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolOutcome;

use super::Client;
use super::child::is_context;
use crate::driver::CONVERSATION_RESULT_BYTES_MAX;
use crate::error::ControllerError;
use crate::scan::{PAGE, scan};

/// Entries of a transcript unless another number is asked for.
pub const TRANSCRIPT_DEFAULT: usize = 40;
/// Most characters of one text where an agent reads it, and most bytes of all entries: a model is
/// shown no larger result.
const AGENT_TEXT_CHARS_MAX: usize = 2_000;
const AGENT_BYTES_MAX: usize = CONVERSATION_RESULT_BYTES_MAX - (4 << 10);

/// Most entries of a transcript.
pub const TRANSCRIPT_MAX: usize = 200;

/// The conversation of a run, for people and for agents that supervise others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transcript {
    /// Id of the run.
    pub id: String,
    /// Its status.
    pub status: Status,
    /// Its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_session_id: Option<String>,
    /// The last entries, the oldest of them first.
    pub events: Vec<TranscriptEntry>,
    /// True if there are earlier ones.
    pub truncated: bool,
    /// Where the page of earlier ones ends; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Seq>,
}

/// One entry of a transcript. Absent fields are left out of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TranscriptEntry {
    /// Position in the journal, as text.
    pub id: String,
    /// The author: `user`, the agent's name, or the tool's; `context` where the caller of the run
    /// told it something beside its task, `session` where it was told what had been said before.
    pub author: String,
    /// Kind of the event.
    pub object: &'static str,
    /// Role in the conversation.
    pub role: &'static str,
    /// Text, or a tool's result as JSON.
    pub content: String,
    /// Id of the tool call that this answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// Name of the tool that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Tools that are called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolUse>,
    /// Images that belong to it; their bytes are artifacts of the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Media>,
    /// The error, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The word for that of the tool that failed, or of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The time that the tool took; absent for a call that was refused or did not begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// When it was recorded.
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    pub timestamp: Timestamp,
}

impl Transcript {
    /// The transcript as an agent reads it, as JSON: long texts are cut, and the earliest entries are
    /// left out where all of them together are more than a model is shown.
    pub(super) fn for_agents(mut self) -> String {
        let mut bytes = 0;
        let shorten = |text: &mut String| {
            if text.chars().nth(AGENT_TEXT_CHARS_MAX).is_some() {
                *text = format!("{}\u{2026}", first_chars(text, AGENT_TEXT_CHARS_MAX));
            }
        };
        for entry in &mut self.events {
            shorten(&mut entry.content);
            entry.error.iter_mut().for_each(shorten);
            entry.tool_calls.iter_mut().for_each(|call| shorten(&mut call.payload));
        }
        let fits = |entry: &&TranscriptEntry| {
            bytes += serde_json::to_string(entry).map_or(0, |text| text.len());
            bytes <= AGENT_BYTES_MAX
        };
        let kept = self.events.iter().rev().take_while(fits).count().max(1);
        let left_out = self.events.len().saturating_sub(kept);
        self.truncated |= left_out > 0;
        self.events.drain(..left_out);
        // No tool asks for the page before.
        self.before = None;
        serde_json::to_string(&self).unwrap_or_default()
    }
}

impl TranscriptEntry {
    /// The entries that an event is: none for events that are no part of the conversation, and two
    /// for a task before which the run was told something.
    pub fn of(run: &Run, recorded: &EventRecord) -> impl Iterator<Item = Self> {
        let before = Self::before_task(recorded);
        before.into_iter().chain(Self::said(run, recorded))
    }

    fn new(recorded: &EventRecord, author: &str, role: Role, content: String) -> Self {
        Self {
            id: recorded.seq.to_string(),
            author: author.to_owned(),
            object: recorded.event.kind(),
            role: role.as_str(),
            content,
            tool_id: None,
            tool_name: None,
            tool_calls: Vec::new(),
            images: Vec::new(),
            error: None,
            error_code: None,
            duration_ms: None,
            timestamp: recorded.at,
        }
    }

    /// The messages that a run was given before its task.
    fn before_task(recorded: &EventRecord) -> Option<Self> {
        let Event::Queued { spec } = &recorded.event else { return None };
        let is_call = spec.parent_tool_call_id.is_some();
        let (author, content) = match spec.context_messages.as_slice() {
            [] => return None,
            [only] if is_context(only) || !is_call => ("context", only.joined_text()),
            // A call gives others only where it hands the conversation over.
            said if is_call => ("session", carried(said)),
            said => ("context", carried(said)),
        };
        let mut entry = Self::new(recorded, author, Role::User, content);
        entry.images = spec.context_messages.iter().flat_map(Message::images).cloned().collect();
        Some(entry)
    }

    fn said(run: &Run, recorded: &EventRecord) -> Option<Self> {
        let entry = |author: &str, role, content| Self::new(recorded, author, role, content);
        match recorded.event.view() {
            EventView::Lifecycle(event) => match event {
                LifecycleEvent::Queued { spec } => {
                    let mut entry = entry("user", Role::User, spec.task.clone());
                    entry.images.clone_from(&spec.images);
                    Some(entry)
                }
                LifecycleEvent::PauseEnded { messages, by, .. } if !messages.is_empty() => {
                    Some(entry(by.unwrap_or("user"), Role::User, messages.join("\n")))
                }
                LifecycleEvent::PauseEnded { .. }
                | LifecycleEvent::Started { .. }
                | LifecycleEvent::Resumed { .. }
                | LifecycleEvent::Lost { .. }
                | LifecycleEvent::Blocked { .. }
                | LifecycleEvent::PauseRequested { .. }
                | LifecycleEvent::Adopted { .. }
                | LifecycleEvent::CancelRequested { .. }
                | LifecycleEvent::Finalizing { .. }
                | LifecycleEvent::FinalizerStarted
                | LifecycleEvent::Finished { .. } => None,
            },
            EventView::Dialog(event) => match event {
                DialogEvent::Injected { text, by } => Some(entry(by, Role::User, text.to_owned())),
                DialogEvent::AssistantMessage { message, .. } => {
                    let agent = &run.spec.agent_name;
                    let mut entry = entry(agent, Role::Assistant, message.joined_text());
                    entry.tool_calls = message.tool_uses().cloned().collect();
                    entry.images = message.images().cloned().collect();
                    Some(entry)
                }
                DialogEvent::Reported { text, .. } => {
                    Some(entry("reports", Role::User, text.to_owned()))
                }
                DialogEvent::HistoryCarried { messages } => {
                    let mut entry = entry("session", Role::User, carried(messages));
                    entry.images = messages.iter().flat_map(Message::images).cloned().collect();
                    Some(entry)
                }
                DialogEvent::Asked { item } => {
                    let agent = &run.spec.agent_name;
                    let mut entry = entry(agent, Role::Assistant, question(&item.what));
                    entry.tool_id.clone_from(&item.tool_call_id);
                    entry.tool_calls = calls_outside(&item.what);
                    Some(entry)
                }
                DialogEvent::Answered { answer, by, by_default, .. } => {
                    let role = match answer {
                        Answer::Results(_) => Role::Tool,
                        Answer::Text(_)
                        | Answer::Choices(_)
                        | Answer::Confirmed(_)
                        | Answer::ConfirmedForRun(_)
                        | Answer::TimedOut
                        | Answer::Refused(_) => Role::User,
                    };
                    let by = if by_default { "default" } else { by };
                    Some(entry(by, role, given(answer)))
                }
                DialogEvent::InboxShown { .. } => None,
            },
            EventView::Call(event) => match event {
                CallEvent::ToolResult { output, duration_ms: ms, refused } => {
                    let (content, error) = match &output.outcome {
                        ToolOutcome::Value(value) => (value.clone(), None),
                        ToolOutcome::Failure(failure) => (String::new(), Some(&failure.error)),
                    };
                    let mut entry = entry(&output.name, Role::Tool, content);
                    entry.tool_id = Some(output.tool_call_id.clone());
                    entry.tool_name = Some(output.name.clone());
                    entry.error = error.map(with_causes);
                    entry.error_code = error.and_then(|error| error.code.clone());
                    entry.images.clone_from(&output.media);
                    entry.duration_ms = (refused.is_none() || ms > 0).then_some(ms);
                    Some(entry)
                }
                CallEvent::ToolCallScheduled { .. }
                | CallEvent::Marked { .. }
                | CallEvent::ToolCallRepeated { .. }
                | CallEvent::ToolCallParked { .. }
                | CallEvent::ChildRunLinked { .. }
                | CallEvent::ToolCallUpdated { .. }
                | CallEvent::ToolAuthorization { .. } => None,
            },
            EventView::Step(StepEvent::RoundEnded { prompt, .. }) => {
                Some(entry("user", Role::User, prompt.to_owned()))
            }
            EventView::Step(_) | EventView::Taped(_) | EventView::Account(_) => None,
        }
    }
}

/// The error and its causes, in a line of its own each.
fn with_causes(error: &ToolError) -> String {
    let causes = error.causes.iter().map(|cause| format!("\ncaused by: {cause}"));
    std::iter::once(error.message.clone()).chain(causes).collect()
}

/// The words of earlier runs, each with its role.
fn carried(messages: &[Message]) -> String {
    let line = |message: &Message| format!("{}: {}", message.role.as_str(), message.joined_text());
    messages.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The text of a question, with the fields of a form and their options.
fn question(what: &AwaitItem) -> String {
    let mut text = what.prompt();
    match what {
        AwaitItem::Clarification { .. } | AwaitItem::Confirmation { .. } => {}
        // The calls have a place of their own.
        AwaitItem::ExternalTools { .. } => text.clear(),
        AwaitItem::Questions { questions, .. } => {
            for Question { id, prompt, options, .. } in questions {
                text.push_str(&format!("\n- {id}: {prompt}"));
                let choices: Vec<_> =
                    options.iter().map(|(id, label)| format!("{id} ({label})")).collect();
                if !choices.is_empty() {
                    text.push_str(&format!(" [{}]", choices.join(", ")));
                }
            }
        }
    }
    text
}

/// The calls that somebody outside is to execute.
fn calls_outside(what: &AwaitItem) -> Vec<ToolUse> {
    let items = match what {
        AwaitItem::ExternalTools { items, .. } => items.as_slice(),
        AwaitItem::Clarification { .. }
        | AwaitItem::Questions { .. }
        | AwaitItem::Confirmation { .. } => &[],
    };
    let call = |item: &ExternalTool| ToolUse {
        tool_call_id: item.tool_call_id.clone(),
        name: item.name.clone(),
        payload: item.payload.clone(),
    };
    items.iter().map(call).collect()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts can be written as JSON")
}

/// The text of an answer: the words of a text, JSON of choices and results.
fn given(answer: &Answer) -> String {
    match answer {
        Answer::Text(text) => text.clone(),
        Answer::Choices(choices) => json(choices),
        Answer::Results(results) => json(results),
        Answer::Confirmed(true) => "accepted".to_owned(),
        Answer::ConfirmedForRun(true) => "accepted, for the run".to_owned(),
        Answer::Confirmed(false) => "declined".to_owned(),
        Answer::ConfirmedForRun(false) => "declined, for the run".to_owned(),
        Answer::TimedOut => "nobody answered in time".to_owned(),
        Answer::Refused(reason) => no_user(reason),
    }
}

impl Client {
    /// The last `limit` entries of the conversation, or the last before a position;
    /// [`TRANSCRIPT_MAX`] if more are asked for.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn transcript(
        &self,
        id: &str,
        before: Option<Seq>,
        limit: usize,
    ) -> Result<Transcript, ControllerError> {
        let run = self.get(id).await?;
        let limit = limit.clamp(1, TRANSCRIPT_MAX);
        let to = before.map_or(Seq::MAX, |before| before.saturating_sub(1));
        // From the end: a journal may be long, and what is wanted is its last part.
        let mut entries: VecDeque<TranscriptEntry> = VecDeque::with_capacity(limit + 1);
        let mut end = to.min(run.state.head);
        while end > 0 && entries.len() <= limit {
            let after = end.saturating_sub(PAGE as u64);
            let mut found = Vec::new();
            let see = |recorded: EventRecord| {
                found.extend(TranscriptEntry::of(&run, &recorded));
                ControlFlow::Continue(())
            };
            scan(&*self.controller.0.parts.store, run.id(), (after, end), see).await?;
            found.into_iter().rev().for_each(|entry| entries.push_front(entry));
            end = after;
        }
        let mut left_out = entries.len().saturating_sub(limit);
        // A page before this one ends with another event: what belongs to one is not parted.
        while left_out > 0 && entries[left_out - 1].id == entries[left_out].id {
            left_out -= 1;
        }
        let truncated = left_out > 0;
        entries.drain(..left_out);
        let first = entries.front().and_then(|entry| entry.id.parse().ok());
        Ok(Transcript {
            id: run.spec.id.to_string(),
            status: run.status(),
            child_session_id: run.execution().map(|e| e.child_session_id.clone()),
            events: entries.into(),
            truncated,
            before: first.filter(|_| truncated),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{run, started};
    use taskrun_journal::ids::RunId;
    use taskrun_journal::question::Item;

    fn entry(event: Event) -> TranscriptEntry {
        let recorded = EventRecord { seq: 3, id: 1, at: Timestamp(5), event };
        let run = run(vec![started()]);
        TranscriptEntry::of(&run, &recorded).next().expect("a part of the conversation")
    }

    fn asked(what: AwaitItem) -> TranscriptEntry {
        let item = Item { what, tool_call_id: None, until: None, default: None };
        entry(Event::Asked { item: Box::new(item) })
    }

    fn answered(answer: Answer) -> TranscriptEntry {
        let (item, by) = ("which".to_owned(), "ann".to_owned());
        entry(Event::Answered { item, answer, by, by_default: false })
    }

    #[test]
    fn questions_of_all_kinds_and_what_people_gave_are_part_of_the_conversation() {
        let question = asked(AwaitItem::Questions {
            id: "form".to_owned(),
            tool_name: "t".to_owned(),
            tool_call_id: "c".to_owned(),
            payload: "{}".to_owned(),
            title: Some("Paint".to_owned()),
            questions: vec![Question {
                id: "colour".to_owned(),
                prompt: "Which colour?".to_owned(),
                options: vec![("r".to_owned(), "red".to_owned())],
                allow_multiple: false,
            }],
        });
        assert_eq!(question.content, "Paint\n- colour: Which colour? [r (red)]");
        assert_eq!((question.role, question.object), ("assistant", "asked"));
        let outside = ExternalTool {
            name: "crm/find".to_owned(),
            tool_call_id: "call-1".to_owned(),
            payload: "{}".to_owned(),
        };
        let outside = asked(AwaitItem::ExternalTools { id: "x".to_owned(), items: vec![outside] });
        assert_eq!(outside.tool_calls[0].name, "crm/find");

        let text = answered(Answer::Text("the third".to_owned()));
        assert_eq!(
            (text.author.as_str(), text.role, text.content.as_str()),
            ("ann", "user", "the third")
        );
        let choices = Answer::Choices([("colour".to_owned(), vec!["r".to_owned()])].into());
        assert_eq!(answered(choices).content, r#"{"colour":["r"]}"#);
        let value = ToolOutcome::Value("7".to_owned());
        let results = answered(Answer::Results([("call-1".to_owned(), value.into())].into()));
        assert_eq!(results.role, "tool");
        assert!(results.content.contains("call-1"), "{}", results.content);
        assert_eq!(answered(Answer::Confirmed(false)).content, "declined");
        assert_eq!(answered(Answer::TimedOut).content, "nobody answered in time");
    }

    #[test]
    fn what_was_carried_from_earlier_runs_is_part_of_the_conversation() {
        let message = |role, text: &str| Message::text(role, text);
        let messages =
            vec![message(Role::User, "what is it?"), message(Role::Assistant, "a whale")];
        let carried = entry(Event::HistoryCarried { runs: Vec::<RunId>::new(), messages });
        assert_eq!(carried.content, "user: what is it?\nassistant: a whale");
        assert_eq!(carried.author, "session");
    }
}
