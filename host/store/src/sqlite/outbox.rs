//! Reports of ended runs.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use taskrun_journal::delivery::{
    Conversation, DeadReason, Delivery, Report, ReportState, ReportsTaken,
};
use taskrun_journal::ids::RunId;
use taskrun_journal::schedule::{self, ReportRequest, Settlement, Succession};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{ReportChange, ReportQuery, SessionKey};
use taskrun_journal::time::{Timestamp, millis};

use super::fault::Fault;
use super::schema::{KeyKind, TERMINAL, bits, int, time, unbits};
use super::sessions;

/// The table of reports.
///
/// - `run` and `taken_by` are numbers of runs; the second one may be that of a run that was removed.
/// - `tree` is a hash of the id of the first run of the tree, `session_key` one of the session of the
///   conversation, which the next three columns name.
/// - `place` is that of the last event of the run.
/// - `state` is a code of [`state_code`].
/// - `delay` is that of [`ReportRequest::delay`] in milliseconds; `due` is the time at which a host is
///   to look, and `waits_for` the number of the open run for whose end it waits before.
pub(crate) const OUTBOX: &str = "
CREATE TABLE outbox (
    run         INTEGER PRIMARY KEY,
    tree        INTEGER NOT NULL,
    session_key INTEGER,
    session     TEXT,
    app         TEXT,
    agent       TEXT,
    place       INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    taken_by    INTEGER,
    reason      TEXT,
    delay       INTEGER,
    due         INTEGER,
    waits_for   INTEGER
) STRICT;
CREATE INDEX outbox_by_place   ON outbox (place);
CREATE INDEX outbox_by_tree    ON outbox (tree, place) WHERE state = 0;
CREATE INDEX outbox_by_session ON outbox (session_key, place)
    WHERE state = 0 AND session_key IS NOT NULL;
CREATE INDEX outbox_taken      ON outbox (taken_by) WHERE state = 1;
CREATE INDEX outbox_due        ON outbox (place) WHERE due IS NOT NULL;
CREATE INDEX outbox_waiting    ON outbox (waits_for) WHERE waits_for IS NOT NULL;
";

const PENDING: i64 = 0;
const TAKEN: i64 = 1;
const DELIVERED: i64 = 2;
const DEAD: i64 = 3;

/// The number that stands for a state in the file.
fn state_code(state: ReportState) -> i64 {
    match state {
        ReportState::Pending => PENDING,
        ReportState::Taken => TAKEN,
        ReportState::Delivered => DELIVERED,
        ReportState::Dead => DEAD,
    }
}

fn tree_key(root: &RunId) -> i64 {
    bits(schedule::hash(&["tree", root.as_str()]))
}

/// The wait of a pending report before a host looks for it.
#[derive(Default)]
struct Look {
    due: Option<Timestamp>,
    /// The number of the open run for whose end it waits.
    waits_for: Option<i64>,
}

impl Look {
    /// The wait from a moment on, where `nearest` is the nearest open run above.
    fn of(
        nearest: Option<i64>,
        delay: Option<Duration>,
        at: Timestamp,
        pause: Option<Duration>,
    ) -> Self {
        match nearest {
            Some(open) => Self { due: None, waits_for: delay.map(|_| open) },
            None => Self { due: schedule::due(at, delay, pause), waits_for: None },
        }
    }
}

/// Keeps the report of a run that has ended, if there is somebody to be told.
pub(super) fn add(
    db: &Connection,
    no: i64,
    spec: &RunSpec,
    request: &ReportRequest,
    (place, at): (u64, Timestamp),
) -> Result<(), Fault> {
    let has_ended = match schedule::conversation_key(spec) {
        Some(key) => sessions::get(db, &key)?.is_some_and(|known| known.ended_at.is_some()),
        None => false,
    };
    let Delivery { above, conversation, .. } = &request.delivery;
    let conversation = conversation.as_ref().filter(|_| !has_ended);
    let nearest = nearest_open(db, above)?;
    if !request.is_wanted(nearest.map(|(id, _)| id), conversation.is_some()) {
        return Ok(());
    }
    let delay = request.delay.filter(|_| conversation.is_some());
    let look = Look::of(nearest.map(|(_, no)| no), delay, at, Some(Duration::ZERO));
    let key = |one: &Conversation| KeyKind::Session.key(&spec.tenant, &one.session);
    db.prepare_cached(
        "INSERT INTO outbox VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, NULL, NULL, ?9, ?10, ?11)",
    )?
    .execute(params![
        no,
        tree_key(&spec.root_run_id),
        conversation.map(key),
        conversation.map(|one| &one.session),
        conversation.and_then(|one| one.app.as_ref()),
        conversation.map(|one| &one.agent),
        int(place),
        PENDING,
        delay.map(|delay| int(millis(delay))),
        look.due.map(time),
        look.waits_for,
    ])?;
    Ok(())
}

