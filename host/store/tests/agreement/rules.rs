//! The runs that a claim is to take, and the rules of names and attached runs, worked out from all
//! records without any index.

use std::cmp::Reverse;
use std::collections::HashMap;

use taskrun_journal::hold::{Hold, Lane, WaitMode};
use taskrun_journal::ids::RunId;
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::RESUMES_IN_A_ROW;
use taskrun_journal::status::Status;
use taskrun_journal::store::Claim;

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
        .filter_map(|(number, run)| Some((lane(run, claim, &by_id)?, number, run)))
        .filter(|(lane, _, run)| claim.ready.includes(&Pins::of(run), *lane))
        .filter(|(lane, number, run)| *lane == Lane::Resume || is_its_turn(run, &all[..*number]))
        .collect();
    wanted.sort_by_key(|(lane, number, run)| (*lane, Reverse(run.spec.priority), *number));
    let group = |run: &Run| (run.spec.root_run_id.clone(), Pins::of(run));
    let (mut taken, mut resumes) = (Vec::new(), claim.resumes);
    while taken.len() < claim.limit && claim.tree_slots > 0 {
        let has_slot = |run: &Run| {
            let of_tree = run.spec.tree.slots.unwrap_or(claim.tree_slots);
            held.get(&run.spec.root_run_id).copied().unwrap_or_default() < of_tree
        };
        let is_behind = |run: &Run| {
            let mut before = wanted.iter().filter(|(lane, ..)| *lane == Lane::Resume);
            before.any(|(_, _, other)| group(other) == group(run))
        };
        let first = wanted.iter().position(|(_, _, run)| has_slot(run));
        let mut all = wanted.iter();
        let fresh =
            all.position(|(lane, _, run)| *lane == Lane::Fresh && has_slot(run) && !is_behind(run));
        let fresh = fresh.filter(|_| resumes >= RESUMES_IN_A_ROW);
        let Some(place) = fresh.or(first) else { break };
        let (_, _, run) = wanted.remove(place);
        let goes_on = run.state.epoch > 0;
        resumes = if goes_on { resumes % RESUMES_IN_A_ROW + 1 } else { 0 };
        *held.entry(&run.spec.root_run_id).or_default() += 1;
        taken.push(run.id().clone());
    }
    taken
}

/// In which lane a run is wanted at the time of a claim.
fn lane(run: &Run, claim: &Claim, by_id: &HashMap<&RunId, &Run>) -> Option<Lane> {
    // One that came later is not the one that was waited for: that one was not there, or ended
    // and was removed. A batch comes with those that wait for it.
    let is_open = |id: &RunId| {
        by_id.get(id).is_some_and(|other| {
            !other.status().is_terminal() && other.spec.created_at <= run.state.updated_at
        })
    };
    match &run.state.hold {
        Hold::Nobody | Hold::Beat | Hold::Host { .. } => None,
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

/// True if no earlier serial run of its owner's session is open, if it is one itself.
fn is_its_turn(run: &Run, earlier: &[Run]) -> bool {
    let session = |run: &Run| {
        let spec = &run.spec;
        (spec.tenant.clone(), spec.owner_user_id.clone(), spec.parent_session_id.clone())
    };
    !run.spec.serial
        || !earlier.iter().any(|other| {
            other.spec.serial && !other.status().is_terminal() && session(other) == session(run)
        })
}

/// Holds all records to what a store maintains by itself: an open run has its name alone, and none
/// that is attached to a run that ended goes on.
pub(crate) async fn check_promises(store: &dyn Both, accepted: &[RunId]) {
    let mut open = Vec::new();
    for id in accepted {
        let run = store.get(id).await.expect("gets");
        open.extend(run.filter(|run| !run.status().is_terminal()));
    }
    let mut names = HashMap::new();
    for run in &open {
        let spec = &run.spec;
        if let Some(name) = &spec.name {
            let session = (&spec.owner_user_id, &spec.parent_session_id);
            let place = (spec.parent_run_id.as_ref(), name);
            let among = spec.parent_run_id.is_none().then_some(session);
            let other = names.insert((place, among), run.id());
            assert_eq!(other, None, "{} has the same name", run.id());
        }
        let Some(parent) = spec.parent_run_id.as_ref().filter(|_| spec.attached) else { continue };
        let parent = store.get(parent).await.expect("gets").expect("it stays while this is open");
        let goes_on = match run.status() {
            Status::Queued | Status::Running | Status::Blocked => true,
            Status::Canceling
            | Status::Finalizing
            | Status::Completed
            | Status::Failed
            | Status::Canceled => false,
        };
        assert!(!(goes_on && parent.status().is_terminal()), "{} goes on", run.id());
    }
}
