//! Lock files of hosts: the kernel frees them when a process dies, however it dies.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use taskrun_journal::ids::HostId;
use taskrun_journal::store::StoreError;

use super::fault::io_error;

/// The folder `hosts` and the locks that this process holds there.
pub(crate) struct Locks {
    dir: PathBuf,
    held: Mutex<HashMap<HostId, File>>,
}

impl Locks {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<HostId, File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `hosts/<id>.lock`; bytes that have no place in a file name are written as `%` and two
    /// hexadecimal digits.
    fn path(&self, host: &HostId) -> PathBuf {
        let mut name = String::new();
        for byte in host.as_str().bytes() {
            if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
                name.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                write!(name, "%{byte:02x}").ok();
            }
        }
        name.push_str(".lock");
        self.dir.join(name)
    }

    /// Takes the lock of a host of this process; false if it has it already.
    pub(crate) fn take(&self, host: &HostId) -> Result<bool, StoreError> {
        let mut held = self.held();
        if held.contains_key(host) {
            return Ok(false);
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|error| io_error(&self.dir, &error))?;
        let path = self.path(host);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(|error| io_error(&path, &error))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                held.insert(host.clone(), file);
                Ok(true)
            }
            Err(Errno::WOULDBLOCK) => Err(StoreError::Locked { path: path.display().to_string() }),
            Err(error) => Err(io_error(&path, &error.into())),
        }
    }

    /// True if a process holds the lock of a host. What cannot be found out counts as held: to
    /// take a living host for dead is worse than to wait.
    pub(crate) fn is_held(&self, host: &HostId) -> bool {
        if self.held().contains_key(host) {
            return true;
        }
        match File::open(self.path(host)) {
            // Shared, so that two who ask at once do not see one another. Freed with the file.
            Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }

    /// Removes the lock file of a host that is no more, and frees it if this process holds it.
    pub(crate) fn remove(&self, host: &HostId) {
        let file = self.held().remove(host);
        // A file that stays is empty and unlocked, and says nothing.
        std::fs::remove_file(self.path(host)).ok();
        drop(file);
    }

    /// Frees all locks of this process and leaves the files, as its death would.
    pub(crate) fn close(&self) {
        self.held().clear();
    }
}
