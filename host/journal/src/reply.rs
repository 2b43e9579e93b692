//! The answer of a run so far, folded from the journal.

use serde::{Deserialize, Serialize};

use crate::artifact::ARTIFACT_BYTES_MAX;
use crate::event::{
    CallEvent, DialogEvent, Event, EventView, LifecycleEvent, StepEvent, TapedEvent,
};
use crate::media::Media;
use crate::text::first_chars;

/// Most characters of a result that are shown with its run; the whole text is an artifact then.
pub const RESULT_CHARS_MAX: usize = 4_000;

/// The answer so far. Parts are joined until a whole message has been seen; from then on the
/// last whole message with text counts. What a step had half said that is tried again is none,
/// nor is anything where a model declined to go on.
///
/// Of a run with several rounds it is that of the last round that worked, or of the last one with a
/// text if none did: an idle answer to a prompt to go on takes the place of no finding.
///
/// Only what can be shown is kept, so that the record stays small however long the answer is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    text: String,
    bytes: u64,
    cut: bool,
    whole: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<Media>,
    /// True if the present round has called a tool that is none of the run's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    worked: bool,
    /// That of the rounds before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept: Option<KeptReply>,
}

/// The answer of the rounds before the present one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptReply {
    text: String,
    bytes: u64,
    cut: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<Media>,
    /// True if its round worked.
    worked: bool,
}

/// True if a text of a round takes the place of what the rounds before it said.
fn replaces(text: &str, worked: bool, kept_worked: bool) -> bool {
    !text.trim().is_empty() && (worked || !kept_worked)
}

impl Reply {
    /// Takes one event into account.
    pub fn count(&mut self, event: &Event) {
        match reply_text(event) {
            ReplyText::Part(text) => {
                if !self.whole {
                    self.append(text);
                }
            }
            ReplyText::Whole(text, images) => {
                self.clear();
                (self.whole, self.images) = (true, images);
                self.append(&text);
            }
            ReplyText::Void => {
                if !self.whole {
                    self.clear();
                }
            }
            ReplyText::Refused => self.clear(),
            ReplyText::Work => self.worked = true,
            ReplyText::RoundEnd { worked } => self.keep(worked),
            ReplyText::Nothing => {}
        }
    }

    /// The images of the answer.
    #[must_use]
    pub fn images(&self) -> &[Media] {
        self.of_before().map_or(&self.images, |kept| &kept.images)
    }

    /// Forgets what the present round said so far.
    fn clear(&mut self) {
        let (worked, kept) = (self.worked, self.kept.take());
        *self = Self { worked, kept, ..Self::default() };
    }

    /// The same where another round begins, whoever executes that.
    #[must_use]
    pub(crate) fn of_round_before(&self) -> Self {
        let mut next = self.clone();
        next.keep(self.worked);
        next
    }

    /// Begins another round.
    fn keep(&mut self, worked: bool) {
        let Self { text, bytes, cut, images, kept, .. } = std::mem::take(self);
        let kept_worked = kept.as_ref().is_some_and(|kept| kept.worked);
        self.kept = match replaces(&text, worked, kept_worked) {
            true => Some(KeptReply { text, bytes, cut, images, worked }),
            false => kept,
        };
    }

    /// That of the rounds before, where the present one does not take its place.
    fn of_before(&self) -> Option<&KeptReply> {
        self.kept.as_ref().filter(|kept| !replaces(&self.text, self.worked, kept.worked))
    }

    fn append(&mut self, text: &str) {
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        let text = if self.text.is_empty() { text.trim_start() } else { text };
        if self.cut {
            return;
        }
        let room = RESULT_CHARS_MAX - self.text.chars().count();
        let fits = first_chars(text, room);
        self.text.push_str(fits);
        // A rest that is cut off matters only if it is more than the white space at the end.
        self.cut = !text[fits.len()..].trim_end().is_empty();
    }

    /// The text, trimmed; `None` if there is none. Only the beginning of a text that is longer than
    /// [`RESULT_CHARS_MAX`], as [`Self::is_cut`] tells; the whole of it is an artifact of the run,
    /// or in its journal.
    #[must_use]
    pub fn result(&self) -> Option<String> {
        let text = self.of_before().map_or(self.text.as_str(), |kept| &kept.text).trim_end();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Bytes of the whole text.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.of_before().map_or(self.bytes, |kept| kept.bytes)
    }

    /// True if the text is longer than what is kept of it.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.of_before().map_or(self.cut, |kept| kept.cut)
    }
}

/// The contribution of an event to the answer.
enum ReplyText<'a> {
    /// A part of it.
    Part(&'a str),
    /// A whole message with text, and with these images, which replaces what was said before.
    Whole(String, Vec<Media>),
    /// The parts so far count no more.
    Void,
    /// Nothing that was said counts: the model declined to go on.
    Refused,
    /// The present round works.
    Work,
    /// Another round begins.
    RoundEnd {
        /// True if the one before worked.
        worked: bool,
    },
    Nothing,
}

