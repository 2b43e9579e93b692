//! Removing what ended long ago.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;

use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, ContinuationNeeds, Successor};
use taskrun_journal::store::{Removal, RemovalOutcome};

use super::lists::ListKey;
use super::sessions::Chunk;
use super::state::{Entry, State};

impl State {
    /// The amounts that were removed, and the journals of it, to be counted outside of the lock.
    pub(super) fn remove(&mut self, removal: &Removal) -> (RemovalOutcome, Vec<Vec<Chunk>>) {
        let (ids, kept) = self.removable(removal);
        let removed = RemovalOutcome { runs: ids.len() as u64, kept, ..RemovalOutcome::default() };
        let journals = ids.iter().filter_map(|id| match removal.dry_run {
            true => self.runs.get(id).map(|entry| entry.journal.clone()),
            false => self.remove_one(id),
        });
        (removed, journals.collect())
    }

    fn removable(&self, removal: &Removal) -> (Vec<RunId>, u64) {
        let mut ids = Vec::new();
        let mut kept = 0;
        // Of each tree that is met: the runs above open ones.
        let mut open_ancestors: HashMap<&RunId, HashSet<&RunId>> = HashMap::new();
        let mut needs = ContinuationNeeds::default();
        for id in self.ended.range(..(removal.before, 0)).map(|(_, id)| id) {
            if ids.len() >= removal.limit {
                break;
            }
            let Some(Entry { run, .. }) = self.runs.get(id) else { continue };
            let spec = &run.spec;
            if removal.scope.as_ref().is_some_and(|scope| !scope.admits(run)) {
                continue;
            }
            let root = &spec.root_run_id;
            if open_ancestors.entry(root).or_insert_with(|| self.open_ancestors(root)).contains(id)
                || self.is_beneath_open(run)
                || spec.entries.iter().any(|id| self.is_open(id))
                || self.is_needed_by_continuation(run, &mut needs)
                || self.is_outcome_needed(run)
                || self.dispatches.is_open(id)
            {
                kept += 1;
            } else {
                ids.push(id.clone());
            }
        }
        (ids, kept)
    }

    /// The runs of a tree under which there is an open one.
    fn open_ancestors(&self, root: &RunId) -> HashSet<&RunId> {
        let mut ancestors = HashSet::new();
        for id in self.lists.runs(&ListKey::Tree(root.clone())) {
            let entry = self.runs.get(id).filter(|entry| !entry.run.status().is_terminal());
            let mut parent = entry.and_then(|entry| entry.run.spec.parent_run_id.as_ref());
            while let Some(id) = parent.filter(|id| ancestors.insert(*id)) {
                parent = self.runs.get(id).and_then(|entry| entry.run.spec.parent_run_id.as_ref());
            }
        }
        ancestors
    }

    /// True if a run above this one is open, which may want its result, and to whose budget it counts.
    /// One that counts no longer in its tree is needed by nobody there: its use stands in the record of
    /// the run that left it behind.
    fn is_beneath_open(&self, run: &Run) -> bool {
        if !self.lists.counts(run) {
            return false;
        }
        let (mut seen, mut next) = (HashSet::new(), run.spec.parent_run_id.as_ref());
        while let Some(id) = next.filter(|id| seen.insert(*id)) {
            let Some(Entry { run, .. }) = self.runs.get(id) else { return false };
            if !run.status().is_terminal() {
                return true;
            }
            next = run.spec.parent_run_id.as_ref();
        }
        false
    }

    /// The answer of [`ContinuationNeeds`]: the first run of a tree stays, and so does one of which
    /// nobody was told.
    fn is_needed_by_continuation(&self, run: &Run, needs: &mut ContinuationNeeds) -> bool {
        let is_first = *run.id() == run.spec.root_run_id;
        let stays = is_first || self.outbox.is_pending(run.id());
        let next = |key: String| -> Result<_, Infallible> {
            let key = (run.spec.tenant.clone(), key);
            let next = self.keys.get(&key).and_then(|(_, id)| self.runs.get(id));
            Ok(next.map(|next| Successor::of(&next.run)))
        };
        let Ok(is_needed) = needs.is_needed(&run.spec, (stays, self.lists.counts(run)), next);
        is_needed
    }

    fn remove_one(&mut self, id: &RunId) -> Option<Vec<Chunk>> {
        let entry = self.runs.remove(id)?;
        self.unindex(&entry.run, entry.number);
        self.forget_task(&entry);
        self.timelines.remove(&entry.sessions, &entry.journal);
        self.facts.remove(id);
        self.outbox.remove(id);
        self.dispatches.remove(id);
        for hash in &entry.artifacts {
            self.artifacts.release(&entry.run.spec.tenant, hash);
        }
        let tenant = &entry.run.spec.tenant;
        if let Some(key) = entry.key {
            self.keys.remove(&(tenant.clone(), key));
        }
        // Another run may have its id one day, which the one that continues this one does not continue.
        let continuation = (tenant.clone(), schedule::continuation_key(id));
        if let Some((_, next)) = self.keys.remove(&continuation)
            && let Some(next) = self.runs.get_mut(&next)
        {
            next.key = None;
        }
        Some(entry.journal)
    }
}
