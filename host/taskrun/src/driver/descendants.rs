//! The runs that another one may see: those beneath it, and those that an earlier run of its
//! conversation started.

use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Store, StoreError};

/// The run, if it is beneath the one of `above`: started by it, or by one that is.
async fn find_descendant(
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

/// Most runs of which each continues the next that are followed: more are not read for one look.
pub(super) const CONTINUED_MAX: usize = 64;

/// The run, if the one of `caller` may see it: it is beneath it, or was started in an earlier run of
/// the same conversation by the same agent. Each line of a conversation is a run and a tree of its
/// own.
pub(crate) async fn find_visible(
    store: &dyn Store,
    caller: &RunSpec,
    id: &RunId,
) -> Result<Option<Run>, StoreError> {
    if let Some(run) = find_descendant(store, caller, id).await? {
        return Ok(Some(run));
    }
    let Some(run) = store.get(id).await?.filter(|run| may_be_of_conversation(&run.spec, caller))
    else {
        return Ok(None);
    };
    let Some(root) = store.get(&run.spec.root_run_id).await? else { return Ok(None) };
    let earlier = EarlierRuns::of(store, caller).await?;
    Ok(earlier.contains(&root.spec).then_some(run))
}

/// True if a run may have been started in the conversation of `caller`, as far as its own record
/// tells.
pub(crate) fn may_be_of_conversation(run: &RunSpec, caller: &RunSpec) -> bool {
    caller.depth == 0
        && !caller.parent_session_id.is_empty()
        && run.depth > 0
        && run.tenant == caller.tenant
        && run.owner_user_id == caller.owner_user_id
        && run.app_name == caller.app_name
        && run.root_run_id != caller.id
}

/// The runs that a run continues, one after the other, the latest first. None where it takes part in
/// a conversation: then they are among those of that.
pub(crate) async fn continued_runs(
    store: &dyn Store,
    spec: &RunSpec,
) -> Result<Vec<RunId>, StoreError> {
    let continued_by =
        |spec: &RunSpec| spec.continues.as_ref().map(|continued| continued.run.clone());
    let mut next = continued_by(spec).filter(|_| spec.history.is_none());
    let mut continued = Vec::new();
    while let Some(id) = next
        && continued.len() < CONTINUED_MAX
    {
        next = store.get(&id).await?.and_then(|run| continued_by(&run.spec));
        continued.push(id);
    }
    Ok(continued)
}

/// The earlier runs of the conversation of a run, by the same agent, and those that it continues.
pub(crate) struct EarlierRuns<'a> {
    caller: &'a RunSpec,
    /// Those of [`continued_runs`].
    continued: Vec<RunId>,
}

impl<'a> EarlierRuns<'a> {
    /// Those before the run of `caller`.
    pub(crate) async fn of(store: &dyn Store, caller: &'a RunSpec) -> Result<Self, StoreError> {
        Ok(Self { caller, continued: continued_runs(store, caller).await? })
    }

    /// True if the first run of a tree is one of them. A run that takes part in no conversation has
    /// no part in that of others that were asked for from the same session.
    pub(crate) fn contains(&self, root: &RunSpec) -> bool {
        let caller = self.caller;
        let converse = !root.history.is_none() && !caller.history.is_none();
        root.depth == 0
            && root.tenant == caller.tenant
            && root.owner_user_id == caller.owner_user_id
            && root.parent_app_name == caller.parent_app_name
            && root.parent_session_id == caller.parent_session_id
            && root.agent_name == caller.agent_name
            && (root.created_at, &root.id) < (caller.created_at, &caller.id)
            && (converse || self.continued.contains(&root.id))
    }
}

/// True if the id is that of a run or of one above it, none of which can end while it waits.
pub(crate) async fn is_own_or_above(
    store: &dyn Store,
    spec: &RunSpec,
    id: &RunId,
) -> Result<bool, StoreError> {
    let (mut next, mut levels) = (spec.parent_run_id.clone(), spec.depth);
    if spec.id == *id {
        return Ok(true);
    }
    while let Some(above) = next
        && levels > 0
    {
        if above == *id {
            return Ok(true);
        }
        next = store.get(&above).await?.and_then(|run| run.spec.parent_run_id.clone());
        levels -= 1;
    }
    Ok(false)
}
