//! The controller: spawns runs and executes them, lists, shows, waits for and cancels them.
//!
//! The store has the runs; the controller holds nothing but the calls under way in this process. So
//! any number of controllers, in any number of processes, share a store.

mod adopt;
mod answer;
mod artifact;
mod beat;
mod cancel;
mod channels;
mod child;
mod client;
mod close;
mod code;
mod consents;
mod continuation;
mod delivery;
mod descendants;
mod dispatch;
mod execute;
mod facts;
mod home;
mod journal_room;
mod keep;
mod nudges;
mod observe;
mod pause;
mod progress;
mod record;
mod reload;
mod repeated;
mod reports;
mod rooms;
mod sessions;
mod shown;
mod snapshot;
mod spawn;
mod sweep;
mod terminals;
mod transcript;
mod wait;
mod wake;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use futures::task::Spawn;
use taskrun_journal::consent::Consents;
use taskrun_journal::ending::EndStatus;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::memory::Memory;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::store::{Dispatches, Host, Hosts, LEASE, Sessions, Store, StoreError};
use taskrun_journal::time::{Clock, Random, Timestamp, millis, random_u64};
use taskrun_policy::{TREE_RUNS_DEFAULT, TREE_SLOTS_DEFAULT};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use adopt::AdoptOutcome;
pub use cancel::{CancelOutcome, REASON_BYTES_MAX};
pub use client::{Client, Principal};
pub use close::{CloseOutcome, DRAIN_DEFAULT};
pub use consents::{CONSENTS_PAGE_MAX, ConsentAnswer, ConsentExtent, ConsentRequest};
pub use dispatch::IDLE_WAIT;
pub use facts::FACTS_PAGE_MAX;
pub use observe::{EventStream, Tree};
pub use pause::{PauseOutcome, PauseRequest, ResumeRequest};
pub use progress::{PROGRESS_EVERY, ProgressWatch};
pub use sessions::{DELETE_WAIT, SessionDeletion};
pub use snapshot::{CallStatus, CallSummary, ChildSummary, RunPhase, RunSnapshot};
pub use spawn::SpawnOutcome;
pub use terminals::TerminalNews;
pub use transcript::{TRANSCRIPT_DEFAULT, TRANSCRIPT_MAX, Transcript, TranscriptEntry};
pub use wait::{WAIT_RUNS_MAX, WaitOutcome};

pub(crate) use self::shown::info as run_info;
pub use crate::driver::charged;

use self::code::Codes;
use self::home::Home;
use crate::agents::Agents;
use crate::driver::{Journal, Lease, Live};
use crate::error::ControllerError;
use crate::ports::deployments::Deployments;
use crate::ports::hook::Hooks;
use crate::ports::retry::SharedRetryPolicy;
use crate::ports::transport::Subscribers;
use crate::scope::{HeldModels, Interrupt};

/// The parts of a controller.
pub struct ControllerParts {
    /// Journal, records and queue.
    pub store: Arc<dyn Store>,
    /// The list of processes that share the store.
    pub hosts: Arc<dyn Hosts>,
    /// The sessions from which runs are started.
    pub sessions: Arc<dyn Sessions>,
    /// Facts of sessions and tenants.
    pub memory: Arc<dyn Memory>,
    /// Consents to tool calls that hold in more than one run.
    pub consents: Arc<dyn Consents>,
    /// The rows of what subscribers are to be told.
    pub dispatches: Arc<dyn Dispatches>,
    /// The subscribers of the program, beside those of the policy.
    pub subscribers: Subscribers,
    /// Agents that can be spawned here, as the policy is when the controller is made.
    pub agents: Agents,
    /// Agents as the policy changes, and as it was. `None` where it never does.
    pub deployments: Option<Arc<dyn Deployments>>,
    /// The time of runs.
    pub clock: Arc<dyn Clock>,
    /// The machine's time, in which hooks, subscribers and the end of this host are waited for.
    pub machine: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Makes running guests look at their stop signals.
    pub interrupt: Interrupt,
    /// Hooks that are asked before runs are accepted and tools are called.
    pub hooks: Hooks,
    /// Decides about plan steps that fail. `None` leaves that to the policy of each agent.
    pub retry_policy: SharedRetryPolicy,
    /// Bounds.
    pub settings: Settings,
}

