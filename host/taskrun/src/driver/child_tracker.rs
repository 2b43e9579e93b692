//! The number of calls beneath the tool call that a run is.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The calls that are known to belong under the tool call that this run is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChildTracker {
    calls: BTreeSet<String>,
    /// The number that was recorded last.
    told: u32,
}

impl ChildTracker {
    /// Takes calls into account; those that are known change nothing.
    pub(super) fn found<'a>(&mut self, ids: impl IntoIterator<Item = &'a str>) {
        self.calls.extend(ids.into_iter().map(str::to_owned));
    }

    /// This was told.
    pub(super) fn mark(&mut self, total: u32) {
        self.told = self.told.max(total);
    }

    /// Their number, if that is more than was recorded; `hint` is the number that the planner expects.
    pub(super) fn update(&self, hint: Option<u32>) -> Option<u32> {
        let known = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
        Some(known.max(hint.unwrap_or(0))).filter(|total| *total > self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ls_13_the_number_of_children_is_told_only_when_it_grows() {
        let mut tracker = ChildTracker::default();
        tracker.found(["1", "2"]);
        assert_eq!(tracker.update(None), Some(2));
        tracker.mark(2);
        assert_eq!(tracker.update(None), None);
        tracker.found(["2"]);
        assert_eq!(tracker.update(None), None, "known already");
        tracker.found(["3"]);
        assert_eq!(tracker.update(None), Some(3));
        tracker.mark(3);
        assert_eq!(tracker.update(Some(5)), Some(5), "the planner expects more");
        tracker.mark(5);
        tracker.found(["4"]);
        assert_eq!(tracker.update(Some(5)), None, "still as many as were expected");
    }
}
