//! Files and folders: their times, and that they are on the disk.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, UTIME_NOW};

use super::BlobError;

/// Age of a file that is being written beside its place at which nobody writes it any more: writing
/// it makes it young.
pub(super) const LEFT_AFTER: Duration = Duration::from_secs(60 * 60);
/// Time since the last change of a folder after which it is on the disk, as far as anybody can tell.
pub(super) const SYNCED_AFTER: Duration = Duration::from_secs(60);

/// Opens a regular file without waiting, and gives its length: a pipe would have its reader wait for a
/// writer. `None` if it is of another kind.
///
/// # Errors
/// Those of the operating system.
pub fn open_regular_file(path: &Path) -> io::Result<Option<(File, u64)>> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    Ok(meta.is_file().then_some((file, meta.len())))
}

/// The same for a file of at most so many bytes.
pub(super) fn open_regular(path: &Path, limit: u64) -> Result<File, BlobError> {
    let at = || path.to_owned();
    match open_regular_file(path) {
        Ok(Some((_, bytes))) if bytes > limit => Err(BlobError::TooLarge { path: at(), limit }),
        Ok(Some((file, _))) => Ok(file),
        Ok(None) => Err(BlobError::NotAFile { path: at() }),
        Err(source) => Err(BlobError::Io { path: at(), source }),
    }
}

/// Makes a file young, and gives the time of that by the clock of its file system, which is another
/// machine's at times; `None` if it is not there.
pub(super) fn renew(path: &Path) -> Result<Option<SystemTime>, BlobError> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let renewed = rustix::fs::utimensat(CWD, path, &times, AtFlags::empty());
    let renewed = renewed.map_err(io::Error::from);
    match renewed.and_then(|()| path.metadata()?.modified()) {
        Ok(now) => Ok(Some(now)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(BlobError::Io { path: path.to_owned(), source }),
    }
}

/// Says whether a name may have come to a folder, or gone, less than [`SYNCED_AFTER`] ago.
pub(super) fn has_changed(folder: &Path, now: SystemTime) -> bool {
    let changed_at = folder.metadata().and_then(|meta| meta.modified()).ok();
    let age = changed_at.and_then(|at| now.duration_since(at).ok());
    age.is_none_or(|age| age < SYNCED_AFTER)
}

/// Makes a folder that only its owner reads, so that it is there after a loss of power too.
pub(super) fn make(folder: &Path) -> Result<(), BlobError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => folder.parent().map_or(Ok(()), sync_folder),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(BlobError::Io { path: folder.to_owned(), source }),
    }
}

/// Removes the files of a folder that nobody has written for [`LEFT_AFTER`].
pub(super) fn remove_left(folder: &Path) -> Result<(), BlobError> {
    let Some(now) = renew(folder)? else { return Ok(()) };
    for path in entries(folder)? {
        let written_at = path.metadata().and_then(|meta| meta.modified());
        let age = written_at.ok().and_then(|at| now.duration_since(at).ok());
        if age.is_some_and(|age| age > LEFT_AFTER) {
            // Another process removes it at the same time, or it stays in nobody's way.
            std::fs::remove_file(&path).ok();
        }
    }
    Ok(())
}

pub(super) fn sync_folder(folder: &Path) -> Result<(), BlobError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| BlobError::Io { path: folder.to_owned(), source })
}

/// The paths of all that is in a folder; none, if that is not there.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, BlobError> {
    let failed = |source| BlobError::Io { path: folder.to_owned(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect()
}
