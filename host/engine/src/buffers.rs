//! Memory of the host that guests make it hold: one pool for the whole process.
//!
//! A host function that puts something together for a guest, at a size that the guest chose, takes
//! its bytes from here first and gives them back when the guest has the answer. One that finds too
//! few waits, in the order of coming. Each operation takes at once all that it can need, so that
//! none holds a part and waits for more. Memory that a guest keeps from call to call comes from a
//! part of its own, which is refused rather than waited for: a guest would wait for itself, and one
//! that keeps much makes no other wait.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of the pool: about what four guests have as their own.
const BUFFER_BYTES: u32 = 256 << 20;
/// Bytes of it for the listings that guests keep.
const KEPT_BYTES: u32 = 64 << 20;
/// Bytes of it for pieces of streams, which go on without it: a guest that takes all of it slows
/// the streams of others down, and keeps nobody from a listing.
const PIECES_BYTES: u32 = 32 << 20;
const PASSING_BYTES: u32 = BUFFER_BYTES - KEPT_BYTES - PIECES_BYTES;

/// The pool. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Buffers {
    passing: Arc<Semaphore>,
    kept: Arc<Semaphore>,
    pieces: Arc<Semaphore>,
}

/// Bytes of the pool, until they are dropped.
pub(crate) type Buffer = OwnedSemaphorePermit;

impl Buffers {
    pub(crate) fn new() -> Self {
        let pool = |bytes: u32| Arc::new(Semaphore::new(bytes as usize));
        let (kept, pieces) = (pool(KEPT_BYTES), pool(PIECES_BYTES));
        Self { passing: pool(PASSING_BYTES), kept, pieces }
    }

    /// So many bytes, at most all there are, as soon as they are free. `None` if the host ends.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(crate) async fn take(&self, bytes: u64) -> Option<Buffer> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(PASSING_BYTES);
        Arc::clone(&self.passing).acquire_many_owned(bytes).await.ok()
    }

    /// So many bytes, if they are free now: for a listing that a guest keeps from call to call.
    pub(crate) fn try_keep(&self, bytes: u64) -> Option<Buffer> {
        of(&self.kept, bytes)
    }

    /// The same for a piece of a stream.
    pub(crate) fn try_keep_piece(&self, bytes: u64) -> Option<Buffer> {
        of(&self.pieces, bytes)
    }
}

fn of(pool: &Arc<Semaphore>, bytes: u64) -> Option<Buffer> {
    let bytes = u32::try_from(bytes).ok()?;
    Arc::clone(pool).try_acquire_many_owned(bytes).ok()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn whoever_keeps_much_makes_nobody_wait() {
        let buffers = Buffers::new();
        let kept: Vec<Buffer> = std::iter::from_fn(|| buffers.try_keep(1 << 20)).collect();
        assert_eq!(kept.len(), 64);
        let all = buffers.take(u64::MAX).now_or_never().flatten().expect("all that pass is free");
        assert!(buffers.take(1).now_or_never().is_none(), "the next one waits");
        let pieces: Vec<Buffer> = std::iter::from_fn(|| buffers.try_keep_piece(1 << 20)).collect();
        assert_eq!(pieces.len(), 32, "they are none of the listings'");
        drop((kept, all));
        assert!(buffers.take(1).now_or_never().flatten().is_some());
        assert!(buffers.try_keep(u64::from(KEPT_BYTES) + 1).is_none());
    }
}