/// Bounds of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Runs executed at once by this process; 0 for one that only spawns and watches, and leaves
    /// the execution to others. Default: 64.
    pub slots: usize,
    /// Runs of one tree executed at once, by whichever processes, where the agent of its first run
    /// states no number. Default: 4.
    pub tree_slots: u32,
    /// Agents whose code is kept loaded at once, at least 1. Runs of others wait until none is under
    /// way of one that is loaded, but for runs beneath those under way. Does not count agents that
    /// were loaded when the controller began. Default: 32.
    pub agents_loaded: usize,
    /// Runs of a tenant that wait to begin; beyond that a spawn is refused. Default: 10,000.
    pub queue_max: u64,
    /// Runs of one tree in all, ended ones included. Default: 64.
    pub tree_max: u64,
    /// Runs above a run. Default: 8.
    pub depth_max: u32,
    /// Longest wait for a run where the caller names none. Default: a day.
    pub wait_max: Duration,
    /// After what silence other processes take this one for dead. Default: [`LEASE`].
    pub lease: Duration,
    /// The format in which journals are written. Default: [`JournalFormat::CURRENT`].
    pub format: JournalFormat,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slots: 64,
            tree_slots: TREE_SLOTS_DEFAULT,
            agents_loaded: 32,
            queue_max: 10_000,
            tree_max: TREE_RUNS_DEFAULT,
            depth_max: 8,
            wait_max: Duration::from_secs(24 * 60 * 60),
            lease: LEASE,
            format: JournalFormat::CURRENT,
        }
    }
}

/// Finalizers that one process hears beside its slots: those of runs that were canceled, or lost
/// their host, and for which nothing else is left to do. Whoever holds a slot may wait for the end
/// of such a run, so they need none.
pub const FINALIZERS_MAX: usize = 8;

/// Handle of a controller; clones are the same one.
#[derive(Clone)]
pub struct Controller(Arc<Inner>);

struct Inner {
    parts: ControllerParts,
    /// Where drivers are executed, if not where the controller is.
    drivers: Option<Arc<dyn Spawn + Send + Sync>>,
    host: HostId,
    /// When this controller was made.
    began_at: Timestamp,
    lease: Arc<Lease>,
    slots: Arc<Semaphore>,
    /// Places of runs whose finalizer alone is to be heard, and which have no slot.
    finalizers: Arc<Semaphore>,
    /// Told when such a run may be there.
    finalizing: Notify,
    live: Mutex<HashMap<RunId, Arc<Live>>>,
    /// Agents that can be spawned here, as the policy is now.
    agents: RwLock<Arc<Agents>>,
    codes: Codes,
    /// Held while the policy is looked at.
    reloading: tokio::sync::Mutex<()>,
    /// When it was looked at last, and found to be the one in force.
    looked_at: Mutex<Option<Instant>>,
    /// Ends the heartbeats of the policy before.
    beating: Mutex<CancellationToken>,
    /// The handing over to subscribers.
    dispatching: Mutex<dispatch::Dispatching>,
    /// When the last execution ended, or this controller was made, on the monotonic clock.
    worked_ms: AtomicU64,
    started: AtomicBool,
    /// The runtime in which this controller was started, if it executes runs.
    home: Home,
    registered: tokio::sync::OnceCell<()>,
    /// True if the list of hosts could not be written since the policy changed.
    is_listed_as_before: AtomicBool,
    closing: CancellationToken,
    draining: CancellationToken,
    /// Told when a report may be due.
    nudging: Notify,
    /// When it was last looked, there were outcomes that conversations are to be told now or later.
    outcomes_due: AtomicBool,
    /// A run was accepted here since work was last looked for: a claim will find it, or has.
    accepted: AtomicBool,
    /// A run may have been accepted here and not taken, since no claim found fewer than there were
    /// slots after that: then claims take many at once.
    may_have_waiting: AtomicBool,
    /// Read by each claim, and written by what must not be done beside one: this host leaves the list,
    /// other agents come in force or are put away for others, a run that nobody here executes is freed.
    claiming: Arc<tokio::sync::RwLock<()>>,
    tasks: TaskTracker,
    /// Models that are not to be asked before a time.
    held_models: Arc<HeldModels>,
    /// The journals of runs that others pause.
    journal_sizes: journal_room::JournalSizes,
}