/// The first open run of these, with its number.
fn nearest_open<'a>(
    db: &Connection,
    above: &'a [RunId],
) -> Result<Option<(&'a RunId, i64)>, Fault> {
    let mut open = db.prepare_cached("SELECT no FROM runs WHERE id = ?1 AND status < ?2")?;
    for id in above {
        let found = open.query_row(params![id.as_str(), TERMINAL], |row| row.get(0)).optional()?;
        if let Some(no) = found {
            return Ok(Some((id, no)));
        }
    }
    Ok(None)
}

/// The nearest open run above one, by numbers.
fn open_above(db: &Connection, no: i64) -> Result<Option<i64>, Fault> {
    let mut above = db.prepare_cached(
        "SELECT a.no, a.status FROM runs r JOIN runs a ON a.id = r.parent WHERE r.no = ?1",
    )?;
    let mut next = no;
    loop {
        let found = above.query_row([next], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let Some((no, status)): Option<(i64, i64)> = found else { return Ok(None) };
        if status < TERMINAL {
            return Ok(Some(no));
        }
        next = no;
    }
}

/// False if a run would be told of a report that is not pending.
pub(super) fn may_take(db: &Connection, taken: Option<&ReportsTaken>) -> Result<bool, Fault> {
    let Some(ReportsTaken::Told(runs)) = taken else { return Ok(true) };
    let mut pending = db.prepare_cached(
        "SELECT 1 FROM outbox WHERE run = (SELECT no FROM runs WHERE id = ?1) AND state = ?2",
    )?;
    for run in runs {
        if !pending.exists(params![run.as_str(), PENDING])? {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn take(db: &Connection, taker: i64, taken: &ReportsTaken) -> Result<(), Fault> {
    let (ReportsTaken::Told(runs) | ReportsTaken::Awaited(runs)) = taken;
    let mut take = db.prepare_cached(
        "UPDATE outbox SET state = ?2, taken_by = ?3, due = NULL, waits_for = NULL
         WHERE run = (SELECT no FROM runs WHERE id = ?1) AND state = ?4",
    )?;
    for run in runs {
        take.execute(params![run.as_str(), TAKEN, taker, PENDING])?;
    }
    Ok(())
}

/// The report of a run of which another one was told is delivered, whatever becomes of that one.
pub(super) fn deliver(db: &Connection, run: &RunId) -> Result<(), Fault> {
    let mut deliver = db.prepare_cached(
        "UPDATE outbox SET state = ?2
         WHERE run = (SELECT no FROM runs WHERE id = ?1) AND state = ?3",
    )?;
    deliver.execute(params![run.as_str(), DELIVERED, TAKEN])?;
    Ok(())
}

/// True if the report of a run is pending and a host is to look for it.
pub(super) fn is_due(db: &Connection, run: &RunId) -> Result<bool, Fault> {
    let mut due = db.prepare_cached(
        "SELECT 1 FROM outbox
         WHERE run = (SELECT no FROM runs WHERE id = ?1) AND state = ?2 AND due IS NOT NULL",
    )?;
    Ok(due.exists(params![run.as_str(), PENDING])?)
}

/// The reports of these runs wait for the end of the nudge that was started for them.
pub(super) fn nudge(db: &Connection, nudge: i64, runs: &[RunId]) -> Result<(), Fault> {
    let mut wait = db.prepare_cached(
        "UPDATE outbox SET due = NULL, waits_for = ?2
         WHERE run = (SELECT no FROM runs WHERE id = ?1)",
    )?;
    for run in runs {
        wait.execute(params![run.as_str(), nudge])?;
    }
    Ok(())
}

/// True if one of these agents is to be nudged, now or later.
pub(super) fn are_due(db: &Connection, agents: &BTreeSet<String>) -> Result<bool, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT DISTINCT agent FROM outbox INDEXED BY outbox_due WHERE due IS NOT NULL",
    )?;
    let mut rows = sql.query([])?;
    while let Some(row) = rows.next()? {
        if row.get::<_, Option<String>>(0)?.is_some_and(|agent| agents.contains(&agent)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Settles the reports of which a run was told that has ended.
pub(super) fn settle(
    db: &Connection,
    taker: i64,
    settlement: Settlement,
    at: Timestamp,
) -> Result<(), Fault> {
    let mut taken = db.prepare_cached(
        "SELECT run FROM outbox INDEXED BY outbox_taken WHERE taken_by = ?1 AND state = 1",
    )?;
    let rows = taken.query_map([taker], |row| row.get(0))?;
    for run in rows.collect::<rusqlite::Result<Vec<i64>>>()? {
        settle_one(db, run, settlement, at)?;
    }
    Ok(())
}

/// Lets the reports that waited for the end of a run wait for the next one above, or makes a host
/// look.
pub(super) fn succeed(
    db: &Connection,
    (ended, root): (i64, &RunId),
    succession: Succession,
    at: Timestamp,
) -> Result<(), Fault> {
    let mut waiting = db.prepare_cached(
        "SELECT run, tree FROM outbox INDEXED BY outbox_waiting WHERE waits_for = ?1",
    )?;
    let rows = waiting.query_map([ended], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (run, tree) in rows.collect::<rusqlite::Result<Vec<(i64, i64)>>>()? {
        match tree == tree_key(root) {
            true => settle_one(db, run, succession.beneath, at)?,
            false => settle_one(db, run, succession.nudged, at)?,
        }
    }
    Ok(())
}

fn settle_one(
    db: &Connection,
    no: i64,
    settlement: Settlement,
    at: Timestamp,
) -> Result<(), Fault> {
    let mut sql = db.prepare_cached(
        "SELECT r.id, o.attempts, o.delay FROM outbox o JOIN runs r ON r.no = o.run
         WHERE o.run = ?1",
    )?;
    let row = sql.query_row([no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
    let Some((id, attempts, delay)): Option<(String, u32, Option<i64>)> = row else {
        return Ok(());
    };
    let settled = settlement.settle(&run_id(&id)?, attempts);
    let look = match (settled.state, delay_of(delay)) {
        (ReportState::Pending, Some(delay)) => {
            Look::of(open_above(db, no)?, Some(delay), at, settled.pause)
        }
        (ReportState::Pending, None)
        | (ReportState::Taken | ReportState::Delivered | ReportState::Dead, _) => Look::default(),
    };
    db.prepare_cached(
        "UPDATE outbox SET state = ?2, attempts = ?3, reason = ?4, due = ?5, waits_for = ?6,
            taken_by = CASE WHEN ?2 = 0 THEN NULL ELSE taken_by END
         WHERE run = ?1",
    )?
    .execute(params![
        no,
        state_code(settled.state),
        settled.attempts,
        settled.reason.map(DeadReason::as_str),
        look.due.map(time),
        look.waits_for,
    ])?;
    Ok(())
}

fn delay_of(column: Option<i64>) -> Option<Duration> {
    column.map(|ms| Duration::from_millis(unbits(ms)))
}

fn run_id(text: &str) -> Result<RunId, Fault> {
    RunId::new(text).map_err(|error| Fault::Damaged(format!("run {text}: {error}")))
}

/// Makes dead letters of the pending reports of conversations whose session ended.
pub(super) fn end_session(db: &Connection, ended: &SessionKey) -> Result<(), Fault> {
    db.prepare_cached(
        "UPDATE outbox SET state = ?6, reason = ?7, due = NULL, waits_for = NULL WHERE run IN (
            SELECT o.run FROM outbox o INDEXED BY outbox_by_session JOIN runs r ON r.no = o.run
            WHERE o.session_key = ?1 AND o.state = 0 AND o.session = ?2 AND r.tenant = ?3
              AND (?4 IS NULL OR r.owner = ?4) AND (?5 IS NULL OR o.app = ?5))",
    )?
    .execute(params![
        KeyKind::Session.key(&ended.tenant, &ended.id),
        ended.id,
        ended.tenant,
        ended.owner_user_id,
        ended.parent_app_name,
        DEAD,
        DeadReason::SessionEnded.as_str(),
    ])?;
    Ok(())
}

/// True if an open run was told of the outcome of this one, or somebody is made to look for it.
pub(super) fn is_needed(db: &Connection, no: i64) -> Result<bool, Fault> {
    let mut needed = db.prepare_cached(
        "SELECT 1 FROM outbox WHERE run = ?1
           AND (state = ?2 OR due IS NOT NULL OR waits_for IS NOT NULL)",
    )?;
    Ok(needed.exists([no, TAKEN])?)
}

pub(super) fn remove(db: &Connection, no: i64) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM outbox WHERE run = ?1")?.execute([no])?;
    Ok(())
}

pub(crate) fn change(db: &Connection, run: &RunId, change: ReportChange) -> Result<bool, Fault> {
    let Some(report) = reports(db, &ReportQuery::Run(run.clone()), 0, 1)?.pop() else {
        return Ok(false);
    };
    if !change.applies_to(report.state) {
        return Ok(false);
    }
    match change {
        ReportChange::Retry => retry(db, run)?,
        ReportChange::Drop => {
            let sql = "DELETE FROM outbox WHERE run = (SELECT no FROM runs WHERE id = ?1)";
            db.prepare_cached(sql)?.execute([run.as_str()])?;
        }
        ReportChange::Quiet => {
            db.prepare_cached(
                "UPDATE outbox SET delay = NULL, due = NULL, waits_for = NULL
                 WHERE run = (SELECT no FROM runs WHERE id = ?1)",
            )?
            .execute([run.as_str()])?;
        }
        ReportChange::Block => {
            db.prepare_cached(
                "UPDATE outbox SET state = ?2, reason = ?3, due = NULL, waits_for = NULL
                 WHERE run = (SELECT no FROM runs WHERE id = ?1)",
            )?
            .execute(params![run.as_str(), DEAD, DeadReason::Blocked.as_str()])?;
        }
    }
    Ok(true)
}

/// A dead letter is pending again, and due as if its run had just ended.
fn retry(db: &Connection, run: &RunId) -> Result<(), Fault> {
    let mut sql = db.prepare_cached(
        "SELECT o.run, o.delay, r.updated_at FROM outbox o JOIN runs r ON r.no = o.run
         WHERE r.id = ?1",
    )?;
    let (no, delay, ended): (i64, Option<i64>, i64) =
        sql.query_row([run.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let (nearest, ended) = (open_above(db, no)?, Timestamp(unbits(ended)));
    let look = Look::of(nearest, delay_of(delay), ended, Some(Duration::ZERO));
    db.prepare_cached(
        "UPDATE outbox SET state = 0, attempts = 0, taken_by = NULL, reason = NULL, due = ?2,
            waits_for = ?3
         WHERE run = ?1",
    )?
    .execute(params![no, look.due.map(time), look.waits_for])?;
    Ok(())
}

/// The columns of a report, of its run and of the run that was told.
const COLUMNS: &str = "SELECT r.id, o.place, o.state, o.attempts, t.id, o.reason, o.due, o.agent";
const JOINS: &str = "JOIN runs r ON r.no = o.run LEFT JOIN runs t ON t.no = o.taken_by";

pub(crate) fn reports(
    db: &Connection,
    query: &ReportQuery,
    after: u64,
    limit: usize,
) -> Result<Vec<Report>, Fault> {
    let (sql, values) = sql_of(query);
    let last = [int(after), int(limit as u64)].map(Value::from);
    let sql = format!(
        "{COLUMNS} FROM outbox o {sql} AND o.place > ?{} ORDER BY o.place LIMIT ?{}",
        values.len() + 1,
        values.len() + 2,
    );
    let mut sql = db.prepare_cached(&sql)?;
    let mut rows = sql.query(params_from_iter(values.into_iter().chain(last)))?;
    let mut reports = Vec::new();
    while let Some(row) = rows.next()? {
        reports.push(report(row)?);
    }
    Ok(reports)
}

/// The part of a question that says which reports, and its values.
fn sql_of(query: &ReportQuery) -> (String, Vec<Value>) {
    match query {
        ReportQuery::Tree(root) => (
            format!("INDEXED BY outbox_by_tree {JOINS} WHERE o.tree = ?1 AND o.state = 0"),
            vec![tree_key(root).into()],
        ),
        ReportQuery::Conversation { tenant, owner_user_id, conversation } => (
            format!(
                "INDEXED BY outbox_by_session {JOINS} WHERE o.session_key = ?1 AND o.state = 0
                   AND o.session = ?2 AND r.tenant = ?3 AND r.owner = ?4 AND o.agent = ?5
                   AND o.app IS ?6"
            ),
            vec![
                KeyKind::Session.key(tenant, &conversation.session).into(),
                conversation.session.clone().into(),
                tenant.clone().into(),
                owner_user_id.clone().into(),
                conversation.agent.clone().into(),
                conversation.app.clone().into(),
            ],
        ),
        ReportQuery::Run(run) => {
            (format!("{JOINS} WHERE r.id = ?1"), vec![run.as_str().to_owned().into()])
        }
        ReportQuery::Due => {
            (format!("INDEXED BY outbox_due {JOINS} WHERE o.due IS NOT NULL"), Vec::new())
        }
        ReportQuery::Scope { scope, states } => {
            let codes: Vec<_> = states.iter().map(|state| state_code(*state).to_string()).collect();
            (
                format!(
                    "INDEXED BY outbox_by_place {JOINS} WHERE r.tenant = ?1
                       AND (?2 IS NULL OR r.owner = ?2)
                       AND (?3 IS NULL OR r.session = ?3 OR r.root_session = ?3)
                       AND (?4 IS NULL OR r.app = ?4) AND o.state IN ({})",
                    codes.join(", ")
                ),
                vec![
                    scope.tenant.clone().into(),
                    scope.owner_user_id.clone().into(),
                    scope.parent_session_id.clone().into(),
                    scope.parent_app_name.clone().into(),
                ],
            )
        }
    }
}

fn report(row: &Row<'_>) -> Result<Report, Fault> {
    let id = |text: String| run_id(&text);
    let run = id(row.get(0)?)?;
    let damaged = |detail: &str| Fault::Damaged(format!("report of run {run}: {detail}"));
    let code: i64 = row.get(2)?;
    let state = ReportState::ALL.into_iter().find(|state| state_code(*state) == code);
    let reason: Option<String> = row.get(5)?;
    let reason = reason.map(|word| {
        let known = DeadReason::ALL.into_iter().find(|reason| reason.as_str() == word);
        known.ok_or_else(|| damaged("an unknown reason"))
    });
    Ok(Report {
        place: unbits(row.get(1)?),
        state: state.ok_or_else(|| damaged("an unknown state"))?,
        attempts: row.get(3)?,
        taken_by: row.get::<_, Option<String>>(4)?.map(id).transpose()?,
        reason: reason.transpose()?,
        due: row.get::<_, Option<i64>>(6)?.map(|due| Timestamp(unbits(due))),
        notify: row.get(7)?,
        run,
    })
}

#[cfg(test)]
mod tests {
    use taskrun_journal::list::Scope;

    use super::*;
    use crate::sqlite::definition::{all_tables, plan};

    #[test]
    fn every_question_is_answered_by_an_index_alone() {
        let db = Connection::open_in_memory().expect("opens");
        db.execute_batch(&all_tables()).expect("makes tables");
        let run = || RunId::new("r").expect("an id");
        let conversation = Conversation { session: String::new(), app: None, agent: String::new() };
        let (tenant, owner_user_id) = (String::new(), String::new());
        let questions = [
            (ReportQuery::Tree(run()), "outbox_by_tree (tree=? AND place>?)"),
            (
                ReportQuery::Conversation { tenant, owner_user_id, conversation },
                "outbox_by_session (session_key=? AND place>?)",
            ),
            (ReportQuery::Run(run()), "sqlite_autoindex_runs_1 (id=?)"),
            (ReportQuery::Due, "outbox_due (place>?)"),
            (
                ReportQuery::Scope { scope: Scope::tenant("t"), states: vec![ReportState::Dead] },
                "outbox_by_place (place>?)",
            ),
        ];
        for (question, index) in questions {
            let (part, values) = sql_of(&question);
            let at = values.len();
            let sql = format!(
                "{COLUMNS} FROM outbox o {part} AND o.place > ?{} ORDER BY o.place LIMIT ?{}",
                at + 1,
                at + 2
            );
            let plan = plan(&db, &sql);
            assert!(plan.contains(index) && !plan.contains("SCAN"), "{question:?}: {plan}");
            assert!(!plan.contains("B-TREE") || matches!(question, ReportQuery::Run(_)), "{plan}");
        }
        let settled = "SELECT run FROM outbox INDEXED BY outbox_taken
                       WHERE taken_by = ?1 AND state = 1";
        assert!(plan(&db, settled).contains("outbox_taken (taken_by=?)"));
        let waiting = "SELECT run, tree FROM outbox INDEXED BY outbox_waiting WHERE waits_for = ?1";
        assert!(plan(&db, waiting).contains("outbox_waiting (waits_for=?)"));
        let agents =
            "SELECT DISTINCT agent FROM outbox INDEXED BY outbox_due WHERE due IS NOT NULL";
        let plan = plan(&db, agents);
        assert!(plan.contains("USING INDEX outbox_due"), "only rows that are due: {plan}");
    }
}
