//! Looks at a data directory in which blobs are to be kept.

use std::io;
use std::path::PathBuf;

use super::files::{entries, open_regular};
use super::{BlobError, Blobs, PINS, SNAPSHOT_BYTES_MAX};

impl Blobs {
    /// Writes a file where blobs are written first, and removes it. Where there are no blobs yet
    /// nothing is tried.
    ///
    /// # Errors
    /// [`BlobError::Io`]: no blob can be kept.
    pub fn try_writing(&self) -> Result<(), BlobError> {
        match self.folder.try_exists() {
            Ok(false) => Ok(()),
            Ok(true) => self.temporary()?.write(&[0]),
            Err(source) => Err(BlobError::Io { path: self.folder.clone(), source }),
        }
    }

    /// The files of texts under pins that this process cannot read.
    ///
    /// # Errors
    /// [`BlobError::Io`], if the folder cannot be read.
    pub fn unreadable_snapshots(&self) -> Result<Vec<PathBuf>, BlobError> {
        let is_unreadable = |path: &PathBuf| match open_regular(path, SNAPSHOT_BYTES_MAX) {
            Ok(_) => false,
            // One that is gone meanwhile is nobody's.
            Err(BlobError::Io { source, .. }) => source.kind() != io::ErrorKind::NotFound,
            Err(_) => true,
        };
        Ok(entries(&self.folder.join(PINS))?.into_iter().filter(is_unreadable).collect())
    }
}
