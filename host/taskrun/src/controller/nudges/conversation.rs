//! The runs that are under way in a conversation.

use taskrun_journal::list::ListFilter;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Store, StoreError};
use taskrun_journal::time::Timestamp;

use super::Place;

/// Runs of a session that are looked at in one page, and pages: background runs do not count, and
/// are not looked through for ever.
const PAGE: usize = 25;
const PAGES_MAX: usize = 8;

/// Hand-overs that are followed from one agent to the next.
const HAND_OVERS_MAX: usize = 8;

/// The agent that has a conversation: that of the conversation, unless its last run there handed it
/// over.
pub(super) async fn holder(store: &dyn Store, place: &Place) -> Result<String, StoreError> {
    let mut holder = place.conversation.agent.clone();
    let status = vec![Status::Completed];
    let filter = ListFilter { status, ..ListFilter::default() };
    // The last that ended comes first.
    let ended = store.ended(&place.scope(), &filter, None, PAGE).await?;
    let runs: Vec<&Run> =
        ended.iter().map(|one| &one.run).filter(|run| takes_part(place, run)).collect();
    for _ in 0..HAND_OVERS_MAX {
        let last = runs.iter().find(|run| run.spec.agent_name == holder);
        let handed = last.and_then(|run| run.ending()).and_then(|end| end.handed_to.clone());
        match handed.filter(|to| *to != holder) {
            Some(to) => holder = to,
            None => break,
        }
    }
    Ok(holder)
}

/// The runs that people and hosts began in a conversation; background runs do not count.
#[derive(Default)]
pub(super) struct Activity {
    /// One is open.
    pub(super) is_open: bool,
    /// When the last one began that was looked at.
    pub(super) last_began: Option<Timestamp>,
    /// A nudge waits to begin: of those that wait for earlier runs, and of those that do not.
    waiting: [bool; 2],
}

impl Activity {
    pub(super) async fn of(store: &dyn Store, place: &Place) -> Result<Self, StoreError> {
        let mut activity = Self::default();
        let mut cursor = None;
        for _ in 0..PAGES_MAX {
            let page =
                store.list(&place.scope(), &ListFilter::open(), cursor.as_ref(), PAGE).await?;
            page.runs.iter().filter(|run| takes_part(place, run)).for_each(|run| activity.see(run));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        // What began and ended in the meantime changed last.
        let page = store.list(&place.scope(), &ListFilter::default(), None, PAGE).await?;
        page.runs.iter().filter(|run| takes_part(place, run)).for_each(|run| activity.see(run));
        Ok(activity)
    }

    fn see(&mut self, run: &Run) {
        self.is_open |= !run.status().is_terminal();
        let began = run.execution().map(|execution| execution.started_at);
        self.last_began = self.last_began.max(began);
        let is_own = run.status() == Status::Queued && run.spec.is_nudge();
        self.waiting[usize::from(!run.spec.serial)] |= is_own;
    }

    /// True if a nudge is about to begin that will be told; with `also_serial` also one that waits for
    /// earlier runs.
    pub(super) fn nudge_is_to_begin(&self, also_serial: bool) -> bool {
        let [serial, at_once] = self.waiting;
        at_once || (serial && also_serial)
    }
}

/// True for a run of the session that a person or a host began in a conversation.
fn takes_part(place: &Place, run: &Run) -> bool {
    let spec = &run.spec;
    spec.depth == 0
        && !spec.history.is_none()
        && spec.parent_app_name == place.conversation.app
        && spec.parent_session_id == place.conversation.session
}
