//! What every store checks and derives alike.

use taskrun_journal::ending::EndStatus;
use taskrun_journal::event::Recorded;
use taskrun_journal::hold::{Hold, Lane, WaitMode};
use taskrun_journal::ids::{HostId, RunId, Seq};
use taskrun_journal::machine;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::{
    Append, Batched, Idempotency, NewBatch, NewRun, Session, SessionKey, TaskKey,
};
use taskrun_journal::time::Timestamp;

/// # Panics
/// If the journal does not begin at 1 or does not end where the record says: a bug of the caller
/// that would be kept for ever.
pub(crate) fn check_new(new: &NewRun) {
    check_journal(0, &new.events, &new.run);
}

/// # Panics
/// If the events do not follow `expected_head` or do not end where the record says.
pub(crate) fn check_append(append: &Append) {
    check_journal(append.expected_head, &append.events, &append.run);
}

/// # Panics
/// Like [`check_new`] and [`check_append`], and if the batch has no key, which names its beat.
pub(crate) fn check_batch(batch: &NewBatch) -> &Idempotency {
    check_new(&batch.run);
    batch.entries.iter().for_each(check_append);
    let id = batch.run.run.id();
    batch.run.idempotency.as_ref().unwrap_or_else(|| panic!("batch {id} has no beat"))
}

fn check_journal(head: Seq, events: &[Recorded], run: &Run) {
    let in_order = (head + 1..).zip(events).all(|(seq, recorded)| recorded.seq == seq);
    assert!(in_order, "events of run {} do not follow position {head}", run.id());
    let end = head + events.len() as u64;
    assert!(
        run.state.head == end,
        "record of run {} ends at {} and its journal at {end}",
        run.id(),
        run.state.head
    );
}

/// The session from which a run was asked for.
pub(crate) fn session_of(spec: &RunSpec) -> SessionKey {
    SessionKey {
        tenant: spec.tenant.clone(),
        owner_user_id: Some(spec.owner_user_id.clone()),
        parent_app_name: spec.parent_app_name.clone(),
        id: spec.parent_session_id.clone(),
    }
}

/// The key that covers all sessions of a name.
pub(crate) fn widest(key: &SessionKey) -> SessionKey {
    SessionKey { owner_user_id: None, parent_app_name: None, ..key.clone() }
}

/// Keys that cover all sessions of the names under which a run is found: those of the session
/// from which it was asked for, and of that of its tree.
pub(crate) fn widest_of(spec: &RunSpec) -> impl Iterator<Item = SessionKey> {
    let ids = std::iter::once(&spec.parent_session_id).chain(&spec.root_session_id);
    ids.map(|id| widest(&SessionKey { id: id.clone(), ..session_of(spec) }))
}

/// Those whose serial runs take turns: of a session as its owner has it, whichever applications
/// ask from there.
pub(crate) fn turn_of(spec: &RunSpec) -> SessionKey {
    SessionKey { parent_app_name: None, ..session_of(spec) }
}

/// Whether what is said of one key holds for another one.
pub(crate) fn covers(one: &SessionKey, other: &SessionKey) -> bool {
    let fits = |one: &Option<String>, other| one.is_none() || one == other;
    (&one.tenant, &one.id) == (&other.tenant, &other.id)
        && fits(&one.owner_user_id, &other.owner_user_id)
        && fits(&one.parent_app_name, &other.parent_app_name)
}

/// What is known of a session, given all that was said of keys that cover its own: of those that
/// say most of it the one with the key that is nearest, ended with the first that has ended.
pub(crate) fn known_session(key: &SessionKey, said: Vec<Session>) -> Option<Session> {
    let ended_at = said.iter().filter_map(|session| session.ended_at).min();
    let distance = |session: &Session| {
        let SessionKey { owner_user_id, parent_app_name, .. } = &session.key;
        (*owner_user_id != key.owner_user_id, *parent_app_name != key.parent_app_name)
    };
    let nearest = said.into_iter().min_by_key(distance)?;
    Some(Session { ended_at, ..nearest })
}

/// Those among whom an open run has its name alone, and that name; `None` without one.
pub(crate) fn name_place(spec: &RunSpec) -> Option<[&str; 5]> {
    let name = spec.name.as_deref()?;
    Some(match &spec.parent_run_id {
        Some(parent) => ["run", &spec.tenant, parent.as_str(), "", name],
        None => ["session", &spec.tenant, &spec.owner_user_id, &spec.parent_session_id, name],
    })
}

/// A number for the task of a run, the same for runs of one owner that have the same key.
pub(crate) fn task_hash(spec: &RunSpec, key: &TaskKey) -> u64 {
    hash(&["task", &spec.tenant, &spec.owner_user_id, &key.digest])
}

