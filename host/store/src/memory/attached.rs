//! Runs that end with the run that started them.

use std::sync::Arc;

use taskrun_journal::ids::Seq;
use taskrun_journal::run::Run;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;

use super::state::{ListKey, State};

/// A run that was canceled as its parent ended.
#[derive(Clone)]
pub(super) struct CanceledRun {
    pub(super) spec: Arc<RunSpec>,
    pub(super) head: Seq,
    /// True if a host has to stop it, or its finalizer is to be heard.
    pub(super) open: bool,
    /// Place of the last event of the store before it was canceled, and of the last one of that.
    pub(super) places: (u64, u64),
}

impl State {
    /// Cancels what is attached to a run that ended, and so on beneath what ends by that; no deeper
    /// than runs stand above each other.
    pub(super) fn cancel_attached(&mut self, parent: &Run) {
        let id = parent.id();
        let Some(children) = self.lists.get(&ListKey::Parent(id.clone())) else { return };
        let entries = children.iter().filter_map(|(_, child)| self.runs.get(child));
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
