//! The identity of an open store: database and log are still the files that were opened.
//!
//! A file that was removed or renamed can be written on for ever, and nobody ever reads what is
//! written. So each group of transactions is acknowledged only after a look at what stands at the
//! paths. Nothing is opened for that: a handle that is closed would lose SQLite's locks on the
//! file.

use std::fs::metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use taskrun_journal::store::StoreError;

use super::fault::io_error;
use super::store_path::{LOG_NAME, StorePath};

/// Device and inode of a file.
pub(crate) type FileId = (u64, u64);

/// Database and log as they were opened. Clones are the same pair.
#[derive(Clone)]
pub(crate) struct Identity(Arc<Inner>);

struct Inner {
    shown: String,
    /// The log is there, and the same file, for as long as a connection is: only the last one that
    /// closes removes it.
    files: [(PathBuf, FileId); 2],
    replaced: AtomicBool,
}

impl Identity {
    /// The files of a store that a connection of this process has open.
    pub(crate) fn of(place: &StorePath) -> Result<Self, StoreError> {
        let file = |path: PathBuf| {
            let id = id_at(&path).map_err(|error| io_error(&path, &error))?;
            Ok::<_, StoreError>((path, id))
        };
        let files = [file(place.file.clone())?, file(place.dir.join(LOG_NAME))?];
        let replaced = AtomicBool::new(false);
        Ok(Self(Arc::new(Inner { shown: place.shown.clone(), files, replaced })))
    }

    /// The database of the pair.
    pub(crate) fn database(&self) -> FileId {
        let [(_, database), _] = &self.0.files;
        *database
    }

    /// # Errors
    /// [`StoreError::Replaced`], for ever from then on, if one of the files is not what stands at
    /// its path; [`StoreError`] for what keeps this from being found out, after which it may be
    /// again.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let inner = &*self.0;
        let replaced = || StoreError::Replaced { path: inner.shown.clone() };
        if inner.replaced.load(Ordering::SeqCst) {
            return Err(replaced());
        }
        for (path, id) in &inner.files {
            let gone = match id_at(path) {
                Ok(found) => found != *id,
                Err(error) if is_gone(&error) => true,
                Err(error) => return Err(io_error(path, &error)),
            };
            if gone {
                inner.replaced.store(true, Ordering::SeqCst);
                return Err(replaced());
            }
        }
        Ok(())
    }
}

/// The database that stands in its place now.
pub(crate) fn database_at(place: &StorePath) -> Result<FileId, StoreError> {
    id_at(&place.file).map_err(|error| io_error(&place.file, &error))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn id_at(path: &Path) -> io::Result<FileId> {
    metadata(path).map(|found| (found.dev(), found.ino()))
}
