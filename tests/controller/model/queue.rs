//! Which runs may be taken, told from their records alone and as the port says it.

use std::cmp::Reverse;

use taskrun_journal::hold::{Hold, Lane, WaitMode};
use taskrun_journal::ids::RunId;
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::RESUMES_IN_A_ROW;
use taskrun_journal::status::Status;
use taskrun_journal::store::Claim;
use taskrun_journal::time::Timestamp;

/// A run that may be taken; the least of them is to be taken first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    pub(super) lane: Lane,
    pub(super) priority: Reverse<i32>,
    pub(super) number: usize,
    pub(super) id: RunId,
}

/// The runs of which any host with a slot may take one now.
pub(super) fn wanted(all: &[(usize, Run)], now: Timestamp, tree_slots: u32) -> Vec<Wanted> {
    let mut found = Vec::new();
    for (number, run) in all {
        let Some(lane) = lane(all, run, now) else { continue };
        let blocked = lane == Lane::Fresh && run.spec.serial && !first_serial(all, *number, run);
        if blocked || held_in_tree(all, &run.spec.root_run_id) >= tree_slots as usize {
            continue;
        }
        let (priority, id) = (Reverse(run.spec.priority), run.id().clone());
        found.push(Wanted { lane, priority, number: *number, id });
    }
    found
}

/// The run that is to be taken next after so many in a row that had begun before: of those that never
/// began where it is the turn of those, and of all otherwise.
pub(super) fn next(all: &[(usize, Run)], claim: &Claim, resumes: usize) -> Option<Wanted> {
    let wanted = wanted(all, claim.now, claim.tree_slots);
    let of = |one: &Wanted| {
        let run = all.iter().find(|(_, run)| *run.id() == one.id);
        run.map(|(_, run)| (run.spec.root_run_id.clone(), Pins::of(run)))
    };
    let is_behind = |one: &Wanted| {
        wanted.iter().any(|other| other.lane == Lane::Resume && of(other) == of(one))
    };
    let fresh = wanted.iter().filter(|one| one.lane == Lane::Fresh && !is_behind(one)).min();
    let fresh = fresh.filter(|_| resumes >= RESUMES_IN_A_ROW);
    fresh.or_else(|| wanted.iter().min()).cloned()
}

/// The run that waits for its finalizer alone and may be taken next, whatever is held.
pub(super) fn finalizer(all: &[(usize, Run)], now: Timestamp) -> Option<RunId> {
    let wanted = all
        .iter()
        .filter(|(_, run)| run.status() == Status::Finalizing && lane(all, run, now).is_some());
    let first = wanted
        .min_by_key(|(number, run)| (under_way(all, run), Reverse(run.spec.priority), *number));
    first.map(|(_, run)| run.id().clone())
}

/// Runs of the owner of a run that are in their finalizers.
fn under_way(all: &[(usize, Run)], run: &Run) -> usize {
    let owner = |run: &Run| (run.spec.tenant.clone(), run.spec.owner_user_id.clone());
    let is_one = |one: &Run| {
        one.status() == Status::Finalizing
            && one.state.hold.host().is_some()
            && owner(one) == owner(run)
    };
    all.iter().filter(|(_, one)| is_one(one)).count()
}

/// Runs of a tree that have a slot.
pub(super) fn held_in_tree(all: &[(usize, Run)], root: &RunId) -> usize {
    let held = |run: &Run| run.spec.root_run_id == *root && run.state.hold.host().is_some();
    all.iter().filter(|(_, run)| held(run)).count()
}

fn lane(all: &[(usize, Run)], run: &Run, now: Timestamp) -> Option<Lane> {
    match &run.state.hold {
        Hold::Nobody | Hold::Beat | Hold::Host { .. } => None,
        Hold::Wanted { lane, not_before } => (*not_before <= now).then_some(*lane),
        Hold::Runs { runs, mode, until } => {
            let is_open = |id: &RunId| {
                all.iter().any(|(_, one)| one.id() == id && !one.status().is_terminal())
            };
            let over = match mode {
                WaitMode::All => !runs.iter().any(is_open),
                WaitMode::Any => !runs.iter().all(is_open),
            };
            let late = until.is_some_and(|until| until <= now);
            (over || late).then_some(Lane::Resume)
        }
    }
}

fn first_serial(all: &[(usize, Run)], number: usize, run: &Run) -> bool {
    let turn = |one: &Run| (one.spec.owner_user_id.clone(), one.spec.parent_session_id.clone());
    let same = |one: &Run| turn(one) == turn(run);
    let before = |(other, one): &&(usize, Run)| {
        *other < number && one.spec.serial && same(one) && !one.status().is_terminal()
    };
    !all.iter().any(|one| before(&one))
}
