//! Descriptors that guests keep open: a small share for each instance, and a pool for all.
//!
//! The pool is what the process may have open, less what the host needs itself, and less the
//! connections of guests' exchanges, which are counted in [`crate::egress`]. Half of it is for the
//! first few descriptors of each instance, so that one that opens many leaves others theirs. A third
//! of this half is for the first few of one call of each tree of runs, so that a tree with many calls
//! at a time does so, too. A call has all of these or none: one that waits keeps none from others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Most files and folders that one instance has open, those that it is granted among them: programs
/// that read and write some files at a time live with far fewer.
pub(crate) const HANDLES_MAX: u32 = 64;
/// Descriptors of an instance that come from the half of the pool which is for these, and those that
/// are kept for a tree of runs: one call of it has them, whatever others have.
const FIRST: u32 = 8;
/// The part of that half that is kept so. With the fewest descriptors that a process may have it is
/// enough for four trees, and one that is alone has nine calls with their first ones.
const KEPT_PART: usize = 3;

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
    /// The parts that are kept for trees of runs, each of [`FIRST`] descriptors.
    kept: Arc<Semaphore>,
    first: Arc<Semaphore>,
    further: Arc<Semaphore>,
    all: u64,
    /// The trees that have something open, or wait for it.
    trees: Arc<Mutex<HashMap<String, Weak<Tree>>>>,
}

/// One descriptor of a guest, for as long as anything of the guest's uses it.
#[derive(Debug)]
pub(crate) struct Handle {
    _place: Place,
    _counted: Counted,
}

/// The place of a descriptor, which no other has meanwhile.
#[derive(Debug)]
enum Place {
    /// Any call may have it.
    Shared { _permit: OwnedSemaphorePermit },
    /// It is one of those that are kept for a tree of runs.
    OfTree { _part: Arc<TreePart> },
}

/// A tree of runs, of which one call at a time has what is kept for the tree.
#[derive(Debug)]
struct Tree {
    turn: Arc<Semaphore>,
    part: Mutex<Weak<TreePart>>,
}

