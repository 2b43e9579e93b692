//! The bound on instances at one time. Later calls wait; the pool's own limit, which fails instead,
//! is never met.

use std::sync::Arc;

use taskrun::scope::CallScope;
use taskrun_journal::stop::{CallAbort, StopCause};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Slots of the pool.
#[derive(Debug, Clone)]
pub(crate) struct Admission(Arc<Semaphore>);

impl Admission {
    pub(crate) fn new(instances: u32) -> Self {
        Self(Arc::new(Semaphore::new(instances as usize)))
    }

    /// Slots that nobody has.
    pub(crate) fn free(&self) -> u32 {
        u32::try_from(self.0.available_permits()).unwrap_or(u32::MAX)
    }

    /// Takes so many free slots out of use; false, and none is taken, if there are fewer.
    pub(crate) fn lend(&self, slots: u32) -> bool {
        let lent = self.0.try_acquire_many(slots);
        lent.map(SemaphorePermit::forget).is_ok()
    }

    /// Takes so many back that were lent.
    pub(crate) fn take_back(&self, slots: u32) {
        self.0.add_permits(slots as usize);
    }

    /// A slot, for as long as the permit is held. First come, first served.
    ///
    /// # Errors
    /// [`CallAbort::Stopped`] if the call is stopped while it waits.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(crate) async fn enter(&self, scope: &CallScope) -> Result<OwnedSemaphorePermit, CallAbort> {
        if let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() {
            return Ok(permit);
        }
        tokio::select! {
            permit = Arc::clone(&self.0).acquire_owned() => permit.map_err(|_| CallAbort::Internal),
            () = scope.stop().forced() => {
                Err(CallAbort::Stopped { cause: scope.stop().cause().unwrap_or(StopCause::Canceled) })
            }
        }
    }
}
