//! Runs that end with the run that started them.

use rusqlite::Connection;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::time::Timestamp;

use super::change::{CurrentRow, MutableColumns, present, replace};
use super::fault::Fault;
use super::queue::Queue;
use super::row::{EventRow, run_by_number};
use super::schema::KeyKind;

/// A run that was canceled as its parent ended.
#[derive(Debug)]
pub(crate) struct CanceledRun {
    pub(crate) run: Run,
    /// Place of the last of its events, and how many there are.
    pub(crate) place: u64,
    pub(crate) events: usize,
}

/// Value of `runs.attached`.
pub(crate) fn attached_key(spec: &RunSpec) -> Option<i64> {
    let parent = spec.parent_run_id.as_ref().filter(|_| spec.attached)?;
    Some(KeyKind::Parent.key(&spec.tenant, parent.as_str()))
}

/// An open run that is to be canceled, read whole before anything is written.
struct Cancellation {
    before: CurrentRow,
    same_hold: bool,
    after: Run,
    events: Vec<EventRow>,
}

/// Cancels what is attached to a run that ended, and so on beneath what ends by that; no deeper
/// than runs stand above each other. One that is damaged is left where it is: it must not keep the
/// others, and the parent, from ending.
pub(crate) fn parent_ended(
    queue: &Queue<'_>,
    tenant: &str,
    parent: &RunId,
    at: Timestamp,
) -> Result<(), Fault> {
    for no in open_attached(queue.db, tenant, parent)? {
        match ending(queue.db, no, parent, at) {
            Ok(Some(ending)) => end(queue, ending)?,
            Ok(None) => {}
            Err(Fault::Damaged(detail)) => {
                tracing::error!(detail, "a run cannot be ended with its parent");
            }
            Err(fault @ Fault::Sqlite(_)) => return Err(fault),
        }
    }
    Ok(())
}

fn open_attached(db: &Connection, tenant: &str, parent: &RunId) -> Result<Vec<i64>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT no FROM runs INDEXED BY runs_attached
         WHERE attached = ?1 AND status < 5 ORDER BY no",
    )?;
    let numbers =
        sql.query_map([KeyKind::Parent.key(tenant, parent.as_str())], |row| row.get(0))?;
    Ok(numbers.collect::<rusqlite::Result<_>>()?)
}

fn ending(
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

fn end(queue: &Queue<'_>, ending: Cancellation) -> Result<(), Fault> {
    let Cancellation { before, same_hold, after, events } = ending;
    let row = MutableColumns::new(&after);
    let place = replace(queue, &before, &after.spec, &row, &events, same_hold)?;
    queue.canceled(CanceledRun { run: after, place, events: events.len() });
    Ok(())
}
