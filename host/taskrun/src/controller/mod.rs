//! The controller: spawns runs and executes them, lists, shows, waits for and cancels them.
//!
//! What a run is, the store knows; the controller holds nothing but the calls under way in this
//! process. So any number of controllers, in any number of processes, share a store.

mod execute;
mod observe;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use observe::{TRANSCRIPT_DEFAULT, TRANSCRIPT_MAX, Transcript, TranscriptEntry, Waited};

use crate::agents::Agents;
use crate::driver::{Halt, Journal, Live};
use crate::error::ControllerError;
use crate::event::{Event, Recorded};
use crate::ids::{HostId, RunId};
use crate::list::{Cursor, ListFilter, PAGE_MAX, Page, Scope};
use crate::machine::{self, decide};
use crate::ports::call::{Interrupt, StopCause, cut};
use crate::ports::store::{Created, Host, Hosts, Idempotency, NewRun, Store, StoreError};
use crate::run::{EndStatus, Lifecycle, Run};
use crate::spawn::{SpawnRequest, accept, fingerprint};
use crate::status::StopReason;
use crate::time::{Clock, Random, random_u64};

/// Runs that a host executes at once unless told otherwise.
pub const SLOTS_DEFAULT: usize = 64;
/// Most bytes of the reason that comes with a cancellation; a longer one is cut.
pub const REASON_BYTES_MAX: usize = 4 << 10;
/// How long [`Controller::close`] waits for runs to end unless told otherwise.
pub const DRAIN_DEFAULT: Duration = Duration::from_secs(10);

/// What a controller is made of.
pub struct ControllerParts {
    /// Journal, records and queue.
    pub store: Arc<dyn Store>,
    /// The list of processes that share the store.
    pub hosts: Arc<dyn Hosts>,
    /// Agents that can be spawned here.
    pub agents: Agents,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Makes running guests look at their stop signals.
    pub interrupt: Interrupt,
    /// Runs executed at once; 0 for a controller that only spawns and watches, and leaves the
    /// execution to others.
    pub slots: usize,
}

/// Handle of a controller; clones are the same one.
#[derive(Clone)]
pub struct Controller(Arc<Inner>);

struct Inner {
    parts: ControllerParts,
    host: HostId,
    slots: Arc<Semaphore>,
    live: Mutex<HashMap<RunId, Arc<Live>>>,
    started: AtomicBool,
    registered: tokio::sync::OnceCell<()>,
    closing: CancellationToken,
    /// Held while runs are claimed and while this host leaves the list: it must not do both.
    claiming: tokio::sync::Mutex<()>,
    tasks: TaskTracker,
}

/// What a cancellation did.
#[derive(Clone, Debug)]
pub struct Canceled {
    /// The run afterwards.
    pub run: Run,
    /// Whether this request changed anything.
    pub changed: bool,
}

/// How a controller came to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Runs that had not ended in time; they stay what they are until another process finds them.
    pub stragglers: Vec<RunId>,
}

