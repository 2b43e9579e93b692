//! Keeps new runs, and begins those that need not wait.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use futures::poll;
use taskrun_journal::hold::Hold;
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Claim, CreateOutcome, JointOutcome, NewRun, StoreError};
use tokio::runtime::Handle;
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit};
use tokio_util::context::TokioContext;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Controller;
use super::execute::PlaceCounts;

/// A slot in which a run that is accepted may begin.
struct Opening {
    slot: OwnedSemaphorePermit,
    claiming: OwnedRwLockReadGuard<()>,
    claim: Claim,
    /// The runtime in which the controller was started.
    home: Handle,
    /// Keeps a controller that closes from being closed until this acceptance has its end.
    open: TaskTrackerToken,
}

/// The end of an acceptance at an opening.
enum Attempt {
    /// The store's answer.
    Kept(CreateOutcome),
    /// The run is neither kept nor refused.
    Left(Box<NewRun>),
}

impl Controller {
    /// Keeps a new run. If there is a slot for it and none is known to wait for one, a run is taken in the
    /// same transaction and begins at once: this one, unless another one comes first. Otherwise the
    /// claim loop takes it, with all others that wait by then.
    ///
    /// # Cancel safety
    /// A run that was taken begins whether or not the answer is waited for.
    pub(super) async fn keep(&self, new: NewRun) -> Result<CreateOutcome, StoreError> {
        let inner = &self.0;
        // Any run may begin now, and none under a policy that is no more in force.
        self.settle_policy().await;
        let mut left = Box::new(new);
        let opening = match inner.may_have_waiting.load(Ordering::Acquire) {
            false => self.opening_for(&left.run),
            true => None,
        };
        if let Some(opening) = opening {
            let home = opening.home.clone();
            let attempt = self.clone().keep_at(opening, left);
            let mut attempt = Box::pin(TokioContext::new(attempt, home.clone()));
            // A store that answers at once, as one in memory does, needs no task that another thread
            // is woken for.
            let attempted = match poll!(&mut attempt) {
                Poll::Ready(attempted) => attempted,
                Poll::Pending => match inner.tasks.spawn_on(attempt, &home).await {
                    Ok(attempted) => attempted,
                    Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                    Err(error) => return Err(StoreError::Unknown { detail: error.to_string() }),
                },
            };
            match attempted? {
                Attempt::Kept(created) => return Ok(created),
                Attempt::Left(new) => left = new,
            }
        }
        self.note_acceptance();
        inner.parts.store.create(*left).await
    }

    /// A slot for a run that can begin here at once. A run beneath another one has none: bounds that
    /// both share are read when it begins, and the one above it has yet to write what it has used.
    fn opening_for(&self, run: &Run) -> Option<Opening> {
        let inner = &self.0;
        if run.spec.parent_run_id.is_some() {
            return None;
        }
        let slot = Arc::clone(&inner.slots).try_acquire_owned().ok()?;
        let claiming = Arc::clone(&inner.claiming).try_read_owned().ok()?;
        let (home, open) = (inner.home.get()?.clone(), inner.tasks.token());
        if inner.closing.is_cancelled() || !inner.lease.may_begin() {
            return None;
        }
        let claim = self.claim_of(PlaceCounts { slots: 1, finalizers: 0 });
        let may_begin = match run.state.hold {
            Hold::Wanted { lane, not_before } => {
                not_before <= claim.now && claim.ready.includes(&Pins::of(run), lane)
            }
            Hold::Nobody | Hold::Beat | Hold::Runs { .. } | Hold::Host { .. } => false,
        };
        may_begin.then_some(Opening { slot, claiming, claim, home, open })
    }

    async fn keep_at(self, opening: Opening, new: Box<NewRun>) -> Result<Attempt, StoreError> {
        let Opening { slot, claiming, claim, home: _, open: _open } = opening;
        let inner = &self.0;
        if inner.closing.is_cancelled() {
            return Ok(Attempt::Left(new));
        }
        let spec = Arc::clone(&new.run.spec);
        match inner.parts.store.create_and_claim(*new, claim).await {
            Ok(JointOutcome::Done { created, claimed }) => {
                if created.is_new() && !claimed.iter().any(|run| *run.id() == spec.id) {
                    inner.may_have_waiting.store(true, Ordering::Release);
                }
                for (run, slot) in claimed.into_iter().zip([slot]) {
                    self.begin(run, slot);
                }
                Ok(Attempt::Kept(created))
            }
            Ok(JointOutcome::Busy(new)) => Ok(Attempt::Left(new)),
            Err(error) => {
                inner.lease.note(&error);
                drop(claiming);
                if matches!(error, StoreError::Unknown { .. }) {
                    self.begin_if_held(&spec, slot).await;
                }
                Err(error)
            }
        }
    }

    /// Begins a run that was kept and taken, although the answer does not say so. One that had its id
    /// before has another seed, and may be under way; and the claim loop may have taken this one.
    async fn begin_if_held(&self, spec: &Arc<RunSpec>, slot: OwnedSemaphorePermit) {
        let id = &spec.id;
        // What another claim took stands in the list as soon as that is over.
        let _no_claim = self.0.claiming.write().await;
        let is_held = |run: &Run| {
            run.state.hold.host() == Some(&self.0.host)
                && run.spec == *spec
                && !self.live().contains_key(run.id())
        };
        match self.0.parts.store.get(id).await {
            Ok(Some(run)) if is_held(&run) => self.begin(run, slot),
            Ok(_) => {}
            // The sweep frees it if it is held.
            Err(error) => tracing::warn!(run = %id, %error, "it is not known whether it is kept"),
        }
    }

    /// Has the next look for work be a claim: that of what is about to be accepted. One that is refused
    /// after all costs a claim that finds nothing.
    pub(super) fn note_acceptance(&self) {
        self.0.may_have_waiting.store(true, Ordering::Release);
        self.0.accepted.store(true, Ordering::Release);
    }
}
