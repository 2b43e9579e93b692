//! The agents that a host is loading, and those that did not load: told in a file of the data
//! directory, as other processes are where people look.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use taskrun_engine::AgentError;
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::HostId;
use taskrun_journal::pin::{Pins, agent_of};
use taskrun_journal::run::Run;
use taskrun_journal::store::Host;
use taskrun_journal::time::{Clock, Timestamp};

use crate::note_file;
use crate::problem::Problem;
use crate::snapshot::PinError;

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
    /// [`CLOSURE_UNUSABLE`], where it is that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<String>,
}

/// The code of an agent that this program cannot bind as it was kept, or not read: another program
/// may, and its runs wait.
pub const CLOSURE_UNUSABLE: &str = "closure_unusable";

/// The reason that an agent did not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadFailure {
    /// In words.
    pub(crate) reason: String,
    /// True if this program cannot bind what the agent is made of, or not read what it is kept by.
    pub(crate) is_unusable: bool,
}

impl From<String> for LoadFailure {
    fn from(reason: String) -> Self {
        Self { reason, is_unusable: false }
    }
}

impl From<&AgentError> for LoadFailure {
    fn from(error: &AgentError) -> Self {
        Self { reason: Problem::of_agent(error).reason(), is_unusable: error.is_of_component() }
    }
}

impl From<PinError> for LoadFailure {
    fn from(error: PinError) -> Self {
        let is_unusable = match error {
            PinError::Unusable(_) => true,
            PinError::Gone(_) | PinError::GoneThere { .. } | PinError::Kept(_) => false,
        };
        Self { reason: error.to_string(), is_unusable }
    }
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
    /// The code of that error: [`CLOSURE_UNUSABLE`], or none.
    pub code: Option<String>,
    /// True if the host lives that tells of it.
    pub lives: bool,
}

impl AgentLoad {
    /// True if the program of its host cannot bind it: the host goes on trying, and another program
    /// may go on with its runs.
    #[must_use]
    pub fn is_closure_unusable(&self) -> bool {
        self.code.as_deref() == Some(CLOSURE_UNUSABLE)
    }
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

    /// Tells in the name of this host from now on.
    pub(crate) fn begin(&self, own: &HostId) {
        self.file.get_or_init(|| file_of(&self.folder, own));
    }

    /// Writes down that the agent with a pin did not load, and why; says whether that is another
    /// failure than the last one.
    pub(crate) fn fail(&self, pin: &str, failure: &LoadFailure) -> bool {
        let (since, error) = (self.clock.now().0, Some(failure.reason.clone()));
        let code = failure.is_unusable.then(|| CLOSURE_UNUSABLE.to_owned());
        let before = self.tell(pin, Some(Load { since, error: error.clone(), code }));
        before.is_none_or(|before| before.error != error)
    }

    /// Writes down that the agent with a pin is being loaded or did not load; `None`: that it is
    /// loaded. Gives what was written down before.
    pub(crate) fn tell(&self, pin: &str, load: Option<Load>) -> Option<Load> {
        let file = self.file.get()?;
        let mut by_pin = self.by_pin.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match load {
            Some(load) => by_pin.insert(pin.to_owned(), load),
            None => by_pin.remove(pin),
        };
        if by_pin.is_empty() {
            if before.is_some() {
                std::fs::remove_file(file).ok();
            }
            return before;
        }
        write(file, &by_pin);
        before
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        let Some(file) = self.file.get() else { return };
        let by_pin = self.by_pin.get_mut().unwrap_or_else(PoisonError::into_inner);
        by_pin.retain(|_, load| load.code.is_some());
        match by_pin.is_empty() {
            true => drop(std::fs::remove_file(file)),
            // What this program cannot bind stays so, and is told of until the next host begins.
            false => write(file, by_pin),
        }
    }
}

/// Where it cannot be written nothing is told, and nothing else is lost.
fn write(file: &Path, by_pin: &BTreeMap<String, Load>) {
    let text = serde_json::to_vec(by_pin).unwrap_or_default();
    if let Err(error) = note_file::write(file, &text) {
        tracing::debug!(%error, "what is loaded cannot be told");
    }
}

fn file_of(folder: &Path, host: &HostId) -> PathBuf {
    folder.join(format!("loads-{host}.json"))
}

/// The host whose file has this name.
pub(crate) fn host_of(name: &str) -> Option<&str> {
    name.strip_prefix("loads-").and_then(|name| name.strip_suffix(".json"))
}

/// The loads that the living hosts of a data directory tell of, and what the last ones before them
/// could not bind.
#[must_use]
pub fn agent_loads(data_dir: &Path, living: &[Host]) -> Vec<AgentLoad> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(data_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(host) = name.to_str().and_then(host_of) else { continue };
        let (file, lives) = (entry.path(), living.iter().any(|one| one.id.as_str() == host));
        let is_small = std::fs::metadata(&file).is_ok_and(|it| it.len() <= FILE_BYTES_MAX);
        let Some(bytes) = is_small.then(|| std::fs::read(&file).ok()).flatten() else { continue };
        let Ok(loads) = serde_json::from_slice::<BTreeMap<String, Load>>(&bytes) else { continue };
        let is_told = |(_, load): &(String, Load)| lives || load.code.is_some();
        let told = loads.into_iter().filter(is_told);
        all.extend(told.map(|(pin, Load { since, error, code })| {
            let agent = agent_of(&pin).to_owned();
            AgentLoad { pin, agent, since: Timestamp(since), error, code, lives }
        }));
    }
    all
}

/// The loads that a run waits for, each once: those under way, and those of agents that failed, whose
/// runs go on waiting. Where the agent of a run above cannot be bound, the runs beneath wait, too.
pub fn awaited_loads<'t>(
    loads: &'t [AgentLoad],
    runs: &'t [Run],
) -> impl Iterator<Item = &'t AgentLoad> + 't {
    let waits = |load: &AgentLoad, run: &Run| {
        let is_of = match load.is_closure_unusable() {
            true => Pins::of(run).all().any(|pin| pin == load.pin),
            false => run.pin() == load.pin,
        };
        matches!(run.state.hold, Hold::Wanted { .. }) && is_of
    };
    loads.iter().filter(move |load| runs.iter().any(|run| waits(load, run)))
}
