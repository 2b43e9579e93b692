//! The consumption of the runs of a tree, by the run beneath which they are.

mod continued;

use std::collections::{BTreeMap, BTreeSet};

use taskrun_journal::checkpoint::Settled;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::TreeQuery;
use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Store, StoreError};

use self::continued::late_usage;
pub(super) use self::continued::{ContinuedRun, final_usage};
use crate::scan::scan_tree;

/// The runs that count in one tree. A tree's bound limits how many they are.
pub(super) struct Subtree {
    runs: BTreeMap<RunId, Member>,
    /// The run that the first one continues.
    continued: Option<ContinuedRun>,
}

/// A run of a tree.
struct Member {
    /// The one that started it.
    parent: Option<RunId>,
    /// Its consumption by itself, and that of the runs that it has left behind.
    usage: Usage,
    has_ended: bool,
}

impl Subtree {
    /// The tree that a run is in, as it stands.
    pub(super) async fn read(store: &dyn Store, spec: &RunSpec) -> Result<Self, StoreError> {
        let (mut runs, mut continued) = (BTreeMap::new(), None);
        let see = |run: Run| {
            if *run.id() == spec.root_run_id {
                continued = ContinuedRun::of(&run);
            }
            let parent = run.spec.parent_run_id.clone();
            let (usage, has_ended) = (consumed(&run), run.status().is_terminal());
            runs.insert(run.spec.id.clone(), Member { parent, usage, has_ended });
        };
        scan_tree(store, &TreeQuery::counted(spec), see).await?;
        Ok(Self { runs, continued })
    }

    /// The same, with what was used beneath the run that the first one continues since that began: it
    /// counts as used beneath it.
    pub(super) async fn with_continued(
        store: &dyn Store,
        spec: &RunSpec,
    ) -> Result<Self, StoreError> {
        let mut tree = Self::read(store, spec).await?;
        if let Some(continued) = tree.continued.clone() {
            let (id, parent) = (continued.id.clone(), Some(spec.root_run_id.clone()));
            let late = late_usage(store, continued).await?;
            let member = Member { parent, usage: late.usage, has_ended: late.is_final };
            tree.runs.insert(id, member);
        }
        Ok(tree)
    }

    /// True if all of them have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.runs.values().all(|member| member.has_ended)
    }

    /// The consumption of a run with everything beneath it.
    pub(super) fn usage(&self, of: &RunId) -> Usage {
        let all = self.runs.iter().filter(|(id, _)| self.is_in(id, of));
        all.fold(Usage::default(), |sum, (_, member)| sum.plus(member.usage))
    }

    /// The part of that which counts against the budget of one of them, without what this one
    /// consumed by itself.
    pub(super) fn usage_of_others(&self, of: &RunId, but: &RunId) -> Usage {
        let all = self.runs.iter().filter(|(id, _)| *id != but && self.is_in(id, of));
        all.fold(Usage::default(), |sum, (_, member)| sum.plus(member.usage)).counted()
    }

    /// The runs beneath one that may be left behind: those that it started and that have ended with
    /// everything beneath them, where none of these is `pending`, as somebody is to be told of it.
    pub(super) fn settled(&self, of: &RunId, pending: &BTreeSet<RunId>) -> Settled {
        let mut needed = BTreeSet::new();
        for (id, member) in &self.runs {
            if !member.has_ended || pending.contains(id) {
                needed.insert(id);
                needed.extend(self.above(id));
            }
        }
        let mut settled = Settled::default();
        for (id, member) in &self.runs {
            // The one on the way from there to this that the first one started.
            let way = std::iter::once(id).chain(self.above(id)).zip(self.above(id));
            let child = way.into_iter().find(|(_, parent)| *parent == of);
            if child.is_some_and(|(child, _)| !needed.contains(child)) {
                settled.runs.push(id.clone());
                settled.usage = settled.usage.plus(member.usage);
            }
        }
        settled
    }

    /// The runs above one, the nearest first.
    pub(super) fn above(&self, id: &RunId) -> Vec<&RunId> {
        let (mut above, mut seen) = (Vec::new(), BTreeSet::new());
        let mut next = self.runs.get(id).and_then(|member| member.parent.as_ref());
        while let Some(id) = next.filter(|id| seen.insert(*id)) {
            above.push(id);
            next = self.runs.get(id).and_then(|member| member.parent.as_ref());
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
            next = self.runs.get(id).and_then(|member| member.parent.as_ref());
        }
        false
    }
}

