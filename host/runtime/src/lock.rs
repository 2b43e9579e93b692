//! At most one background host for a policy and a data directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskrun_journal::store::Hosts;
use tokio::sync::oneshot;

use crate::error::OpenError;

/// The pause between two attempts at a lock that another process holds.
const POLL: Duration = Duration::from_millis(50);
/// Characters of the digest in the name of the file.
const DIGEST_CHARS: usize = 16;

/// Held by the background host of a policy until it ends, or is told to. When many commands start a host
/// at once, all but one of those end at once.
pub(crate) struct BackgroundLock {
    file: File,
    path: PathBuf,
}

impl BackgroundLock {
    /// Takes the lock for a policy file, by its absolute path.
    ///
    /// # Errors
    /// [`OpenError::Executed`] when another process holds it and executes runs,
    /// [`OpenError::Lock`], [`OpenError::Store`].
    pub(crate) async fn take(
        data_dir: &Path,
        policy: &Path,
        hosts: &dyn Hosts,
    ) -> Result<Self, OpenError> {
        let name = blake3::hash(policy.as_os_str().as_encoded_bytes()).to_hex();
        let path = data_dir.join(format!("background-{}.lock", &name[..DIGEST_CHARS]));
        let policy = policy.display().to_string();
        let failed = |source: std::io::Error| OpenError::Lock { path: path.clone(), source };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { file, path }),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                // Its holder is starting, executing, or just ending: only the second is good.
                Err(TryLockError::WouldBlock) => {
                    let hosts = hosts.hosts().await?;
                    if hosts.iter().any(|host| host.policy == policy) {
                        return Err(OpenError::Executed);
                    }
                    tokio::time::sleep(POLL).await;
                }
            }
        }
    }
}

/// A lock that is free when this is dropped, or the tokio runtime in which it was taken: then its host
/// has ended, whoever has this still.
pub(crate) struct HeldLock {
    _lock: LockGuard,
    _end: oneshot::Sender<()>,
}

/// A guard that frees the lock as it is dropped, if it is not free already.
struct LockGuard(Arc<Mutex<Option<BackgroundLock>>>);

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl HeldLock {
    /// Holds a lock in the tokio runtime at hand.
    pub(crate) fn new(lock: BackgroundLock) -> Self {
        let held = Arc::new(Mutex::new(Some(lock)));
        let (end, ended) = oneshot::channel();
        let theirs = LockGuard(Arc::clone(&held));
        // It waits for nothing but the end of both.
        drop(tokio::spawn(async move {
            ended.await.ok();
            drop(theirs);
        }));
        Self { _lock: LockGuard(held), _end: end }
    }
}

impl Drop for BackgroundLock {
    fn drop(&mut self) {
        // Two processes with a lock each on two files of this name would be two hosts: harmless.
        std::fs::remove_file(&self.path).ok();
        self.file.unlock().ok();
    }
}
