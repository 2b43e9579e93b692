//! The files of a store in its data directory.

use std::path::{Path, PathBuf};

/// Names of a store's files in its data directory: the database, its log, and the log's index.
///
/// While a process has the store open, nothing but SQLite may open any of them in that process:
/// with any handle that is closed the kernel drops all locks of the process on the file, and a
/// program that closes the store takes itself for the last one then, and removes the log.
pub const FILE_NAMES: [&str; 3] = [FILE_NAME, LOG_NAME, INDEX_NAME];
/// Name of the file in the data directory.
pub(crate) const FILE_NAME: &str = "taskrun.db";
/// Name of its log.
pub(crate) const LOG_NAME: &str = "taskrun.db-wal";
/// Name of the log's index.
pub(crate) const INDEX_NAME: &str = "taskrun.db-shm";

/// The paths of a store.
#[derive(Clone, Debug)]
pub(crate) struct StorePath {
    pub(crate) dir: PathBuf,
    pub(crate) file: PathBuf,
    /// The file as errors name it.
    pub(crate) shown: String,
}

/// The paths of the store of a data directory.
pub(crate) fn store_path(dir: &Path) -> StorePath {
    let file = dir.join(FILE_NAME);
    StorePath { dir: dir.to_owned(), shown: file.display().to_string(), file }
}
