//! Cassettes: what models were asked and what they said, a JSON object a line.
//!
//! ```json
//! {"request": {…}, "responses": [{"text": "4"}, {"stop": {…}}]}
//! {"request": {…}, "responses": [], "error": {"rate_limited": {"retry_after_ms": null}}}
//! ```
//!
//! `request` is the whole [`CompletionRequest`], `responses` are the chunks as they came, in the
//! form that the journal has them in, and `error` is what ended the answer where something did.
//! No key is in it; what was said is.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use taskrun_journal::completion::{Chunk, CompletionRequest, ModelError};

use crate::regular_file::open_regular;

/// Most bytes of a line: a conversation and an answer, each as large as they may be.
pub(crate) const CASSETTE_LINE_BYTES_MAX: usize = 64 << 20;
/// Most entries of a cassette that is played: all are kept in memory.
pub(crate) const CASSETTE_ENTRIES_MAX: usize = 100_000;
/// Most bytes of a cassette that is played, for the same reason.
pub(crate) const CASSETTE_BYTES_MAX: u64 = 1 << 30;

/// One question and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) request: CompletionRequest,
    #[serde(default)]
    pub(crate) responses: Vec<Chunk>,
    /// `canceled`, if the caller did not want the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<ModelError>,
}

/// The reason that a cassette cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CassetteError {
    /// The file cannot be read, or written to.
    #[error("the cassette {path} cannot be used")]
    File {
        /// The file that cannot be read or written.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Nothing is recorded in it.
    #[error("the cassette {path} is empty")]
    Empty {
        /// The cassette's file.
        path: PathBuf,
    },
    /// It has more than a host keeps in memory.
    #[error("the cassette {path} has more than {limit}")]
    TooLarge {
        /// The cassette's file.
        path: PathBuf,
        /// The bound that it met.
        limit: String,
    },
    /// A line is no entry.
    #[error("{path}:{line}: not an entry of a cassette: {detail}")]
    Line {
        /// The cassette's file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault of the entry.
        detail: String,
    },
}

/// Reads a cassette. An entry that was cut off, by a full disk or the death of its host, is passed
/// over: those before it and behind it are whole.
///
/// # Errors
/// [`CassetteError`].
pub(crate) fn load(path: &Path) -> Result<Vec<Entry>, CassetteError> {
    let unusable = |source| CassetteError::File { path: path.to_owned(), source };
    let too_large = |limit: String| CassetteError::TooLarge { path: path.to_owned(), limit };
    let file = open_regular(OpenOptions::new().read(true), path).map_err(unusable)?;
    let mut lines = BufReader::new(file.take(CASSETTE_BYTES_MAX + 1));
    let (mut entries, mut bytes, mut text, mut number) = (Vec::new(), 0_u64, Vec::new(), 0);
    loop {
        text.clear();
        let read = lines.read_until(b'\n', &mut text).map_err(unusable)?;
        if read == 0 {
            break;
        }
        number += 1;
        bytes += read as u64;
        if bytes > CASSETTE_BYTES_MAX {
            return Err(too_large(format!("{CASSETTE_BYTES_MAX} bytes")));
        }
        let line = text.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if line.len() > CASSETTE_LINE_BYTES_MAX {
            return Err(too_large(format!("{CASSETTE_LINE_BYTES_MAX} bytes in a line")));
        }
        if entries.len() == CASSETTE_ENTRIES_MAX {
            return Err(too_large(format!("{CASSETTE_ENTRIES_MAX} entries")));
        }
        match serde_json::from_slice(line) {
            Ok(entry) => entries.push(entry),
            Err(_) if is_fragment(line) => {
                let path = path.display();
                tracing::warn!(%path, line = number, "an entry that was cut off is passed over");
            }
            Err(error) => {
                let (path, detail) = (path.to_owned(), error.to_string());
                return Err(CassetteError::Line { path, line: number, detail });
            }
        }
    }
    if entries.is_empty() {
        return Err(CassetteError::Empty { path: path.to_owned() });
    }
    Ok(entries)
}

/// True for the beginning of an object without its end.
fn is_fragment(line: &[u8]) -> bool {
    let parsed: Result<IgnoredAny, _> = serde_json::from_slice(line);
    line.starts_with(b"{") && parsed.is_err_and(|error| error.is_eof())
}

/// A cassette that is written.
#[derive(Debug)]
pub(crate) struct Writer {
    path: PathBuf,
    /// Opened for the first entry: who only looks at a policy leaves no file behind.
    file: Mutex<Option<File>>,
}

impl Writer {
    /// Looks whether entries can be added to the cassette, or whether it can be made.
    ///
    /// # Errors
    /// [`CassetteError::File`].
    pub(crate) fn new(path: &Path) -> Result<Self, CassetteError> {
        let unusable = |source| CassetteError::File { path: path.to_owned(), source };
        if path.exists() {
            opened(path).map_err(unusable)?;
        } else {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let is_folder = folder.unwrap_or(Path::new(".")).metadata().map_err(unusable)?.is_dir();
            if !is_folder {
                return Err(unusable(std::io::ErrorKind::NotADirectory.into()));
            }
        }
        Ok(Self { path: path.to_owned(), file: Mutex::default() })
    }

    /// Adds an entry. It is in the file when this returns, as one write, so that several hosts may
    /// record into the same. A failure is logged and changes nothing else: the run matters more.
    pub(crate) fn add(&self, entry: &Entry) {
        if let Err(error) = self.try_add(entry) {
            let path = self.path.display();
            tracing::error!(%path, %error, "an answer is not recorded");
        }
    }

    fn try_add(&self, entry: &Entry) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = Some(opened(&self.path)?);
        }
        let Some(file) = file.as_mut() else { return Ok(()) };
        if !ends_with_line(file)? {
            line.insert(0, b'\n');
        }
        file.write_all(&line)
    }
}

/// A cassette opened for entries at its end; made, for its owner alone, where there is none.
fn opened(path: &Path) -> std::io::Result<File> {
    open_regular(OpenOptions::new().read(true).append(true).create(true).mode(0o600), path)
}

/// True if the next entry has a line of its own: an entry that was cut off, of this host or of
/// another one, would spoil it.
fn ends_with_line(file: &File) -> std::io::Result<bool> {
    let Some(last) = file.metadata()?.len().checked_sub(1) else { return Ok(true) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte == *b"\n")
}