fn reply_text(event: &Event) -> ReplyText<'_> {
    match event.view() {
        EventView::Taped(event) => match event {
            TapedEvent::AssistantChunk { text } => ReplyText::Part(text),
            TapedEvent::ToolCallArgsDelta { .. }
            | TapedEvent::ThinkingBlock { .. }
            | TapedEvent::PlannerNote { .. }
            | TapedEvent::PromptRendered { .. }
            | TapedEvent::PolicyDecision { .. }
            | TapedEvent::Log { .. }
            | TapedEvent::HostAnswered { .. }
            | TapedEvent::OutsideAnswered { .. }
            | TapedEvent::ClockRead { .. } => ReplyText::Nothing,
            // One that asked a model before goes on from there; its parts are not told apart.
            TapedEvent::StepRestarted { kept } if kept.events == 0 => ReplyText::Void,
            TapedEvent::StepRestarted { .. } => ReplyText::Nothing,
        },
        EventView::Dialog(event) => match event {
            DialogEvent::AssistantMessage { message, .. } => match message.answer_text() {
                text if text.is_empty() => ReplyText::Nothing,
                text => ReplyText::Whole(text, message.images().cloned().collect()),
            },
            DialogEvent::HistoryCarried { .. }
            | DialogEvent::Reported { .. }
            | DialogEvent::Asked { .. }
            | DialogEvent::Answered { .. }
            | DialogEvent::Injected { .. }
            | DialogEvent::InboxShown { .. } => ReplyText::Nothing,
        },
        EventView::Step(event) => match event {
            StepEvent::StepFailed { .. } | StepEvent::TurnSkipped { .. } => ReplyText::Void,
            StepEvent::RoundEnded { worked, .. } => ReplyText::RoundEnd { worked },
            // What it said stays, and is not said again.
            StepEvent::PushedBack { .. }
            | StepEvent::Usage { .. }
            | StepEvent::PlanDecided { .. }
            | StepEvent::ReplayDiverged { .. }
            | StepEvent::FinalizeRequested { .. } => ReplyText::Nothing,
        },
        EventView::Lifecycle(event) => match event {
            LifecycleEvent::Finalizing { ending } if ending.is_refusal() => ReplyText::Refused,
            LifecycleEvent::Finalizing { .. }
            | LifecycleEvent::Queued { .. }
            | LifecycleEvent::Started { .. }
            | LifecycleEvent::Resumed { .. }
            | LifecycleEvent::Lost { .. }
            | LifecycleEvent::Blocked { .. }
            | LifecycleEvent::PauseRequested { .. }
            | LifecycleEvent::PauseEnded { .. }
            | LifecycleEvent::Adopted { .. }
            | LifecycleEvent::CancelRequested { .. }
            | LifecycleEvent::FinalizerStarted
            | LifecycleEvent::Finished { .. } => ReplyText::Nothing,
        },
        EventView::Call(event) => match event {
            CallEvent::ToolCallScheduled { is_own: false, .. }
            | CallEvent::ToolCallParked { .. } => ReplyText::Work,
            CallEvent::ToolCallScheduled { is_own: true, .. }
            | CallEvent::Marked { .. }
            | CallEvent::ToolResult { .. }
            | CallEvent::ToolCallRepeated { .. }
            | CallEvent::ChildRunLinked { .. }
            | CallEvent::ToolCallUpdated { .. }
            | CallEvent::ToolAuthorization { .. } => ReplyText::Nothing,
        },
        EventView::Account(_) => ReplyText::Nothing,
    }
}

/// The whole answer, like [`Reply`] but with all of its text, up to [`ARTIFACT_BYTES_MAX`] unless it
/// is [`Self::unbounded`].
#[derive(Default)]
pub struct WholeReply {
    text: String,
    whole: bool,
    too_long: bool,
    is_unbounded: bool,
    worked: bool,
    kept: Option<KeptWhole>,
}

/// The whole answer of the rounds before the present one.
struct KeptWhole {
    text: String,
    too_long: bool,
    worked: bool,
}

impl WholeReply {
    /// The answer for a reader, however long it is.
    #[must_use]
    pub fn unbounded() -> Self {
        Self { is_unbounded: true, ..Self::default() }
    }

    /// Takes one event into account.
    pub fn count(&mut self, event: &Event) {
        match reply_text(event) {
            ReplyText::Part(text) => {
                if !self.whole {
                    self.append(text);
                }
            }
            ReplyText::Whole(text, _) => {
                self.clear();
                self.whole = true;
                self.append(&text);
            }
            ReplyText::Void => {
                if !self.whole {
                    self.clear();
                }
            }
            ReplyText::Refused => self.clear(),
            ReplyText::Work => self.worked = true,
            ReplyText::RoundEnd { worked } => self.keep(worked),
            ReplyText::Nothing => {}
        }
    }

