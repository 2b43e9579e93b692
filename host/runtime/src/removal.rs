//! Components and policies that were kept for runs and that no run needs any more, and native code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use taskrun_engine::{Cache, CacheError, CachedFiles, digest_file, pin_of};
use taskrun_journal::pin::{Pins, has_digest};
use taskrun_journal::store::{Store, StoreError};
use taskrun_journal::time::{Timestamp, millis};
use taskrun_policy::Policy;
use taskrun_store::{BlobError, Blobs, RemovedBlobs};

use crate::loader::{CACHE_DIR, COMPONENT_BYTES_MAX, open_cache};
use crate::snapshot::{self, ComponentsError, Digests};
use crate::storage::Storage;

/// The age below which nothing is removed: hosts and acceptances renew what they rely on far more
/// often.
pub(crate) const KEPT_FOR_MIN: Duration = Duration::from_secs(60 * 60);

/// The components and policies that are to be removed.
#[derive(Clone, Copy, Debug)]
pub struct KeptRemoval<'p> {
    /// Only those that no run has needed and nobody has wanted for this long; an hour at least.
    pub older_than: Duration,
    /// The time of day.
    pub now: Timestamp,
    /// The policy in use, whose agents are needed. Default: none.
    pub policy: Option<&'p Policy>,
    /// Remove nothing, only say what would be.
    pub dry_run: bool,
}

/// The amounts that were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedKept {
    /// Components.
    pub components: RemovedBlobs,
    /// Policies.
    pub policies: RemovedBlobs,
    /// Native code, and what is known of components beside it.
    pub native: CachedFiles,
}

/// The reason that nothing was removed, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum KeptRemovalError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store is damaged, so that a run may be missing in it that needs a component.
    #[error("the store is damaged: which components are needed is not known")]
    Damaged,
    /// The components that open runs need are not known.
    #[error("which components the open runs of {pin} need is not known: {why}")]
    Unknown {
        /// Their pin.
        pin: String,
        /// Why, in words.
        why: String,
    },
    /// Another process removes some, or has been accepting a run for seconds.
    #[error("another process is removing components, or has been accepting a run for seconds")]
    Busy,
    /// The data directory cannot be read or written.
    #[error("components cannot be removed")]
    Blobs(#[from] BlobError),
    /// The folder of native code cannot be read or written.
    #[error("native code cannot be removed")]
    Native(#[from] CacheError),
    /// The host failed at it.
    #[error("internal error of the host; see its log")]
    Panicked,
}

/// Removes the components and policies of a data directory that are needed by no open run, by none
/// that ended lately, and not by the policy in use; the policies of all runs on record stay. Native
/// code goes that no process has loaded for as long, unless its component stays. No run is accepted
/// meanwhile. A store in memory has none.
///
/// # Errors
/// [`KeptRemovalError`].
///
/// # Cancel safety
/// Dropping the future leaves some removed and others not.
pub async fn remove_kept(
    storage: &Storage,
    removal: KeptRemoval<'_>,
) -> Result<RemovedKept, KeptRemovalError> {
    let Some(data_dir) = storage.data_dir() else { return Ok(RemovedKept::default()) };
    if !storage.findings().is_empty() {
        return Err(KeptRemovalError::Damaged);
    }
    let KeptRemoval { now, policy, dry_run, .. } = removal;
    let older_than = removal.older_than.max(KEPT_FOR_MIN);
    let store = storage.store.as_ref();
    // What takes long is asked before anybody has to wait for it.
    let recorded = store.pins(Some(Timestamp(0))).await?;
    let since = Timestamp(now.0.saturating_sub(millis(older_than)));
    let lately = store.pins(Some(since)).await?;
    let (dir, policy) = (data_dir.to_owned(), policy.cloned());
    let begin = move || {
        let blobs = Blobs::open(&dir)?;
        let mut needed = Needed::default();
        policy.iter().for_each(|policy| needed.add_policy(policy));
        needed.add_recorded(&recorded);
        needed.add_ended(&blobs, &lately);
        // Where it was never kept there is none, and where others can write no host uses it.
        let code = dir.join(CACHE_DIR);
        let cache = code.is_dir().then(|| open_cache(&code)).flatten();
        Ok::<_, BlobError>((blobs, cache, needed))
    };
    let begun = tokio::task::spawn_blocking(begin).await;
    let (blobs, cache, needed) = begun.map_err(|_| KeptRemovalError::Panicked)??;
    let handle = tokio::runtime::Handle::current();
    let store = std::sync::Arc::clone(&storage.store);
    let remove = move || {
        let open_pins = || handle.block_on(open_pins(&*store));
        remove((&blobs, cache.as_ref()), needed, (older_than, dry_run), open_pins)
    };
    let removed = tokio::task::spawn_blocking(remove).await;
    removed.map_err(|_| KeptRemovalError::Panicked)?
}

async fn open_pins(store: &dyn Store) -> Result<Vec<Pins>, StoreError> {
    store.pins(None).await
}

/// Removes what is old and not needed, by what the store says while no run is accepted.
fn remove(
    (blobs, cache): (&Blobs, Option<&Cache>),
    mut needed: Needed,
    (older_than, dry_run): (Duration, bool),
    open_pins: impl FnOnce() -> Result<Vec<Pins>, StoreError>,
) -> Result<RemovedKept, KeptRemovalError> {
    let removal = blobs.begin_removal()?.ok_or(KeptRemovalError::Busy)?;
    needed.add_open(blobs, &open_pins()?)?;
    // Hosts under other policies have those that they name count as wanted.
    let young = |renewed_at| removal.age(renewed_at) <= older_than;
    let listed = blobs.list()?.into_iter();
    needed.add(listed.filter(|blob| young(blob.renewed_at)).map(|blob| blob.digest));
    let is_component = |digest: &blake3::Hash| needed.components.contains(digest.as_bytes());
    let components = removal.blobs(older_than, dry_run, is_component)?;
    let is_policy = |pin: &str| needed.policies.contains(pin);
    let policies = removal.snapshots(older_than, dry_run, is_policy)?;
    let age = |at| removal.age(at);
    let native = match cache {
        Some(cache) => cache.remove_unneeded((older_than, dry_run), age, is_component)?,
        None => CachedFiles::default(),
    };
    Ok(RemovedKept { components, policies, native })
}

/// Removes native code that no process has loaded for this long from a folder that no data
/// directory has, such as the user's. A failure is logged and changes nothing.
pub fn remove_old_code(dir: &Path, older_than: Duration, now: Timestamp) {
    // Whoever keeps native code there tells of a folder that cannot be used.
    let Ok(cache) = Cache::open(dir) else { return };
    let age = |at: SystemTime| {
        let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        now.since(Timestamp(millis(since_epoch)))
    };
    if let Err(error) = cache.remove_unneeded((older_than, false), age, |_| false) {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, "native code that nobody loads any more stays");
    }
}

