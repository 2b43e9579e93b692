//! Wanted runs, in the order in which they are taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use taskrun_journal::ids::RunId;
use taskrun_journal::schedule::Rank;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::SessionKey;
use taskrun_journal::time::Timestamp;

/// The position of a run in the queue.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct QueuePosition {
    /// It is wanted, though perhaps later.
    pub(super) wanted: bool,
    /// It may be taken as soon as its tree has a slot.
    pub(super) rank: Option<Rank>,
    /// When it is wanted, if not at once.
    pub(super) time: Option<Timestamp>,
}

/// The queue of all policies.
///
/// Of each tree only the first run stands in [`Self::fronts`], by how many runs of the tree are
/// held. So a claim passes over trees without a slot at one look each number of held runs,
/// whatever waits in them, and a limit that differs from one host to the next costs nothing.
#[derive(Clone, Default)]
pub(super) struct Queue {
    /// Numbers for the digests of policies; there are few, ever.
    policies: HashMap<String, u32>,
    trees: HashMap<RunId, Tree>,
    fronts: BTreeMap<Front, RunId>,
    /// Runs with a time, past or not.
    times: BTreeMap<Timestamp, BTreeSet<RunId>>,
    /// Wanted runs of each policy, those that cannot be had yet included.
    wanted: HashMap<u32, u64>,
    /// Runs that wait to begin, by tenant and policy.
    waiting: HashMap<(String, u32), u64>,
    /// Open serial runs, in the order of acceptance.
    serial: HashMap<SessionKey, BTreeMap<u64, RunId>>,
}

/// Policy, held runs of the tree, rank of its first run of that policy.
type Front = (u32, u32, Rank);

/// A tree with wanted or held runs.
#[derive(Clone, Default)]
struct Tree {
    held: u32,
    ready: BTreeMap<(u32, Rank), RunId>,
}

impl Tree {
    fn fronts(&self) -> Vec<Front> {
        let mut fronts = Vec::new();
        let mut from = 0;
        while let Some(((policy, rank), _)) = self.ready.range((from, Rank::FIRST)..).next() {
            fronts.push((*policy, self.held, *rank));
            from = policy + 1;
        }
        fronts
    }
}

impl Queue {
    fn policy(&mut self, digest: &str) -> u32 {
        if let Some(known) = self.policies.get(digest) {
            return *known;
        }
        let number = u32::try_from(self.policies.len()).expect("policies fit into memory");
        self.policies.insert(digest.to_owned(), number);
        number
    }

    fn change(&mut self, root: &RunId, change: impl FnOnce(&mut Tree)) {
        let tree = self.trees.entry(root.clone()).or_default();
        for front in tree.fronts() {
            self.fronts.remove(&front);
        }
        change(tree);
        for front in tree.fronts() {
            self.fronts.insert(front, root.clone());
        }
        if tree.held == 0 && tree.ready.is_empty() {
            self.trees.remove(root);
        }
    }

    /// Moves a run from one position to another; says whether it can be had since.
    pub(super) fn reposition(
        &mut self,
        spec: &RunSpec,
        was: QueuePosition,
        is: QueuePosition,
    ) -> bool {
        let policy = self.policy(&spec.policy_digest);
        if was.wanted != is.wanted {
            count(&mut self.wanted, policy, is.wanted);
        }
        if was.time != is.time {
            self.leave_time(was.time, &spec.id);
            is.time.map(|time| self.times.entry(time).or_default().insert(spec.id.clone()));
        }
        if was.rank != is.rank {
            self.change(&spec.root_run_id, |tree| {
                was.rank.map(|rank| tree.ready.remove(&(policy, rank)));
                is.rank.map(|rank| tree.ready.insert((policy, rank), spec.id.clone()));
            });
        }
        is.rank.is_some() && was.rank != is.rank
    }

    fn leave_time(&mut self, time: Option<Timestamp>, id: &RunId) {
        if let Some(time) = time
            && let Some(runs) = self.times.get_mut(&time)
        {
            runs.remove(id);
            if runs.is_empty() {
                self.times.remove(&time);
            }
        }
    }

    /// One more run of a tree is held.
    pub(super) fn hold(&mut self, root: &RunId) {
        self.change(root, |tree| tree.held += 1);
    }

    /// One less; says whether another one can be had since.
    pub(super) fn release(&mut self, root: &RunId) -> bool {
        self.change(root, |tree| tree.held -= 1);
        self.trees.get(root).is_some_and(|tree| !tree.ready.is_empty())
    }

    /// Runs of a tree that are held.
    pub(super) fn held(&self, root: &RunId) -> u32 {
        self.trees.get(root).map_or(0, |tree| tree.held)
    }

    /// The run to be taken first under a policy, if no tree may have more than so many slots and
    /// only these runs are taken.
    pub(super) fn first(
        &self,
        digest: &str,
        tree_slots: u32,
        is_taken: impl Fn(&RunId) -> bool,
    ) -> Option<(Rank, &RunId)> {
        let policy = *self.policies.get(digest)?;
        let mut first: Option<(Rank, &RunId)> = None;
        let mut from = 0;
        while from < tree_slots {
            let next = self.fronts.range((policy, from, Rank::FIRST)..).next();
            let Some(((found, held, _), _)) = next else { break };
            if *found != policy || *held >= tree_slots {
                break;
            }
            let best = first.map(|(best, _)| best);
            let level =
                self.fronts.range((policy, *held, Rank::FIRST)..(policy, held + 1, Rank::FIRST));
            let level = level.take_while(|((.., rank), _)| best.is_none_or(|best| *rank < best));
            let mut runs =
                level.filter_map(|(front, root)| Some((front.2, self.front(front, root)?)));
            first = runs.find(|(_, run)| is_taken(run)).or(first);
            from = held + 1;
        }
        first
    }

