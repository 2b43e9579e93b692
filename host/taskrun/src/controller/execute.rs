//! Takes wanted runs and drives them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::task::FutureObj;
use taskrun_journal::delivery::Delivery;
use taskrun_journal::ending::HostFault;
use taskrun_journal::ids::RunId;
use taskrun_journal::machine::decide::{self, Outcome};
use taskrun_journal::pin::Pins;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::schedule;
use taskrun_journal::spec::{RunClass, RunSpec};
use taskrun_journal::stop::StopCause;
use taskrun_journal::store::{Claim, Prospect};
use taskrun_journal::time::millis;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::context::TokioContext;
use tracing::Instrument;

use super::Controller;
use super::code::{FAILED_FOR, WithCode};
use super::repeated::RepeatedWarning;
use crate::agents::{Agent, LoadFault};
use crate::driver::{
    Bounds, Driver, Env, Live, Patience, PatientConsents, PatientMemory, PatientRuns, PatientStore,
    RunRights, Stalls,
};
use crate::gate::narrowing;

/// Most runs claimed in one write, so that a free host does not empty the queue of all others.
const CLAIM_MAX: usize = 64;
/// Pause after the store refused a claim.
const CLAIM_RETRY: Duration = Duration::from_secs(1);
/// The time after which runs that wait for their agents are looked at also while others are claimed.
const LOADS_LOOK: Duration = Duration::from_secs(1);
/// The pause between two looks of a host without a free slot for runs that wait for their finalizer
/// alone and that no call of its own brought there. Real time: it only trades latency against
/// reads.
const FINALIZERS_LOOK: Duration = Duration::from_secs(1);

/// Where runs may be executed.
struct Places {
    /// For any run.
    slots: Vec<OwnedSemaphorePermit>,
    /// For runs that wait for their finalizer alone.
    finalizers: Vec<OwnedSemaphorePermit>,
}

impl Places {
    fn counts(&self) -> PlaceCounts {
        PlaceCounts { slots: self.slots.len(), finalizers: self.finalizers.len() }
    }
}

/// The number of places of each kind.
#[derive(Clone, Copy)]
pub(super) struct PlaceCounts {
    pub(super) slots: usize,
    pub(super) finalizers: usize,
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
    /// A conversation may be nudged when it has ended.
    nudges: bool,
}

impl Drop for ExecutionEntry {
    fn drop(&mut self) {
        let inner = &self.controller.0;
        inner.worked_ms.store(millis(inner.parts.clock.monotonic()), Ordering::Release);
        // It may be what is to be told, or what a conversation waited for that is to be told.
        if self.nudges || inner.outcomes_due.load(Ordering::Acquire) {
            inner.nudging.notify_one();
        }
        let mut all = self.controller.live();
        if all.get(&self.id).is_some_and(|live| Arc::ptr_eq(live, &self.live)) {
            all.remove(&self.id);
        }
        drop(all);
        inner.codes.run_ended();
    }
}

impl Controller {
    pub(super) async fn claim_loop(self) {
        let inner = Arc::clone(&self.0);
        let lease = Arc::clone(&inner.lease);
        let mut loads = inner.codes.watch();
        let mut looked_at = Instant::now();
        // The claim before found fewer runs than there were slots: there are no more for now.
        let mut took_all = false;
        let mut resumes = 0;
        let refused = RepeatedWarning::default();
        loop {
            if !took_all {
                // Before the claim: what loads meanwhile makes another one worth while.
                loads.mark_unchanged();
            }
            let Some(places) = self.places().await else { return };
            if std::mem::take(&mut took_all) && !places.slots.is_empty() {
                if self.may_load() {
                    self.load_what_is_wanted().await;
                }
                let counts = places.counts();
                // For runs that are accepted here meanwhile and begin at once.
                drop(places);
                self.wait_for_prospects(counts, &mut loads).await;
                continue;
            }
            self.settle_policy().await;
            let claiming = inner.claiming.read().await;
            let claim = self.claim_of(places.counts());
            let limit = claim.limit;
            let claim = Claim { resumes, ..claim };
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
            match inner.parts.store.claim(claim).await {
                Ok(runs) => {
                    // Finalizers beyond the slots keep no new work waiting.
                    let in_slots = runs.iter().take(limit);
                    resumes = in_slots.fold(resumes, schedule::resumes_in_a_row);
                    took_all = runs.len() < limit;
                    if took_all {
                        inner.may_have_waiting.store(false, Ordering::Release);
                    }
                    let had_no_slot = runs.is_empty() && limit == 0;
                    // Those without a slot are the last.
                    let places = places.slots.into_iter().chain(places.finalizers);
                    for (run, permit) in runs.into_iter().zip(places) {
                        self.begin(run, permit);
                    }
                    // Those that are ready follow each other for as long as they please: the others
                    // are looked at meanwhile. Where none is left they are looked at next.
                    let is_due = !took_all && looked_at.elapsed() >= LOADS_LOOK;
                    if (is_due || had_no_slot) && self.may_load() {
                        drop(claiming);
                        self.load_what_is_wanted().await;
                        looked_at = Instant::now();
                    }
                }
                Err(error) => {
                    lease.note(&error);
                    drop(claiming);
                    drop(places);
                    if let Some(left_out) = refused.told(inner.parts.clock.monotonic()) {
                        tracing::warn!(%error, left_out, "no work can be claimed");
                    }
                    tokio::select! {
                        biased;
                        () = inner.closing.cancelled() => return,
                        () = inner.parts.clock.sleep(CLAIM_RETRY) => {}
                    }
                }
            }
        }
    }

