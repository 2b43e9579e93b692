//! Reading a journal event by event, and a tree run by run.

use std::ops::ControlFlow;

use taskrun_journal::event::EventRecord;
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::list::{PAGE_MAX, TreeQuery};
use taskrun_journal::run::Run;
use taskrun_journal::store::{Store, StoreError};

/// Most events that are read at once; their bytes together are bounded by the store.
pub(crate) const PAGE: usize = 1_000;

/// Shows the events of a run's journal after position `after` up to position `to`, in order, until
/// `see` breaks or the journal ends. Gives the position of the last event that was shown, or
/// `after`.
///
/// # Errors
/// [`StoreError`], after the events before it were shown.
pub(crate) async fn scan(
    store: &dyn Store,
    id: &RunId,
    (after, to): (Seq, Seq),
    mut see: impl FnMut(EventRecord) -> ControlFlow<()> + Send,
) -> Result<Seq, StoreError> {
    let mut last = after;
    while last < to {
        let most = usize::try_from(to - last).map_or(PAGE, |left| left.min(PAGE));
        let page = store.read(id, last, most).await?;
        if page.is_empty() {
            break;
        }
        for recorded in page {
            last = recorded.seq;
            if see(recorded).is_break() {
                return Ok(last);
            }
        }
    }
    Ok(last)
}

/// The whole of a journal, for [`scan`].
pub(crate) const WHOLE: (Seq, Seq) = (0, Seq::MAX);

/// Shows the runs of a tree in the order in which they were accepted.
///
/// # Errors
/// [`StoreError`], after the runs before it were shown.
pub(crate) async fn scan_tree(
    store: &dyn Store,
    query: &TreeQuery,
    mut see: impl FnMut(Run) + Send,
) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = store.tree(query, after, PAGE_MAX).await?;
        page.runs.into_iter().for_each(&mut see);
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}
