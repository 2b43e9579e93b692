//! What a claim is to take, worked out from all records without any index.

use std::cmp::Reverse;
use std::collections::HashMap;

use taskrun::ids::RunId;
use taskrun::ports::store::Claim;
use taskrun::run::{Hold, Lane, Run, WaitMode};

use crate::common::*;

/// The runs that a claim takes, in order; `accepted` says in which order they were accepted.
pub(crate) async fn to_be_claimed(
    store: &dyn Both,
    accepted: &[RunId],
    claim: &Claim,
) -> Vec<RunId> {
    let mut all = Vec::new();
    for id in accepted {
        all.extend(store.get(id).await.expect("gets"));
    }
    let by_id: HashMap<&RunId, &Run> = all.iter().map(|run| (run.id(), run)).collect();
    let mut held: HashMap<&RunId, u32> = HashMap::new();
    for run in all.iter().filter(|run| run.state.hold.host().is_some()) {
        *held.entry(&run.spec.root_run_id).or_default() += 1;
    }
    let mut wanted: Vec<_> = all
        .iter()
        .enumerate()
        .filter(|(_, run)| run.spec.policy_digest == claim.policy_digest)
        .filter_map(|(number, run)| Some((lane(run, claim, &by_id)?, number, run)))
        .filter(|(lane, number, run)| *lane == Lane::Resume || is_its_turn(run, &all[..*number]))
        .collect();
    wanted.sort_by_key(|(lane, number, run)| (*lane, Reverse(run.spec.priority), *number));
    let mut taken = Vec::new();
    for (_, _, run) in wanted {
        let slots = held.entry(&run.spec.root_run_id).or_default();
        if taken.len() < claim.limit && *slots < claim.tree_slots {
            *slots += 1;
            taken.push(run.id().clone());
        }
    }
    taken
}

/// In which lane a run is wanted at the time of a claim.
fn lane(run: &Run, claim: &Claim, by_id: &HashMap<&RunId, &Run>) -> Option<Lane> {
    // One that came later is not the one that was waited for: that one was not there, or ended
    // and was removed.
    let is_open = |id: &RunId| {
        by_id.get(id).is_some_and(|other| {
            !other.status().is_terminal() && other.spec.created_at < run.state.updated_at
        })
    };
    match &run.state.hold {
        Hold::Nobody | Hold::Host { .. } => None,
        Hold::Wanted { lane, not_before } => (*not_before <= claim.now).then_some(*lane),
        Hold::Runs { runs, mode, until } => {
            let over = match mode {
                WaitMode::All => !runs.iter().any(is_open),
                WaitMode::Any => runs.is_empty() || !runs.iter().all(is_open),
            };
            let late = until.is_some_and(|until| until <= claim.now);
            (over || late).then_some(Lane::Resume)
        }
    }
}

/// Whether no earlier serial run of its session is open, if it is one itself.
fn is_its_turn(run: &Run, earlier: &[Run]) -> bool {
    let session = |run: &Run| (run.spec.tenant.clone(), run.spec.parent_session_id.clone());
    !run.spec.serial
        || !earlier.iter().any(|other| {
            other.spec.serial && !other.status().is_terminal() && session(other) == session(run)
        })
}
