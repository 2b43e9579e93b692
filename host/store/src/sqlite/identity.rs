//! The identity of an open store: database, log and the log's index are still the files that were
//! opened.
//!
//! A file that was removed or renamed can be written on for ever, and nobody ever reads what is
//! written; and with another index a process knows neither where the log ends for others, nor their
//! locks. So each group of transactions is acknowledged only after a look at what stands at the
//! paths. Nothing is opened for that: a handle that is closed would lose SQLite's locks on the
//! file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use taskrun_journal::store::StoreError;

use super::fault::io_error;
use super::store_path::{INDEX_NAME, LOG_NAME, StorePath};

/// Device and inode of a file.
pub(crate) type FileId = (u64, u64);

/// Database, log and index as they were opened. Clones are the same files.
#[derive(Clone)]
pub(crate) struct Identity(Arc<Inner>);

struct Inner {
    shown: String,
    /// Log and index are there, and the same files, for as long as a connection is: only the last
    /// one that closes removes them.
    files: [(PathBuf, FileId); 3],
    replaced: AtomicBool,
}

impl Identity {
    /// The files of a store that a connection of this process has open.
    ///
    /// # Errors
    /// [`StoreError::Replaced`] if another database stands in the place by now, or one of the files
    /// is gone; [`StoreError`] for what keeps this from being found out.
    pub(crate) fn of(place: &StorePath, database: FileId) -> Result<Self, StoreError> {
        let replaced = || StoreError::Replaced { path: place.shown.clone() };
        let file = |path: PathBuf| match id_at(&path) {
            Ok(id) => Ok((path, id)),
            Err(error) if is_gone(&error) => Err(replaced()),
            Err(error) => Err(io_error(&path, &error)),
        };
        let (log, index) = (place.dir.join(LOG_NAME), place.dir.join(INDEX_NAME));
        let files = [file(place.file.clone())?, file(log)?, file(index)?];
        if files[0].1 != database {
            return Err(replaced());
        }
        let replaced = AtomicBool::new(false);
        Ok(Self(Arc::new(Inner { shown: place.shown.clone(), files, replaced })))
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

/// The file at a path. Its times are not asked for: Linux (6.13 and later) gives a file whose times
/// somebody has seen new ones with each write that follows, and without that only with each tick. Where
/// the disk is waited for with `fsync`, or knows no difference, these are waited for, too.
#[cfg(target_os = "linux")]
fn id_at(path: &Path) -> io::Result<FileId> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

    match statx(CWD, path, AtFlags::empty(), StatxFlags::INO) {
        Ok(found) => Ok((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino)),
        // A sandbox that knows no such call.
        Err(rustix::io::Errno::NOSYS) => metadata_id(path),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn id_at(path: &Path) -> io::Result<FileId> {
    metadata_id(path)
}

fn metadata_id(path: &Path) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;

    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_identity_that_its_metadata_say() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("some");
        assert!(is_gone(&id_at(&file).expect_err("it is not there")));
        std::fs::write(&file, "text").expect("written");
        assert_eq!(id_at(&file).expect("told"), metadata_id(&file).expect("told"));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).expect("made");
        assert_eq!(id_at(&link).expect("told"), metadata_id(&file).expect("told"));
    }
}
