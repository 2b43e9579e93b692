//! The listings of runs, from the one that changed last to the one that changed first.

use std::collections::{BTreeSet, HashMap};

use taskrun_journal::ids::RunId;
use taskrun_journal::list::{Cursor, ListFilter, Scope, TreeQuery};
use taskrun_journal::run::Run;
use taskrun_journal::time::Timestamp;

/// The listings of all runs that are there.
#[derive(Clone, Default)]
pub(super) struct Lists(HashMap<ListKey, BTreeSet<(Timestamp, RunId)>>);

/// The keys to which a listing can be narrowed without a look at every run of the tenant.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum ListKey {
    Tenant(String),
    Session(String, String),
    Parent(RunId),
    Tree(RunId),
    /// The runs that count in a tree.
    Counted(RunId),
}

impl ListKey {
    /// The shortest listing that has all runs of a scope and a filter.
    pub(super) fn of(scope: &Scope, filter: &ListFilter) -> Self {
        match (&filter.parent_run_id, &filter.root_run_id, &scope.parent_session_id) {
            (Some(parent), _, _) => Self::Parent(parent.clone()),
            (None, Some(root), _) => Self::Tree(root.clone()),
            (None, None, Some(session)) => Self::Session(scope.tenant.clone(), session.clone()),
            (None, None, None) => Self::Tenant(scope.tenant.clone()),
        }
    }

    /// The listing of the runs of a tree.
    pub(super) fn of_tree(query: &TreeQuery) -> Self {
        match query.counted_only {
            true => Self::Counted(query.root_run_id.clone()),
            false => Self::Tree(query.root_run_id.clone()),
        }
    }
}

impl Lists {
    pub(super) fn add(&mut self, run: &Run) {
        for key in list_keys(run) {
            self.0.entry(key).or_default().insert((run.state.updated_at, run.id().clone()));
        }
    }

    pub(super) fn remove(&mut self, run: &Run) {
        for key in list_keys(run) {
            self.remove_from(&key, run);
        }
    }

    /// Moves a run that has changed. Which listings it is in never changes, but for that of the runs that
    /// count; and most changes come in the millisecond of the one before.
    pub(super) fn change(&mut self, old: &Run, run: &Run) {
        if old.state.updated_at != run.state.updated_at {
            self.remove(old);
            self.add(run);
        }
    }

    /// A run that ended counts no longer in its tree.
    pub(super) fn settle(&mut self, run: &Run) {
        self.remove_from(&ListKey::Counted(run.spec.root_run_id.clone()), run);
    }

    /// True for a run that counts in its tree.
    pub(super) fn counts(&self, run: &Run) -> bool {
        let list = self.0.get(&ListKey::Counted(run.spec.root_run_id.clone()));
        list.is_some_and(|list| list.contains(&(run.state.updated_at, run.id().clone())))
    }

    fn remove_from(&mut self, key: &ListKey, run: &Run) {
        if let Some(list) = self.0.get_mut(key) {
            list.remove(&(run.state.updated_at, run.id().clone()));
            if list.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// The number of runs of a listing.
    pub(super) fn len(&self, key: &ListKey) -> usize {
        self.0.get(key).map_or(0, BTreeSet::len)
    }

    /// The runs of a listing, the one that changed first at the front.
    pub(super) fn runs<'l>(&'l self, key: &ListKey) -> impl Iterator<Item = &'l RunId> + use<'l> {
        self.0.get(key).into_iter().flatten().map(|(_, id)| id)
    }

    /// The runs of a listing after a cursor, the one that changed last at the front.
    pub(super) fn newest_first<'l>(
        &'l self,
        key: &ListKey,
        after: Option<&Cursor>,
    ) -> impl Iterator<Item = &'l RunId> + use<'l> {
        let range = self.0.get(key).map(|list| match after {
            Some(after) => list.range(..(after.updated_at, after.id.clone())),
            None => list.range(..),
        });
        range.into_iter().flatten().rev().map(|(_, id)| id)
    }
}

fn list_keys(run: &Run) -> impl Iterator<Item = ListKey> {
    let spec = &run.spec;
    let root = &spec.root_run_id;
    let fixed = [
        ListKey::Tenant(spec.tenant.clone()),
        ListKey::Tree(root.clone()),
        ListKey::Counted(root.clone()),
    ];
    let sessions = std::iter::once(&spec.parent_session_id).chain(&spec.root_session_id);
    let sessions = sessions.map(|id| ListKey::Session(spec.tenant.clone(), id.clone()));
    fixed.into_iter().chain(sessions).chain(spec.parent_run_id.clone().map(ListKey::Parent))
}
