//! Runs that wait for the end of others.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::convert::Infallible;

use taskrun_journal::hold::{Hold, WaitMode};
use taskrun_journal::ids::RunId;
use taskrun_journal::schedule;

/// The runs that wait, and those for which they do. A run that waits for nothing any more is not
/// in it.
#[derive(Clone, Default)]
pub(super) struct Waits {
    waiting: HashMap<RunId, OpenWait>,
    /// The other way round.
    waiters: HashMap<RunId, BTreeSet<RunId>>,
}

#[derive(Clone)]
struct OpenWait {
    mode: WaitMode,
    /// Those of the runs that have not ended.
    open: BTreeSet<RunId>,
}

impl Waits {
    /// The runs for which a run waits.
    #[cfg(test)]
    pub(super) fn open_of(&self, id: &RunId) -> Option<&BTreeSet<RunId>> {
        self.waiting.get(id).map(|waiting| &waiting.open)
    }

    /// Begins the wait of a run for some that are open.
    pub(super) fn begin(&mut self, id: &RunId, open: Vec<RunId>, mode: WaitMode) {
        for awaited in &open {
            self.waiters.entry(awaited.clone()).or_default().insert(id.clone());
        }
        self.waiting.insert(id.clone(), OpenWait { mode, open: open.into_iter().collect() });
    }

    /// Ends the wait of a run, if there is one.
    pub(super) fn end(&mut self, id: &RunId) {
        let Some(waiting) = self.waiting.remove(id) else { return };
        for awaited in &waiting.open {
            if let Some(waiters) = self.waiters.get_mut(awaited) {
                waiters.remove(id);
                if waiters.is_empty() {
                    self.waiters.remove(awaited);
                }
            }
        }
    }

    /// Says that a run ended; returns those whose wait is over by that.
    pub(super) fn ended(&mut self, id: &RunId) -> Vec<RunId> {
        let mut over = Vec::new();
        for waiter in self.waiters.remove(id).unwrap_or_default() {
            let Some(waiting) = self.waiting.get_mut(&waiter) else { continue };
            waiting.open.remove(id);
            let has_more = || Ok::<_, Infallible>(!waiting.open.is_empty());
            let Ok(is_woken) = schedule::is_woken(waiting.mode, has_more);
            if is_woken {
                self.end(&waiter);
                over.push(waiter);
            }
        }
        over
    }

    /// True for a run that would wait for itself if it came to be held so, through whichever
    /// others.
    pub(super) fn would_be_cycle(&self, id: &RunId, hold: &Hold) -> bool {
        let mut ahead: Vec<&RunId> = match hold {
            Hold::Runs { runs, .. } => runs.iter().collect(),
            Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => return false,
        };
        let mut seen = HashSet::new();
        while let Some(next) = ahead.pop() {
            if next == id {
                return true;
            }
            if seen.insert(next) {
                ahead.extend(self.waiting.get(next).iter().flat_map(|waiting| &waiting.open));
            }
        }
        false
    }
}
