//! Memory that the host holds for bodies of HTTP and for answers of models. Nobody knows the size of
//! an answer before its end, and whoever sends it chooses it, as a guest does of what it sends.
//!
//! Each answer has a small share for nothing. What it holds beyond that is taken from a pool, piece
//! by piece, and given back when the answer is dropped. An answer that the pool has no room for is
//! refused: if it waited with a part in its hands, others with parts in theirs might wait for it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit in which a pool is taken from, so that an answer that comes byte by byte asks rarely.
const STEP_BYTES: u64 = 16 << 10;

/// A pool. Clones are the same one.
#[derive(Debug, Clone)]
pub struct BytePool {
    /// Free steps, of this pool and of those that it is a part of.
    free: Vec<Arc<Semaphore>>,
    share_bytes: u64,
}

/// The bytes that an answer holds, until they are dropped.
#[derive(Debug)]
pub struct PooledBytes {
    pool: BytePool,
    bytes: u64,
    /// Steps taken, and as many permits of each pool.
    steps: u64,
    permits: Vec<OwnedSemaphorePermit>,
}

/// The refusal of a body or an answer: others hold what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the host holds too many bytes of bodies and answers at the moment")]
pub struct PoolFull;

impl BytePool {
    /// A pool of so many bytes, of which each answer takes only what is beyond its share.
    #[must_use]
    pub fn new(bytes: u64, share_bytes: u64) -> Self {
        Self { free: vec![semaphore(bytes)], share_bytes }
    }

    /// A part of this pool, at most so many bytes: what is taken from it is taken from both.
    #[must_use]
    pub fn part(&self, bytes: u64) -> Self {
        let mut free = self.free.clone();
        free.push(semaphore(bytes));
        Self { free, share_bytes: self.share_bytes }
    }

    /// The bytes of an answer that begins.
    #[must_use]
    pub fn begin(&self) -> PooledBytes {
        PooledBytes { pool: self.clone(), bytes: 0, steps: 0, permits: Vec::new() }
    }
}

fn semaphore(bytes: u64) -> Arc<Semaphore> {
    let steps = usize::try_from(bytes / STEP_BYTES).unwrap_or(usize::MAX);
    Arc::new(Semaphore::new(steps.min(Semaphore::MAX_PERMITS)))
}

impl PooledBytes {
    /// Takes so many bytes more.
    ///
    /// # Errors
    /// [`PoolFull`]; then nothing was taken.
    pub fn grow(&mut self, bytes: u64) -> Result<(), PoolFull> {
        let total = self.bytes.saturating_add(bytes);
        let steps = total.saturating_sub(self.pool.share_bytes).div_ceil(STEP_BYTES);
        let more = u32::try_from(steps.saturating_sub(self.steps)).map_err(|_| PoolFull)?;
        if more > 0 {
            let take = |free: &Arc<Semaphore>| Arc::clone(free).try_acquire_many_owned(more);
            let taken: Result<Vec<_>, _> = self.pool.free.iter().map(take).collect();
            let taken = taken.map_err(|_| PoolFull)?;
            if self.permits.is_empty() {
                self.permits = taken;
            } else {
                self.permits.iter_mut().zip(taken).for_each(|(held, more)| held.merge(more));
            }
            self.steps = steps;
        }
        self.bytes = total;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_free_and_the_rest_is_given_back() {
        let pool = BytePool::new(4 * STEP_BYTES, 100);
        let mut held: Vec<PooledBytes> = (0..1_000).map(|_| pool.begin()).collect();
        assert!(held.iter_mut().all(|one| one.grow(100).is_ok()), "a share for each");
        let (first, others) = held.split_at_mut(1);
        assert_eq!(first[0].grow(4 * STEP_BYTES), Ok(()));
        assert_eq!(first[0].grow(1), Err(PoolFull));
        assert_eq!(others[0].grow(1), Err(PoolFull));
        held.remove(0);
        assert_eq!(held[0].grow(3 * STEP_BYTES + 1), Ok(()), "what was dropped is free again");
    }

    #[test]
    fn small_pieces_take_no_more_than_one_large_one() {
        let pool = BytePool::new(2 * STEP_BYTES, 0);
        let mut held = pool.begin();
        for _ in 0..2 * STEP_BYTES {
            held.grow(1).expect("as many bytes as the pool has");
        }
        assert_eq!(held.grow(1), Err(PoolFull));
    }

    #[test]
    fn a_part_leaves_the_rest_to_others_and_takes_from_the_whole() {
        let pool = BytePool::new(4 * STEP_BYTES, 0);
        let (one, other) = (pool.part(3 * STEP_BYTES), pool.part(3 * STEP_BYTES));
        let (mut greedy, mut modest) = (one.begin(), other.begin());
        assert_eq!(greedy.grow(4 * STEP_BYTES), Err(PoolFull));
        assert_eq!(greedy.grow(3 * STEP_BYTES), Ok(()));
        assert_eq!(modest.grow(STEP_BYTES), Ok(()));
        assert_eq!(modest.grow(1), Err(PoolFull), "the whole is empty");
        drop(greedy);
        // What a refusal took of the whole before the part refused is free, too.
        assert_eq!(modest.grow(2 * STEP_BYTES), Ok(()));
    }
}
