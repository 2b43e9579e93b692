//! At most one background host for a policy and a data directory, beside those that stand still.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW};
use taskrun_journal::ids::HostId;
use taskrun_journal::store::{Hosts, PresentHost};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::OpenError;
use crate::note_file::FILE_MODE;

/// The pause between two attempts at a lock that another process holds.
const POLL: Duration = Duration::from_millis(50);
/// The time in which a host that is listed as silent goes on, if it stood still with this process.
const SILENT_FOR: Duration = Duration::from_secs(2);
/// The time in which a holder that is not listed begins, ends, or gives a sign that it begins.
const UNLISTED_FOR: Duration = Duration::from_secs(10);
/// The pause between two signs of a holder that begins.
const SIGN_EVERY: Duration = Duration::from_secs(1);
/// Characters of the digest in the name of the file.
const DIGEST_CHARS: usize = 16;
/// Most bytes of the name of a host that are read.
const HOLDER_BYTES_MAX: usize = 256;

/// Held by the background host of a policy until it ends, or is told to. When many commands start a host
/// at once, all but one of those end at once.
pub(crate) struct BackgroundLock {
    file: File,
    path: PathBuf,
}

impl BackgroundLock {
    /// Takes the lock for a policy file, by its absolute path. One whose holder stands still past
    /// its lease keeps nobody waiting: the next one, by its number, is taken in its place.
    ///
    /// # Errors
    /// [`OpenError::Executed`] when another process executes runs of the policy,
    /// [`OpenError::Standstill`] when one holds the lock that neither does nor is listed as silent,
    /// [`OpenError::Lock`], [`OpenError::Store`].
    pub(crate) async fn take(
        data_dir: &Path,
        policy: &Path,
        hosts: &dyn Hosts,
    ) -> Result<Self, OpenError> {
        let names = LockNames::of(data_dir, policy);
        let others = Others { policy: policy.display().to_string(), hosts };
        let mut number = 1;
        let mut lock = LockFile::open(names.path(number))?;
        while !others.wait_for(&mut lock, None).await? {
            number += 1;
            lock = LockFile::open(names.path(number))?;
        }
        let own = Self { file: lock.file, path: lock.path };
        // The name of the one before, if it was killed.
        own.file.set_len(0).ok();
        // The one before may have stood still, and the next one have a lock beside it.
        for path in names.beyond(number) {
            let mut lock = LockFile::open(path)?;
            if others.wait_for(&mut lock, Some(&own)).await? {
                drop(Self { file: lock.file, path: lock.path });
            }
        }
        Ok(own)
    }

    /// Tells those who wait for the lock which host has it. Where that cannot be, they take it for
    /// one that begins.
    fn name(&self, host: &HostId) {
        self.file.write_all_at(host.as_str().as_bytes(), 0).ok();
    }

    /// Gives a sign of life to those who wait for the lock. Where that cannot be, they wait no
    /// longer than for a holder that gives none.
    fn give_sign(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        rustix::fs::futimens(&self.file, &times).ok();
    }
}

/// The names of the lock files of a policy.
struct LockNames {
    folder: PathBuf,
    /// The part that all of them begin with.
    begin: String,
}

impl LockNames {
    fn of(data_dir: &Path, policy: &Path) -> Self {
        let digest = blake3::hash(policy.as_os_str().as_encoded_bytes()).to_hex();
        let begin = format!("background-{}", &digest[..DIGEST_CHARS]);
        Self { folder: data_dir.to_owned(), begin }
    }

    fn path(&self, number: usize) -> PathBuf {
        let number = if number == 1 { String::new() } else { format!("-{number}") };
        self.folder.join(format!("{}{number}.lock", self.begin))
    }

    /// The files that are there with a higher number.
    fn beyond(&self, number: usize) -> Vec<PathBuf> {
        let number_of = |name: &str| -> Option<usize> {
            let rest = name.strip_prefix(self.begin.as_str())?.strip_prefix('-')?;
            rest.strip_suffix(".lock")?.parse().ok()
        };
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let beyond = entries.filter(|entry| {
            entry.file_name().to_str().and_then(number_of).is_some_and(|other| other > number)
        });
        beyond.map(|entry| entry.path()).collect()
    }
}

/// The other processes that may execute runs of a policy.
struct Others<'a> {
    policy: String,
    hosts: &'a dyn Hosts,
}

