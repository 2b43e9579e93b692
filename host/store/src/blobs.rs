//! Bytes that runs need for as long as they last: the components that they execute, by the digest of
//! their bytes, and the policies that they were accepted under, by the pins of agents.
//!
//! A blob is there whole or not at all: it is written beside its place, synced, and moved there. The
//! calls are synchronous and wait for the disk.

mod files;
mod probe;
mod removal;
mod synced;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

pub use self::files::open_regular_file;
use self::files::{entries, has_changed, make, open_regular, remove_left, renew, sync_folder};
pub use self::removal::{BlobHold, BlobRemoval, RemovedBlobs};
use self::synced::SyncedFiles;

/// Folder of the blobs in a data directory.
const FOLDER: &str = "blobs";
/// Folder in it of what is named by a pin.
const PINS: &str = "pins";
/// Folder in it of what is being written.
const TEMPORARY: &str = "tmp";
/// Most bytes of the text under a pin: a policy with its prompts.
const SNAPSHOT_BYTES_MAX: u64 = 64 << 20;
/// Folders above a blob that may be made for it.
const FOLDERS: usize = 2;
/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 16;
/// Digits of the digest that name the folder of a blob.
const FOLDER_DIGITS: usize = 2;

/// Numbers the files that this process writes.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// The blobs of a data directory. Any number of processes may use the same ones.
#[derive(Clone, Debug)]
pub struct Blobs {
    folder: PathBuf,
    synced: SyncedFiles,
}

/// The reason that a blob cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// A file cannot be read or written.
    #[error("{path}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The words of the operating system.
        source: io::Error,
    },
    /// It is no regular file.
    #[error("{path} is no regular file", path = .path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// It has more bytes than it may.
    #[error("{path} has more than {limit} bytes", path = .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most bytes that it may have.
        limit: u64,
    },
    /// The bytes are others than those that were written.
    #[error("{path} is damaged", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A pin is none.
    #[error("{0:?} is no pin")]
    BadPin(String),
}

/// A blob that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobInfo {
    /// The digest of its bytes.
    pub digest: blake3::Hash,
    /// Its bytes.
    pub bytes: u64,
    /// When it was written, or wanted again.
    pub renewed_at: SystemTime,
}

impl Blobs {
    /// The blobs of a data directory, whose folder is made if it is not there. Removes what processes
    /// that were killed have left half written.
    ///
    /// # Errors
    /// [`BlobError::Io`].
    pub fn open(data_dir: &Path) -> Result<Self, BlobError> {
        let folder = data_dir.join(FOLDER);
        for dir in [folder.clone(), folder.join(PINS), folder.join(TEMPORARY)] {
            make(&dir)?;
        }
        remove_left(&folder.join(TEMPORARY))?;
        Ok(Self { folder, synced: SyncedFiles::default() })
    }

    /// The same for somebody who only looks: a folder that is not there stands for one without
    /// blobs, and is not made. Nothing can be kept in it.
    #[must_use]
    pub fn existing(data_dir: &Path) -> Self {
        Self { folder: data_dir.join(FOLDER), synced: SyncedFiles::default() }
    }

    /// The path of a blob, whether it is there or not.
    #[must_use]
    pub fn path(&self, digest: &blake3::Hash) -> PathBuf {
        let hex = digest.to_hex();
        let (folder, name) = hex.split_at(FOLDER_DIGITS);
        self.folder.join(folder).join(name)
    }

    /// Keeps the bytes of a file, which are hashed while they are copied, and gives their digest. Of
    /// a blob that is there already the time is renewed.
    ///
    /// # Errors
    /// [`BlobError`]. No blob is there then, unless it was before.
    pub fn put_file(&self, from: &Path, bytes_max: u64) -> Result<blake3::Hash, BlobError> {
        let mut source = open_regular(from, bytes_max)?;
        let mut temporary = self.temporary()?;
        let digest = copy(&mut source, (from, bytes_max), &mut temporary)?;
        let path = self.path(&digest);
        let size = temporary.size()?;
        let there = open_regular_file(&path).ok().flatten();
        let is_there = there.is_some_and(|(_, bytes)| bytes == size);
        // One that cannot be read or marked as wanted, as it is another user's, is written anew.
        if !(is_there && self.renew(&digest).unwrap_or(false)) {
            if let Some(folder) = path.parent() {
                make(folder)?;
            }
            temporary.move_to(&path)?;
        }
        Ok(digest)
    }

