//! Answers of what is outside of a run to a plan step that asks it itself, and not through a tool:
//! files, servers, and the host's account of its budget.
//!
//! They are plain data, so that a step that runs again is given the same.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::event::Reply;

/// Most bytes that the journal keeps of the answers of one plan step: as many as it may read of its
/// instructions and some files. Beyond it none of the step is kept any more.
pub const OUTSIDE_BYTES_MAX: u64 = 1 << 20;

/// The answer to a request of a plan step to what is outside of its run, by the kind of request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutsideAnswer {
    /// The rest of its budget.
    Budget(BudgetLeft),
    /// The entries of a folder.
    Listing(Reply<FileListing, FileFault>),
    /// The entry at a path.
    Entry(Reply<FileEntry, FileFault>),
    /// Part of a file.
    File(Reply<KeptBytes, FileFault>),
    /// Nothing but that a file or a folder was changed.
    Change(Reply<(), FileFault>),
    /// That of a server.
    Http(Reply<HttpAnswer, HttpFault>),
}

impl OutsideAnswer {
    /// The request that it answers, in a word or two.
    #[must_use]
    pub fn request(&self) -> &'static str {
        match self {
            Self::Budget(_) => "budget",
            Self::Listing(_) => "folder",
            Self::Entry(_) => "entry",
            Self::File(_) => "file",
            Self::Change(_) => "change of a file",
            Self::Http(_) => "http",
        }
    }
}

/// The rest of a budget, as a guest is told it; `None` is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetLeft {
    /// Until the call is stopped.
    pub call_time_ms: u64,
    /// Turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u32>,
    /// Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Calls that may fail in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_failures: Option<u32>,
    /// Money, in millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
}

/// The kind of an entry of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// Anything else.
    Other,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path from the workspace.
    pub path: String,
    /// Its kind.
    pub kind: FileKind,
    /// Bytes of a file.
    pub size: u64,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<u64>,
}

/// Entries of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileListing {
    /// The entries, sorted by path.
    pub entries: Vec<FileEntry>,
    /// True if some were left out.
    pub truncated: bool,
}

/// The reason that an operation on files failed, but for a refusal by a rule: that is decided anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileFault {
    /// It is about one of the host's own files.
    OwnFile,
    /// Nothing is there.
    NotFound,
    /// The path is none, or goes through a link.
    InvalidPath(String),
    /// It is no regular file.
    NotAFile,
    /// It is no folder.
    NotADirectory,
    /// Something is there.
    AlreadyExists,
    /// The bound that was met, in words.
    Limit(String),
    /// Anything else, in words.
    Other(String),
}

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpAnswer {
    /// Its status.
    pub status: u16,
    /// Its headers, in order.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: KeptBytes,
}

/// The reason that no server answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpFault {
    /// The address is none that a guest may reach.
    Denied {
        /// The part of the request that is refused.
        subject: String,
        /// The reason for the guest.
        reason: String,
        /// The reason for operators.
        operator: String,
    },
    /// The request is not of the right form.
    Invalid(String),
    /// The name does not resolve, or nothing answers at the address.
    Unreachable(String),
    /// It took too long.
    Timeout,
    /// A bound was met.
    Limit(String),
    /// Anything else, in words.
    Other(String),
}

/// Bytes in a journal: text where they are UTF-8, in Base64 otherwise.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptBytes {
    /// Text.
    Text(String),
    /// Base64, with padding.
    Base64(String),
}

/// As what they stand for may be long, only their number is shown.
impl fmt::Debug for KeptBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{} bytes", text.len()),
            Self::Base64(text) => write!(f, "{} characters of Base64", text.len()),
        }
    }
}

impl From<Vec<u8>> for KeptBytes {
    fn from(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(other) => Self::Base64(STANDARD.encode(other.as_bytes())),
        }
    }
}

impl KeptBytes {
    /// The bytes; `None` if they are no Base64.
    #[must_use]
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.into_bytes()),
            Self::Base64(text) => STANDARD.decode(text).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_as_text_where_they_are_and_come_back_as_they_were() {
        for (bytes, is_text) in [(&b"a\n\xc3\xa9"[..], true), (b"", true), (b"\xff\0\x80", false)] {
            let kept = KeptBytes::from(bytes.to_vec());
            assert_eq!(matches!(kept, KeptBytes::Text(_)), is_text);
            let json = serde_json::to_string(&kept).expect("plain data");
            let read: KeptBytes = serde_json::from_str(&json).expect("as it was written");
            assert_eq!(read.into_bytes().as_deref(), Some(bytes));
        }
        assert_eq!(KeptBytes::Base64("?".to_owned()).into_bytes(), None);
    }
}
