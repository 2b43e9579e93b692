//! Runs that end with the run that started them.

use std::sync::Arc;

use taskrun_journal::run::Run;
use taskrun_journal::schedule;

use super::lists::ListKey;
use super::state::{CanceledRun, State};

impl State {
    /// Cancels what is attached to a run that ended, and so on beneath what ends by that; no deeper
    /// than runs stand above each other.
    pub(super) fn cancel_attached(&mut self, parent: &Run) {
        let id = parent.id();
        let children = self.lists.runs(&ListKey::Parent(id.clone()));
        let entries = children.filter_map(|child| self.runs.get(child));
        let attached = entries.filter(|entry| schedule::ends_with(&entry.run, id));
        let mut attached: Vec<_> = attached.map(|one| (one.number, one.run.clone())).collect();
        attached.sort_unstable_by_key(|(number, _)| *number);
        for (_, run) in attached {
            let canceled = schedule::canceled_with_parent(&run, parent.state.updated_at);
            let canceled = canceled.expect("what is in memory is not damaged");
            let Some((run, events)) = canceled else { continue };
            let (spec, head) = (Arc::clone(&run.spec), run.state.head);
            let open = !run.status().is_terminal();
            let before = self.timelines.place();
            let places = (before, before + events.len() as u64);
            self.canceled.push(CanceledRun { spec, head, open, places });
            self.replace(run, events.into());
        }
    }
}
