//! Names of open runs, and the places that autonomous ones have alone.

use rusqlite::{Connection, params};
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;

use super::fault::Fault;
use super::row::run_by_number;
use super::schema::{KeyKind, TERMINAL, bits};

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

/// The open run that is autonomous in the place of a new one.
pub(crate) fn autonomous(db: &Connection, spec: &RunSpec) -> Result<Option<Run>, Fault> {
    let place = schedule::autonomous_place(spec);
    let mut sql = db.prepare_cached(
        "SELECT no FROM runs INDEXED BY runs_by_session
         WHERE status = ?1 AND session_key = ?2 AND session = ?3 AND agent = ?4",
    )?;
    let key = KeyKind::Session.key(&spec.tenant, &spec.parent_session_id);
    for status in 0..TERMINAL {
        let of = params![status, key, spec.parent_session_id, spec.agent_name];
        let numbers = sql.query_map(of, |row| row.get(0))?;
        for no in numbers.collect::<rusqlite::Result<Vec<i64>>>()? {
            let run = run_by_number(db, no)?;
            if schedule::autonomous_place(&run.spec) == place {
                return Ok(Some(run));
            }
        }
    }
    Ok(None)
}
