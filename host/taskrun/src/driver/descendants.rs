//! Which runs are beneath one: all that a component may ever reach.

use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Store, StoreError};

/// The run, if it is beneath the one of `above`: started by it, or by one that is.
pub(crate) async fn find_descendant(
    store: &dyn Store,
    above: &RunSpec,
    id: &RunId,
) -> Result<Option<Run>, StoreError> {
    let Some(run) = store.get(id).await? else { return Ok(None) };
    if run.spec.tenant != above.tenant || run.spec.root_run_id != above.root_run_id {
        return Ok(None);
    }
    let mut parent = run.spec.parent_run_id.clone();
    let mut depth = run.spec.depth;
    // Each step leads one up, so there are at most as many as runs above a run.
    while depth > above.depth
        && let Some(next) = parent
    {
        if next == above.id {
            return Ok(Some(run));
        }
        let found = store.get(&next).await?;
        parent = found.and_then(|found| found.spec.parent_run_id.clone());
        depth -= 1;
    }
    Ok(None)
}