/// The consumption with which a run begins that continues this one, the first of its tree: its own
/// with everything beneath it, also that of runs which it has left behind and which are not kept
/// any more. True if it stays as it is, as nothing of that is open.
pub(crate) async fn read_carried_usage(
    store: &dyn Store,
    run: &Run,
) -> Result<(Usage, bool), StoreError> {
    let tree = Subtree::with_continued(store, &run.spec).await?;
    Ok((tree.usage(run.id()), tree.has_ended()))
}

/// The consumption that counts against the budget of a run, with what the runs beneath it used.
pub(crate) async fn charged_with_descendants(
    store: &dyn Store,
    run: &Run,
) -> Result<Usage, StoreError> {
    let tree = Subtree::with_continued(store, &run.spec).await?;
    let beneath = tree.usage_of_others(run.id(), run.id());
    Ok(charged(run).plus(run.state.step_usage).plus(beneath))
}

/// The consumption that counts against the budget of a run, by itself and by the runs that it has left
/// behind, without that of the plan step under way. What a run says of itself counts against its own
/// budget alone.
#[must_use]
pub fn charged(run: &Run) -> Usage {
    run.state.progress.usage().plus(left_behind(run).counted())
}

/// The consumption of the runs that one has left behind, and of what ended beneath those that it
/// continues.
fn left_behind(run: &Run) -> Usage {
    let rounds = &run.state.rounds;
    rounds.settled.plus(rounds.continued.unwrap_or_default())
}

/// The consumption of a run by itself and of the runs that it has left behind, the plan step under way
/// included as far as that is on record.
fn consumed(run: &Run) -> Usage {
    let state = &run.state;
    state.progress.usage().plus(state.step_usage).plus(left_behind(run))
}

#[cfg(test)]
mod tests {
    use taskrun_fixtures::run_id;

    use super::*;

    /// A tree of runs, each with the one above it, whether it has ended, and its tokens.
    fn tree(members: &[(&str, Option<&str>, bool, u64)]) -> Subtree {
        let runs = members.iter().map(|(id, parent, has_ended, tokens)| {
            let usage = Usage { total_tokens: *tokens, ..Usage::default() };
            let member = Member { parent: parent.map(run_id), usage, has_ended: *has_ended };
            (run_id(id), member)
        });
        Subtree { runs: runs.collect(), continued: None }
    }

    fn settled(tree: &Subtree, of: &str, pending: &[&str]) -> (Vec<String>, u64) {
        let pending = pending.iter().map(|id| run_id(id)).collect();
        let Settled { runs, usage } = tree.settled(&run_id(of), &pending);
        (runs.iter().map(ToString::to_string).collect(), usage.total_tokens)
    }

    #[test]
    fn what_has_ended_with_all_beneath_it_is_left_behind_once_everybody_was_told() {
        let tree = tree(&[
            ("r", None, false, 1),
            ("a", Some("r"), true, 2),
            ("a1", Some("a"), true, 4),
            ("a2", Some("a1"), true, 8),
            ("b", Some("r"), true, 16),
            ("b1", Some("b"), false, 32),
            ("c", Some("r"), false, 64),
            ("c1", Some("c"), true, 128),
            ("d", Some("r"), true, 256),
        ]);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(settled(&tree, "r", &[]), (names(&["a", "a1", "a2", "d"]), 2 + 4 + 8 + 256));
        assert_eq!(settled(&tree, "r", &["a2"]), (names(&["d"]), 256), "it is to be told of");
        assert_eq!(settled(&tree, "r", &["d"]), (names(&["a", "a1", "a2"]), 14));
        assert_eq!(settled(&tree, "c", &[]), (names(&["c1"]), 128), "each its own");
        assert_eq!(settled(&tree, "c1", &[]), (Vec::new(), 0));
        assert_eq!(settled(&tree, "elsewhere", &[]), (Vec::new(), 0));
    }
}
