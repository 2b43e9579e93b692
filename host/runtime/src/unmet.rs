//! The needs of open runs that what is kept in a data directory does not meet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::pin::{Pins, has_digest};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::StoreError;
use taskrun_store::{BlobError, Blobs};

use crate::snapshot::{self, PinError};
use crate::storage::Storage;

/// Most runs that are named: the others are counted, and have the same faults as a rule.
pub const UNMET_RUNS_MAX: usize = 10;

/// A fault of what is kept under the pin of an open run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum NeedFault {
    /// The policy of the pin cannot be had; in words.
    #[error("{0}")]
    Policy(String),
    /// The policy of the pin means nothing to this program, or something else; in words.
    #[error("{0}")]
    Unusable(String),
    /// A component is not there.
    #[error("{path} is missing", path = .0.display())]
    Missing(PathBuf),
    /// A component cannot be read, or its bytes are not those that were kept.
    #[error("{path} is damaged", path = .0.display())]
    Damaged(PathBuf),
}

/// An open run that begins nothing for a fault of what is kept for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmetRun {
    /// Its id.
    pub id: RunId,
    /// Its agent.
    pub agent: String,
    /// Its status.
    pub status: Status,
    /// Those of its pins, its own first, of which something is at fault.
    pub pins: Vec<String>,
}

/// The needs of open runs that are not met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnmetNeeds {
    /// The faults under each pin that has some, of the open runs of all tenants.
    pub pins: BTreeMap<String, Vec<NeedFault>>,
    /// The first runs of the caller that have such a pin, the one changed last before the others; at
    /// most [`UNMET_RUNS_MAX`].
    pub runs: Vec<UnmetRun>,
    /// The number of further ones.
    pub more: u64,
    /// Those of the pins that no run of the caller has.
    pub of_others: BTreeSet<String>,
}

/// The reason that it is not known what is kept for runs, and for which.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The data directory cannot be read.
    #[error("what is kept for runs cannot be read")]
    Blobs(#[from] BlobError),
    /// The host failed at it.
    #[error("internal error of the host; see its log")]
    Panicked,
}

/// Finds the policies and components that open runs need and that are missing, cannot be read, or are
/// among the `damaged` files that [`crate::check_components`] found. Runs are named where the scope
/// admits them. A store in memory keeps nothing.
///
/// # Errors
/// [`KeptError`].
///
/// # Cancel safety
/// Dropping the future gives up the look.
pub async fn unmet_needs(
    storage: &Storage,
    scope: &Scope,
    damaged: &[PathBuf],
) -> Result<UnmetNeeds, KeptError> {
    let Some(data_dir) = storage.data_dir() else { return Ok(UnmetNeeds::default()) };
    let open = storage.store.pins(None).await?;
    let (dir, damaged) = (data_dir.to_owned(), damaged.iter().cloned().collect());
    let look = tokio::task::spawn_blocking(move || faults(&dir, &open, &damaged));
    let pins = look.await.map_err(|_| KeptError::Panicked)??;
    let of_others = pins.keys().cloned().collect();
    let mut unmet = UnmetNeeds { pins, of_others, ..UnmetNeeds::default() };
    if !unmet.pins.is_empty() {
        storage.each_run(scope, &ListFilter::open(), |run| unmet.add_run(run)).await?;
    }
    Ok(unmet)
}

/// The faults of what is kept, under each pin that has some.
fn faults(
    data_dir: &Path,
    open: &[Pins],
    damaged: &BTreeSet<PathBuf>,
) -> Result<BTreeMap<String, Vec<NeedFault>>, BlobError> {
    let blobs = Blobs::existing(data_dir);
    let pins: BTreeSet<&str> = open.iter().flat_map(Pins::all).collect();
    let mut faults = BTreeMap::new();
    for pin in pins.into_iter().filter(|pin| has_digest(pin)) {
        let of_pin = match snapshot::open(&blobs, pin) {
            Err(PinError::Unusable(why)) => BTreeSet::from([NeedFault::Unusable(why)]),
            Err(why @ (PinError::Kept(_) | PinError::Gone(_) | PinError::GoneThere { .. })) => {
                BTreeSet::from([NeedFault::Policy(why.to_string())])
            }
            Ok((_, digests)) => {
                let paths = digests.values().map(|digest| blobs.path(digest));
                paths.filter_map(|path| fault_of(path, damaged)).collect()
            }
        };
        if !of_pin.is_empty() {
            faults.insert(pin.to_owned(), of_pin.into_iter().collect());
        }
    }
    Ok(faults)
}

/// The fault of a component that is kept, if it has one.
fn fault_of(path: PathBuf, damaged: &BTreeSet<PathBuf>) -> Option<NeedFault> {
    if damaged.contains(&path) {
        return Some(NeedFault::Damaged(path));
    }
    // One that cannot be looked at was found damaged where the bytes were read.
    let is_there = path.try_exists().unwrap_or(true);
    (!is_there).then_some(NeedFault::Missing(path))
}

impl UnmetNeeds {
    fn add_run(&mut self, run: &Run) {
        let pins = Pins::of(run);
        let pins: Vec<&str> = pins.all().filter(|pin| self.pins.contains_key(*pin)).collect();
        if pins.is_empty() {
            return;
        }
        pins.iter().for_each(|pin| {
            self.of_others.remove(*pin);
        });
        if self.runs.len() == UNMET_RUNS_MAX {
            self.more += 1;
            return;
        }
        self.runs.push(UnmetRun {
            id: run.id().clone(),
            agent: run.spec.agent_name.clone(),
            status: run.status(),
            pins: pins.into_iter().map(str::to_owned).collect(),
        });
    }
}
