//! The agents that a host is loading, and those that did not load: told in a file of the data
//! directory, as other processes are where people look.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::HostId;
use taskrun_journal::pin::agent_of;
use taskrun_journal::run::Run;
use taskrun_journal::store::Host;
use taskrun_journal::time::{Clock, Timestamp};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The load of an agent, as its host writes it down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) struct Load {
    /// Since when it is loaded, or when it failed, in milliseconds since 1970.
    pub(crate) since: u64,
    /// The error for which it did not load; `None` while it is loaded.
    #[serde(default)]
    pub(crate) error: Option<String>,
}

/// An agent that a living host is loading, or could not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentLoad {
    /// The agent's pin.
    pub pin: String,
    /// The agent's name.
    pub agent: String,
    /// Since when it is loaded, or when it failed.
    pub since: Timestamp,
    /// The error for which it did not load; `None` while it is loaded.
    pub error: Option<String>,
}

/// The agents that this host is loading or could not load.
pub(crate) struct Loads {
    folder: PathBuf,
    file: OnceLock<PathBuf>,
    pub(crate) clock: Arc<dyn Clock>,
    by_pin: Mutex<BTreeMap<String, Load>>,
}

impl Loads {
    /// None yet. Nothing is told before [`Self::begin`].
    #[must_use]
    pub(crate) fn new(data_dir: &Path, clock: Arc<dyn Clock>) -> Self {
        let folder = data_dir.to_owned();
        Self { folder, file: OnceLock::new(), clock, by_pin: Mutex::default() }
    }

    /// Tells in the name of this host from now on, and removes what dead ones left.
    pub(crate) fn begin(&self, own: &HostId, living: &[Host]) {
        let is_left = |name: &str| {
            let host = name.strip_prefix("loads-").and_then(|name| name.strip_suffix(".json"));
            host.is_some_and(|host| living.iter().all(|one| one.id.as_str() != host))
        };
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(is_left) {
                std::fs::remove_file(entry.path()).ok();
            }
        }
        self.file.get_or_init(|| file_of(&self.folder, own));
    }

    /// Writes down that the agent with a pin did not load, and why.
    pub(crate) fn fail(&self, pin: &str, reason: &str) {
        let since = self.clock.now().0;
        self.tell(pin, Some(Load { since, error: Some(reason.to_owned()) }));
    }

    /// Writes down that the agent with a pin is being loaded or did not load; `None`: that it is
    /// loaded.
    pub(crate) fn tell(&self, pin: &str, load: Option<Load>) {
        let Some(file) = self.file.get() else { return };
        let mut by_pin = self.by_pin.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match load {
            Some(load) => by_pin.insert(pin.to_owned(), load),
            None => by_pin.remove(pin),
        };
        if by_pin.is_empty() {
            if before.is_some() {
                std::fs::remove_file(file).ok();
            }
            return;
        }
        // Readers see the old file or the new one. Where it cannot be written nothing is told, and
        // nothing else is lost.
        let new = file.with_extension("new");
        let text = serde_json::to_vec(&*by_pin).unwrap_or_default();
        if let Err(error) = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file)) {
            tracing::debug!(%error, "what is loaded cannot be told");
        }
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        if let Some(file) = self.file.get() {
            std::fs::remove_file(file).ok();
        }
    }
}

fn file_of(folder: &Path, host: &HostId) -> PathBuf {
    folder.join(format!("loads-{host}.json"))
}

/// The loads that the living hosts of a data directory tell of.
#[must_use]
pub fn agent_loads(data_dir: &Path, living: &[Host]) -> Vec<AgentLoad> {
    let mut all = Vec::new();
    for host in living {
        let file = file_of(data_dir, &host.id);
        let is_small = std::fs::metadata(&file).is_ok_and(|it| it.len() <= FILE_BYTES_MAX);
        let Some(bytes) = is_small.then(|| std::fs::read(&file).ok()).flatten() else { continue };
        let Ok(loads) = serde_json::from_slice::<BTreeMap<String, Load>>(&bytes) else { continue };
        all.extend(loads.into_iter().map(|(pin, Load { since, error })| {
            let agent = agent_of(&pin).to_owned();
            AgentLoad { pin, agent, since: Timestamp(since), error }
        }));
    }
    all
}

/// The loads that a run waits for, each once: those under way, and those of agents of earlier
/// policies that failed, whose runs go on waiting.
pub fn awaited_loads<'t>(
    loads: &'t [AgentLoad],
    runs: &'t [Run],
) -> impl Iterator<Item = &'t AgentLoad> + 't {
    let waits = |load: &AgentLoad, run: &Run| {
        matches!(run.state.hold, Hold::Wanted { .. }) && run.pin() == load.pin
    };
    loads.iter().filter(move |load| runs.iter().any(|run| waits(load, run)))
}