/// The [`FIRST`] descriptors that are kept for a tree, as long as a call of it has some of them open.
#[derive(Debug)]
struct TreePart {
    /// The share of the call's instance, by which it is known.
    share: Arc<AtomicU32>,
    _of_pool: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
    _tree: Arc<Tree>,
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
        let parts = half / KEPT_PART / FIRST as usize;
        let part = |places: usize| Arc::new(Semaphore::new(places));
        Self {
            kept: part(parts),
            first: part(half - parts * FIRST as usize),
            further: part(half),
            all: pool,
            trees: Arc::default(),
        }
    }

    /// The descriptors of all guests together.
    pub(crate) fn all(&self) -> u64 {
        self.all
    }

    /// One more descriptor for the instance that counts them in `share`, in the tree of runs whose
    /// first one is `root`.
    pub(crate) fn take(&self, root: &str, share: &Arc<AtomicU32>) -> Result<Handle, NoHandle> {
        let held = count(share, 1)?;
        let counted = Counted(Arc::clone(share));
        let place = match held < FIRST {
            true => self.try_first(root, share),
            false => try_one(&self.further).map(Place::shared),
        };
        let place = place.ok_or(NoHandle::Pool)?;
        Ok(Handle { _place: place, _counted: counted })
    }

    /// So many of them as soon as there are, in the order of asking. Until then the instance has
    /// none, so that no two of them wait for what the other one has.
    ///
    /// # Errors
    /// [`NoHandle::Share`] at once, [`NoHandle::Pool`] if too few are given back in time.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(crate) async fn wait(
        &self,
        root: &str,
        share: &Arc<AtomicU32>,
        wanted: u32,
    ) -> Result<Vec<Handle>, NoHandle> {
        let held = count(share, wanted)?;
        let counted: Vec<Counted> = (0..wanted).map(|_| Counted(Arc::clone(share))).collect();
        let first = FIRST.saturating_sub(held).min(wanted);
        let places = tokio::time::timeout(WAIT, self.places(root, share, first, wanted - first));
        let places = places.await.map_err(|_| NoHandle::Pool)?.map_err(|_| NoHandle::Pool)?;
        let handle = |(counted, place)| Handle { _place: place, _counted: counted };
        Ok(counted.into_iter().zip(places).map(handle).collect())
    }

    async fn places(
        &self,
        root: &str,
        share: &Arc<AtomicU32>,
        first: u32,
        further: u32,
    ) -> Result<Vec<Place>, AcquireError> {
        let mut places = Vec::new();
        if first > 0 {
            places = self.first(root, share, first).await?;
        }
        // Whoever has some of these has its first ones, so nobody waits for both in another order.
        if further > 0 {
            let further = Arc::clone(&self.further).acquire_many_owned(further).await?;
            places.extend(Place::each(further));
        }
        Ok(places)
    }

    /// Places for first descriptors, at most [`FIRST`]: those that are kept for the tree, or others.
    async fn first(
        &self,
        root: &str,
        share: &Arc<AtomicU32>,
        count: u32,
    ) -> Result<Vec<Place>, AcquireError> {
        let tree = self.tree(root);
        let of_tree = async {
            if let Some(part) = tree.part_of(share) {
                return Ok(part);
            }
            let turn = Arc::clone(&tree.turn).acquire_owned().await?;
            let of_pool = Arc::clone(&self.kept).acquire_owned().await?;
            Ok::<_, AcquireError>(tree.give(share, of_pool, turn))
        };
        let shared = Arc::clone(&self.first).acquire_many_owned(count);
        tokio::select! {
            biased;
            part = of_tree => {
                part.map(|part| (0..count).map(|_| Place::of_tree(Arc::clone(&part))).collect())
            }
            shared = shared => shared.map(|shared| Place::each(shared).collect()),
        }
    }

    /// The same for one, if there is one now.
    fn try_first(&self, root: &str, share: &Arc<AtomicU32>) -> Option<Place> {
        let tree = self.tree(root);
        let part = tree.part_of(share).or_else(|| {
            let turn = try_one(&tree.turn)?;
            let of_pool = try_one(&self.kept)?;
            Some(tree.give(share, of_pool, turn))
        });
        part.map(Place::of_tree).or_else(|| try_one(&self.first).map(Place::shared))
    }

    /// The tree of runs whose first one is `root`.
    fn tree(&self, root: &str) -> Arc<Tree> {
        let mut trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        trees.retain(|_, tree| tree.strong_count() > 0);
        if let Some(tree) = trees.get(root).and_then(Weak::upgrade) {
            return tree;
        }
        let tree = Arc::new(Tree { turn: Arc::new(Semaphore::new(1)), part: Mutex::default() });
        trees.insert(root.to_owned(), Arc::downgrade(&tree));
        tree
    }
}

impl Tree {
    /// The tree's part, if the call with this share has it. There is a place in it then for each of
    /// the first descriptors that the call does not have.
    fn part_of(&self, share: &Arc<AtomicU32>) -> Option<Arc<TreePart>> {
        let part = self.part.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        part.filter(|part| Arc::ptr_eq(&part.share, share))
    }

    /// Gives the tree's part to the call with this share, whose turn it is.
    fn give(
        self: &Arc<Self>,
        share: &Arc<AtomicU32>,
        of_pool: OwnedSemaphorePermit,
        turn: OwnedSemaphorePermit,
    ) -> Arc<TreePart> {
        let (share, tree) = (Arc::clone(share), Arc::clone(self));
        let part = Arc::new(TreePart { share, _of_pool: of_pool, _turn: turn, _tree: tree });
        *self.part.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&part);
        part
    }
}

impl Place {
    fn shared(permit: OwnedSemaphorePermit) -> Self {
        Self::Shared { _permit: permit }
    }

    /// As many as a permit has.
    fn each(mut permit: OwnedSemaphorePermit) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || permit.split(1).map(Self::shared))
    }

    fn of_tree(part: Arc<TreePart>) -> Self {
        Self::OfTree { _part: part }
    }
}

fn try_one(places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(places).try_acquire_owned().ok()
}

