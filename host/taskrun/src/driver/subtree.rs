//! The consumption of the runs of a tree, by the run beneath which they are.

use std::collections::{BTreeMap, BTreeSet};

use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_MAX, Scope};
use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Store, StoreError};
use taskrun_policy::Budget;

/// The runs of one tree. A tree's bound limits how many they are.
pub(super) struct Subtree {
    /// Each with the one that started it, and what it consumed by itself.
    runs: BTreeMap<RunId, (Option<RunId>, Usage)>,
}

impl Subtree {
    /// The tree that a run is in, as it stands.
    pub(super) async fn read(store: &dyn Store, spec: &RunSpec) -> Result<Self, StoreError> {
        let scope = Scope::tenant(&spec.tenant);
        let root_run_id = Some(spec.root_run_id.clone());
        let filter = ListFilter { root_run_id, ..ListFilter::default() };
        let (mut runs, mut cursor) = (BTreeMap::new(), None);
        loop {
            let page = store.list(&scope, &filter, cursor.as_ref(), PAGE_MAX).await?;
            runs.extend(page.runs.iter().map(|run| {
                let parent = run.spec.parent_run_id.clone();
                (run.id().clone(), (parent, consumed(run)))
            }));
            cursor = page.next;
            if cursor.is_none() {
                return Ok(Self { runs });
            }
        }
    }

    /// The consumption of a run with everything beneath it.
    pub(super) fn usage(&self, of: &RunId) -> Usage {
        let all = self.runs.iter().filter(|(id, _)| self.is_in(id, of));
        all.fold(Usage::default(), |sum, (_, (_, usage))| sum.plus(*usage))
    }

    /// The same without what one of them consumed by itself.
    pub(super) fn usage_but(&self, of: &RunId, but: &RunId) -> Usage {
        let all = self.runs.iter().filter(|(id, _)| *id != but && self.is_in(id, of));
        all.fold(Usage::default(), |sum, (_, (_, usage))| sum.plus(*usage))
    }

    /// The runs above one, the nearest first.
    pub(super) fn above(&self, id: &RunId) -> Vec<&RunId> {
        let (mut above, mut seen) = (Vec::new(), BTreeSet::new());
        let mut next = self.runs.get(id).and_then(|(parent, _)| parent.as_ref());
        while let Some(id) = next.filter(|id| seen.insert(*id)) {
            above.push(id);
            next = self.runs.get(id).and_then(|(parent, _)| parent.as_ref());
        }
        above
    }

    fn is_in(&self, id: &RunId, of: &RunId) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = Some(id);
        while let Some(id) = next.filter(|id| seen.insert(*id)) {
            if id == of {
                return true;
            }
            next = self.runs.get(id).and_then(|(parent, _)| parent.as_ref());
        }
        false
    }
}

/// The tokens and the money, in millionths of a US dollar, that a tree has left of a budget of its
/// first run; `None` for what that does not bound.
pub(crate) async fn tree_left(
    store: &dyn Store,
    root: &Run,
    budget: &Budget,
) -> Result<(Option<u64>, Option<u64>), StoreError> {
    if budget.tokens.is_none() && budget.cost_microusd.is_none() {
        return Ok((None, None));
    }
    let used = Subtree::read(store, &root.spec).await?.usage(root.id());
    let tokens = budget.tokens.map(|cap| cap.saturating_sub(used.total_tokens));
    let cost_microusd = budget.cost_microusd.map(|cap| cap.saturating_sub(used.cost_microusd));
    Ok((tokens, cost_microusd))
}

/// The consumption of a run by itself, the plan step under way included as far as that is on record.
fn consumed(run: &Run) -> Usage {
    run.state.progress.usage().plus(run.state.step_usage)
}
