//! Errors of stores.

use crate::format::JournalFormat;

/// A bound that keeps a run from being accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionBound {
    /// [`super::Admission::queue_max`].
    Queue,
    /// [`super::Admission::tree_max`].
    Tree,
    /// [`super::Admission::at_once`].
    Slots,
}

/// Why a store could not do its work.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Another program keeps the store locked.
    #[error("the store {path} is locked by another program")]
    Locked {
        /// Its file.
        path: String,
    },
    /// The store was written by a program of another version.
    #[error("unsupported store version {found} in {path}; this program knows version {known}")]
    Version {
        /// Its file.
        path: String,
        /// Version of the store.
        found: i64,
        /// The version that is known.
        known: i64,
    },
    /// A later program wrote journals into the store, in a format that this one does not know.
    #[error(
        "journals in {path} are of format {found}, written by a later taskrun; this program knows \
         format {known}"
    )]
    Format {
        /// Its file.
        path: String,
        /// The latest format in the store.
        found: JournalFormat,
        /// The latest one that is known.
        known: JournalFormat,
    },
    /// The file is not a store, or is damaged.
    #[error("the store {path} is damaged or not a store: {detail}")]
    Corrupt {
        /// Its file.
        path: String,
        /// The damage, in words.
        detail: String,
    },
    /// No space is left.
    #[error("no space is left for the store {path}")]
    Full {
        /// Its file.
        path: String,
    },
    /// The store cannot be read, as there is no room on its disk for the index of its log.
    #[error("no space is left to read the store {path}: {bytes} bytes are missing on its disk")]
    NoRoom {
        /// Its file.
        path: String,
        /// The number of bytes.
        bytes: u64,
    },
    /// The store cannot be written.
    #[error("the store {path} cannot be written: {detail}")]
    ReadOnly {
        /// Its file.
        path: String,
        /// The words of the operating system.
        detail: String,
    },
    /// The store cannot be reached.
    #[error("the store {path} cannot be opened: {detail}")]
    Unavailable {
        /// Its file.
        path: String,
        /// The words of the operating system.
        detail: String,
    },
    /// The files where the store was opened are not that store any more, and never will be: nothing
    /// more is read or written, and the last writes may be lost.
    #[error("the store {path} was removed or replaced while it was in use")]
    Replaced {
        /// Its file.
        path: String,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// The record can never be kept, as it is too large or contradicts what is there.
    #[error("the store {path} cannot keep this: {detail}")]
    Refused {
        /// Its file.
        path: String,
        /// The words of the store.
        detail: String,
    },
    /// It is not known whether the last operation took effect.
    #[error("the store did not say whether the last change took effect: {detail}")]
    Unknown {
        /// The words of the store.
        detail: String,
    },
}

impl StoreError {
    /// The word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "store-locked",
            Self::Version { .. } => "store-version",
            Self::Format { .. } => "journal-format",
            Self::Corrupt { .. } => "store-corrupt",
            Self::Full { .. } | Self::NoRoom { .. } => "store-full",
            Self::ReadOnly { .. } => "store-read-only",
            Self::Unavailable { .. } => "store-unavailable",
            Self::Replaced { .. } => "store-replaced",
            Self::Closed => "store-closed",
            Self::Refused { .. } => "store-refused",
            Self::Unknown { .. } => "store-unknown",
        }
    }

    /// True if the same may be possible later: another program may free the store, or the disk may
    /// have room again.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Locked { .. }
            | Self::Full { .. }
            | Self::NoRoom { .. }
            | Self::ReadOnly { .. }
            | Self::Unavailable { .. }
            | Self::Unknown { .. } => true,
            Self::Version { .. }
            | Self::Format { .. }
            | Self::Corrupt { .. }
            | Self::Replaced { .. }
            | Self::Refused { .. }
            | Self::Closed => false,
        }
    }

    /// True if this process can never use the store again: the files are others, or a later program
    /// writes them.
    #[must_use]
    pub fn is_for_ever(&self) -> bool {
        match self {
            Self::Replaced { .. } | Self::Format { .. } | Self::Version { .. } => true,
            Self::Locked { .. }
            | Self::Full { .. }
            | Self::NoRoom { .. }
            | Self::ReadOnly { .. }
            | Self::Unavailable { .. }
            | Self::Unknown { .. }
            | Self::Corrupt { .. }
            | Self::Refused { .. }
            | Self::Closed => false,
        }
    }
}
