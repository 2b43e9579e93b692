//! The tokens and the money that trees and the nudges that came of them have left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_MAX, TreeQuery};
use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Store, StoreError};
use taskrun_journal::time::Timestamp;
use taskrun_policy::{Budget, Reserve};

use super::{PAGES_MAX, Place};
use crate::controller::Controller;
use crate::driver::{TreeRemainder, bounds_spending, charged_with_descendants};
use crate::error::ControllerError;
use crate::scan::scan_tree;

/// The consumption of a tree of which not all is known: no budget has anything left of it.
const EVERYTHING: Usage = Usage {
    prompt_tokens: u64::MAX,
    completion_tokens: u64::MAX,
    total_tokens: u64::MAX,
    cached_tokens: 0,
    cache_write_tokens: 0,
    reasoning_tokens: 0,
    cost_microusd: u64::MAX,
    cost_rounding: 0,
    estimated: false,
    reported_tokens: 0,
    reported_prompt_tokens: 0,
    reported_completion_tokens: 0,
};

/// A tree that a nudge may tell of, or that such a tree came of.
struct Tree {
    root: Run,
    /// The first runs of the trees that its first run told of, if that is a nudge.
    above: BTreeSet<RunId>,
    /// The budget of its first run, if that bounds tokens or money.
    budget: Option<Budget>,
}

/// The trees of a group of reports and all those that they came of, by their first runs.
#[derive(Default)]
pub(super) struct Trees(BTreeMap<RunId, Tree>);

impl Trees {
    /// Adds the tree of a first run, and those that it came of. A tree has more hops than each of
    /// those that its first run told of, so there are at most
    /// [`HOPS_MAX`](taskrun_journal::delivery::HOPS_MAX) of them one above the other.
    pub(super) async fn add(
        &mut self,
        controller: &Controller,
        root: Run,
    ) -> Result<(), ControllerError> {
        let store = &controller.0.parts.store;
        let mut rest = vec![root];
        while let Some(root) = rest.pop() {
            if self.0.contains_key(root.id()) {
                continue;
            }
            let mut above = BTreeSet::new();
            for told in &root.spec.nudge_for {
                let Some(told) = store.get(told).await? else { continue };
                let id = &told.spec.root_run_id;
                if told.spec.depth == 0 || !above.insert(id.clone()) || self.0.contains_key(id) {
                    continue;
                }
                rest.extend(store.get(id).await?);
            }
            let budget = budget_of(controller, &root);
            self.0.insert(root.id().clone(), Tree { root, above, budget });
        }
        Ok(())
    }

    /// The remainder of each of them that has a budget of tokens or money is looked up from now on
    /// among the nudges of this place.
    pub(super) async fn remainders<'a>(
        self,
        store: &'a dyn Store,
        place: &Place,
    ) -> Result<Remainders<'a>, StoreError> {
        let bounded = self.0.values().filter(|tree| tree.budget.is_some());
        let since = bounded.map(|tree| tree.root.spec.created_at).min();
        let nudges = match since {
            Some(since) => NudgesSince::read(store, place, since).await?,
            None => NudgesSince::default(),
        };
        Ok(Remainders { store, trees: self, nudges, known: BTreeMap::new() })
    }
}

/// The budget of a first run, if it bounds tokens or money.
fn budget_of(controller: &Controller, root: &Run) -> Option<Budget> {
    let agent = controller.at_the_door(root.pin())?;
    let mut budget = agent.budget.clone();
    budget.narrow(&root.spec.narrow);
    Some(budget).filter(bounds_spending)
}

/// The remainders of trees; each is counted once.
pub(super) struct Remainders<'a> {
    store: &'a dyn Store,
    trees: Trees,
    nudges: NudgesSince,
    known: BTreeMap<RunId, TreeRemainder>,
}

