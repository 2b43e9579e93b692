//! Channels: named ways between a run and people outside, which it may share with runs beneath it.

use serde::{Deserialize, Serialize};

use crate::dispatch::SUBSCRIPTIONS_MAX;

/// Most channels of a run, each of which may be a subscriber of it.
pub const CHANNELS_MAX: usize = SUBSCRIPTIONS_MAX;

/// A channel as it is bound to a run. It is settled when the run is accepted; a run beneath it may be
/// given the very same binding, and never another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Its name, `[a-z][a-z0-9_-]{0,63}`.
    pub name: String,
    /// The subscriber at its other end, by kind and name as in `transport/mail`.
    pub to: String,
    /// The directions in which it is open, as people at its other end see it.
    #[serde(default, skip_serializing_if = "ChannelAccess::is_open")]
    pub access: ChannelAccess,
    /// True if nothing that is said at its other end is passed on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub muted: bool,
    /// True if terminals of the session do not show what is said over it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

/// The directions in which a channel is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelAccess {
    /// People there are told, and say something to the run.
    #[default]
    ReadWrite,
    /// They are told, and say nothing.
    ReadOnly,
    /// They say something, and are told nothing.
    WriteOnly,
}

impl ChannelAccess {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::ReadWrite, Self::ReadOnly, Self::WriteOnly];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadWrite => "read-write",
            Self::ReadOnly => "read-only",
            Self::WriteOnly => "write-only",
        }
    }

    /// True if it is open in both directions, which is not written down.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self == Self::ReadWrite
    }
}

impl Channel {
    /// True if its other end is told what the run answers.
    #[must_use]
    pub fn is_told(&self) -> bool {
        match self.access {
            ChannelAccess::ReadWrite | ChannelAccess::ReadOnly => true,
            ChannelAccess::WriteOnly => false,
        }
    }

    /// True if what is said at its other end is passed on to the run.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        match self.access {
            ChannelAccess::ReadWrite | ChannelAccess::WriteOnly => !self.muted,
            ChannelAccess::ReadOnly => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_muted_channel_is_told_and_not_heard() {
        let of = |access, muted| {
            let (name, to) = ("c".to_owned(), "file/c".to_owned());
            let channel = Channel { name, to, access, muted, hidden: false };
            (channel.is_told(), channel.is_heard())
        };
        let table = [
            (ChannelAccess::ReadWrite, (true, true), (true, false)),
            (ChannelAccess::ReadOnly, (true, false), (true, false)),
            (ChannelAccess::WriteOnly, (false, true), (false, false)),
        ];
        for (access, open, muted) in table {
            assert_eq!((of(access, false), of(access, true)), (open, muted), "{access:?}");
        }
    }
}
