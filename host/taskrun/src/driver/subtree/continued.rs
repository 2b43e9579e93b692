//! The consumption beneath the runs that a run continues: what they started may go on after their ends,
//! and counts against the budget of the run that continues them.

use taskrun_journal::ids::RunId;
use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;
use taskrun_journal::store::{Store, StoreError};

use super::Subtree;
use crate::driver::descendants::CONTINUED_MAX;

/// The run that another one continues, as long as the record of that has not all of its consumption.
#[derive(Clone)]
pub(in crate::driver) struct ContinuedRun {
    pub(super) id: RunId,
    /// The consumption with which the other one began. It is the least that counts: the runs of which
    /// it is the sum may be removed.
    carried: Usage,
}

impl ContinuedRun {
    /// The one that a run continues; `None` where the record of the run has all of it, as nothing
    /// is open there any more.
    pub(in crate::driver) fn of(run: &Run) -> Option<Self> {
        let continued = run.spec.continues.as_ref()?;
        let is_open = run.state.rounds.continued.is_none();
        is_open.then(|| Self { id: continued.run.clone(), carried: continued.usage })
    }
}

/// The consumption beyond that with which a run began.
pub(super) struct LateUsage {
    pub(super) usage: Usage,
    /// True if it stays as it is, as everything has ended of which it is the sum.
    pub(super) is_final: bool,
}

/// The consumption of a run that another one continues, and of those that it continues in turn, beyond
/// that with which the other one began.
pub(super) async fn late_usage(
    store: &dyn Store,
    continued: ContinuedRun,
) -> Result<LateUsage, StoreError> {
    let (mut chain, mut next) = (Vec::new(), Some(continued));
    while let Some(ContinuedRun { id, carried }) = next.filter(|_| chain.len() < CONTINUED_MAX) {
        // Of one that was removed there is what was carried.
        let Some(run) = store.get(&id).await? else { break };
        let tree = Subtree::read(store, &run.spec).await?;
        chain.push((tree.usage(&id), carried, tree.has_ended()));
        next = ContinuedRun::of(&run);
    }
    let none = LateUsage { usage: Usage::default(), is_final: true };
    Ok(chain.into_iter().rev().fold(none, |late, (used, carried, has_ended)| LateUsage {
        usage: used.plus(late.usage).beyond(carried),
        is_final: late.is_final && has_ended,
    }))
}

/// The same for a run that ends a round, once it stays as it is: it is to be kept in its record then.
pub(in crate::driver) async fn final_usage(
    store: &dyn Store,
    run: &Run,
) -> Result<Option<Usage>, StoreError> {
    let Some(continued) = ContinuedRun::of(run) else { return Ok(None) };
    let LateUsage { usage, is_final } = late_usage(store, continued).await?;
    Ok(is_final.then_some(usage))
}
