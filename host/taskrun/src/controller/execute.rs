//! Takes wanted runs and drives them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use taskrun_journal::ids::RunId;
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::stop::StopCause;
use taskrun_journal::store::Claim;
use taskrun_journal::time::millis;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::context::TokioContext;

use super::Controller;
use crate::agents::{Agent, AgentCode};
use crate::driver::{
    Bounds, Driver, Env, Live, Patience, PatientMemory, PatientRuns, PatientStore, RunClock, Stalls,
};
use crate::gate::narrowing;

/// Most runs claimed in one write, so that a free host does not empty the queue of all others.
const CLAIM_MAX: usize = 64;
/// Pause after the store refused a claim.
const CLAIM_RETRY: Duration = Duration::from_secs(1);
/// The pause between two looks of a host without a free slot for runs that wait for their finalizer
/// alone and that no call of its own brought there. Real time: it only trades latency against
/// reads.
const FINALIZERS_LOOK: Duration = Duration::from_secs(1);

/// An agent, with its code or why that does not load.
type WithCode = (Result<Arc<AgentCode>, Arc<str>>, Arc<Agent>);

/// Where runs may be executed.
struct Places {
    /// For any run.
    slots: Vec<OwnedSemaphorePermit>,
    /// For runs that wait for their finalizer alone.
    finalizers: Vec<OwnedSemaphorePermit>,
}

/// The permits that are to be had now, at most so many.
fn free(of: &Arc<Semaphore>, most: usize) -> Vec<OwnedSemaphorePermit> {
    let next = || Arc::clone(of).try_acquire_owned().ok();
    std::iter::from_fn(next).take(most).collect()
}

/// Takes a run out of the list of those under way when its driver is gone, however it went. A run
/// that waited and was taken up again meanwhile is in the list anew, and stays.
struct ExecutionEntry {
    controller: Controller,
    id: RunId,
    live: Arc<Live>,
}

impl Drop for ExecutionEntry {
    fn drop(&mut self) {
        let inner = &self.controller.0;
        inner.worked_ms.store(millis(inner.parts.clock.monotonic()), Ordering::Release);
        let mut all = self.controller.live();
        if all.get(&self.id).is_some_and(|live| Arc::ptr_eq(live, &self.live)) {
            all.remove(&self.id);
        }
    }
}

impl Controller {
    pub(super) async fn claim_loop(self) {
        let inner = Arc::clone(&self.0);
        let lease = Arc::clone(&inner.lease);
        let mut loads = inner.codes.watch();
        loop {
            loads.mark_unchanged();
            let Some(places) = self.places().await else { return };
            let claim = Claim {
                host: inner.host.clone(),
                policy_digest: inner.parts.agents.policy_digest.clone(),
                limit: places.slots.len(),
                finalizers: places.finalizers.len(),
                tree_slots: inner.parts.settings.tree_slots,
                passing_over: self.without_code(),
                now: inner.parts.clock.now(),
            };
            let claiming = inner.claiming.lock().await;
            if inner.closing.is_cancelled() {
                return;
            }
            if !lease.may_begin() {
                drop(claiming);
                drop(places);
                // Nothing begins here while the host stands still.
                tokio::select! {
                    biased;
                    () = inner.closing.cancelled() => return,
                    () = tokio::time::sleep(lease.look_every()) => {}
                }
                continue;
            }
            let passes_over = !claim.passing_over.is_empty();
            match inner.parts.store.claim(claim).await {
                Ok(runs) if runs.is_empty() => {
                    drop(claiming);
                    if passes_over {
                        self.load_what_is_wanted().await;
                    }
                    let has_slots = !places.slots.is_empty();
                    drop(places);
                    if !has_slots {
                        continue;
                    }
                    tokio::select! {
                        biased;
                        () = inner.closing.cancelled() => return,
                        () = inner.finalizing.notified() => {}
                        _ = loads.changed() => {}
                        () = inner.parts.store.work() => {}
                    }
                }
                Ok(runs) => {
                    // Those without a slot are the last.
                    let places = places.slots.into_iter().chain(places.finalizers);
                    for (run, permit) in runs.into_iter().zip(places) {
                        self.begin(run, permit);
                    }
                }
                Err(error) => {
                    lease.note(&error);
                    drop(claiming);
                    drop(places);
                    tracing::warn!(%error, "no work can be claimed");
                    tokio::select! {
                        biased;
                        () = inner.closing.cancelled() => return,
                        () = inner.parts.clock.sleep(CLAIM_RETRY) => {}
                    }
                }
            }
        }
    }

    /// Begins to load the agents of the runs that were passed over.
    async fn load_what_is_wanted(&self) {
        let parts = &self.0.parts;
        match parts.store.wanted_agents(&parts.agents.policy_digest).await {
            Ok(names) => self.load_code_of(&names),
            // Runs that wait are looked at again with the next claim.
            Err(error) => tracing::warn!(%error, "it is not known which agents are wanted"),
        }
    }

    /// The places that are free, once there is a slot, or a reason to look for finalizers without
    /// one; `None` when this controller is closed.
    async fn places(&self) -> Option<Places> {
        let inner = &self.0;
        let mut slots = free(&inner.slots, CLAIM_MAX);
        if slots.is_empty() {
            tokio::select! {
                biased;
                () = inner.closing.cancelled() => return None,
                permit = Arc::clone(&inner.slots).acquire_owned() => slots.extend(permit),
                () = inner.finalizing.notified() => {}
                () = tokio::time::sleep(FINALIZERS_LOOK) => {}
            }
        }
        Some(Places { slots, finalizers: free(&inner.finalizers, super::FINALIZERS_MAX) })
    }