impl Controller {
    /// A controller that does nothing yet.
    #[must_use]
    pub fn new(parts: ControllerParts) -> Self {
        let host = HostId::new(&format!(
            "host-{}-{:016x}",
            std::process::id(),
            random_u64(&*parts.random)
        ));
        let slots = Arc::new(Semaphore::new(parts.slots));
        Self(Arc::new(Inner {
            parts,
            host,
            slots,
            live: Mutex::default(),
            started: AtomicBool::new(false),
            registered: tokio::sync::OnceCell::new(),
            closing: CancellationToken::new(),
            claiming: tokio::sync::Mutex::default(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Begins to execute queued runs and to look after those of hosts that died. The first call
    /// counts; further ones change nothing.
    ///
    /// # Errors
    /// [`ControllerError::Closed`] after [`Self::close`], [`ControllerError::Storage`].
    pub async fn start(&self) -> Result<(), ControllerError> {
        let inner = &self.0;
        if inner.closing.is_cancelled() {
            return Err(ControllerError::Closed);
        }
        if inner.parts.slots > 0 {
            inner.registered.get_or_try_init(|| self.register()).await?;
        }
        if !inner.started.load(Ordering::Acquire) {
            // Fails, and can be tried again, before anything is promised.
            self.sweep().await?;
        }
        let first = !inner.started.swap(true, Ordering::AcqRel);
        if first && inner.parts.slots > 0 {
            inner.tasks.spawn(self.clone().claim_loop());
            inner.tasks.spawn(self.clone().sweep_loop());
        }
        Ok(())
    }

    async fn register(&self) -> Result<(), StoreError> {
        let inner = &self.0;
        let host = Host {
            id: inner.host.clone(),
            pid: std::process::id(),
            policy_digest: inner.parts.agents.policy_digest.clone(),
            started_at: inner.parts.clock.now(),
        };
        inner.parts.hosts.register(host).await
    }

    /// This process, as the store knows it.
    #[must_use]
    pub fn host(&self) -> &HostId {
        &self.0.host
    }

    /// Agents that can be spawned here.
    #[must_use]
    pub fn agents(&self) -> &Agents {
        &self.0.parts.agents
    }

    fn live(&self) -> MutexGuard<'_, HashMap<RunId, Arc<Live>>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a run and returns when that is durable. The run is executed by whichever host has
    /// a free slot first, and goes on when the caller is gone.
    ///
    /// # Errors
    /// In this order: [`ControllerError::NotStarted`], [`ControllerError::Closed`],
    /// [`ControllerError::Invalid`] for owner, parent session, task, agent and sizes,
    /// [`ControllerError::AlreadyExists`], [`ControllerError::Storage`]. Nothing is kept then.
    pub async fn spawn(
        &self,
        scope: &Scope,
        request: &SpawnRequest,
    ) -> Result<Run, ControllerError> {
        let inner = &self.0;
        if !inner.started.load(Ordering::Acquire) {
            return Err(ControllerError::NotStarted);
        }
        if inner.closing.is_cancelled() {
            return Err(ControllerError::Closed);
        }
        let now = inner.parts.clock.now();
        let mut random = [0; 10];
        inner.parts.random.fill(&mut random);
        let fresh = RunId::generate(now.0, &random);
        let spec = accept(request, scope, &inner.parts.agents, fresh, now)?;
        let recorded = Recorded {
            seq: 1,
            id: random_u64(&*inner.parts.random),
            at: now,
            event: Event::Queued { spec: Box::new(spec) },
        };
        let run = machine::begin(&recorded).map_err(|error| StoreError::Corrupt {
            path: String::new(),
            detail: error.to_string(),
        })?;
        let key = request.idempotency_key.as_deref().map(str::trim).filter(|k| !k.is_empty());
        // One owner's keys are none of another's business.
        let idempotency = key.map(|key| Idempotency {
            key: format!("{}\n{key}", run.spec.owner_user_id),
            fingerprint: fingerprint(request),
        });
        let new = NewRun { run: run.clone(), events: vec![recorded], idempotency };
        match inner.parts.store.create(new).await? {
            Created::New => Ok(run),
            Created::Repeated(run) => Ok(*run),
            Created::Taken(id) => Err(ControllerError::AlreadyExists { id }),
        }
    }

    /// The run as it stands.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn get(&self, scope: &Scope, id: &str) -> Result<Run, ControllerError> {
        let not_found = || ControllerError::NotFound { id: id.to_owned() };
        let Ok(run_id) = RunId::new(id) else {
            return Err(match id.trim() {
                "" => ControllerError::Invalid { field: "id", reason: "empty run id".to_owned() },
                _ => not_found(),
            });
        };
        let run = self.0.parts.store.get(&run_id).await?.ok_or_else(not_found)?;
        if scope.admits(&run) { Ok(run) } else { Err(not_found()) }
    }

    /// A page of runs, the one changed last first. A `limit` over [`PAGE_MAX`] counts as that.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, ControllerError> {
        let limit = limit.clamp(1, PAGE_MAX);
        Ok(self.0.parts.store.list(scope, filter, after, limit).await?)
    }

    /// Asks a run to stop and returns when the request is durable. A run that waits in the queue
    /// ends at once; one that is executed stays `canceling` until its guest is gone, in whatever
    /// process that is.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn cancel(
        &self,
        scope: &Scope,
        id: &str,
        reason: Option<&str>,
    ) -> Result<Canceled, ControllerError> {
        let run = self.get(scope, id).await?;
        let reason = reason.map(|reason| cut(reason, REASON_BYTES_MAX));
        self.cancel_run(run, StopReason::CanceledByOwner, reason).await
    }

    async fn cancel_run(
        &self,
        run: Run,
        by: StopReason,
        reason: Option<&str>,
    ) -> Result<Canceled, ControllerError> {
        let id = run.id().clone();
        let mut journal = self.journal(run);
        let decide = |run: &Run| decide::cancel(run, by, reason.map(str::to_owned));
        let changed = match journal.commit(decide).await {
            Ok(written) => !written.is_empty(),
            // Somebody else took it or ended it meanwhile: it stands as it stands.
            Err(Halt::Fenced) => {
                let run = self.0.parts.store.get(&id).await?;
                let run = run.ok_or_else(|| ControllerError::NotFound { id: id.to_string() })?;
                if run.status().is_terminal() {
                    return Ok(Canceled { run, changed: false });
                }
                return Box::pin(self.cancel_run(run, by, reason)).await;
            }
            Err(Halt::Store(error)) => return Err(error.into()),
            Err(Halt::Inconsistent(detail)) => {
                return Err(StoreError::Corrupt { path: id.to_string(), detail }.into());
            }
        };
        let live = self.live().get(&id).cloned();
        if let Some(live) = live.filter(|_| changed) {
            live.request(StopCause::Canceled);
        }
        Ok(Canceled { run: journal.run().clone(), changed })
    }

    fn journal(&self, run: Run) -> Journal {
        let parts = &self.0.parts;
        Journal::new(
            Arc::clone(&parts.store),
            Arc::clone(&parts.clock),
            Arc::clone(&parts.random),
            run,
        )
    }

    /// Ends the runs that hosts left behind when they died, and says which.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn sweep(&self) -> Result<Vec<RunId>, ControllerError> {
        let mut ended = Vec::new();
        loop {
            let before = ended.len();
            let orphans = self.0.parts.hosts.orphans(PAGE_MAX).await?;
            let last = orphans.len() < PAGE_MAX;
            self.end_orphans(orphans, &mut ended).await?;
            // A page of runs that cannot be ended would come again for ever.
            if last || ended.len() == before {
                return Ok(ended);
            }
        }
    }

    async fn end_orphans(
        &self,
        orphans: Vec<Run>,
        ended: &mut Vec<RunId>,
    ) -> Result<(), ControllerError> {
        for run in orphans {
            let id = run.id().clone();
            match self.journal(run).commit(decide::interrupt).await {
                Ok(written) if written.is_empty() => {}
                Ok(_) => ended.push(id),
                // Another process was quicker.
                Err(Halt::Fenced) => {}
                Err(Halt::Store(error)) => return Err(error.into()),
                Err(Halt::Inconsistent(detail)) => {
                    tracing::error!(run = %id, %detail, "cannot be ended");
                }
            }
        }
        Ok(())
    }

    /// Takes this host out of the list, if nothing waits for it; then it executes nothing more.
    /// Says whether it is out.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn retire(&self) -> Result<bool, ControllerError> {
        let _no_claims = self.0.claiming.lock().await;
        if !self.live().is_empty() {
            return Ok(false);
        }
        let out = self.0.parts.hosts.retire(&self.0.host).await?;
        if out {
            self.0.closing.cancel();
        }
        Ok(out)
    }

    /// Accepts and begins nothing more, cancels what runs here, and waits at most `drain` for
    /// that to end. Calling it again waits again.
    pub async fn close(&self, drain: Duration) -> Closed {
        let inner = &self.0;
        inner.closing.cancel();
        let live: Vec<_> = self.live().values().cloned().collect();
        live.iter().for_each(|live| live.request(StopCause::Shutdown));
        inner.tasks.close();
        tokio::select! {
            () = inner.tasks.wait() => {}
            () = inner.parts.clock.sleep(drain) => {
                let live: Vec<_> = self.live().values().cloned().collect();
                live.iter().for_each(|live| live.force());
            }
        }
        if let Err(error) = inner.parts.hosts.retire(&inner.host).await {
            tracing::warn!(%error, "this host could not be taken out of the list");
        }
        Closed { stragglers: self.live().keys().cloned().collect() }
    }
}

/// Whether a run's end was an answer.
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
