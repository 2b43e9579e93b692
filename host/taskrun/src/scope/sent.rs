//! The text that a call has sent in parts, which observers have seen.

use taskrun_journal::event::Event;
use taskrun_journal::message::Message;

/// The parts of text since the last whole message, joined. The bounds of events are its bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentText(String);

impl SentText {
    /// Takes one event of the call into account.
    pub(super) fn count(&mut self, event: &Event) {
        if let Event::AssistantChunk { text } = event {
            self.0.push_str(text);
        } else if let Event::AssistantMessage { .. } = event {
            self.0.clear();
        }
    }

    /// True if the parts are the text of `message`, which observers need not be shown again.
    #[must_use]
    pub(crate) fn is_text_of(&self, message: &Message) -> bool {
        !self.0.is_empty() && self.0 == message.joined_text()
    }
}
