//! The port to hosts: which processes claim runs, and which of them are silent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::StoreError;
use crate::hold::Lane;
use crate::ids::{HostId, RunId};
use crate::pin::{Pins, Ready};
use crate::run::Run;
use crate::spec::RunSpec;
use crate::time::Timestamp;

/// The processes that share a store.
#[async_trait]
pub trait Hosts: Send + Sync {
    /// Enters a host into the list, or replaces what is there of it; from now on its heart beats without the caller's doing, six
    /// times in its lease, on a thread that no executor can starve.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn register(&self, host: Host) -> Result<(), StoreError>;

    /// Takes a host out of the list, unless it has a reason to stay; says whether it is out. So
    /// work that was queued while the host lived is never left lying.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn retire(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError>;

    /// True if a host has a reason to stay, found out without writing anything.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn is_needed(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError>;

    /// The hosts that live and take runs up: their process exists, their heart beat within their
    /// lease, and they are not leaving ([`Host::is_leaving`]).
    ///
    /// # Errors
    /// [`StoreError`].
    async fn hosts(&self) -> Result<Vec<Host>, StoreError>;

    /// The hosts whose process exists, in the order of their ids: those that live, those that are
    /// leaving, and those that stand still or cannot write, which may go on at any time. For people
    /// who look, and for whoever ends cancellations that a host does not hear: who takes up runs
    /// and whose runs are taken over does not follow from this list.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn present_hosts(&self) -> Result<Vec<PresentHost>, StoreError>;

    /// Runs that are held by hosts which do not live, at most `limit`. A host whose process is
    /// there is not taken for dead before its heart was silent for a whole lease in which this
    /// process could write itself.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn orphans(&self, limit: usize) -> Result<Vec<Run>, StoreError>;

    /// When a host last gave a sign of life, in the time of its own `started_at`; `None` if that is
    /// not known. Of one that is gone, for as long as it holds runs.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn heard(&self, host: &HostId) -> Result<Option<Timestamp>, StoreError>;

    /// Runs that a host holds after `after` in the order of their ids, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn held(
        &self,
        host: &HostId,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError>;

    /// The time since the last written heartbeat of a host of this process was sent; time in
    /// which the process stood still counts. `None` for a host that is none of this process.
    ///
    /// A host whose answer comes near its lease may be taken for dead: it begins nothing more.
    fn silence(&self, host: &HostId) -> Option<Duration>;

    /// Lets a host of this process be dead at once, as if its process had died. Writes nothing.
    fn abandon(&self, host: &HostId);
}

/// The reasons for a host to stay: a run that it holds, one that it executes which is wanted, or waits
/// for a heartbeat, a report that is due of one of its agents, and a dispatch for one of its subscribers
/// that is due soon ([`crate::dispatch::keeps_host`]). Not every such run is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// No host stays for runs that it cannot execute: those with one of these pins.
    pub without: BTreeSet<String>,
    /// Nor for runs whose time comes after this; `None` if it stays for all.
    pub until: Option<Timestamp>,
}

/// After what silence a host counts as dead, unless it says otherwise of itself.
pub const LEASE: Duration = Duration::from_secs(30);
/// Beats in one lease, so that a few may be late: every 5 s in the usual one.
pub const BEATS_PER_LEASE: u32 = 6;

/// A host process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub id: HostId,
    /// Its process on this machine.
    pub pid: u32,
    /// The file of its policy.
    pub policy: String,
    /// Names of the agents whose runs it executes.
    pub agents: Arc<BTreeSet<String>>,
    /// The subscribers to which it hands dispatches over.
    pub subscribers: Arc<BTreeSet<String>>,
    /// When it began.
    pub started_at: Timestamp,
    /// Runs that it executes at once; 0 once it is leaving.
    pub slots: u32,
    /// After what silence it counts as dead.
    pub lease: Duration,
}

/// A host whose process exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentHost {
    /// The host.
    pub host: Host,
    /// The time since its last written heartbeat was sent, where that is its lease or longer;
    /// `None` of one that lives.
    pub silence: Option<Duration>,
}

impl Host {
    /// The runs that it executes, as far as their agents' names tell.
    #[must_use]
    pub fn ready(&self) -> Ready {
        Ready::Named(Arc::clone(&self.agents))
    }

    /// True if it takes nothing up any more: it was told to end, and lives until it has handed over
    /// what it executes.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.slots == 0
    }

    /// True if it executes this run, as far as the names of agents tell.
    #[must_use]
    pub fn executes(&self, spec: &RunSpec) -> bool {
        self.ready().includes(&Pins::accepted(spec), Lane::Fresh)
    }
}
