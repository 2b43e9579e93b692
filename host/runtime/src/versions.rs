//! The versions of agents that a data directory knows, each by its pin.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use taskrun_engine::{closure_of, digest_file, pin_of};
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::pin::{Pins, agent_of, has_digest};
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunClass;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::{Timestamp, millis};
use taskrun_policy::{AgentPolicy, Closure, Policy};
use taskrun_store::{BlobError, Blobs};

use crate::loader::COMPONENT_BYTES_MAX;
use crate::snapshot::{self, Digests};
use crate::storage::Storage;
use crate::unmet::KeptError;

/// A version of an agent: all that decides about its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentVersion {
    /// Its pin.
    pub pin: String,
    /// When the first of its runs on record was accepted; where there is none, when its policy was
    /// kept. `None` if it is not kept yet.
    pub since: Option<Timestamp>,
    /// Runs of it that have not ended.
    pub open_runs: u64,
    /// Runs of it that are on record, open ones included.
    pub runs: u64,
    /// True if its policy is kept and can be read.
    pub is_kept: bool,
    /// True if it is the one that the policy in use has.
    pub is_current: bool,
}

impl AgentVersion {
    fn new(pin: &str) -> Self {
        let (pin, since) = (pin.to_owned(), None);
        Self { pin, since, open_runs: 0, runs: 0, is_kept: false, is_current: false }
    }

    fn add_run(&mut self, run: &Run) {
        let accepted = run.spec.created_at;
        self.since = Some(self.since.map_or(accepted, |since| since.min(accepted)));
        self.runs += 1;
        self.open_runs += u64::from(!run.status().is_terminal());
    }
}

/// The versions of all agents, or of one: those of the runs on record that the scope admits, those
/// whose policies are kept, and those of the policy in use. In the order of their agents; of one agent
/// that which is not kept yet, then the youngest before the others. Takes as long as reading all runs.
///
/// # Errors
/// [`KeptError`].
///
/// # Cancel safety
/// Dropping the future gives up the look.
pub async fn agent_versions(
    storage: &Storage,
    scope: &Scope,
    policy: Option<&Policy>,
    agent: Option<&str>,
) -> Result<Vec<AgentVersion>, KeptError> {
    let mut versions: BTreeMap<String, AgentVersion> = BTreeMap::new();
    let filter = ListFilter { agent_name: agent.map(str::to_owned), ..ListFilter::default() };
    let add = |run: &Run| {
        let pins = Pins::of(run);
        if has_digest(pins.own()) {
            version(&mut versions, pins.own()).add_run(run);
        }
    };
    storage.each_run(scope, &filter, add).await?;
    let (dir, policy) = (storage.data_dir().map(Path::to_owned), policy.cloned());
    let look = move || {
        let kept = dir.as_deref().map(kept).transpose()?.unwrap_or_default();
        Ok::<_, BlobError>((kept, policy.as_ref().map(pins_now).unwrap_or_default()))
    };
    let looked = tokio::task::spawn_blocking(look).await;
    let (kept, current) = looked.map_err(|_| KeptError::Panicked)??;
    let is_wanted = |pin: &str| agent.is_none_or(|agent| agent == agent_of(pin));
    for (pin, at) in kept.into_iter().filter(|(pin, _)| is_wanted(pin)) {
        let version = version(&mut versions, &pin);
        version.is_kept = true;
        version.since = version.since.or(Some(at));
    }
    for pin in current.iter().filter(|pin| is_wanted(pin)) {
        version(&mut versions, pin).is_current = true;
    }
    let mut versions: Vec<AgentVersion> = versions.into_values().collect();
    versions.sort_by(|one, other| {
        let key = |of: &AgentVersion| (of.since.is_some(), Reverse(of.since));
        let agents = agent_of(&one.pin).cmp(agent_of(&other.pin));
        agents.then_with(|| key(one).cmp(&key(other)))
    });
    Ok(versions)
}

fn version<'v>(
    versions: &'v mut BTreeMap<String, AgentVersion>,
    pin: &str,
) -> &'v mut AgentVersion {
    versions.entry(pin.to_owned()).or_insert_with(|| AgentVersion::new(pin))
}

/// The pins whose policies are kept and can be read, with the times at which they were kept.
fn kept(data_dir: &Path) -> Result<Vec<(String, Timestamp)>, BlobError> {
    let blobs = Blobs::existing(data_dir);
    let named = |(digest, at): (String, SystemTime)| {
        let pin = snapshot::pin_with_digest(&blobs, &digest)?;
        // A time before 1970 is that of a broken clock.
        let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Some((pin, Timestamp(millis(at))))
    };
    Ok(blobs.kept_pins()?.into_iter().filter_map(named).collect())
}

/// The pins of the agents of a policy, as its files are now. An agent one of whose components cannot be
/// read has none.
fn pins_now(policy: &Policy) -> Vec<String> {
    let files = policy.agents.values().flat_map(|agent| policy.files_of(agent));
    let digests = digests_now(files);
    policy.agents.values().filter_map(|agent| pin_of(policy, agent, &digests).ok()).collect()
}

fn digests_now<'p>(files: impl Iterator<Item = &'p Path>) -> Digests {
    let mut digests = Digests::new();
    for path in files {
        if !digests.contains_key(path)
            && let Ok(digest) = digest_file(path, COMPONENT_BYTES_MAX)
        {
            digests.insert(path.to_owned(), digest);
        }
    }
    digests
}

/// The closure of an agent of a policy, as its files are now; `None` if one of its components cannot be
/// read. Blocks for as long as reading them takes.
#[must_use]
pub fn closure_now(policy: &Policy, agent: &AgentPolicy) -> Option<Closure> {
    let digests = digests_now(policy.files_of(agent).into_iter());
    closure_of(policy, agent, &digests).ok()
}

/// The closure of a version of an agent, by the policy that is kept under its pin.
///
/// # Errors
/// Why it is not known, in words.
pub fn closure_of_version(data_dir: &Path, pin: &str) -> Result<Closure, String> {
    snapshot::closure(&Blobs::existing(data_dir), pin)
}

/// The numbers of the runs with a pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinRuns {
    /// Those that are executed with the agent in that form.
    pub tasks: u64,
    /// Entries of a heartbeat: any form of their agent takes them, and the pin says under which
    /// policy they were accepted.
    pub entries: u64,
}

impl PinRuns {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.tasks + self.entries
    }

    fn add(&mut self, run: &Run) {
        match run.spec.class {
            RunClass::Task => self.tasks += 1,
            RunClass::Heartbeat => self.entries += 1,
        }
    }
}

/// The numbers of the runs that scope and filter admit, by their pins. Runs that have none stand
/// under the names of their agents. Takes as long as reading all of them.
///
/// # Errors
/// [`StoreError`].
///
/// # Cancel safety
/// Dropping the future gives up the count.
pub async fn runs_by_pin(
    storage: &Storage,
    scope: &Scope,
    filter: &ListFilter,
) -> Result<BTreeMap<String, PinRuns>, StoreError> {
    let mut counts: BTreeMap<String, PinRuns> = BTreeMap::new();
    let count = |run: &Run| {
        let pin: &str = if has_digest(run.pin()) { run.pin() } else { &run.spec.agent_name };
        counts.entry(pin.to_owned()).or_default().add(run);
    };
    storage.each_run(scope, filter, count).await?;
    Ok(counts)
}