    /// A claim for these places.
    pub(super) fn claim_of(&self, places: PlaceCounts) -> Claim {
        let inner = &self.0;
        Claim {
            host: inner.host.clone(),
            limit: places.slots,
            finalizers: places.finalizers,
            tree_slots: inner.parts.settings.tree_slots,
            ready: self.ready(),
            resumes: 0,
            now: inner.parts.clock.now(),
        }
    }

    /// Returns when a claim may find something, or this controller is closed. A host without work
    /// looks once a second and writes nothing, however many runs wait for their time.
    async fn wait_for_prospects(&self, places: PlaceCounts, loads: &mut watch::Receiver<u64>) {
        let inner = &self.0;
        loop {
            let is_stuck = self.has_failed();
            tokio::select! {
                biased;
                () = inner.closing.cancelled() => return,
                () = inner.finalizing.notified() => return,
                _ = loads.changed() => return,
                () = tokio::time::sleep(FAILED_FOR), if is_stuck => return,
                () = inner.parts.store.work() => {}
            }
            if inner.accepted.swap(false, Ordering::AcqRel) {
                return;
            }
            let prospect = inner.parts.store.prospect(&self.claim_of(places)).await;
            if matches!(prospect, Ok(Prospect::Nothing | Prospect::Unready)) {
                inner.may_have_waiting.store(false, Ordering::Release);
            }
            match prospect {
                Ok(Prospect::Nothing) => {}
                Ok(Prospect::Unready) if self.may_load() => self.load_what_is_wanted().await,
                Ok(Prospect::Unready) => {}
                // Whoever claims is told what is wrong.
                Ok(Prospect::Claim) | Err(_) => return,
            }
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

    /// Drives a run that was taken, in this slot.
    pub(super) fn begin(&self, run: Run, permit: OwnedSemaphorePermit) {
        let inner = &self.0;
        let span =
            tracing::info_span!(parent: None, "run", id = %run.id(), agent = %run.spec.agent_name);
        let live = Arc::new(Live::new(
            inner.parts.interrupt.clone(),
            Pins::of(&run),
            inner.draining.child_token(),
        ));
        self.live().insert(run.id().clone(), Arc::clone(&live));
        let listed = ExecutionEntry {
            controller: self.clone(),
            id: run.id().clone(),
            live: Arc::clone(&live),
            nudges: run.spec.delivery.as_ref().is_some_and(Delivery::nudges),
        };
        let env = Arc::new(self.env(run.id(), &live));
        // Both under the policy under which it was claimed.
        let (agent, above) = (self.code_for(&run), self.above(&run.spec));
        let newer = self.newer_form(&run);
        let controller = self.clone();
        let driven = async move {
            // Claimed in the moment in which the controller was closed: it was not in the list.
            if controller.0.closing.is_cancelled() {
                let handed_over = controller.0.draining.is_cancelled();
                live.stop(match handed_over {
                    true => StopCause::HandOver,
                    false => StopCause::Shutdown,
                });
            }
            let left = match worked_on_by(&run) {
                Some(batch) => controller.settle_entry(run, &batch).await,
                None => Some(run),
            };
            if let Some(run) = left {
                let (run, agent) = controller.upgraded(run, agent, newer).await;
                controller.execute(env, (agent, above), run, live).await;
            }
            // The slot is free again only when the guest is gone.
            drop(permit);
            drop(listed);
        };
        // It is large, and each that wraps it would copy it.
        self.spawn_driving(Box::pin(driven.instrument(span)));
    }

    /// Begins a task where runs are driven. Its timers and connections are those of the runtime at
    /// hand.
    pub(super) fn spawn_driving(&self, task: impl Future<Output = ()> + Send + 'static) {
        let inner = &self.0;
        match &inner.drivers {
            None => drop(inner.tasks.spawn(task)),
            Some(drivers) => {
                let task = TokioContext::new(task, Handle::current());
                let task = FutureObj::new(Box::pin(inner.tasks.track_future(task)));
                // It was dropped, as all that an executor has when it ends.
                drivers.spawn_obj(task).ok();
            }
        }
    }

    fn env(&self, id: &RunId, live: &Arc<Live>) -> Env {
        let inner = &self.0;
        let (clock, machine) = (Arc::clone(&inner.parts.clock), Arc::clone(&inner.parts.machine));
        let stalls = Stalls::new(clock, machine);
        let patience = Patience {
            id: id.clone(),
            live: Arc::clone(live),
            lease: Arc::clone(&inner.lease),
            stalls: Arc::clone(&stalls),
        };
        let (store, memory) = (Arc::clone(&inner.parts.store), Arc::clone(&inner.parts.memory));
        Env {
            store: Arc::new(PatientStore { inner: store, patience: patience.clone() }),
            clock: stalls.clock(),
            machine: stalls.machine(),
            stalls,
            random: Arc::clone(&inner.parts.random),
            closing: inner.closing.clone(),
            draining: live.handing_over().clone(),
            lease: Arc::clone(&inner.lease),
            hooks: inner.parts.hooks.clone(),
            retry_policy: inner.parts.retry_policy.clone(),
            runs: Arc::new(PatientRuns { inner: self.door(), patience: patience.clone() }),
            memory: Arc::new(PatientMemory { inner: memory, patience: patience.clone() }),
            policy: Arc::clone(&self.agents().policy),
            consents: Some(PatientConsents { inner: Arc::clone(&inner.parts.consents), patience }),
            held_models: Arc::clone(&inner.held_models),
            format: inner.parts.settings.format,
        }
    }

    async fn execute(
        &self,
        env: Arc<Env>,
        (agent, above): (Option<WithCode>, Vec<Option<Arc<Agent>>>),
        run: Run,
        live: Arc<Live>,
    ) {
        let id = run.id().clone();
        match agent {
            Some((agent, Err(LoadFault::Component { words, for_guest })))
                if has_not_begun(&run) =>
            {
                let text = |why: &str| format!("agent {} does not load: {why}", agent.name);
                let spec = Arc::clone(&run.spec);
                self.end_failed(run, HostFault::told(text(&words), text(&for_guest))).await;
                self.wake_for_reports(&spec).await;
            }
            Some((agent, Ok(code))) => {
                let (spec, known) = (Arc::clone(&run.spec), above.clone());
                let rights = RunRights::new(spec, Arc::clone(&agent), known);
                let bounds = Bounds {
                    rules: Arc::clone(rights.rules()),
                    ancestors: narrowing::budgets_of_ancestors(&run.spec, &above),
                    states_cost: narrowing::states_cost(&run.spec, &agent, &above),
                };
                live.follow_policy(rights, || self.agents());
                let own = narrowing::narrowed((agent, code), &run.spec, &above);
                let spec = Arc::clone(&run.spec);
                let drive = Driver::new(env, own, bounds, run, live).drive();
                if AssertUnwindSafe(drive).catch_unwind().await.is_err() {
                    self.end_broken(id).await;
                }
                self.wake_for_reports(&spec).await;
            }
            // The policy has changed since the run was claimed, or its agent is not there any more.
            Some((_, Err(_))) | None => self.give_back(run).await,
        }
    }

    /// The agent of a run that begins, with its code, as far as both are known. An entry is pinned
    /// to nothing: it is of the agent that has its name now.
    fn code_for(&self, run: &Run) -> Option<WithCode> {
        match run.spec.class {
            RunClass::Task => self.code_with(run.pin()),
            RunClass::Heartbeat => {
                let agents = self.agents();
                self.code_with(&agents.by_name.get(&run.spec.agent_name)?.pin)
            }
        }
    }

    /// The agents of the runs above a run, the root's first, as far as they are known.
    fn above(&self, spec: &RunSpec) -> Vec<Option<Arc<Agent>>> {
        spec.ancestors.iter().map(|ancestor| self.agent_with(&ancestor.pin)).collect()
    }

    async fn give_back(&self, run: Run) {
        let later = self.0.parts.clock.now().plus(CLAIM_RETRY);
        let release = |run: &Run| decide::release(run, run.state.ran_ms, later);
        self.journal(run).persist(release, &self.0.closing).await;
    }

    /// Ends a run whose driver panicked, so that a mistake of the host costs one run and not a
    /// slot for ever. Where it waited for what ended with the program's runtime, that is none of the
    /// run's: others take it over.
    async fn end_broken(&self, id: RunId) {
        if self.0.home.is_gone() {
            tracing::warn!(run = %id, "the driver ended with the runtime of its host");
            return;
        }
        tracing::error!(run = %id, "the driver panicked");
        match self.0.parts.store.get(&id).await {
            Ok(Some(run)) if !run.status().is_terminal() => {
                self.end_failed(run, "internal error of the host; see its log".into()).await;
            }
            Ok(_) => {}
            Err(error) => tracing::error!(run = %id, %error, "cannot be ended"),
        }
    }

    async fn end_failed(&self, run: Run, fault: HostFault) {
        let outcome = Outcome::HostFailed(fault);
        self.journal(run).end(&[], &outcome, &self.0.closing).await;
    }
}

/// True for a run that was taken for the first time.
fn has_not_begun(run: &Run) -> bool {
    run.state.epoch <= 1 && run.state.turns == 0
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