    fn begin(&self, run: Run, permit: OwnedSemaphorePermit) {
        let inner = &self.0;
        let live = Arc::new(Live::new(inner.parts.interrupt.clone()));
        self.live().insert(run.id().clone(), Arc::clone(&live));
        let listed = ExecutionEntry {
            controller: self.clone(),
            id: run.id().clone(),
            live: Arc::clone(&live),
        };
        let env = Arc::new(self.env(run.id(), &live));
        let agent = inner.parts.agents.by_name.get(&run.spec.agent_name).cloned();
        let agent = agent.and_then(|agent| Some((self.code(&agent)?, agent)));
        let controller = self.clone();
        let driven = async move {
            // Claimed in the moment in which the controller was closed: it was not in the list.
            if controller.0.closing.is_cancelled() {
                let handed_over = controller.0.draining.is_cancelled();
                live.request(match handed_over {
                    true => StopCause::HandOver,
                    false => StopCause::Shutdown,
                });
            }
            let left = match worked_on_by(&run) {
                Some(batch) => controller.settle_entry(run, &batch).await,
                None => Some(run),
            };
            if let Some(run) = left {
                controller.execute(env, agent, run, live).await;
            }
            // The slot is free again only when the guest is gone.
            drop(permit);
            drop(listed);
        };
        self.spawn_driving(driven);
    }

    /// Begins a task where runs are driven. Its timers and connections are those of the runtime at
    /// hand.
    pub(super) fn spawn_driving(&self, task: impl Future<Output = ()> + Send + 'static) {
        let inner = &self.0;
        match &inner.drivers {
            None => inner.tasks.spawn(task),
            Some(drivers) => {
                inner.tasks.spawn_on(TokioContext::new(task, Handle::current()), drivers)
            }
        };
    }

    fn env(&self, id: &RunId, live: &Arc<Live>) -> Env {
        let inner = &self.0;
        let stalls = Stalls::new(Arc::clone(&inner.parts.clock));
        let patience = Patience {
            id: id.clone(),
            live: Arc::clone(live),
            lease: Arc::clone(&inner.lease),
            stalls: Arc::clone(&stalls),
        };
        let (store, memory) = (Arc::clone(&inner.parts.store), Arc::clone(&inner.parts.memory));
        Env {
            store: Arc::new(PatientStore { inner: store, patience: patience.clone() }),
            clock: Arc::new(RunClock(Arc::clone(&stalls))),
            stalls,
            random: Arc::clone(&inner.parts.random),
            closing: inner.closing.clone(),
            draining: inner.draining.clone(),
            lease: Arc::clone(&inner.lease),
            hooks: inner.parts.hooks.clone(),
            runs: Arc::new(PatientRuns { inner: self.door(), patience: patience.clone() }),
            memory: Arc::new(PatientMemory { inner: memory, patience }),
        }
    }

    async fn execute(&self, env: Arc<Env>, agent: Option<WithCode>, run: Run, live: Arc<Live>) {
        let id = run.id().clone();
        match agent.filter(|(_, agent)| agent.digest == run.spec.agent_digest) {
            Some((Err(why), agent)) => {
                let text = format!("agent {} does not load: {why}", agent.name);
                self.end_failed(run, text).await;
            }
            Some((Ok(code), agent)) => {
                let agents = &self.0.parts.agents;
                let rules = narrowing::rules(&agent, &run.spec, agents);
                let bounds =
                    Bounds { rules, ancestors: narrowing::budgets_of_ancestors(&run.spec, agents) };
                let own = narrowing::narrowed((agent, code), &run.spec, agents);
                let drive = Driver::new(env, own, bounds, run, live).drive();
                if AssertUnwindSafe(drive).catch_unwind().await.is_err() {
                    self.end_broken(id).await;
                }
            }
            None => self.end_unknown(run).await,
        }
    }

    /// Ends a run whose driver panicked, so that a mistake of the host costs one run and not a
    /// slot for ever.
    async fn end_broken(&self, id: RunId) {
        tracing::error!(run = %id, "the driver panicked");
        match self.0.parts.store.get(&id).await {
            Ok(Some(run)) if !run.status().is_terminal() => {
                self.end_failed(run, "internal error of the host; see its log".to_owned()).await;
            }
            Ok(_) => {}
            Err(error) => tracing::error!(run = %id, %error, "cannot be ended"),
        }
    }

    /// Ends a run whose agent this host does not have, or has in another version.
    async fn end_unknown(&self, run: Run) {
        let text = format!(
            "agent {} with digest {} is not loaded in the host that took the run",
            run.spec.agent_name, run.spec.agent_digest
        );
        self.end_failed(run, text).await;
    }

    async fn end_failed(&self, run: Run, text: String) {
        let outcome = Outcome::HostFailed(text);
        self.journal(run).end(&[], &outcome, &self.0.closing).await;
    }
}

/// The batch run that worked on an entry and has ended, as the entry could be claimed.
fn worked_on_by(run: &Run) -> Option<RunId> {
    match &run.state.lifecycle {
        Lifecycle::Running { execution } => execution.batch.clone(),
        Lifecycle::Canceling { execution, .. } => execution.as_ref()?.batch.clone(),
        Lifecycle::Queued
        | Lifecycle::Blocked { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => None,
    }
}
