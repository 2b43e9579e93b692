//! Runs that end with the run that started them.

use rusqlite::Connection;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::row::{EventRow, run_by_number};
use super::run_row::{CurrentRow, present};
use super::schema::KeyKind;

/// Value of `runs.attached`.
pub(crate) fn attached_key(spec: &RunSpec) -> Option<i64> {
    let parent = spec.parent_run_id.as_ref().filter(|_| spec.attached)?;
    Some(KeyKind::Parent.key(&spec.tenant, parent.as_str()))
}

/// An open run that is to be canceled, read whole before anything is written.
pub(super) struct Cancellation {
    pub(super) before: CurrentRow,
    pub(super) same_hold: bool,
    pub(super) after: Run,
    pub(super) events: Vec<EventRow>,
}

/// The open runs that are attached to a run, by number.
pub(super) fn open_attached(db: &Connection, parent: &RunSpec) -> Result<Vec<i64>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT no FROM runs INDEXED BY runs_attached
         WHERE attached = ?1 AND status < 5 ORDER BY no",
    )?;
    let key = KeyKind::Parent.key(&parent.tenant, parent.id.as_str());
    let numbers = sql.query_map([key], |row| row.get(0))?;
    Ok(numbers.collect::<rusqlite::Result<_>>()?)
}

/// The cancellation of a run whose parent ended; `None` if nothing is to be done. A run that is
/// damaged is left where it is: it must not keep the others, and the parent, from ending.
pub(super) fn cancellation(
    db: &Connection,
    no: i64,
    parent: &RunId,
    at: Timestamp,
) -> Result<Option<Cancellation>, Fault> {
    match read(db, no, parent, at) {
        Err(Fault::Damaged(detail)) => {
            tracing::error!(detail, "a run cannot be ended with its parent");
            Ok(None)
        }
        read @ (Ok(_) | Err(Fault::Sqlite(_))) => read,
    }
}

fn read(
    db: &Connection,
    no: i64,
    parent: &RunId,
    at: Timestamp,
) -> Result<Option<Cancellation>, Fault> {
    let run = run_by_number(db, no)?;
    let id = run.id().clone();
    let damaged = |detail: &str| Fault::Damaged(format!("run {id}, record: {detail}"));
    if !schedule::ends_with(&run, parent) {
        return Err(damaged("its columns say that it ends with another run"));
    }
    let canceled = schedule::canceled_with_parent(&run, at).map_err(|detail| damaged(&detail))?;
    let Some((after, events)) = canceled else { return Ok(None) };
    let before = present(db, &id)?.ok_or_else(|| damaged("it has another id"))?;
    let same_hold = run.state.hold == after.state.hold;
    let events = events.iter().map(|event| EventRow::new(&id, event)).collect();
    Ok(Some(Cancellation { before, same_hold, after, events }))
}