    /// Makes a blob that is damaged or gone whole from a file, and says whether the file has its bytes;
    /// nothing is changed if it has not.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn mend(
        &self,
        digest: &blake3::Hash,
        from: &Path,
        bytes_max: u64,
    ) -> Result<bool, BlobError> {
        let mut source = open_regular(from, bytes_max)?;
        let mut temporary = self.temporary()?;
        let is_same = copy(&mut source, (from, bytes_max), &mut temporary)? == *digest;
        if is_same {
            let path = self.path(digest);
            path.parent().map_or(Ok(()), make)?;
            temporary.move_to(&path)?;
        }
        Ok(is_same)
    }

    /// Says whether a text is there under a pin.
    ///
    /// # Errors
    /// [`BlobError::BadPin`].
    pub fn has_snapshot(&self, pin: &str) -> Result<bool, BlobError> {
        Ok(self.snapshot_path(pin)?.exists())
    }

    /// Says whether a text is there under a pin, and has it count as wanted now.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn renew_snapshot(&self, pin: &str) -> Result<bool, BlobError> {
        self.renew_file(&self.snapshot_path(pin)?)
    }

    /// Says whether a blob is there, and has it count as wanted now.
    ///
    /// # Errors
    /// [`BlobError::Io`].
    pub fn renew(&self, digest: &blake3::Hash) -> Result<bool, BlobError> {
        self.renew_file(&self.path(digest))
    }

    /// Says whether a file is there, which is on the disk with its folders then, and makes it young.
    fn renew_file(&self, path: &Path) -> Result<bool, BlobError> {
        let Some(now) = renew(path)? else { return Ok(false) };
        // Whoever moved it here just now may not have synced the folders yet. A folder has the time of
        // the last name that came to it or went, which neither renewing changes nor the time that it
        // took to write the file.
        let folders = path.ancestors().skip(1).take(FOLDERS);
        let mut changed = folders.filter(|folder| has_changed(folder, now)).peekable();
        if changed.peek().is_some() {
            self.synced.sync(path, || changed.try_for_each(sync_folder))?;
        }
        Ok(true)
    }

    /// Reads a blob and holds it against its digest; says whether it is there.
    ///
    /// # Errors
    /// [`BlobError::Damaged`], [`BlobError::Io`].
    pub fn check(&self, digest: &blake3::Hash) -> Result<bool, BlobError> {
        let path = self.path(digest);
        let mut file = match open_regular(&path, u64::MAX) {
            Ok(file) => file,
            Err(BlobError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let mut hasher = blake3::Hasher::new();
        let read = hasher.update_reader(&mut file);
        read.map_err(|source| BlobError::Io { path: path.clone(), source })?;
        match hasher.finalize() == *digest {
            true => Ok(true),
            false => Err(BlobError::Damaged { path }),
        }
    }

    /// The blobs that are there, without what stands under pins.
    ///
    /// # Errors
    /// [`BlobError::Io`].
    pub fn list(&self) -> Result<Vec<BlobInfo>, BlobError> {
        let mut all = Vec::new();
        for folder in entries(&self.folder)? {
            let Some(beginning) =
                folder.file_name().map(|name| name.to_string_lossy().into_owned())
            else {
                continue;
            };
            if beginning.len() != FOLDER_DIGITS {
                continue;
            }
            for file in entries(&folder)? {
                let end = file.file_name().map(|name| name.to_string_lossy().into_owned());
                let hex = format!("{beginning}{}", end.unwrap_or_default());
                let Ok(digest) = blake3::Hash::from_hex(hex) else { continue };
                let failed = |source| BlobError::Io { path: file.clone(), source };
                let meta = file.metadata().map_err(failed)?;
                let renewed_at = meta.modified().map_err(failed)?;
                all.push(BlobInfo { digest, bytes: meta.len(), renewed_at });
            }
        }
        all.sort_by_key(|blob| *blob.digest.as_bytes());
        Ok(all)
    }

    /// Keeps a text under a pin, `blake3:` and 64 hexadecimal digits, in place of the one before.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn put_snapshot(&self, pin: &str, text: &str) -> Result<(), BlobError> {
        let path = self.snapshot_path(pin)?;
        if text.len() as u64 > SNAPSHOT_BYTES_MAX {
            return Err(BlobError::TooLarge { path, limit: SNAPSHOT_BYTES_MAX });
        }
        // One that is damaged, or that only another user reads or marks as wanted, is of no use here,
        // and the new text takes its place.
        let there = self.snapshot(pin).unwrap_or(None);
        if there.is_some_and(|there| there == text) && self.renew_file(&path).unwrap_or(false) {
            return Ok(());
        }
        let mut temporary = self.temporary()?;
        temporary.write(text.as_bytes())?;
        temporary.move_to(&path)
    }

    /// The text under a pin; `None` if there is none.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn snapshot(&self, pin: &str) -> Result<Option<String>, BlobError> {
        let path = self.snapshot_path(pin)?;
        let mut file = match open_regular(&path, SNAPSHOT_BYTES_MAX) {
            Ok(file) => file,
            Err(BlobError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        match file.read_to_string(&mut text) {
            Ok(_) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(BlobError::Damaged { path })
            }
            Err(source) => Err(BlobError::Io { path, source }),
        }
    }

    fn snapshot_path(&self, pin: &str) -> Result<PathBuf, BlobError> {
        let hex = pin.strip_prefix("blake3:").filter(|hex| {
            hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        });
        let hex = hex.ok_or_else(|| BlobError::BadPin(pin.to_owned()))?;
        Ok(self.folder.join(PINS).join(hex))
    }

    fn temporary(&self) -> Result<Temporary, BlobError> {
        loop {
            let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{number}", std::process::id());
            let path = self.folder.join(TEMPORARY).join(name);
            let mut options = OpenOptions::new();
            match options.write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Ok(Temporary { file, path, is_moved: false }),
                // A process in another container may have the number of this one.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(BlobError::Io { path, source }),
            }
        }
    }
}

