//! Requests that were made before: their keys, their tasks, and the ticks of heartbeats.

use super::hash;
use crate::ending::EndStatus;
use crate::run::{Lifecycle, Run};
use crate::spec::RunSpec;
use crate::store::{BatchOutcome, Idempotency, TaskKey};

/// A number for the task of a run, the same for runs of one owner that have the same key.
#[must_use]
pub fn task_hash(spec: &RunSpec, key: &TaskKey) -> u64 {
    hash(&["task", &spec.tenant, &spec.owner_user_id, &key.digest])
}

/// True for a run that may stand for another one with the number of its task: numbers collide.
#[must_use]
pub(crate) fn is_same_task(one: &RunSpec, other: &RunSpec) -> bool {
    fn place(spec: &RunSpec) -> [&str; 4] {
        [&spec.tenant, &spec.owner_user_id, &spec.parent_session_id, &spec.agent_name]
    }
    place(one) == place(other) && one.task.to_lowercase() == other.task.to_lowercase()
}

/// The meaning of a request's key that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownKey {
    /// The same request was made before.
    Repeated,
    /// It belongs to another request.
    Taken,
    /// It no longer counts and is given to the new run.
    Given,
}

/// The meaning of a key that was given to `run` with this fingerprint.
#[must_use]
pub(crate) fn known_key(asked: &Idempotency, fingerprint: &str, run: &Run) -> KnownKey {
    let finished_at = match &run.state.lifecycle {
        Lifecycle::Ended { ending, finished_at, .. } => {
            (ending.status == EndStatus::Completed).then_some(*finished_at)
        }
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Blocked { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. } => None,
    };
    let counts =
        asked.completed_since.is_none_or(|since| finished_at.is_some_and(|at| at >= since));
    match counts {
        false => KnownKey::Given,
        true if asked.fingerprint == fingerprint => KnownKey::Repeated,
        true => KnownKey::Taken,
    }
}

/// Why a tick makes no batch, given the last one of its beat, which was made in the tick
/// `fingerprint`.
#[must_use]
pub fn no_batch(tick: &Idempotency, fingerprint: &str, last: &Run) -> Option<BatchOutcome> {
    if !last.status().is_terminal() {
        return Some(BatchOutcome::Open(last.id().clone()));
    }
    (tick.fingerprint == fingerprint).then(|| BatchOutcome::Repeated(last.id().clone()))
}
