//! Blobs are removed when nobody relies on them: who does holds a lock for as long.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::files::{entries, renew};
use super::{BlobError, BlobInfo, Blobs, PINS};

/// File in the folder of blobs that is locked: shared while blobs are relied on, by a single holder
/// while some are removed.
const LOCK: &str = "lock";
/// File through whose lock the other one is reached: who removes waits for those that hold blobs,
/// and new ones behind it.
const GATE: &str = "gate";
/// Longest that a removal waits for each of the locks.
const REMOVAL_WAIT: Duration = Duration::from_secs(1);
/// The pause between two attempts at a lock.
const PAUSE: Duration = Duration::from_millis(2);

/// Keeps every blob from being removed, by any process, until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct BlobHold {
    _lock: File,
}

/// A removal of blobs, while which nobody holds them. Who wants to hold them waits until it is
/// dropped.
#[derive(Debug)]
pub struct BlobRemoval<'b> {
    blobs: &'b Blobs,
    now: SystemTime,
    _gate: File,
    _lock: File,
}

/// The amounts that were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedBlobs {
    /// Blobs, or texts under pins.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Blobs {
    /// Keeps every blob from being removed, by any process, until the hold is dropped; `None` if
    /// some are being removed for longer than `wait`. Blocks for that long.
    ///
    /// # Errors
    /// [`BlobError::Io`].
    pub fn hold(&self, wait: Duration) -> Result<Option<BlobHold>, BlobError> {
        let (gate, at) = self.lock_file(GATE)?;
        let (lock, lock_at) = self.lock_file(LOCK)?;
        let is_held = take(&at, wait, || gate.try_lock_shared())?
            && take(&lock_at, wait, || lock.try_lock_shared())?;
        Ok(is_held.then_some(BlobHold { _lock: lock }))
    }

    /// Begins to remove blobs; `None` if somebody else removes or holds some for longer than two
    /// seconds. Blocks for as long.
    ///
    /// # Errors
    /// [`BlobError::Io`].
    pub fn begin_removal(&self) -> Result<Option<BlobRemoval<'_>>, BlobError> {
        let (gate, gate_at) = self.lock_file(GATE)?;
        let (lock, lock_at) = self.lock_file(LOCK)?;
        let is_taken = take(&gate_at, REMOVAL_WAIT, || gate.try_lock())?
            && take(&lock_at, REMOVAL_WAIT, || lock.try_lock())?;
        if !is_taken {
            return Ok(None);
        }
        let now = renew(&lock_at)?.map_or_else(|| modified(&lock_at), Ok)?;
        Ok(Some(BlobRemoval { blobs: self, now, _gate: gate, _lock: lock }))
    }

    fn lock_file(&self, name: &str) -> Result<(File, PathBuf), BlobError> {
        let path = self.folder.join(name);
        let mut options = OpenOptions::new();
        let opened = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        match opened {
            Ok(file) => Ok((file, path)),
            Err(source) => Err(BlobError::Io { path, source }),
        }
    }

    /// The pins under which there are texts, each `blake3:` and 64 hexadecimal digits, with the time
    /// at which the text was written; where the file system does not know that, at which it was
    /// wanted last.
    ///
    /// # Errors
    /// [`BlobError::Io`].
    pub fn kept_pins(&self) -> Result<Vec<(String, SystemTime)>, BlobError> {
        let written_at = |(pin, info, path): (String, BlobInfo, PathBuf)| {
            let created = path.metadata().and_then(|meta| meta.created());
            (pin, created.unwrap_or(info.renewed_at))
        };
        Ok(self.snapshots()?.into_iter().map(written_at).collect())
    }

    /// The pins under which there are texts, each `blake3:` and 64 hexadecimal digits, with the
    /// bytes of the text and the time at which it was written, or wanted again.
    fn snapshots(&self) -> Result<Vec<(String, BlobInfo, PathBuf)>, BlobError> {
        let mut all = Vec::new();
        for path in entries(&self.folder.join(PINS))? {
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(digest) = name.and_then(|hex| blake3::Hash::from_hex(hex).ok()) else {
                continue;
            };
            let failed = |source| BlobError::Io { path: path.clone(), source };
            let meta = path.metadata().map_err(failed)?;
            let renewed_at = modified(&path)?;
            let info = BlobInfo { digest, bytes: meta.len(), renewed_at };
            all.push((format!("blake3:{}", digest.to_hex()), info, path));
        }
        Ok(all)
    }
}

impl BlobRemoval<'_> {
    /// The age of a file of this time, by the clock of the file system; one of a time that is still
    /// to come is young.
    #[must_use]
    pub fn age(&self, at: SystemTime) -> Duration {
        self.now.duration_since(at).unwrap_or_default()
    }

    /// Removes the blobs that are needed by nobody and that nobody has wanted for this long; with
    /// `dry_run` it says which those are, and removes nothing.
    ///
    /// # Errors
    /// [`BlobError::Io`], if they cannot be looked at, or one cannot be removed; some may be gone
    /// then.
    pub fn blobs(
        &self,
        older_than: Duration,
        dry_run: bool,
        is_needed: impl Fn(&blake3::Hash) -> bool,
    ) -> Result<RemovedBlobs, BlobError> {
        let unneeded = self.blobs.list()?.into_iter().filter(|blob| !is_needed(&blob.digest));
        let of = unneeded.map(|blob| (blob, self.blobs.path(&blob.digest)));
        self.remove(of, older_than, dry_run)
    }

    /// The same for texts under pins.
    ///
    /// # Errors
    /// Those of [`Self::blobs`].
    pub fn snapshots(
        &self,
        older_than: Duration,
        dry_run: bool,
        is_needed: impl Fn(&str) -> bool,
    ) -> Result<RemovedBlobs, BlobError> {
        let unneeded = self.blobs.snapshots()?.into_iter().filter(|(pin, ..)| !is_needed(pin));
        self.remove(unneeded.map(|(_, info, path)| (info, path)), older_than, dry_run)
    }

    fn remove(
        &self,
        unneeded: impl Iterator<Item = (BlobInfo, PathBuf)>,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<RemovedBlobs, BlobError> {
        let mut removed = RemovedBlobs::default();
        for (blob, path) in unneeded {
            if self.age(blob.renewed_at) <= older_than {
                continue;
            }
            if !dry_run {
                let failed = |source| BlobError::Io { path: path.clone(), source };
                std::fs::remove_file(&path).map_err(failed)?;
            }
            removed.count += 1;
            removed.bytes += blob.bytes;
        }
        Ok(removed)
    }
}

fn modified(path: &Path) -> Result<SystemTime, BlobError> {
    let modified = path.metadata().and_then(|meta| meta.modified());
    modified.map_err(|source| BlobError::Io { path: path.to_owned(), source })
}

/// Takes a lock; says whether that was possible in time.
fn take(
    path: &Path,
    wait: Duration,
    lock: impl Fn() -> Result<(), TryLockError>,
) -> Result<bool, BlobError> {
    let attempts = wait.as_millis() / PAUSE.as_millis();
    for attempt in 0..=attempts {
        match lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if attempt < attempts => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(source)) => {
                return Err(BlobError::Io { path: path.to_owned(), source });
            }
        }
    }
    Ok(false)
}
