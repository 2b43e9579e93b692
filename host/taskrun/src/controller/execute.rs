//! Takes wanted runs and drives them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::context::TokioContext;

use super::Controller;
use crate::agents::Agent;
use crate::driver::{
    Bounds, Driver, Env, Live, Patience, PatientMemory, PatientRuns, PatientStore, RunClock, Stalls,
};
use crate::ids::RunId;
use crate::machine::decide::Outcome;
use crate::narrow;
use crate::ports::call::StopCause;
use crate::ports::store::Claim;
use crate::run::{Lifecycle, Run};
use crate::time::millis;

/// Most runs claimed in one write, so that a free host does not empty the queue of all others.
const CLAIM_MAX: usize = 64;
/// Pause after the store refused a claim.
const CLAIM_RETRY: Duration = Duration::from_secs(1);

/// Takes a run out of the list of those under way when its driver is gone, however it went. A run
/// that waited and was taken up again meanwhile is in the list anew, and stays.
struct Listed {
    controller: Controller,
    id: RunId,
    live: Arc<Live>,
}

impl Drop for Listed {
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
        loop {
            let slots = Arc::clone(&inner.slots);
            let first = tokio::select! {
                biased;
                () = inner.closing.cancelled() => return,
                permit = slots.acquire_owned() => permit,
            };
            let Ok(first) = first else { return };
            let mut permits = vec![first];
            while permits.len() < CLAIM_MAX
                && let Ok(permit) = Arc::clone(&inner.slots).try_acquire_owned()
            {
                permits.push(permit);
            }
            let claim = Claim {
                host: inner.host.clone(),
                policy_digest: inner.parts.agents.policy_digest.clone(),
                limit: permits.len(),
                tree_slots: inner.parts.settings.tree_slots,
                now: inner.parts.clock.now(),
            };
            let claiming = inner.claiming.lock().await;
            if inner.closing.is_cancelled() {
                return;
            }
            if !lease.may_begin() {
                drop(claiming);
                drop(permits);
                // Nothing begins here while the host stands still.
                tokio::select! {
                    biased;
                    () = inner.closing.cancelled() => return,
                    () = tokio::time::sleep(lease.look_every()) => {}
                }
                continue;
            }
            match inner.parts.store.claim(claim).await {
                Ok(runs) if runs.is_empty() => {
                    drop(claiming);
                    drop(permits);
                    tokio::select! {
                        biased;
                        () = inner.closing.cancelled() => return,
                        () = inner.parts.store.work() => {}
                    }
                }
                Ok(runs) => {
                    for (run, permit) in runs.into_iter().zip(permits) {
                        self.begin(run, permit);
                    }
                }
                Err(error) => {
                    lease.note(&error);
                    drop(claiming);
                    drop(permits);
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

    fn begin(&self, run: Run, permit: OwnedSemaphorePermit) {
        let inner = &self.0;
        let live = Arc::new(Live::new(inner.parts.interrupt.clone()));
        self.live().insert(run.id().clone(), Arc::clone(&live));
        let listed =
            Listed { controller: self.clone(), id: run.id().clone(), live: Arc::clone(&live) };
        let env = Arc::new(self.env(run.id(), &live));
        let agent = inner.parts.agents.by_name.get(&run.spec.agent_name).cloned();
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
        match &inner.drivers {
            None => inner.tasks.spawn(driven),
            Some(drivers) => {
                inner.tasks.spawn_on(TokioContext::new(driven, Handle::current()), drivers)
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

    async fn execute(&self, env: Arc<Env>, agent: Option<Arc<Agent>>, run: Run, live: Arc<Live>) {
        let id = run.id().clone();
        match agent.filter(|agent| agent.planner.digest() == run.spec.agent_digest) {
            Some(agent) => {
                let agents = &self.0.parts.agents;
                let chain = narrow::chain(&agent, &run.spec, agents);
                let bounds = Bounds { chain, above: narrow::budgets_above(&run.spec, agents) };
                let own = narrow::narrowed(agent, &run.spec, agents);
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
