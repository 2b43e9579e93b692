//! Runs that wait for the end of others.
//!
//! A row of `waits` is an open run and one that waits for it. A run that waits for nothing any
//! more is in no row as a waiter.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension};
use taskrun_journal::hold::{Hold, Lane, WaitMode};
use taskrun_journal::ids::RunId;
use taskrun_journal::schedule::{self, WaitState};
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::queue::{Member, Queue};

/// True for a run that would wait for itself if it came to be held so, through whichever others.
pub(crate) fn would_be_cycle(
    db: &Connection,
    no: i64,
    id: &RunId,
    hold: &Hold,
) -> Result<bool, Fault> {
    let runs = match hold {
        Hold::Runs { runs, .. } => runs,
        Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => return Ok(false),
    };
    if runs.contains(id) {
        return Ok(true);
    }
    let mut leads_back = db.prepare_cached(
        "WITH RECURSIVE ahead (no) AS (
            VALUES (?1) UNION SELECT w.run FROM ahead a JOIN waits w ON w.waiter = a.no)
         SELECT 1 FROM ahead WHERE no = ?2 LIMIT 1",
    )?;
    for open in open_of(db, runs.iter().collect::<BTreeSet<_>>())? {
        if leads_back.exists([open, no])? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Numbers of those of some runs that are open.
fn open_of<'a>(
    db: &Connection,
    runs: impl IntoIterator<Item = &'a RunId>,
) -> Result<Vec<i64>, Fault> {
    let mut sql = db.prepare_cached("SELECT no FROM runs WHERE id = ?1 AND status < 5")?;
    let mut open = Vec::new();
    for id in runs {
        open.extend(sql.query_row([id.as_str()], |row| row.get::<_, i64>(0)).optional()?);
    }
    Ok(open)
}

/// Puts a run where its hold says, whose row says that it is neither wanted nor held.
pub(crate) fn begin(queue: &Queue<'_>, run: &Member, hold: &Hold) -> Result<(), Fault> {
    match schedule::place(hold, |all| open_of(queue.db, all.iter().copied()))? {
        WaitState::Aside => Ok(()),
        WaitState::Beat => queue.await_beat(run.no),
        WaitState::Wanted { lane, from: Timestamp(0) } => queue.place(run, lane),
        WaitState::Wanted { lane, from } => queue.delay(run.no, lane, from),
        WaitState::Behind { open, mode, until } => {
            let any = i64::from(mode == WaitMode::Any);
            let mut sql = queue.db.prepare_cached("INSERT INTO waits VALUES (?1, ?2, ?3)")?;
            for awaited in open {
                sql.execute([awaited, run.no, any])?;
            }
            match until {
                Some(until) => queue.delay(run.no, Lane::Resume, until),
                None => Ok(()),
            }
        }
    }
}

/// Ends the wait of a run, if there is one.
pub(crate) fn end(db: &Connection, waiter: i64) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM waits WHERE waiter = ?1")?.execute([waiter])?;
    Ok(())
}

/// Makes those wanted whose wait is over by the end of a run.
pub(crate) fn ended(queue: &Queue<'_>, run: i64) -> Result<(), Fault> {
    let db = queue.db;
    let mut sql = db.prepare_cached("SELECT waiter, any FROM waits WHERE run = ?1")?;
    let waiters = sql.query_map([run], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (waiter, any) in waiters.collect::<rusqlite::Result<Vec<(i64, bool)>>>()? {
        db.prepare_cached("DELETE FROM waits WHERE run = ?1 AND waiter = ?2")?
            .execute([run, waiter])?;
        let mode = if any { WaitMode::Any } else { WaitMode::All };
        let mut more = db.prepare_cached("SELECT 1 FROM waits WHERE waiter = ?1 LIMIT 1")?;
        if !schedule::is_woken::<Fault>(mode, || Ok(more.exists([waiter])?))? {
            continue;
        }
        end(db, waiter)?;
        db.prepare_cached("UPDATE runs SET due = NULL WHERE no = ?1")?.execute([waiter])?;
        queue.place(&queue.member(waiter)?, Lane::Resume)?;
    }
    Ok(())
}
