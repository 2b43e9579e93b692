//! Pauses of a run, and what it is told while it works or waits.

use serde::{Deserialize, Serialize};

use crate::hold::{Hold, Lane};
use crate::time::Timestamp;

/// Most messages that wait for the next turn of a run.
pub const INBOX_MESSAGES_MAX: u32 = 64;
/// Most bytes of them together: as much as one answer, as they become part of the conversation.
pub const INBOX_BYTES_MAX: u64 = 64 << 10;

/// A pause, from the request to its end.
///
/// It lies over what the run is and waits for, and changes neither: a run that was paused in the
/// queue stays `queued`, one that waits stays `blocked` and takes answers. Only nobody may have it
/// meanwhile. A host that has it comes first to the next point at which nothing is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// When it was asked for.
    pub since: Timestamp,
    /// The person or program that asked.
    pub by: String,
    /// In words, from whoever asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it is over in any case; `None` if only somebody's word ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The hold that the run has when it is over; `None` while a host has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Hold>,
}

/// Why a pause ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseEnd {
    /// Somebody resumed the run.
    Resumed,
    /// Its time was over.
    DeadlineExceeded,
    /// The run was canceled.
    Canceled,
    /// The work that was under way when the run was paused came to the end of the run.
    Ended,
}

impl PauseEnd {
    /// The word that the journal uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resumed => "resumed",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Canceled => "canceled",
            Self::Ended => "ended",
        }
    }
}

impl Pause {
    /// True once its time is over.
    #[must_use]
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// Lays it over a run that nobody holds and whose hold would be `then`: nobody may have the
    /// run, or whoever has a slot when the time is over.
    pub(crate) fn cover(&mut self, then: Hold) -> Hold {
        let lane = match &then {
            Hold::Wanted { lane, .. } => *lane,
            Hold::Nobody | Hold::Beat | Hold::Runs { .. } | Hold::Host { .. } => Lane::Resume,
        };
        self.then = Some(then);
        match self.until {
            Some(not_before) => Hold::Wanted { lane, not_before },
            None => Hold::Nobody,
        }
    }
}

/// The messages that wait for the next turn of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inbox {
    /// Messages.
    pub messages: u32,
    /// Their bytes.
    pub bytes: u64,
}

impl Inbox {
    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The same with more.
    #[must_use]
    pub(crate) fn with(self, texts: impl IntoIterator<Item: AsRef<str>>) -> Self {
        texts.into_iter().fold(self, |inbox, text| Self {
            messages: inbox.messages.saturating_add(1),
            bytes: inbox.bytes.saturating_add(text.as_ref().len() as u64),
        })
    }
}