    fn clear(&mut self) {
        let Self { worked, kept, is_unbounded, .. } = std::mem::take(self);
        *self = Self { worked, kept, is_unbounded, ..Self::default() };
    }

    fn keep(&mut self, worked: bool) {
        let Self { text, too_long, kept, is_unbounded, .. } = std::mem::take(self);
        self.is_unbounded = is_unbounded;
        let kept_worked = kept.as_ref().is_some_and(|kept| kept.worked);
        // The text of one that is too long is cut, and there.
        self.kept = match replaces(&text, worked, kept_worked) {
            true => Some(KeptWhole { text, too_long, worked }),
            false => kept,
        };
    }

    fn append(&mut self, text: &str) {
        let bytes = self.text.len().saturating_add(text.len());
        self.too_long |= bytes > ARTIFACT_BYTES_MAX && !self.is_unbounded;
        if !self.too_long {
            self.text.push_str(text);
        }
    }

    /// True if a whole message was seen; nothing that was said in its round before it counts.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The text, trimmed; `None` if it is too long.
    pub fn into_text(self) -> Option<String> {
        let Self { text, too_long, worked, kept, .. } = self;
        let kept = kept.filter(|kept| !replaces(&text, worked, kept.worked));
        let (text, too_long) = kept.map_or((text, too_long), |kept| (kept.text, kept.too_long));
        (!too_long).then(|| text.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Ending;
    use crate::event::StepPrefix;
    use crate::message::{Message, Part, Role};
    use crate::status::StopReason;

    fn chunk(text: &str) -> Event {
        Event::AssistantChunk { text: text.to_owned() }
    }

    fn whole(text: &str) -> Event {
        let message = Message::text(Role::Assistant, text);
        Event::AssistantMessage { message, usage: None, model: None, streamed: false }
    }

    fn reply(events: &[Event]) -> Reply {
        let mut reply = Reply::default();
        events.iter().for_each(|event| reply.count(event));
        reply
    }

    #[test]
    fn parts_are_joined_until_a_whole_message_replaces_them() {
        let failed =
            Event::StepFailed { turn: 1, attempt: 1, error: String::new(), retry_after_ms: 0 };
        let restarted = |events| {
            let kept = StepPrefix { events, ..StepPrefix::default() };
            Event::StepRestarted { turn: 1, kept }
        };
        let ended = |code| {
            let ending = Ending::failed(StopReason::AgentError, "no").coded(code);
            Event::Finalizing { ending }
        };
        let refused = || ended(Some("model-refused"));
        let table: &[(&[Event], Option<&str>)] = &[
            (&[], None),
            (&[chunk("a"), chunk("b")], Some("ab")),
            (&[chunk("a"), chunk("b"), whole("abc")], Some("abc")),
            (&[chunk("a"), whole("abc"), chunk("d")], Some("abc")),
            (&[whole("first"), whole("second")], Some("second")),
            (&[whole("first"), whole("")], Some("first")),
            (&[chunk("  a"), chunk(" b  ")], Some("a b")),
            (&[chunk("a"), failed.clone(), chunk("ab")], Some("ab")),
            (&[chunk("a"), restarted(0), chunk("ab")], Some("ab")),
            (&[chunk("a"), restarted(1), chunk("b")], Some("ab")),
            (&[whole("a"), chunk("b"), failed], Some("a")),
            (&[chunk("I could"), refused()], None),
            (&[whole("a"), chunk("I could"), refused()], None),
            (&[chunk("as far as"), ended(None)], Some("as far as")),
        ];
        for (events, expected) in table {
            assert_eq!(reply(events).result().as_deref(), *expected, "{events:?}");
        }
    }

    #[test]
    fn structured_data_is_an_answer_where_there_is_no_text() {
        let json = Part::Json("{\"a\":1}".to_owned());
        let message = Message { role: Role::Assistant, parts: vec![json].into() };
        let event = Event::AssistantMessage { message, usage: None, model: None, streamed: false };
        assert_eq!(reply(&[event]).result().as_deref(), Some("{\"a\":1}"));
    }

    #[test]
    fn a_long_answer_is_cut_between_characters_and_says_so() {
        let long = "ä".repeat(RESULT_CHARS_MAX + 1);
        let cut = reply(&[whole(&long)]);
        assert_eq!(cut.result().map(|t| t.chars().count()), Some(RESULT_CHARS_MAX));
        assert!(cut.is_cut());
        assert_eq!(cut.bytes(), 2 * (RESULT_CHARS_MAX as u64 + 1));
        let fits = reply(&[whole(&format!("{}  \n", "ä".repeat(RESULT_CHARS_MAX)))]);
        assert!(!fits.is_cut());
    }
}
