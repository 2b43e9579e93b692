//! The port to stores: journal, records, queue and hosts.
//!
//! A store keeps what it is given and decides nothing: events come with the record they lead to.
//! Everything that a method acknowledged is on disk, as far as the store has one, and becomes
//! visible to readers at that moment and not before.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::event::{Recorded, Seq};
use crate::ids::{HostId, RunId};
use crate::list::{Cursor, ListFilter, Page, Scope};
use crate::run::Run;
use crate::time::Timestamp;

/// Journal, records and queue.
#[async_trait]
pub trait Store: Send + Sync {
    /// Keeps a new run with its first events. Nothing is kept unless the answer is
    /// [`Created::New`].
    ///
    /// # Errors
    /// [`StoreError`]; the run may then exist only after [`StoreError::Unknown`].
    async fn create(&self, run: NewRun) -> Result<Created, StoreError>;

    /// Adds events to a journal and replaces the record, in one step, if the journal still ends
    /// at `expected_head` and the run's epoch is still `epoch`.
    ///
    /// Idempotent: the same append again is [`Appended::Done`].
    ///
    /// # Errors
    /// [`StoreError`]; the events may then be kept only after [`StoreError::Unknown`].
    async fn append(&self, append: Append) -> Result<Appended, StoreError>;

    /// Takes queued runs for a host, highest priority first, then oldest first, and records
    /// [`crate::machine::decide::claim`] for each. No run is given to two hosts.
    ///
    /// # Errors
    /// [`StoreError`]; runs may then be claimed only after [`StoreError::Unknown`].
    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError>;

    /// The record; `None` if there is no such run.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError>;

    /// A page of the runs that scope and filter admit, in the order of [`Page`].
    ///
    /// # Errors
    /// [`StoreError`].
    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError>;

    /// Events of a journal after position `after`, in order, at most `limit`. Empty for an
    /// unknown run.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn read(&self, id: &RunId, after: Seq, limit: usize)
    -> Result<Vec<Recorded>, StoreError>;

    /// Returns when the journal of `id` may reach beyond position `after`, whichever process
    /// wrote to it. May return early; never later than a second after the fact.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    async fn changed(&self, id: &RunId, after: Seq);

    /// Returns when there may be queued work, whichever process queued it. May return early;
    /// never later than a second after the fact.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    async fn work(&self);
}

/// The processes that share a store.
#[async_trait]
pub trait Hosts: Send + Sync {
    /// Enters a host into the list; from now on its heart beats without the caller's doing,
    /// every [`HEARTBEAT`], on a thread that no executor can starve.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn register(&self, host: Host) -> Result<(), StoreError>;

    /// Takes a host out of the list, if no queued run waits for its policy and it holds none;
    /// says whether it is out. So work that was queued while the host lived is never left lying.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn retire(&self, host: &HostId) -> Result<bool, StoreError>;

    /// The hosts that live: their process exists and their heart beat within [`HOST_STALE`].
    ///
    /// # Errors
    /// [`StoreError`].
    async fn hosts(&self) -> Result<Vec<Host>, StoreError>;

    /// Runs that are held by hosts which do not live, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn orphans(&self, limit: usize) -> Result<Vec<Run>, StoreError>;
}

/// How often a host says that it lives.
pub const HEARTBEAT: Duration = Duration::from_secs(5);
/// After what silence a host counts as dead: six missed beats.
pub const HOST_STALE: Duration = Duration::from_secs(30);

/// A host process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub id: HostId,
    /// Its process on this machine.
    pub pid: u32,
    /// Digest of the policy under which it executes.
    pub policy_digest: String,
    /// When it began.
    pub started_at: Timestamp,
}

/// A run to be kept.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// The record after `events`.
    pub run: Run,
    /// The journal so far.
    pub events: Vec<Recorded>,
    /// Makes a repeated request harmless.
    pub idempotency: Option<Idempotency>,
}

/// A caller's key for a request, unique in its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The key.
    pub key: String,
    /// Digest of the request; the same key with another one is a mistake of the caller.
    pub fingerprint: String,
}

/// What became of a new run.
#[derive(Clone, Debug)]
pub enum Created {
    /// It is kept.
    New,
    /// The same request was made before; this is its run.
    Repeated(Box<Run>),
    /// The id, or the idempotency key with another request, belongs to this run.
    Taken(RunId),
}

/// Events to be added.
#[derive(Clone, Debug)]
pub struct Append {
    /// The record after `events`. Shares its unchanging part.
    pub run: Run,
    /// Epoch of the writer.
    pub epoch: u64,
    /// Where the journal ends for the writer.
    pub expected_head: Seq,
    /// The events, the first at `expected_head + 1`.
    pub events: Arc<[Recorded]>,
}

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is kept, now or since an earlier attempt.
    Done,
    /// Somebody else wrote since; the journal ends here now. Read on, decide again.
    Moved(Seq),
    /// Another host holds the run, under this epoch. Stop.
    Fenced(u64),
    /// There is no such run.
    Missing,
}

/// A wish for work.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The host.
    pub host: HostId,
    /// Only runs that were accepted under this policy.
    pub policy_digest: String,
    /// Most runs to take.
    pub limit: usize,
    /// The time to be recorded.
    pub now: Timestamp,
}

/// Why a store could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another program keeps the store locked.
    #[error("the store {path} is locked by another program")]
    Locked {
        /// Its file.
        path: String,
    },
    /// The store was written by a newer version.
    #[error(
        "unsupported store version {found} in {path}; this program knows versions up to {known}"
    )]
    Version {
        /// Its file.
        path: String,
        /// Version of the store.
        found: i64,
        /// Newest version that is known.
        known: i64,
    },
    /// The file is not a store, or is damaged.
    #[error("the store {path} is damaged or not a store: {detail}")]
    Corrupt {
        /// Its file.
        path: String,
        /// What was found.
        detail: String,
    },
    /// No space is left.
    #[error("no space is left for the store {path}")]
    Full {
        /// Its file.
        path: String,
    },
    /// The store cannot be written.
    #[error("the store {path} cannot be written: {detail}")]
    ReadOnly {
        /// Its file.
        path: String,
        /// What the operating system said.
        detail: String,
    },
    /// The store cannot be reached.
    #[error("the store {path} cannot be opened: {detail}")]
    Unavailable {
        /// Its file.
        path: String,
        /// What the operating system said.
        detail: String,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// Whether the last operation took effect is not known.
    #[error("the store did not say whether the last change took effect: {detail}")]
    Unknown {
        /// What was said.
        detail: String,
    },
}

impl StoreError {
    /// The word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "store-locked",
            Self::Version { .. } => "store-version",
            Self::Corrupt { .. } => "store-corrupt",
            Self::Full { .. } => "store-full",
            Self::ReadOnly { .. } => "store-read-only",
            Self::Unavailable { .. } => "store-unavailable",
            Self::Closed => "store-closed",
            Self::Unknown { .. } => "store-unknown",
        }
    }
}
