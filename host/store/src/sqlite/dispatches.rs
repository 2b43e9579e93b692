//! Dispatches of runs.

use std::collections::BTreeSet;

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};
use taskrun_journal::dispatch::{
    AttemptOutcome, CLOCK_LEEWAY, Dispatch, DispatchKey, DispatchState, LATEST_LOOK, PAUSES,
    TaskEvent, is_overlong,
};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::list::Scope;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{DispatchClaim, DispatchQuery, ReportChange};
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::schema::{int, time, unbits};

/// The table of dispatches.
///
/// - `run` is the number of a run, `event` and `state` are codes ([`event_code`], [`state_code`]).
/// - `due` of a row that is taken is the time from which on others may take it.
/// - `taken_by` is the id of a host.
pub(crate) const DISPATCHES: &str = "
CREATE TABLE dispatches (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    run        INTEGER NOT NULL,
    event      INTEGER NOT NULL,
    subscriber TEXT NOT NULL,
    state      INTEGER NOT NULL,
    due        INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    taken_by   TEXT,
    error      TEXT,
    UNIQUE (run, event, subscriber)
) STRICT;
CREATE INDEX dispatches_due   ON dispatches (subscriber, due) WHERE state < 2;
CREATE INDEX dispatches_taken ON dispatches (subscriber) WHERE state = 1;
CREATE INDEX dispatches_soon  ON dispatches (subscriber) WHERE state < 2 AND attempts < 3;
";

/// The number in the last index is that of the attempts for which a host stays.
const _: () = assert!(PAUSES.len() == 3);

const PENDING: i64 = 0;
const TAKEN: i64 = 1;
const DELIVERED: i64 = 2;
const DEAD: i64 = 3;

/// The number that stands for a state in the file; those of rows that are still to be handed over
/// are below 2.
fn state_code(state: DispatchState) -> i64 {
    match state {
        DispatchState::Pending => PENDING,
        DispatchState::Taken => TAKEN,
        DispatchState::Delivered => DELIVERED,
        DispatchState::Dead => DEAD,
    }
}

fn event_code(event: TaskEvent) -> i64 {
    match event {
        TaskEvent::Delegated => 0,
        TaskEvent::Completed => 1,
    }
}

/// Keeps a dispatch for each subscriber that is told of this event of a run.
pub(super) fn add(
    db: &Connection,
    no: i64,
    spec: &RunSpec,
    event: TaskEvent,
    due: i64,
) -> Result<(), Fault> {
    for subscriber in schedule::subscribers(spec, event) {
        db.prepare_cached(
            "INSERT OR IGNORE INTO dispatches (run, event, subscriber, state, due, attempts)
             VALUES (?1, ?2, ?3, 0, ?4, 0)",
        )?
        .execute(params![no, event_code(event), subscriber, due])?;
    }
    Ok(())
}

/// The earliest time at which one of a subscriber may be taken.
const NEXT: &str = "SELECT min(due) FROM dispatches INDEXED BY dispatches_due
     WHERE subscriber = ?1 AND state < 2";

/// One of a subscriber whose host is in the list no more.
const LEFT: &str = "SELECT number FROM dispatches INDEXED BY dispatches_taken
     WHERE subscriber = ?1 AND state = 1 AND taken_by NOT IN (SELECT id FROM hosts)";

/// Those of a subscriber that are due last, after a time.
const LATEST: &str = "SELECT number, state = 1, attempts, due
     FROM dispatches INDEXED BY dispatches_due
     WHERE subscriber = ?1 AND state < 2 AND due > ?2 ORDER BY due DESC, number DESC LIMIT ?3";

/// Those of a subscriber that are due.
const DUE: &str = "SELECT number FROM dispatches INDEXED BY dispatches_due
     WHERE subscriber = ?1 AND state < 2 AND due <= ?2 ORDER BY due, number LIMIT ?3";

/// One of a subscriber that is due soon.
const SOON: &str = "SELECT 1 FROM dispatches INDEXED BY dispatches_soon
     WHERE subscriber = ?1 AND state < 2 AND attempts < 3 LIMIT 1";

