//! At most one background host for a policy and a data directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::context::Books;
use crate::failure::{Failure, Outcome};

/// How often a lock is tried that another process holds.
const POLL: Duration = Duration::from_millis(50);
/// Characters of the digest in the name of the file.
const DIGEST_CHARS: usize = 16;

/// Held by the background host of a policy as long as it lives. When many commands start a host
/// at once, all but one of those end at once.
pub(super) struct BackgroundLock {
    file: File,
    path: PathBuf,
}

impl BackgroundLock {
    /// Takes the lock; `None` when another process holds it and executes runs.
    pub(super) async fn take(
        data_dir: &Path,
        digest: &str,
        books: &Books,
    ) -> Outcome<Option<Self>> {
        let path = data_dir.join(format!("background-{}.lock", &digest[..DIGEST_CHARS]));
        let failed = |error: std::io::Error| {
            Failure::unexpected(format!("cannot lock {}", path.display())).because(&error)
        };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self { file, path })),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                // Its holder is starting, executing, or just ending: only the second is good.
                Err(TryLockError::WouldBlock) => {
                    let hosts = books.hosts.hosts().await?;
                    if hosts.iter().any(|host| host.policy_digest == digest) {
                        return Ok(None);
                    }
                    tokio::time::sleep(POLL).await;
                }
            }
        }
    }
}

impl Drop for BackgroundLock {
    fn drop(&mut self) {
        // Two processes with a lock each on two files of this name would be two hosts: harmless.
        std::fs::remove_file(&self.path).ok();
        self.file.unlock().ok();
    }
}
