//! Wanted runs, in the order in which they are taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use taskrun_journal::hold::Lane;
use taskrun_journal::ids::RunId;
use taskrun_journal::pin::{Pins, Ready};
use taskrun_journal::schedule::Rank;
use taskrun_journal::spec::{RunSpec, TreeBounds};
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
    /// The number of its pins; of no meaning where it is not wanted.
    pub(super) pins: u32,
}

/// The queue of all runs.
///
/// Of each tree only the first run of each kind of pins stands in [`Self::fronts`], by how many runs
/// of the tree are held, or first and last where the tree has a number of slots of its own. So a
/// claim passes over trees without a slot at one look each number of held runs, whatever waits in
/// them, and a limit that differs from one host to the next costs nothing.
#[derive(Clone, Default)]
pub(super) struct Queue {
    /// The pins that runs ever had; there are few of them.
    pins: Vec<Pins>,
    /// Their numbers.
    numbers: HashMap<Pins, u32>,
    trees: HashMap<RunId, Tree>,
    fronts: BTreeMap<Front, RunId>,
    /// Runs with a time, past or not, each with the number of its pins.
    times: BTreeMap<Timestamp, BTreeMap<RunId, u32>>,
    /// Wanted runs of each kind of pins, those that cannot be had yet included.
    wanted: HashMap<u32, u64>,
    /// Runs that wait to begin, by tenant.
    waiting: HashMap<String, u64>,
    /// Open serial runs, in the order of acceptance.
    serial: HashMap<SessionKey, BTreeMap<u64, RunId>>,
}

/// Level of the tree, and rank and pins of the first of its runs with those.
type Front = (u32, Rank, u32);

/// A tree with wanted or held runs.
#[derive(Clone, Default)]
struct Tree {
    held: u32,
    /// Its own number of slots; `None` if it has as many as each host says.
    slots: Option<u32>,
    ready: BTreeMap<(u32, Rank), RunId>,
}

impl Tree {
    /// The number of slots beyond which hosts take a run of it.
    fn level(&self) -> u32 {
        match self.slots {
            None => self.held,
            Some(slots) if self.held < slots => 0,
            Some(_) => u32::MAX,
        }
    }

    fn fronts(&self) -> Vec<Front> {
        let mut fronts = Vec::new();
        let mut from = 0;
        while let Some(((pins, rank), _)) = self.ready.range((from, Rank::FIRST)..).next() {
            fronts.push((self.level(), *rank, *pins));
            from = pins + 1;
        }
        fronts
    }
}

impl Queue {
    /// The number of these pins.
    pub(super) fn number(&mut self, pins: Pins) -> u32 {
        if let Some(known) = self.numbers.get(&pins) {
            return *known;
        }
        let number = u32::try_from(self.pins.len()).expect("pins fit into memory");
        self.pins.push(pins.clone());
        self.numbers.insert(pins, number);
        number
    }