impl Remainders<'_> {
    /// The least of what the tree of a first run has left, and of what those have that it came of:
    /// a nudge spends what is theirs, and so does all that comes of it.
    pub(super) async fn left_of(&mut self, root: &RunId) -> Result<TreeRemainder, StoreError> {
        let mut left = TreeRemainder::default();
        let (mut seen, mut rest) = (BTreeSet::new(), vec![root.clone()]);
        while let Some(id) = rest.pop() {
            let Some(tree) = self.trees.0.get(&id) else { continue };
            rest.extend(tree.above.iter().filter(|above| !seen.contains(*above)).cloned());
            let own = match self.known.get(&id) {
                Some(own) => *own,
                None => self.nudges.left_of(self.store, tree).await?,
            };
            left = left.least(own);
            self.known.insert(id.clone(), own);
            seen.insert(id);
        }
        Ok(left)
    }
}

/// The nudges of a place since a time, by whichever agent.
#[derive(Default)]
struct NudgesSince {
    nudges: Vec<Arc<RunSpec>>,
    /// Runs that did not change after this time were not all looked at.
    unknown_until: Option<Timestamp>,
}

impl NudgesSince {
    /// Those among the runs of a place: a label would find those of one agent alone, and the host
    /// may not have all agents of which there were nudges.
    async fn read(store: &dyn Store, place: &Place, since: Timestamp) -> Result<Self, StoreError> {
        let filter = ListFilter { since: Some(since), ..ListFilter::default() };
        let (mut nudges, mut cursor) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let page = store.list(&place.scope(), &filter, cursor.as_ref(), PAGE_MAX).await?;
            let found = page.runs.into_iter().filter(|run| run.spec.is_nudge());
            nudges.extend(found.map(|run| run.spec));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        Ok(Self { nudges, unknown_until: cursor.map(|cursor| cursor.updated_at) })
    }

    /// The rest of the budget of a tree; nothing where not all nudges since it began are known.
    async fn left_of(&self, store: &dyn Store, tree: &Tree) -> Result<TreeRemainder, StoreError> {
        let Some(budget) = &tree.budget else { return Ok(TreeRemainder::default()) };
        let began = tree.root.spec.created_at;
        // The last changed were looked at first, and no run changes before it is made.
        let used = match self.unknown_until.is_some_and(|until| began <= until) {
            true => EVERYTHING,
            false => self.used_with(store, &tree.root).await?,
        };
        Ok(TreeRemainder::of(budget, used, Reserve::default()))
    }

    /// The consumption of a tree with that of the nudges that told of its runs, and of those that
    /// came of these in turn; of what is under way as far as it is on record.
    async fn used_with(&self, store: &dyn Store, root: &Run) -> Result<Usage, StoreError> {
        let mut used = charged_with_descendants(store, root).await?;
        let (mut rest, mut trees) = (self.nudges.clone(), vec![Arc::clone(&root.spec)]);
        while let Some(tree) = trees.pop()
            && !rest.is_empty()
        {
            let runs = runs_of(store, &tree).await?;
            let told = |nudge: &Arc<RunSpec>| nudge.nudge_for.iter().any(|id| runs.contains(id));
            let (of_tree, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(told);
            rest = others;
            for nudge in of_tree {
                if let Some(run) = store.get(&nudge.id).await? {
                    // What a run says of itself counts against its own budget alone.
                    used = used.plus(charged_with_descendants(store, &run).await?.counted());
                    trees.push(nudge);
                }
            }
        }
        Ok(used)
    }
}

/// The runs of the tree of a first run.
async fn runs_of(store: &dyn Store, root: &RunSpec) -> Result<BTreeSet<RunId>, StoreError> {
    let all = TreeQuery {
        tenant: root.tenant.clone(),
        root_run_id: root.id.clone(),
        counted_only: false,
    };
    let mut runs = BTreeSet::new();
    let see = |run: Run| {
        runs.insert(run.spec.id.clone());
    };
    scan_tree(store, &all, see).await?;
    Ok(runs)
}