impl Controller {
    /// A controller that does nothing yet.
    #[must_use]
    pub fn new(parts: ControllerParts) -> Self {
        Self::driving_on(parts, None)
    }

    /// The same, with the executor on which drivers of runs are polled, and with them the guests
    /// that run where they are polled. Timers and connections of drivers stay those of the runtime
    /// in which the controller is started, so that this one needs none. `None` drives runs there
    /// too.
    #[must_use]
    pub fn driving_on(
        parts: ControllerParts,
        drivers: Option<Arc<dyn Spawn + Send + Sync>>,
    ) -> Self {
        let (process, random) = (std::process::id(), random_u64(&*parts.random));
        let host = HostId::new(&format!("host-{process}-{random:016x}"));
        let slots = Arc::new(Semaphore::new(parts.settings.slots.min(Semaphore::MAX_PERMITS)));
        let worked_ms = AtomicU64::new(millis(parts.clock.monotonic()));
        let lease = Lease::new(Arc::clone(&parts.hosts), host.clone(), parts.settings.lease);
        Self(Arc::new(Inner {
            agents: RwLock::new(Arc::new(parts.agents.clone())),
            reloading: tokio::sync::Mutex::default(),
            looked_at: Mutex::default(),
            beating: Mutex::default(),
            dispatching: Mutex::default(),
            held_models: Arc::new(HeldModels::new(Arc::clone(&parts.clock))),
            began_at: parts.clock.now(),
            parts,
            drivers,
            host,
            lease: Arc::new(lease),
            slots,
            finalizers: Arc::new(Semaphore::new(FINALIZERS_MAX)),
            finalizing: Notify::new(),
            live: Mutex::default(),
            codes: Codes::new(),
            worked_ms,
            started: AtomicBool::new(false),
            home: Home::new(),
            registered: tokio::sync::OnceCell::new(),
            is_listed_as_before: AtomicBool::new(false),
            closing: CancellationToken::new(),
            draining: CancellationToken::new(),
            nudging: Notify::new(),
            outcomes_due: AtomicBool::new(true),
            accepted: AtomicBool::new(false),
            may_have_waiting: AtomicBool::new(false),
            claiming: Arc::default(),
            tasks: TaskTracker::new(),
            journal_sizes: journal_room::JournalSizes::default(),
        }))
    }

    /// Begins to execute wanted runs and to look after those of hosts that died. The first call
    /// counts; further ones change nothing.
    ///
    /// Of the runs that dead hosts left, [`PAGE_MAX`](taskrun_journal::list::PAGE_MAX) are free
    /// when this returns, and the others soon: a host that begins after a crash does not wait for
    /// all of them. A controller without slots does nothing beside its calls, and frees all of them
    /// before this returns, unless the store cannot be written just now.
    ///
    /// # Errors
    /// [`ControllerError::Closed`] after [`Self::close`], [`ControllerError::Storage`].
    pub async fn start(&self) -> Result<(), ControllerError> {
        let inner = &self.0;
        if inner.closing.is_cancelled() {
            return Err(ControllerError::Closed);
        }
        let executes = inner.parts.settings.slots > 0;
        if executes {
            inner.registered.get_or_try_init(|| self.register()).await?;
        }
        let mut more = false;
        if !inner.started.load(Ordering::Acquire) {
            // Fails, and can be tried again, before anything is promised.
            if executes {
                more = self.sweep_some().await?.1;
            } else {
                self.sweep_to_look().await?;
            }
        }
        if executes {
            inner.home.settle();
        }
        let first = !inner.started.swap(true, Ordering::AcqRel);
        if first && executes {
            self.watch_home();
            self.spawn_driving(self.clone().claim_loop());
            inner.tasks.spawn(self.clone().sweep_loop(more));
            inner.tasks.spawn(self.clone().lease_loop());
            inner.tasks.spawn(self.clone().nudge_loop());
            self.begin_beating();
            self.begin_dispatching();
            if inner.parts.deployments.is_some() {
                inner.tasks.spawn(self.clone().reload_loop());
            }
        }
        Ok(())
    }

