//! Runs as files of their own: an export has all that is needed to execute the steps of a run again
//! over its record, on a machine that has nothing else of it.
//!
//! It is a tar under zstd: a list of its parts first (`export.json`), then the journal, those of the
//! runs that it continues, the policies that the run was accepted and executed under, the components
//! of its agents, and the images that its answers name. It is written and read in one pass, in whatever order it has, and a part that
//! the list does not name, or that has other bytes than the list says, is refused.

mod line;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use taskrun_journal::store::StoreError;

pub use self::read::Export;
pub use self::write::{ExportOptions, ExportSummary, export_run};

/// The form of exports. In the first one the policies say where their subscribers are; a program
/// that knows no other takes a policy without that for a wrong one.
pub const EXPORT_FORM: u32 = 2;
/// Most bytes of the list of parts.
const LIST_BYTES_MAX: u64 = 16 << 20;
/// Most parts: a run has a few policies, a handful of components, and images.
const PARTS_MAX: usize = 10_000;
/// Most bytes of all journals together, which are read into memory: four times what a run may write
/// by default.
pub(crate) const EXPORT_JOURNAL_BYTES_MAX: u64 = 1 << 30;
/// Most bytes of all parts together.
pub(crate) const EXPORT_BYTES_MAX: u64 = 8 << 30;
/// The name of the list of parts.
const LIST: &str = "export.json";
/// The name of the journal, one event a line.
const JOURNAL: &str = "journal.ndjson";
/// Folders of the other parts: the journals of the runs that the run continues are numbered from 1,
/// the latest first.
const BEFORE: &str = "before/";
const POLICIES: &str = "policies/";
const COMPONENTS: &str = "components/";
const ARTIFACTS: &str = "artifacts/";

/// The name of the journal of a run that the run continues, by its number.
fn before(number: usize) -> String {
    format!("{BEFORE}{number}.ndjson")
}

/// The first part of an export: what it is of, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportList {
    /// The form of the export, see [`EXPORT_FORM`].
    pub taskrun_export: u32,
    /// The version of the program that wrote it.
    pub program: String,
    /// The format of the events in it.
    pub journal_format: u16,
    /// Id of the run.
    pub run: String,
    /// Its agent.
    pub agent: String,
    /// Its events.
    pub events: u64,
    /// The models that its agents could ask, with what a run may notice of them.
    #[serde(default)]
    pub models: BTreeMap<String, ExportedModel>,
    /// The pins of the run whose policies or components are not in it, each with the reason. Steps
    /// under them are not executed again.
    #[serde(default)]
    pub missing: BTreeMap<String, String>,
    /// The other parts.
    pub parts: Vec<ExportPart>,
}

/// A model, as far as a run notices which one it is. Keys, addresses and prices are not among that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedModel {
    /// The tokens of its context window, if they are known: conversations are kept within it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u32>,
}

/// A part of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportPart {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// The BLAKE3 digest of them, 64 hexadecimal digits.
    pub blake3: String,
}

/// The reason that a run is not exported, or an export not read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store cannot be read.
    #[error("the run cannot be read")]
    Store(#[from] StoreError),
    /// A file cannot be read or written.
    #[error("{path}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The words of the operating system.
        source: std::io::Error,
    },
    /// The file is there already.
    #[error("{path} is there already", path = .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It is of a form that this program does not know.
    #[error(
        "{path} is an export of form {found}, and this program reads form {EXPORT_FORM} and \
         earlier ones",
        path = .path.display()
    )]
    Form {
        /// The file.
        path: PathBuf,
        /// The form.
        found: u32,
    },
    /// Its events are of a format that this program does not know.
    #[error(
        "{path} has events of format {found}, and this program reads format {known} and earlier \
         ones",
        path = .path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// The format.
        found: u16,
        /// The latest that this program reads.
        known: u16,
    },
    /// It is no export, or a damaged one.
    #[error("{path} is no whole export: {detail}", path = .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The fault, in words.
        detail: String,
    },
    /// It has more than it may.
    #[error("{path} has more than {limit} {what}", path = .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The things that are too many.
        what: &'static str,
        /// The most that it may have.
        limit: u64,
    },
    /// The host failed at it.
    #[error("internal error of the host; see its log")]
    Panicked,
}