    fn change(&mut self, (root, bounds): (&RunId, &TreeBounds), change: impl FnOnce(&mut Tree)) {
        let tree = self.trees.entry(root.clone()).or_default();
        for front in tree.fronts() {
            self.fronts.remove(&front);
        }
        tree.slots = bounds.slots;
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
        let moves = was.pins != is.pins;
        if was.wanted != is.wanted || moves {
            if was.wanted {
                count(&mut self.wanted, was.pins, false);
            }
            if is.wanted {
                count(&mut self.wanted, is.pins, true);
            }
        }
        if was.time != is.time || moves {
            self.leave_time(was.time, &spec.id);
            if let Some(time) = is.time {
                self.times.entry(time).or_default().insert(spec.id.clone(), is.pins);
            }
        }
        let changes = was.rank != is.rank || moves;
        if changes {
            self.change((&spec.root_run_id, &spec.tree), |tree| {
                was.rank.map(|rank| tree.ready.remove(&(was.pins, rank)));
                is.rank.map(|rank| tree.ready.insert((is.pins, rank), spec.id.clone()));
            });
        }
        is.rank.is_some() && changes
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
    pub(super) fn hold(&mut self, spec: &RunSpec) {
        self.change((&spec.root_run_id, &spec.tree), |tree| tree.held += 1);
    }

    /// One less; says whether another one can be had since.
    pub(super) fn release(&mut self, spec: &RunSpec) -> bool {
        self.change((&spec.root_run_id, &spec.tree), |tree| tree.held -= 1);
        self.trees.get(&spec.root_run_id).is_some_and(|tree| !tree.ready.is_empty())
    }

    /// Runs of a tree that are held.
    pub(super) fn held(&self, root: &RunId) -> u32 {
        self.trees.get(root).map_or(0, |tree| tree.held)
    }

    /// The run to be taken first from a lane on, if no tree without a number of its own may have more
    /// than so many slots and only these runs are taken.
    pub(super) fn first(
        &self,
        (ready, from_lane): (&Ready, Lane),
        tree_slots: u32,
    ) -> Option<(Rank, &RunId)> {
        let least = Rank::first_of(from_lane);
        let mut first: Option<(Rank, &RunId)> = None;
        let mut from = 0;
        while from < tree_slots {
            let next = self.fronts.range((from, Rank::FIRST, 0)..).next();
            let Some(((held, ..), _)) = next.filter(|((held, ..), _)| *held < tree_slots) else {
                break;
            };
            let best = first.map(|(best, _)| best);
            let level = self.fronts.range((*held, least, 0)..(held + 1, Rank::FIRST, 0));
            let mut level =
                level.take_while(|((_, rank, _), _)| best.is_none_or(|best| *rank < best));
            let found = level.find(|((_, rank, pins), _)| self.is_in(ready, *pins, rank.lane));
            let found = found.and_then(|(front, root)| Some((front.1, self.front(front, root)?)));
            first = found.or(first);
            from = held + 1;
        }
        first
    }

    fn front(&self, (_, rank, pins): &Front, root: &RunId) -> Option<&RunId> {
        self.trees.get(root).and_then(|tree| tree.ready.get(&(*pins, *rank)))
    }

    fn is_in(&self, ready: &Ready, number: u32, lane: Lane) -> bool {
        let pins = usize::try_from(number).ok().and_then(|number| self.pins.get(number));
        pins.is_some_and(|pins| ready.includes(pins, lane))
    }

    /// The first wanted run of each tree and each kind of pins.
    pub(super) fn firsts(&self) -> impl Iterator<Item = &RunId> {
        self.fronts.iter().filter_map(|(front, root)| self.front(front, root))
    }

    /// Runs whose time lies after `from` and not after `to`, which is later.
    pub(super) fn between(&self, from: Timestamp, to: Timestamp) -> Vec<RunId> {
        let times = self.times.range((Bound::Excluded(from), Bound::Included(to)));
        times.flat_map(|(_, runs)| runs.keys().cloned()).collect()
    }

    /// True if the time of a run lies between two times.
    pub(super) fn has_between(&self, one: Timestamp, other: Timestamp) -> bool {
        let (from, to) = (one.min(other), one.max(other));
        self.times.range((Bound::Excluded(from), Bound::Included(to))).next().is_some()
    }

    /// The number of runs of each kind of pins whose time comes after this one.
    pub(super) fn later(&self, until: Timestamp) -> BTreeMap<u32, u64> {
        let mut later = BTreeMap::new();
        let times = self.times.range((Bound::Excluded(until), Bound::Unbounded));
        for pins in times.flat_map(|(_, runs)| runs.values()) {
            *later.entry(*pins).or_default() += 1;
        }
        later
    }

    /// True if one of these runs is wanted, though it may not be had yet, beside so many of each
    /// kind of pins.
    pub(super) fn is_wanted(
        &self,
        ready: &Ready,
        without: &BTreeSet<String>,
        beside: &BTreeMap<u32, u64>,
    ) -> bool {
        let is_without = |pins: u32| {
            let pins = self.pins.get(pins as usize);
            pins.is_some_and(|pins| pins.all().any(|pin| without.contains(pin)))
        };
        let mut wanted = self.wanted.iter();
        wanted.any(|(pins, count)| {
            let others = *count > beside.get(pins).copied().unwrap_or_default();
            // A host stays for agents, whichever lane their runs are in.
            others && self.is_in(ready, *pins, Lane::Fresh) && !is_without(*pins)
        })
    }

    /// One run more, or less, waits to begin.
    pub(super) fn count_waiting(&mut self, spec: &RunSpec, more: bool) {
        count(&mut self.waiting, spec.tenant.clone(), more);
    }

    /// Runs of the tenant of a run that wait to begin.
    pub(super) fn waiting(&self, spec: &RunSpec) -> u64 {
        self.waiting.get(&spec.tenant).copied().unwrap_or_default()
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

    fn wanted(queue: &mut Queue, root: &RunId, id: &RunId, (number, pin): (u64, &str)) {
        let pins = queue.number(Pins::from_text(pin.to_owned()));
        queue.change((root, &TreeBounds::default()), |tree| {
            tree.ready.insert((pins, rank(number)), id.clone());
        });
    }

    #[test]
    fn a_claim_looks_at_one_run_of_a_tree_however_many_wait() {
        let mut queue = Queue::default();
        let id = |text: &str| RunId::new(text).expect("a valid id");
        let (full, free) = (id("full"), id("free"));
        queue.change((&full, &TreeBounds::default()), |tree| tree.held += 1);
        for number in 0..20_000 {
            wanted(&mut queue, &full, &id(&format!("r-{number}")), (number, "p"));
        }
        wanted(&mut queue, &free, &free, (20_000, "p"));
        assert_eq!(queue.fronts.len(), 2);
        let first = |queue: &Queue, pin: &str, slots| {
            let found = queue.first((&Ready::only([pin]), Lane::Resume), slots);
            found.map(|(rank, id)| (rank, id.clone()))
        };
        assert_eq!(first(&queue, "p", 1), Some((rank(20_000), free.clone())));
        assert_eq!(first(&queue, "p", 2), Some((rank(0), id("r-0"))));
        queue.change((&full, &TreeBounds::default()), |tree| tree.held -= 1);
        assert_eq!(first(&queue, "p", 1), Some((rank(0), id("r-0"))));
        assert_eq!(first(&queue, "p", 0), None);
        assert_eq!(first(&queue, "q", 1), None);
    }

    #[test]
    fn of_each_tree_the_first_run_with_each_pins_is_looked_at() {
        let mut queue = Queue::default();
        let id = |text: &str| RunId::new(text).expect("a valid id");
        let (cold, warm, held) = (id("cold"), id("warm"), id("held"));
        wanted(&mut queue, &cold, &cold, (1, "c"));
        wanted(&mut queue, &cold, &id("child"), (2, "w"));
        wanted(&mut queue, &warm, &warm, (3, "w"));
        queue.change((&held, &TreeBounds::default()), |tree| tree.held += 1);
        wanted(&mut queue, &held, &held, (0, "h"));
        let first = |pins: &[&str]| {
            let ready = Ready::only(pins.iter().copied());
            queue.first((&ready, Lane::Resume), 2).map(|(_, id)| id.as_str())
        };
        assert_eq!(first(&["h", "c", "w"]), Some("held"));
        assert_eq!(first(&["c", "w"]), Some("cold"));
        assert_eq!(first(&["w"]), Some("child"));
        assert_eq!(first(&["h"]), Some("held"));
        assert_eq!(first(&["q"]), None);
        let firsts: Vec<_> = queue.firsts().map(RunId::as_str).collect();
        assert_eq!(firsts, ["cold", "child", "warm", "held"]);
    }
}