pub(crate) fn next(
    db: &Connection,
    subscribers: &BTreeSet<String>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Fault> {
    let (mut next, mut left) = (db.prepare_cached(NEXT)?, db.prepare_cached(LEFT)?);
    let mut first: Option<Timestamp> = None;
    for subscriber in subscribers {
        if left.exists([subscriber])? || !overlong(db, subscriber, now)?.is_empty() {
            return Ok(Some(Timestamp(0)));
        }
        let due: Option<i64> = next.query_row([subscriber], |row| row.get(0))?;
        let due = due.map(|due| Timestamp(unbits(due)));
        first = first.into_iter().chain(due).min();
    }
    Ok(first)
}

/// Those of a subscriber that were put off before the clock was set back, and their stages.
fn overlong(
    db: &Connection,
    subscriber: &str,
    now: Timestamp,
) -> Result<Vec<(i64, DispatchState)>, Fault> {
    let mut latest = db.prepare_cached(LATEST)?;
    let (after, most) = (time(now.plus(CLOCK_LEEWAY)), int(LATEST_LOOK as u64));
    let mut rows = latest.query(params![subscriber, after, most])?;
    let mut overlong = Vec::new();
    while let Some(row) = rows.next()? {
        let is_taken: bool = row.get(1)?;
        let state = if is_taken { DispatchState::Taken } else { DispatchState::Pending };
        let due = Timestamp(unbits(row.get(3)?));
        if is_overlong(state, row.get(2)?, due.since(now)) {
            overlong.push((row.get(0)?, state));
        }
    }
    Ok(overlong)
}

pub(crate) fn take(db: &Connection, claim: &DispatchClaim) -> Result<Vec<Dispatch>, Fault> {
    db.prepare_cached(&format!(
        "UPDATE dispatches SET state = 0, taken_by = NULL, due = 0 WHERE number IN ({LEFT})"
    ))?
    .execute([&claim.subscriber])?;
    for (number, state) in overlong(db, &claim.subscriber, claim.now)? {
        let due = if state == DispatchState::Taken { claim.until } else { Timestamp(0) };
        db.prepare_cached("UPDATE dispatches SET due = ?2 WHERE number = ?1")?
            .execute([number, time(due)])?;
    }
    let mut due = db.prepare_cached(DUE)?;
    let limit = int(claim.limit as u64);
    let numbers =
        due.query_map(params![claim.subscriber, time(claim.now), limit], |row| row.get(0))?;
    let numbers = numbers.collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut take = db.prepare_cached(
        "UPDATE dispatches SET state = 1, taken_by = ?2, due = ?3 WHERE number = ?1",
    )?;
    let mut taken = Vec::with_capacity(numbers.len());
    for number in numbers {
        take.execute(params![number, claim.host.as_str(), time(claim.until)])?;
        taken.extend(one(db, number)?);
    }
    Ok(taken)
}

pub(crate) fn settle(
    db: &Connection,
    number: u64,
    host: &HostId,
    outcome: &AttemptOutcome,
) -> Result<bool, Fault> {
    let Some(mut row) = one(db, int(number))?.filter(|row| row.takes(host, outcome)) else {
        return Ok(false);
    };
    row.end_attempt(outcome.clone());
    db.prepare_cached(
        "UPDATE dispatches SET state = ?2, due = ?3, attempts = ?4, error = ?5, taken_by = NULL
         WHERE number = ?1",
    )?
    .execute(params![
        int(number),
        state_code(row.state),
        time(row.due),
        row.attempts,
        row.error
    ])?;
    Ok(true)
}

pub(crate) fn change(db: &Connection, number: u64, change: ReportChange) -> Result<bool, Fault> {
    let Some(dispatch) = one(db, int(number))? else { return Ok(false) };
    if !change.applies_to_dispatch(dispatch.state) {
        return Ok(false);
    }
    let sql = match change {
        ReportChange::Retry => {
            "UPDATE dispatches SET state = 0, due = 0, attempts = 0 WHERE number = ?1"
        }
        ReportChange::Drop => "DELETE FROM dispatches WHERE number = ?1",
        ReportChange::Quiet | ReportChange::Block => return Ok(false),
    };
    db.prepare_cached(sql)?.execute([int(number)])?;
    Ok(true)
}

/// Forgets those of the runs that a caller sees which are still to be handed over; says how many.
pub(crate) fn forget(db: &Connection, scope: &Scope) -> Result<u64, Fault> {
    let forgotten = db
        .prepare_cached(
            "DELETE FROM dispatches WHERE number IN (
                SELECT d.number FROM dispatches d INDEXED BY dispatches_due
                JOIN runs r ON r.no = d.run
                WHERE d.state < 2 AND r.tenant = ?1 AND (?2 IS NULL OR r.owner = ?2)
                  AND (?3 IS NULL OR r.session = ?3 OR r.root_session = ?3)
                  AND (?4 IS NULL OR r.app = ?4))",
        )?
        .execute(params_from_iter(of_scope(scope)))?;
    Ok(forgotten as u64)
}

