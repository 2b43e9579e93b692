//! The policy that a host executes runs under, told in a file of the data directory, so that other
//! processes can say which one that is, and that a later text of it cannot be used.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use taskrun_journal::ids::HostId;
use taskrun_journal::store::Host;
use taskrun_journal::time::{Clock, Timestamp};

use crate::loader::Loader;
use crate::lock::HeldLock;
use crate::note_file;

/// Largest file that is read: a refusal names each mistake of a policy.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a refusal.
const REFUSED_BYTES_MAX: usize = 8 << 10;

/// The policy that a host executes runs under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyInForce {
    /// The host.
    pub host: HostId,
    /// The file, as the host named it.
    pub policy: PathBuf,
    /// The digest of its text and of its prompts, as in [`taskrun_policy::Policy::digest`].
    pub digest: String,
    /// The digest of the pins of its agents, as in [`Loader::pins_digest`]: another one where a
    /// component has changed. Empty if the host does not tell.
    pub pins: String,
    /// When the host took it up.
    pub since: Timestamp,
    /// The mistake of a later text of it, which changes nothing.
    pub refused: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Record {
    policy: PathBuf,
    digest: String,
    #[serde(default)]
    pins: String,
    since: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// Tells other processes of the policy of this host.
pub(crate) struct InForceNote {
    folder: PathBuf,
    file: OnceLock<PathBuf>,
    clock: Arc<dyn Clock>,
    now: Mutex<Record>,
    // Of a background host: as long as it executes runs of this policy there is no other.
    _lock: Option<Arc<HeldLock>>,
}

impl InForceNote {
    /// Of the policy of this loader. Nothing is told before [`Self::begin`].
    pub(crate) fn new(data_dir: &Path, loader: &Loader, clock: Arc<dyn Clock>) -> Self {
        let now = Mutex::new(record(loader, &*clock));
        Self { folder: data_dir.to_owned(), file: OnceLock::new(), clock, now, _lock: None }
    }

    /// The same, which keeps this lock as long as it is there.
    pub(crate) fn holding(mut self, lock: Option<Arc<HeldLock>>) -> Self {
        self._lock = lock;
        self
    }

    /// Tells in the name of this host from now on, which is in the list of hosts: the file of one that
    /// is not may be removed at any time.
    pub(crate) fn begin(&self, own: &HostId) {
        self.file.get_or_init(|| file_of(&self.folder, own));
        self.write(|_| {});
    }

    /// Another policy is in force.
    pub(crate) fn switched(&self, loader: &Loader) {
        let record = record(loader, &*self.clock);
        self.write(|now| *now = record);
    }

    /// The file has a text that cannot be used.
    pub(crate) fn refused(&self, why: &str) {
        let why = taskrun_journal::text::cut(why, REFUSED_BYTES_MAX).to_owned();
        self.write(|now| now.refused = Some(why));
    }

    fn write(&self, change: impl FnOnce(&mut Record)) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut now);
        let Some(file) = self.file.get() else { return };
        // Where it cannot be written nothing is told, and nothing else is lost.
        let text = serde_json::to_vec(&*now).unwrap_or_default();
        if let Err(error) = note_file::write(file, &text) {
            tracing::debug!(%error, "the policy in force cannot be told");
        }
    }
}

impl Drop for InForceNote {
    fn drop(&mut self) {
        if let Some(file) = self.file.get() {
            std::fs::remove_file(file).ok();
        }
    }
}

fn record(loader: &Loader, clock: &dyn Clock) -> Record {
    let policy = loader.policy();
    let (digest, since) = (policy.digest.clone(), clock.now().0);
    let pins = loader.pins_digest();
    Record { policy: policy.path.clone(), digest, pins, since, refused: None }
}

fn file_of(folder: &Path, host: &HostId) -> PathBuf {
    folder.join(format!("policy-{host}.json"))
}

/// The host whose file has this name.
pub(crate) fn host_of(name: &str) -> Option<&str> {
    name.strip_prefix("policy-").and_then(|name| name.strip_suffix(".json"))
}

/// The policies that these hosts of a data directory execute runs under, as far as they tell.
#[must_use]
pub fn policies_in_force<'h>(
    data_dir: &Path,
    hosts: impl IntoIterator<Item = &'h Host>,
) -> Vec<PolicyInForce> {
    let read = |host: &Host| {
        let file = file_of(data_dir, &host.id);
        let is_small = std::fs::metadata(&file).is_ok_and(|it| it.len() <= FILE_BYTES_MAX);
        let bytes = is_small.then(|| std::fs::read(&file).ok()).flatten()?;
        let Record { policy, digest, pins, since, refused } =
            serde_json::from_slice(&bytes).ok()?;
        let (host, since) = (host.id.clone(), Timestamp(since));
        Some(PolicyInForce { host, policy, digest, pins, since, refused })
    };
    hosts.into_iter().filter_map(read).collect()
}
