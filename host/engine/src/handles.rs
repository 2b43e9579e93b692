//! Descriptors that guests keep open: a small share for each instance, and a pool for all.
//!
//! The pool is what the process may have open, less what the host needs itself, and less the
//! connections of guests' exchanges, which are counted in [`crate::egress`]. Half of it is for the
//! first few descriptors of each instance, so that one that opens many leaves others theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most files and folders that one instance has open, those that it is granted among them: programs
/// that read and write some files at a time live with far fewer.
pub(crate) const HANDLES_MAX: u32 = 64;
/// Descriptors of an instance that come from its own half of the pool.
const FIRST: u32 = 8;

/// Time for which a call waits for the descriptors of its granted folders: without them it cannot
/// even begin, and others give theirs back when their calls end, which is soon for most.
const WAIT: Duration = Duration::from_secs(5);

/// Fewest descriptors that a process may be allowed if it is to execute guests.
pub(crate) const DESCRIPTORS_MIN: u64 = 1_024;
/// Descriptors that are left to the host: store, locks, logs, its own connections to models and
/// servers, and those that file operations have open while they last, which are at most 600: three for each
/// of 64, and two for every folder on the way of two listings and of a workspace's count.
const FOR_THE_HOST: u64 = 768;
/// Most descriptors of all guests together, however many the process is allowed.
const POOL_MAX: u64 = 64_000;
/// The part of them that is for connections of guests' exchanges.
const CONNECTIONS_PART: u64 = 4;
/// Most of these connections, however many the process is allowed: some dozens for each run that a
/// host executes at once.
const CONNECTIONS_MAX: u64 = 4_096;

/// The pool. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Handles {
    first: Arc<Semaphore>,
    further: Arc<Semaphore>,
    all: u64,
}

/// One descriptor of a guest, for as long as anything of the guest's uses it.
#[derive(Debug)]
pub(crate) struct Handle {
    _permit: OwnedSemaphorePermit,
    _counted: Counted,
}

/// A descriptor as its instance counts it.
#[derive(Debug)]
struct Counted(Arc<AtomicU32>);

/// The reason that a guest gets no more descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoHandle {
    /// It has its share.
    Share,
    /// All guests together have theirs.
    Pool,
}

impl Handles {
    /// The pool of a process that may have so many descriptors.
    pub(crate) fn new(descriptors: u64) -> Self {
        let pool = pool(descriptors) - connections(descriptors) as u64;
        let half = usize::try_from(pool / 2).unwrap_or(usize::MAX);
        let part = || Arc::new(Semaphore::new(half));
        Self { first: part(), further: part(), all: pool }
    }

    /// The descriptors of all guests together.
    pub(crate) fn all(&self) -> u64 {
        self.all
    }

    /// One more descriptor for the instance that counts them in `share`.
    pub(crate) fn take(&self, share: &Arc<AtomicU32>) -> Result<Handle, NoHandle> {
        let (counted, pool) = self.count(share)?;
        let permit = pool.try_acquire_owned().map_err(|_| NoHandle::Pool)?;
        Ok(Handle { _permit: permit, _counted: counted })
    }

    /// The same as soon as there is one, in the order of asking.
    ///
    /// # Errors
    /// [`NoHandle::Share`] at once, [`NoHandle::Pool`] if none is given back in time.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(crate) async fn wait(&self, share: &Arc<AtomicU32>) -> Result<Handle, NoHandle> {
        let (counted, pool) = self.count(share)?;
        let permit = tokio::time::timeout(WAIT, pool.acquire_owned()).await;
        let permit = permit.map_err(|_| NoHandle::Pool)?.map_err(|_| NoHandle::Pool)?;
        Ok(Handle { _permit: permit, _counted: counted })
    }

    /// Counts one more in a share, and gives the half of the pool that it comes from.
    fn count(&self, share: &Arc<AtomicU32>) -> Result<(Counted, Arc<Semaphore>), NoHandle> {
        let one_more = |held: u32| (held < HANDLES_MAX).then_some(held + 1);
        let held = share
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .map_err(|_| NoHandle::Share)?;
        let pool = if held < FIRST { &self.first } else { &self.further };
        Ok((Counted(Arc::clone(share)), Arc::clone(pool)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Descriptors of all guests together in a process that may have so many.
fn pool(descriptors: u64) -> u64 {
    descriptors.saturating_sub(FOR_THE_HOST).min(POOL_MAX)
}

/// Those of them that are for connections of exchanges.
pub(crate) fn connections(descriptors: u64) -> usize {
    let connections = (pool(descriptors) / CONNECTIONS_PART).min(CONNECTIONS_MAX);
    usize::try_from(connections).unwrap_or(usize::MAX)
}

/// Raises the number of descriptors that the process may have to what it may raise it to, and
/// gives that number.
pub(crate) fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (current, maximum) = (limit.current.unwrap_or(u64::MAX), limit.maximum);
    let raised = Rlimit { current: maximum, maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::warn!(%error, current, "the limit of open files cannot be raised");
            current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_its_share_and_gives_it_back() {
        let (handles, share) = (Handles::new(1 << 20), Arc::default());
        let held: Vec<Handle> = std::iter::from_fn(|| handles.take(&share).ok()).collect();
        assert_eq!(held.len(), HANDLES_MAX as usize);
        assert_eq!(handles.take(&share).unwrap_err(), NoHandle::Share);
        drop(held);
        assert!(handles.take(&share).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_some_time_for_a_descriptor_that_others_give_back() {
        let handles = Handles::new(DESCRIPTORS_MIN);
        let of_another = || handles.take(&Arc::default()).ok();
        let mut held: Vec<Handle> = std::iter::from_fn(of_another).collect();
        let share: Arc<AtomicU32> = Arc::default();
        let mut waits = Box::pin(handles.wait(&share));
        assert!(futures::poll!(&mut waits).is_pending());
        drop(held.pop());
        let _last = waits.await.expect("one was given back");
        assert_eq!(handles.wait(&share).await.expect_err("none is"), NoHandle::Pool);
        assert_eq!(share.load(Ordering::Relaxed), 1, "it counts those that it has");
    }

    #[test]
    fn whoever_opens_many_leaves_others_their_first_ones() {
        let handles = Handles::new(DESCRIPTORS_MIN);
        let greedy: Vec<Arc<AtomicU32>> = (0..8).map(|_| Arc::default()).collect();
        let mut held = Vec::new();
        for share in &greedy {
            held.extend(std::iter::from_fn(|| handles.take(share).ok()));
        }
        let pool = DESCRIPTORS_MIN - FOR_THE_HOST;
        assert_eq!(connections(DESCRIPTORS_MIN) as u64, pool / 4);
        assert_eq!(held.len() as u64, 64 + (pool - pool / 4) / 2);
        assert_eq!(handles.take(&greedy[7]).unwrap_err(), NoHandle::Pool);
        let honest = Arc::default();
        let few: Vec<Handle> = std::iter::from_fn(|| handles.take(&honest).ok()).collect();
        assert_eq!(few.len(), FIRST as usize);
    }
}
