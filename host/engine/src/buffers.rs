//! Memory of the host that guests make it hold: one pool for the whole process.
//!
//! Whatever a host function puts together for a guest, at a size that the guest chose, takes its
//! bytes from here first and gives them back when the guest has the answer. Who finds too few
//! waits, in the order of coming, or is refused where waiting could be for oneself. Each operation
//! takes all that it can come to at once, so that nobody holds some and waits for more.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of the pool: about what four guests have as their own.
pub(crate) const BUFFER_BYTES: u32 = 256 << 20;

/// The pool. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Buffers(Arc<Semaphore>);

/// Bytes of the pool, until they are dropped.
pub(crate) type Buffer = OwnedSemaphorePermit;

impl Buffers {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BUFFER_BYTES as usize)))
    }

    /// So many bytes, at most all there are, as soon as they are free. `None` if the host ends.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(crate) async fn take(&self, bytes: u64) -> Option<Buffer> {
        Arc::clone(&self.0).acquire_many_owned(within(bytes)).await.ok()
    }

    /// So many bytes, if they are free now: for what a guest keeps from call to call.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Buffer> {
        Arc::clone(&self.0).try_acquire_many_owned(within(bytes)).ok()
    }
}

fn within(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES)
}