    fn front(&self, (policy, _, rank): &Front, root: &RunId) -> Option<&RunId> {
        self.trees.get(root).and_then(|tree| tree.ready.get(&(*policy, *rank)))
    }

    /// The first wanted run of each tree under a policy.
    pub(super) fn firsts(&self, digest: &str) -> impl Iterator<Item = &RunId> {
        let policy = self.policies.get(digest).copied();
        let fronts = policy.map(|policy| {
            self.fronts.range((policy, 0, Rank::FIRST)..(policy + 1, 0, Rank::FIRST))
        });
        fronts.into_iter().flatten().filter_map(|(front, root)| self.front(front, root))
    }

    /// Runs whose time lies after `from` and not after `to`, which is later.
    pub(super) fn between(&self, from: Timestamp, to: Timestamp) -> Vec<RunId> {
        let times = self.times.range((Bound::Excluded(from), Bound::Included(to)));
        times.flat_map(|(_, runs)| runs.iter().cloned()).collect()
    }

    /// True for a policy under which a run is wanted, though it may not be had yet.
    pub(super) fn is_wanted(&self, digest: &str) -> bool {
        self.policies.get(digest).is_some_and(|policy| self.wanted.contains_key(policy))
    }

    /// One run more, or less, waits to begin.
    pub(super) fn count_waiting(&mut self, spec: &RunSpec, more: bool) {
        let key = (spec.tenant.clone(), self.policy(&spec.policy_digest));
        count(&mut self.waiting, key, more);
    }

    /// Runs of the tenant that wait to begin under the policy of a run.
    pub(super) fn waiting(&mut self, spec: &RunSpec) -> u64 {
        let key = (spec.tenant.clone(), self.policy(&spec.policy_digest));
        self.waiting.get(&key).copied().unwrap_or_default()
    }

    /// The first of the open serial runs of a session.
    pub(super) fn first_serial(&self, key: &SessionKey) -> Option<&RunId> {
        self.serial.get(key).and_then(|open| open.values().next())
    }

    pub(super) fn open_serial(&mut self, key: SessionKey, number: u64, id: &RunId) {
        self.serial.entry(key).or_default().insert(number, id.clone());
    }

    pub(super) fn end_serial(&mut self, key: &SessionKey, number: u64) {
        if let Some(open) = self.serial.get_mut(key) {
            open.remove(&number);
            if open.is_empty() {
                self.serial.remove(key);
            }
        }
    }
}

fn count<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u64>, key: K, more: bool) {
    if more {
        *counts.entry(key).or_default() += 1;
    } else if let Some(number) = counts.get_mut(&key) {
        *number -= 1;
        if *number == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use taskrun_journal::hold::Lane;

    use super::*;

    fn rank(number: u64) -> Rank {
        Rank { lane: Lane::Fresh, priority: Reverse(0), number }
    }

    fn wanted(queue: &mut Queue, root: &RunId, id: &RunId, number: u64) {
        let policy = queue.policy("p");
        queue.change(root, |tree| {
            tree.ready.insert((policy, rank(number)), id.clone());
        });
    }

    #[test]
    fn a_claim_looks_at_one_run_of_a_tree_however_many_wait() {
        let mut queue = Queue::default();
        let id = |text: &str| RunId::new(text).expect("a valid id");
        let (full, free) = (id("full"), id("free"));
        queue.hold(&full);
        for number in 0..20_000 {
            wanted(&mut queue, &full, &id(&format!("r-{number}")), number);
        }
        wanted(&mut queue, &free, &free, 20_000);
        assert_eq!(queue.fronts.len(), 2);
        assert_eq!(queue.first("p", 1, |_| true), Some((rank(20_000), &free)));
        assert_eq!(queue.first("p", 2, |_| true), Some((rank(0), &id("r-0"))));
        assert!(queue.release(&full));
        assert_eq!(queue.first("p", 1, |_| true), Some((rank(0), &id("r-0"))));
        assert_eq!(queue.first("p", 0, |_| true), None);
        assert_eq!(queue.first("q", 1, |_| true), None);
    }

    #[test]
    fn a_tree_whose_first_run_is_not_taken_is_passed_over() {
        let mut queue = Queue::default();
        let id = |text: &str| RunId::new(text).expect("a valid id");
        let (cold, warm, held) = (id("cold"), id("warm"), id("held"));
        wanted(&mut queue, &cold, &cold, 1);
        wanted(&mut queue, &cold, &id("child"), 2);
        wanted(&mut queue, &warm, &warm, 3);
        queue.hold(&held);
        wanted(&mut queue, &held, &held, 0);
        let but = |names: &'static [&str]| move |run: &RunId| !names.contains(&run.as_str());
        assert_eq!(queue.first("p", 2, but(&[])), Some((rank(0), &held)));
        assert_eq!(queue.first("p", 2, but(&["held"])), Some((rank(1), &cold)));
        assert_eq!(queue.first("p", 2, but(&["held", "cold"])), Some((rank(3), &warm)));
        assert_eq!(queue.first("p", 2, but(&["cold", "warm"])), Some((rank(0), &held)));
        assert_eq!(queue.first("p", 2, but(&["held", "cold", "warm"])), None);
        assert_eq!(queue.firsts("p").collect::<Vec<_>>(), [&cold, &warm, &held]);
        assert_eq!(queue.firsts("q").count(), 0);
    }
}