/// Counts so many more in a share, and gives the number that it had.
fn count(share: &AtomicU32, more: u32) -> Result<u32, NoHandle> {
    let sum = |held: u32| held.checked_add(more).filter(|sum| *sum <= HANDLES_MAX);
    share.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).map_err(|_| NoHandle::Share)
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
    use std::task::Poll;

    use super::*;

    #[test]
    fn an_instance_has_its_share_and_gives_it_back() {
        let (handles, share) = (Handles::new(1 << 20), Arc::default());
        let held: Vec<Handle> = std::iter::from_fn(|| handles.take("r", &share).ok()).collect();
        assert_eq!(held.len(), HANDLES_MAX as usize);
        assert_eq!(handles.take("r", &share).unwrap_err(), NoHandle::Share);
        drop(held);
        assert!(handles.take("r", &share).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_some_time_for_descriptors_that_others_give_back() {
        let handles = Handles::new(DESCRIPTORS_MIN);
        let of_another = || handles.take("r", &Arc::default()).ok();
        let mut held: Vec<Handle> = std::iter::from_fn(of_another).collect();
        let (share, second): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
        let mut waits = Box::pin(handles.wait("r", &share, 2));
        assert!(futures::poll!(&mut waits).is_pending());
        let mut after = Box::pin(handles.wait("r", &second, 2));
        assert!(futures::poll!(&mut after).is_pending());
        drop(held.pop());
        drop(held.pop());
        let both = waits.await.expect("two were given back");
        assert_eq!(both.len(), 2, "they are not one for each call");
        assert_eq!(after.await.expect_err("none is"), NoHandle::Pool);
        let counted = [&share, &second].map(|share| share.load(Ordering::Relaxed));
        assert_eq!(counted, [2, 0], "it counts those that it has");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_with_many_calls_leaves_others_the_descriptors_of_one() {
        let handles = Handles::new(DESCRIPTORS_MIN);
        let shares: Vec<Arc<AtomicU32>> = (0..16).map(|_| Arc::default()).collect();
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for share in &shares {
            let mut call = Box::pin(handles.wait("greedy", share, FIRST));
            match futures::poll!(&mut call) {
                Poll::Ready(first) => held.push(first.expect("there are some")),
                Poll::Pending => waiting.push(call),
            }
        }
        assert_eq!((held.len(), waiting.len()), (9, 7));
        for modest in ["a", "b", "c"] {
            let share = Arc::default();
            let mut call = Box::pin(handles.wait(modest, &share, FIRST));
            let Poll::Ready(first) = futures::poll!(&mut call) else { panic!("{modest} waits") };
            held.push(first.expect("they are kept for it"));
        }
        // The last of its own that it got.
        drop(held.swap_remove(8));
        waiting.swap_remove(0).await.expect("one of its calls ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_takes_nothing_of_what_is_kept_for_its_tree() {
        let handles = Handles::new(DESCRIPTORS_MIN);
        let of_others = || handles.take("greedy", &Arc::default()).ok();
        let others: Vec<Handle> = std::iter::from_fn(of_others).collect();
        let (share, second): (Arc<AtomicU32>, Arc<AtomicU32>) = (Arc::default(), Arc::default());
        let mut held = vec![handles.take("modest", &share).expect("it is kept for its tree")];
        let mut waits = Box::pin(handles.wait("modest", &second, FIRST));
        assert!(futures::poll!(&mut waits).is_pending());
        // Nor does one of another tree, for which nothing is left.
        for tree in ["a", "b"] {
            held.push(handles.take(tree, &Arc::default()).expect("it is kept for its tree"));
        }
        let third = Arc::default();
        let mut after = Box::pin(handles.wait("c", &third, FIRST));
        assert!(futures::poll!(&mut after).is_pending());
        for _ in 1..FIRST {
            held.push(handles.take("modest", &share).expect("all of them are kept for this call"));
        }
        drop(held);
        for waits in [waits.await, after.await] {
            assert_eq!(waits.expect("the others ended").len(), FIRST as usize);
        }
        drop(others);
    }

    #[test]
    fn whoever_opens_many_leaves_others_their_first_ones() {
        let handles = Handles::new(DESCRIPTORS_MIN);
        let greedy: Vec<Arc<AtomicU32>> = (0..8).map(|_| Arc::default()).collect();
        let mut held = Vec::new();
        for share in &greedy {
            held.extend(std::iter::from_fn(|| handles.take("greedy", share).ok()));
        }
        let pool = DESCRIPTORS_MIN - FOR_THE_HOST;
        assert_eq!(connections(DESCRIPTORS_MIN) as u64, pool / 4);
        assert_eq!(held.len() as u64, 64 + (pool - pool / 4) / 2);
        assert_eq!(handles.take("greedy", &greedy[7]).unwrap_err(), NoHandle::Pool);
        for tree in ["greedy", "modest"] {
            let honest = Arc::default();
            let before = held.len();
            held.extend(std::iter::from_fn(|| handles.take(tree, &honest).ok()));
            assert_eq!(held.len() - before, FIRST as usize, "{tree}");
        }
    }
}
