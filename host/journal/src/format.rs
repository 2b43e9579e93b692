//! The format of journals.

use std::fmt;

/// The format in which a program writes journals, by number: the form of events, and of the digests
/// of questions in them. A program reads its own and all before it, and no later one.
///
/// The number goes up when an event is written otherwise than before, or may hold a variant that it
/// did not; the last format then gets a folder of examples (`tests/formats`), and that of the one
/// before stays. Stores keep the number of the latest format that anything in them was written in, so
/// that a program which does not know it touches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalFormat(pub u16);

impl JournalFormat {
    /// The first one.
    pub const FIRST: Self = Self(1);
    /// The one that this program writes.
    pub const CURRENT: Self = Self(3);
}

impl Default for JournalFormat {
    fn default() -> Self {
        Self::CURRENT
    }
}

impl fmt::Display for JournalFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
