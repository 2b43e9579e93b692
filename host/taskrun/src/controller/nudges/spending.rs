//! The consumption of a tree and of the nudges that came of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_MAX, Scope};
use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Store, StoreError};

use super::{LABEL, PAGE, PAGES_MAX, Place};
use crate::agents::Agents;
use crate::driver::charged_with_descendants;

/// The nudges of a session since a tree began, by whichever agent; of each agent at most as many as
/// pages are looked at, the last ones.
pub(super) struct NudgesBefore(Vec<Arc<RunSpec>>);

impl NudgesBefore {
    /// Those of these agents since the tree of `root` began.
    pub(super) async fn read(
        store: &dyn Store,
        place: &Place,
        agents: &Agents,
        root: &Run,
    ) -> Result<Self, StoreError> {
        let scope = place.scope();
        let mut found = Vec::new();
        for agent in agents.by_name.keys() {
            let labels = [(LABEL.to_owned(), agent.clone())].into();
            let since = Some(root.spec.created_at);
            let filter = ListFilter { labels, since, ..ListFilter::default() };
            let mut cursor = None;
            for _ in 0..PAGES_MAX {
                let page = store.list(&scope, &filter, cursor.as_ref(), PAGE).await?;
                let nudges = page.runs.into_iter().filter(|run| run.spec.is_nudge());
                found.extend(nudges.map(|run| run.spec));
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok(Self(found))
    }

    /// The consumption of a tree with that of the nudges that told of its runs, and of those that
    /// came of these in turn; of what is under way as far as it is on record.
    pub(super) async fn used_with(
        self,
        store: &dyn Store,
        root: &Run,
    ) -> Result<Usage, StoreError> {
        let mut used = charged_with_descendants(store, root).await?;
        let (mut rest, mut trees) = (self.0, vec![Arc::clone(&root.spec)]);
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
    let scope = Scope::tenant(&root.tenant);
    let filter = ListFilter { root_run_id: Some(root.id.clone()), ..ListFilter::default() };
    let (mut runs, mut cursor) = (BTreeSet::new(), None);
    loop {
        let page = store.list(&scope, &filter, cursor.as_ref(), PAGE_MAX).await?;
        runs.extend(page.runs.iter().map(|run| run.id().clone()));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(runs);
        }
    }
}