/// A file that is being written; without [`Self::move_to`] it is removed.
struct Temporary {
    file: File,
    path: PathBuf,
    is_moved: bool,
}

impl Temporary {
    fn failed(&self) -> impl FnOnce(io::Error) -> BlobError + use<> {
        let path = self.path.clone();
        |source| BlobError::Io { path, source }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        let failed = self.failed();
        self.file.write_all(bytes).map_err(failed)
    }

    fn size(&self) -> Result<u64, BlobError> {
        Ok(self.file.metadata().map_err(self.failed())?.size())
    }

    /// Gives the file its name, so that it is there after a loss of power too.
    fn move_to(mut self, path: &Path) -> Result<(), BlobError> {
        self.file.sync_all().map_err(self.failed())?;
        let failed = |source| BlobError::Io { path: path.to_owned(), source };
        std::fs::rename(&self.path, path).map_err(failed)?;
        self.is_moved = true;
        path.parent().map_or(Ok(()), sync_folder)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_moved {
            // It is in nobody's way where it cannot be removed.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

/// Copies a file of at most so many bytes, and gives the digest of what was copied.
fn copy(
    source: &mut File,
    (path, bytes_max): (&Path, u64),
    to: &mut Temporary,
) -> Result<blake3::Hash, BlobError> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut copied = 0_u64;
    loop {
        let read = source.read(&mut piece);
        let read = read.map_err(|source| BlobError::Io { path: path.to_owned(), source })?;
        if read == 0 {
            return Ok(hasher.finalize());
        }
        copied += read as u64;
        if copied > bytes_max {
            return Err(BlobError::TooLarge { path: path.to_owned(), limit: bytes_max });
        }
        hasher.update(&piece[..read]);
        to.write(&piece[..read])?;
    }
}

#[cfg(test)]
mod tests;
