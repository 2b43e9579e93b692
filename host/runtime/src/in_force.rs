//! The policy that a host executes runs under, told in a file of the data directory, so that other
//! processes can say which one that is, that a later text of it cannot be used, and which of its
//! agents do not load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use taskrun::agents::Agents;
use taskrun_journal::ids::HostId;
use taskrun_journal::store::Host;
use taskrun_journal::text::cut;
use taskrun_journal::time::{Clock, Timestamp};

use crate::loader::Loader;
use crate::lock::HeldLock;
use crate::note_file;

/// Largest file that is read: a refusal names each mistake of a policy.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a refusal.
const REFUSED_BYTES_MAX: usize = 8 << 10;
/// Most bytes of the reason for which an agent does not load, and of those of all agents: a policy
/// may have any number of them, and a file that is too large tells nothing.
const REASON_BYTES_MAX: usize = 1 << 10;
const REASONS_BYTES_MAX: usize = 64 << 10;

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
    /// The agents of it that the host has left out, as they do not load, with the reasons: no new
    /// run of theirs begins, and no heartbeat of theirs takes an entry.
    pub left_out: BTreeMap<String, String>,
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
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    left_out: BTreeMap<String, String>,
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
    /// Of the policy of this loader, with its agents as they were loaded. Nothing is told before
    /// [`Self::begin`].
    pub(crate) fn new(
        data_dir: &Path,
        (loader, agents): (&Loader, &Agents),
        clock: Arc<dyn Clock>,
    ) -> Self {
        let now = Mutex::new(record(loader, agents, &*clock));
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

    /// Another policy is in force, with its agents as they were loaded.
    pub(crate) fn switched(&self, loader: &Loader, agents: &Agents) {
        let record = record(loader, agents, &*self.clock);
        self.write(|now| *now = record);
    }

    /// The file has a text that cannot be used.
    pub(crate) fn refused(&self, why: &str) {
        let why = cut(why, REFUSED_BYTES_MAX).to_owned();
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

fn record(loader: &Loader, agents: &Agents, clock: &dyn Clock) -> Record {
    let policy = loader.policy();
    let (digest, since) = (policy.digest.clone(), clock.now().0);
    let (pins, left_out) = (loader.pins_digest(), left_out(agents));
    Record { policy: policy.path.clone(), digest, pins, since, refused: None, left_out }
}

/// The agents that do not load, with the reasons: all names, and of the reasons as much as there is
/// room for.
fn left_out(agents: &Agents) -> BTreeMap<String, String> {
    let agents = &agents.unusable;
    let most = REASON_BYTES_MAX.min(REASONS_BYTES_MAX / agents.len().max(1));
    agents.iter().map(|(name, one)| (name.clone(), cut(&one.reason, most).to_owned())).collect()
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
        let Record { policy, digest, pins, since, refused, left_out } =
            serde_json::from_slice(&bytes).ok()?;
        let (host, since) = (host.id.clone(), Timestamp(since));
        Some(PolicyInForce { host, policy, digest, pins, since, refused, left_out })
    };
    hosts.into_iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use taskrun::agents::{AgentNow, UnusableAgent};
    use taskrun_policy::AgentRules;

    use super::*;

    #[test]
    fn of_many_agents_that_do_not_load_each_is_named_and_the_reasons_are_cut() {
        let told = |count: usize| {
            let unusable = (0..count).map(|number| {
                let name = format!("a{number}");
                let now = AgentNow { pin: name.clone(), rules: Arc::new(AgentRules::gone(&name)) };
                (name, UnusableAgent { now, reason: "x".repeat(2 * REASON_BYTES_MAX) })
            });
            left_out(&Agents { unusable: unusable.collect(), ..Agents::default() })
        };
        assert!(told(0).is_empty());
        for count in [1, 64, 1_000] {
            let told = told(count);
            let bytes: usize = told.values().map(String::len).sum();
            assert_eq!(told.len(), count);
            assert!(bytes <= REASONS_BYTES_MAX, "{bytes} of {count}");
            assert!(told.values().all(|why| (1..=REASON_BYTES_MAX).contains(&why.len())));
        }
    }
}
