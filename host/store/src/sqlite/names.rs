//! Names of open runs.

use rusqlite::Connection;
use taskrun_journal::ids::RunId;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;

use super::fault::Fault;
use super::row::run_by_number;
use super::schema::bits;

/// Value of `runs.named`.
pub(crate) fn named_key(spec: &RunSpec) -> Option<i64> {
    schedule::name_place(spec).map(|place| bits(schedule::hash(&place)))
}

/// The open run that has the name which a new one is to have.
pub(crate) fn holder(db: &Connection, spec: &RunSpec) -> Result<Option<RunId>, Fault> {
    let Some(key) = named_key(spec) else { return Ok(None) };
    let mut sql = db.prepare_cached(
        "SELECT no FROM runs INDEXED BY runs_named WHERE named = ?1 AND status < 5",
    )?;
    let numbers = sql.query_map([key], |row| row.get(0))?;
    for no in numbers.collect::<rusqlite::Result<Vec<i64>>>()? {
        let run = run_by_number(db, no)?;
        if schedule::name_place(&run.spec) == schedule::name_place(spec) {
            return Ok(Some(run.id().clone()));
        }
    }
    Ok(None)
}