impl Others<'_> {
    /// Waits for a lock, unless its holder stands still. True if this process has it then. `own` is
    /// the lock that it has already.
    async fn wait_for(
        &self,
        lock: &mut LockFile,
        own: Option<&BackgroundLock>,
    ) -> Result<bool, OpenError> {
        // Sums of pauses and no times of a clock: a process that stood still itself has not waited.
        let (mut waited, mut silent_for) = (Duration::ZERO, Duration::ZERO);
        let mut sign = None;
        while !lock.try_take()? {
            // Its holder may describe many agents, or compile them, before it is listed.
            let last_sign = lock.sign();
            if sign != last_sign {
                sign = last_sign;
                (waited, silent_for) = (Duration::ZERO, Duration::ZERO);
            }
            // Its holder is starting, executing, just ending, or stands still.
            let present = self.hosts.present_hosts().await?;
            let lives = |one: &PresentHost| {
                one.silence.is_none() && one.host.policy == self.policy && !one.host.is_leaving()
            };
            if present.iter().any(lives) {
                return Err(OpenError::Executed);
            }
            let holder = lock.holder();
            let is_silent = present.iter().any(|one| {
                one.silence.is_some() && holder.as_deref() == Some(one.host.id.as_str())
            });
            // Others of the policy may be silent that have no lock, or another one.
            if !is_silent {
                silent_for = Duration::ZERO;
            }
            if silent_for >= SILENT_FOR {
                tracing::warn!(host = holder.as_deref(), "a host of this policy stands still");
                return Ok(false);
            }
            if waited >= UNLISTED_FOR {
                return Err(OpenError::Standstill { path: lock.path.clone() });
            }
            if let Some(own) = own {
                own.give_sign();
            }
            tokio::time::sleep(POLL).await;
            waited += POLL;
            silent_for += POLL;
        }
        Ok(true)
    }
}

/// A file whose lock somebody may have.
struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    fn open(path: PathBuf) -> Result<Self, OpenError> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(FILE_MODE);
        match options.open(&path) {
            Ok(file) => {
                // Whoever may open one that a killed host left could hold its lock. Another user's
                // stays as it is.
                file.set_permissions(Permissions::from_mode(FILE_MODE)).ok();
                Ok(Self { file, path })
            }
            Err(source) => Err(OpenError::Lock { path, source }),
        }
    }

    /// The last sign of life of the holder: the time of the file, which is compared with itself
    /// alone, as clocks are set.
    fn sign(&self) -> Option<SystemTime> {
        self.file.metadata().and_then(|about| about.modified()).ok()
    }

    /// The host that has the lock, which names itself before it is listed.
    fn holder(&self) -> Option<String> {
        let mut name = [0; HOLDER_BYTES_MAX];
        let length = self.file.read_at(&mut name, 0).ok()?;
        String::from_utf8(name[..length].to_vec()).ok().filter(|name| !name.is_empty())
    }

    /// Takes the lock, unless another process has it. True if this one has it then. If its holder
    /// has removed the file, the one that has the name now is opened, and asked for the next time.
    fn try_take(&mut self) -> Result<bool, OpenError> {
        match self.file.try_lock() {
            Ok(()) if is_at(&self.file, &self.path) => Ok(true),
            Ok(()) => {
                *self = Self::open(self.path.clone())?;
                Ok(false)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(source)) => {
                Err(OpenError::Lock { path: self.path.clone(), source })
            }
        }
    }
}

/// True if a file is the one that has this name. The lock of another one keeps nobody out.
fn is_at(file: &File, path: &Path) -> bool {
    // As it is opened: through a link.
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(file), Ok(named)) => (file.dev(), file.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// A lock that is free when this is dropped, or the tokio runtime in which it was taken: then its host
/// has ended, whoever has this still.
pub(crate) struct HeldLock {
    lock: LockGuard,
    _end: oneshot::Sender<()>,
}

/// A guard that frees the lock as it is dropped, if it is not free already.
struct LockGuard(Arc<Mutex<Option<BackgroundLock>>>);

impl LockGuard {
    fn free(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.free();
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
        Self { lock: LockGuard(held), _end: end }
    }

    /// Frees the lock, whoever has this still.
    pub(crate) fn free(&self) {
        self.lock.free();
    }

    /// Tells those who wait for the lock which host has it.
    pub(crate) fn name(&self, host: &HostId) {
        if let Some(lock) = &*self.lock.0.lock().unwrap_or_else(PoisonError::into_inner) {
            lock.name(host);
        }
    }

    /// Gives signs of life in the tokio runtime at hand, as the host begins and is not listed yet.
    pub(crate) fn signs(&self) -> Signs {
        let held = Arc::clone(&self.lock.0);
        Signs(tokio::spawn(async move {
            loop {
                if let Some(lock) = &*held.lock().unwrap_or_else(PoisonError::into_inner) {
                    lock.give_sign();
                }
                tokio::time::sleep(SIGN_EVERY).await;
            }
        }))
    }
}

/// The signs of life of a host that begins, until this is dropped.
pub(crate) struct Signs(JoinHandle<()>);

impl Drop for Signs {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for BackgroundLock {
    fn drop(&mut self) {
        // Before the lock is free, so that whoever takes it finds that the file has no name. One
        // that somebody else made in its place is theirs.
        if is_at(&self.file, &self.path) {
            std::fs::remove_file(&self.path).ok();
        }
        self.file.unlock().ok();
    }
}

#[cfg(test)]
mod tests;