    /// Sweeps for who is about to look, which is possible also where nothing can be written.
    async fn sweep_to_look(&self) -> Result<(), ControllerError> {
        match self.sweep().await {
            Ok(_) => Ok(()),
            Err(ControllerError::Storage(error)) if error.is_passing() => {
                tracing::warn!(%error, "runs of dead hosts cannot be freed now");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Has the list of hosts show this one as it is now.
    async fn register(&self) -> Result<(), StoreError> {
        self.0.parts.hosts.register(self.as_host()).await
    }

    /// This process, for the list of hosts.
    fn as_host(&self) -> Host {
        let inner = &self.0;
        let agents = self.agents();
        let is_leaving = inner.closing.is_cancelled();
        let slots = if is_leaving { 0 } else { inner.parts.settings.slots };
        Host {
            id: inner.host.clone(),
            pid: std::process::id(),
            policy: agents.policy.to_string(),
            agents: Arc::new(agents.names().cloned().collect()),
            subscribers: Arc::new(self.subscribers().names()),
            started_at: inner.began_at,
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            lease: inner.parts.settings.lease,
        }
    }

    /// This process, as the store knows it.
    #[must_use]
    pub fn host(&self) -> &HostId {
        &self.0.host
    }

    /// Agents that can be spawned here, as the policy is now.
    #[must_use]
    pub fn agents(&self) -> Arc<Agents> {
        Arc::clone(&self.0.agents.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs that are executed here at this moment.
    #[must_use]
    pub fn executing(&self) -> usize {
        self.live().len()
    }

    /// True while everything that is executed here stands still, as this host could not say for
    /// most of its lease that it lives. It goes on when the host is heard again.
    #[must_use]
    pub fn stands_still(&self) -> bool {
        self.0.lease.stands()
    }

    /// The time for which nothing was executed here.
    #[must_use]
    pub fn idle_for(&self) -> Duration {
        // In this order: what ends in between has left its time.
        if self.executing() > 0 {
            return Duration::ZERO;
        }
        let worked = Duration::from_millis(self.0.worked_ms.load(Ordering::Acquire));
        self.0.parts.clock.monotonic().saturating_sub(worked)
    }

    fn live(&self) -> MutexGuard<'_, HashMap<RunId, Arc<Live>>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when this process can never go on with what it executes, and says why: its store was
    /// removed or replaced, or a later program writes it. To be followed by [`Self::hand_over`] without a pause.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    pub async fn store_lost(&self) -> StoreError {
        self.0.lease.over().await
    }

    /// Takes note of a failure after which nothing goes on here.
    fn note(&self, error: &ControllerError) {
        if let ControllerError::Storage(error) = error {
            self.0.lease.note(error);
        }
    }

    fn journal(&self, run: Run) -> Journal {
        let parts = &self.0.parts;
        let (store, clock) = (Arc::clone(&parts.store), Arc::clone(&parts.clock));
        Journal::new(store, clock, Arc::clone(&parts.random), run)
    }
}

/// True if a run's end was an answer.
#[must_use]
pub fn succeeded(run: &Run) -> bool {
    match &run.state.lifecycle {
        Lifecycle::Ended { ending, .. } => ending.status == EndStatus::Completed,
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Blocked { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. } => false,
    }
}