/// True if a host has something due soon for one of its subscribers.
pub(super) fn keep_host(db: &Connection, subscribers: &BTreeSet<String>) -> Result<bool, Fault> {
    let mut soon = db.prepare_cached(SOON)?;
    for subscriber in subscribers {
        if soon.exists([subscriber])? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if a dispatch of a run is still to be handed over.
pub(super) fn is_open(db: &Connection, no: i64) -> Result<bool, Fault> {
    let mut open = db.prepare_cached("SELECT 1 FROM dispatches WHERE run = ?1 AND state < 2")?;
    Ok(open.exists([no])?)
}

pub(super) fn remove(db: &Connection, no: i64) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM dispatches WHERE run = ?1")?.execute([no])?;
    Ok(())
}

const COLUMNS: &str = "SELECT d.number, r.id, d.event, d.subscriber, d.state, d.due, d.attempts,
        d.taken_by, d.error FROM dispatches d";
const RUNS: &str = "JOIN runs r ON r.no = d.run";

fn one(db: &Connection, number: i64) -> Result<Option<Dispatch>, Fault> {
    let mut sql = db.prepare_cached(&format!("{COLUMNS} {RUNS} WHERE d.number = ?1"))?;
    let mut rows = sql.query([number])?;
    rows.next()?.map(dispatch).transpose()
}

pub(crate) fn list(
    db: &Connection,
    query: &DispatchQuery,
    after: u64,
    limit: usize,
) -> Result<Vec<Dispatch>, Fault> {
    let (sql, values) = sql_of(query);
    let last = [int(after), int(limit as u64)].map(Value::from);
    let mut sql = db.prepare_cached(&sql)?;
    let mut rows = sql.query(params_from_iter(values.into_iter().chain(last)))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(dispatch(row)?);
    }
    Ok(all)
}

/// The question, and its values but the last two.
fn sql_of(query: &DispatchQuery) -> (String, Vec<Value>) {
    let (part, values) = match query {
        DispatchQuery::Run(run) => {
            (format!("{RUNS} WHERE r.id = ?1"), vec![run.as_str().to_owned().into()])
        }
        DispatchQuery::Scope { scope, states } => {
            let codes: Vec<_> = states.iter().map(|state| state_code(*state).to_string()).collect();
            let part = format!(
                "CROSS {RUNS} WHERE r.tenant = ?1 AND (?2 IS NULL OR r.owner = ?2)
                   AND (?3 IS NULL OR r.session = ?3 OR r.root_session = ?3)
                   AND (?4 IS NULL OR r.app = ?4) AND d.state IN ({})",
                codes.join(", ")
            );
            (part, of_scope(scope))
        }
    };
    let at = values.len();
    let sql =
        format!("{COLUMNS} {part} AND d.number > ?{} ORDER BY d.number LIMIT ?{}", at + 1, at + 2);
    (sql, values)
}

fn of_scope(scope: &Scope) -> Vec<Value> {
    vec![
        scope.tenant.clone().into(),
        scope.owner_user_id.clone().into(),
        scope.parent_session_id.clone().into(),
        scope.parent_app_name.clone().into(),
    ]
}

/// From the columns of [`COLUMNS`].
fn dispatch(row: &Row<'_>) -> Result<Dispatch, Fault> {
    let run: String = row.get(1)?;
    let run = RunId::new(&run).map_err(|error| Fault::Damaged(format!("run {run}: {error}")))?;
    let damaged = |detail: &str| Fault::Damaged(format!("dispatch of run {run}: {detail}"));
    let (event, state): (i64, i64) = (row.get(2)?, row.get(4)?);
    let event = TaskEvent::ALL.into_iter().find(|one| event_code(*one) == event);
    let state = DispatchState::ALL.into_iter().find(|one| state_code(*one) == state);
    let (event, state) = match (event, state) {
        (Some(event), Some(state)) => (event, state),
        (None, _) => return Err(damaged("an unknown event")),
        (_, None) => return Err(damaged("an unknown state")),
    };
    let taken_by: Option<String> = row.get(7)?;
    Ok(Dispatch {
        number: unbits(row.get(0)?),
        state,
        due: Timestamp(unbits(row.get(5)?)),
        attempts: row.get(6)?,
        taken_by: taken_by.map(|host| HostId::new(&host)),
        error: row.get(8)?,
        key: DispatchKey { run, event, subscriber: row.get(3)? },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::definition::{plan, tables_in_memory};

    #[test]
    fn what_is_due_is_found_by_an_index_alone() {
        let db = tables_in_memory();
        let run = sql_of(&DispatchQuery::Run(RunId::new("r").expect("an id"))).0;
        let scope =
            DispatchQuery::Scope { scope: Scope::tenant("t"), states: vec![DispatchState::Dead] };
        let questions = [
            (NEXT, "dispatches_due (subscriber=?)"),
            (DUE, "dispatches_due (subscriber=? AND due<?)"),
            (LEFT, "dispatches_taken (subscriber=?)"),
            (LATEST, "dispatches_due (subscriber=? AND due>?)"),
            (SOON, "dispatches_soon (subscriber=?)"),
            (&run, "sqlite_autoindex_dispatches_1 (run=?"),
            (&sql_of(&scope).0, "INTEGER PRIMARY KEY (rowid>?)"),
        ];
        for (question, index) in questions {
            let plan = plan(&db, question);
            let scans = plan.contains("SCAN d") || plan.contains("SCAN dispatches");
            assert!(plan.contains(index) && !scans, "{question}: {plan}");
        }
        for ordered in [DUE, LATEST] {
            let plan = plan(&db, ordered);
            assert!(!plan.contains("B-TREE"), "{ordered}: {plan}");
        }
    }
}