/// Whether a run may stand for another one with the number of its task: numbers collide.
pub(crate) fn is_same_task(one: &RunSpec, other: &RunSpec) -> bool {
    let place = |spec: &RunSpec| {
        let RunSpec { tenant, owner_user_id, parent_session_id, agent_name, .. } = spec.clone();
        (tenant, owner_user_id, parent_session_id, agent_name, spec.task.to_lowercase())
    };
    place(one) == place(other)
}

/// Whether a run is to be canceled when `parent` ends.
pub(crate) fn ends_with(run: &Run, parent: &RunId) -> bool {
    run.spec.attached && run.spec.parent_run_id.as_ref() == Some(parent)
}

/// An attached run after the one that started it ended at a time, and the events that say so;
/// `None` if it is on its way out already.
///
/// # Errors
/// Why the events do not fit, in words: the record is damaged.
pub(crate) fn canceled_with_parent(
    run: &Run,
    at: Timestamp,
) -> Result<Option<(Run, Vec<Recorded>)>, String> {
    let events = machine::decide::cancel(run, StopReason::CanceledByParent, None);
    let (mut run, mut recorded) = (run.clone(), Vec::with_capacity(events.len()));
    for event in events {
        let seq = run.state.head + 1;
        let id = hash(&["ended with its parent", run.id().as_str(), &seq.to_string()]);
        let one = Recorded { seq, id, at, event };
        run.state = machine::apply(run.state, &one).map_err(|error| error.to_string())?;
        recorded.push(one);
    }
    Ok((!recorded.is_empty()).then_some((run, recorded)))
}

/// Whether a run may start others: it has not ended and is not about to.
pub(crate) fn takes_children(run: &Run) -> bool {
    match run.status() {
        Status::Queued | Status::Running | Status::Blocked => true,
        Status::Canceling
        | Status::Finalizing
        | Status::Completed
        | Status::Failed
        | Status::Canceled => false,
    }
}

/// In which lane a run is wanted and from when on; `None` if it is not. `waits` says whether too
/// few of the runs that it waits for have ended; it is then wanted when its time comes, if it has
/// one, and until then it is like any other run that is put off.
pub(crate) fn wanted(hold: &Hold, waits: bool) -> Option<(Lane, Timestamp)> {
    match hold {
        Hold::Nobody | Hold::Beat | Hold::Host { .. } => None,
        Hold::Wanted { lane, not_before } => Some((*lane, *not_before)),
        Hold::Runs { until, .. } if waits => until.map(|until| (Lane::Resume, until)),
        Hold::Runs { .. } => Some((Lane::Resume, Timestamp(0))),
    }
}

/// Whether a wait for `all` different runs, of which `open` have not ended, is over. A wait for
/// none is.
pub(crate) fn enough(mode: WaitMode, open: usize, all: usize) -> bool {
    match mode {
        WaitMode::All => open == 0,
        WaitMode::Any => open < all || all == 0,
    }
}

/// What a request's key means, where it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownKey {
    /// The same request was made before.
    Repeated,
    /// It belongs to another request.
    Taken,
    /// It no longer counts and is given to the new run.
    Given,
}

/// What a key means that was given to `run` with this fingerprint.
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
pub(crate) fn no_batch(tick: &Idempotency, fingerprint: &str, last: &Run) -> Option<Batched> {
    if !last.status().is_terminal() {
        return Some(Batched::Open(last.id().clone()));
    }
    (tick.fingerprint == fingerprint).then(|| Batched::Repeated(last.id().clone()))
}

/// Whether one of the living hosts of a policy, each given as its slots and the runs it holds,
/// has a slot left. Where there is no host, the one that comes has.
pub(crate) fn slot_left(hosts: impl IntoIterator<Item = (u32, u64)>) -> bool {
    let mut hosts = hosts.into_iter().peekable();
    hosts.peek().is_none() || hosts.any(|(slots, held)| held < u64::from(slots))
}

/// The run after it was claimed and the event that says so; `None` if it is not to be had.
///
/// # Errors
/// Why the event does not fit, in words: the record is damaged.
pub(crate) fn claimed(
    run: Run,
    host: &HostId,
    now: Timestamp,
) -> Result<Option<(Run, Recorded)>, String> {
    let Some(event) = machine::decide::claim(&run, host, now) else { return Ok(None) };
    let seq = run.state.head + 1;
    let id = hash(&["claim", host.as_str(), run.id().as_str(), &seq.to_string()]);
    let recorded = Recorded { seq, id, at: now, event };
    let state = machine::apply(run.state, &recorded).map_err(|error| error.to_string())?;
    Ok(Some((Run { spec: run.spec, state }, recorded)))
}

/// A number for a list of texts, the same on every machine and in every version.
pub(crate) fn hash(parts: &[&str]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}
