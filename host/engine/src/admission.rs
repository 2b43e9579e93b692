//! The bound on instances at one time. Later calls wait; the pool's own limit, which fails instead,
//! is never met.

use std::sync::Arc;

use taskrun::scope::CallScope;
use taskrun_journal::stop::{CallAbort, StopCause};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Slots of the pool.
#[derive(Debug, Clone)]
pub(crate) struct Admission(Arc<Semaphore>);

impl Admission {
    pub(crate) fn new(instances: u32) -> Self {
        Self(Arc::new(Semaphore::new(instances as usize)))
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