/// The components and policies that stay.
#[derive(Default)]
struct Needed {
    components: BTreeSet<[u8; 32]>,
    /// By the digests in pins.
    policies: BTreeSet<String>,
}

impl Needed {
    fn add(&mut self, digests: impl IntoIterator<Item = blake3::Hash>) {
        self.components.extend(digests.into_iter().map(|digest| *digest.as_bytes()));
    }

    /// The agents of the policy in use, as its files are. A file that cannot be read is nobody's
    /// component.
    fn add_policy(&mut self, policy: &Policy) {
        let files: BTreeSet<&Path> =
            policy.agents.values().flat_map(|agent| policy.files_of(agent)).collect();
        let digest =
            |path: &Path| Some((path.to_owned(), digest_file(path, COMPONENT_BYTES_MAX).ok()?));
        let digests: Digests = files.into_iter().filter_map(digest).collect::<BTreeMap<_, _>>();
        let pins = policy.agents.values().filter_map(|agent| pin_of(policy, agent, &digests).ok());
        self.policies.extend(pins.map(|pin| snapshot::digest_of(&pin).to_owned()));
        self.add(digests.into_values());
    }

    /// The policies of all runs that are on record: they say under which rules these were.
    fn add_recorded(&mut self, recorded: &[Pins]) {
        let pins = recorded.iter().flat_map(Pins::all).filter(|pin| has_digest(pin));
        self.policies.extend(pins.map(|pin| snapshot::digest_of(pin).to_owned()));
    }

    /// The components of runs that ended lately. Those of which nothing is known are lost to them
    /// already.
    fn add_ended(&mut self, blobs: &Blobs, lately: &[Pins]) {
        let pins: BTreeSet<&str> = lately.iter().flat_map(Pins::all).collect();
        for pin in pins.into_iter().filter(|pin| has_digest(pin)) {
            self.add(snapshot::components(blobs, pin).unwrap_or_default());
        }
    }

    /// The components and policies of open runs.
    fn add_open(&mut self, blobs: &Blobs, open: &[Pins]) -> Result<(), KeptRemovalError> {
        self.add_recorded(open);
        let pins: BTreeSet<&str> = open.iter().flat_map(Pins::all).collect();
        for pin in pins.into_iter().filter(|pin| has_digest(pin)) {
            match snapshot::components(blobs, pin) {
                Ok(components) => self.add(components),
                Err(ComponentsError::Blobs(error)) => return Err(error.into()),
                Err(error @ (ComponentsError::Gone | ComponentsError::Unreadable)) => {
                    let (pin, why) = (pin.to_owned(), error.to_string());
                    return Err(KeptRemovalError::Unknown { pin, why });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
