//! Reports of ended runs.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};
use taskrun_journal::delivery::{
    Conversation, DeadReason, Delivery, Report, ReportState, ReportsTaken,
};
use taskrun_journal::ids::RunId;
use taskrun_journal::schedule::{self, ReportRequest, Settlement};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{ReportChange, ReportQuery, SessionKey};

use super::fault::Fault;
use super::schema::{KeyKind, TERMINAL, bits, int, unbits};
use super::sessions;

/// The table of reports.
///
/// - `run` and `taken_by` are numbers of runs; the second one may be that of a run that was removed.
/// - `tree` is a hash of the id of the first run of the tree, `session_key` one of the session of the
///   conversation, which the next three columns name.
/// - `place` is that of the last event of the run.
/// - `state` is a code of [`state_code`].
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
    reason      TEXT
) STRICT;
CREATE INDEX outbox_by_place   ON outbox (place);
CREATE INDEX outbox_by_tree    ON outbox (tree, place) WHERE state = 0;
CREATE INDEX outbox_by_session ON outbox (session_key, place)
    WHERE state = 0 AND session_key IS NOT NULL;
CREATE INDEX outbox_taken      ON outbox (taken_by) WHERE state = 1;
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

/// Keeps the report of a run that has ended, if there is somebody to be told.
pub(super) fn add(
    db: &Connection,
    no: i64,
    spec: &RunSpec,
    request: &ReportRequest,
    place: u64,
) -> Result<(), Fault> {
    let has_ended = match schedule::conversation_key(spec) {
        Some(key) => sessions::get(db, &key)?.is_some_and(|known| known.ended_at.is_some()),
        None => false,
    };
    let Delivery { above, conversation } = &request.delivery;
    let conversation = conversation.as_ref().filter(|_| !has_ended);
    if !request.is_wanted(nearest_open(db, above)?, conversation.is_some()) {
        return Ok(());
    }
    let key = |one: &Conversation| KeyKind::Session.key(&spec.tenant, &one.session);
    db.prepare_cached("INSERT INTO outbox VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, NULL, NULL)")?
        .execute(params![
            no,
            tree_key(&spec.root_run_id),
            conversation.map(key),
            conversation.map(|one| &one.session),
            conversation.and_then(|one| one.app.as_ref()),
            conversation.map(|one| &one.agent),
            int(place),
            PENDING,
        ])?;
    Ok(())
}

fn nearest_open<'a>(db: &Connection, above: &'a [RunId]) -> Result<Option<&'a RunId>, Fault> {
    let mut open = db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1 AND status < ?2")?;
    for id in above {
        if open.exists(params![id.as_str(), TERMINAL])? {
            return Ok(Some(id));
        }
    }
    Ok(None)
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
        "UPDATE outbox SET state = ?2, taken_by = ?3
         WHERE run = (SELECT no FROM runs WHERE id = ?1) AND state = ?4",
    )?;
    for run in runs {
        take.execute(params![run.as_str(), TAKEN, taker, PENDING])?;
    }
    Ok(())
}

/// Settles the reports of which a run was told that has ended.
pub(super) fn settle(db: &Connection, taker: i64, settlement: Settlement) -> Result<(), Fault> {
    let mut taken = db.prepare_cached(
        "SELECT run, attempts FROM outbox INDEXED BY outbox_taken
         WHERE taken_by = ?1 AND state = 1",
    )?;
    let rows = taken.query_map([taker], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let rows = rows.collect::<rusqlite::Result<Vec<(i64, u32)>>>()?;
    let mut change = db.prepare_cached(
        "UPDATE outbox SET state = ?2, attempts = ?3, reason = ?4,
            taken_by = CASE WHEN ?2 = 0 THEN NULL ELSE taken_by END
         WHERE run = ?1",
    )?;
    for (run, attempts) in rows {
        let (state, attempts, reason) = settlement.settle(attempts);
        let reason = reason.map(DeadReason::as_str);
        change.execute(params![run, state_code(state), attempts, reason])?;
    }
    Ok(())
}

/// Makes dead letters of the pending reports of conversations whose session ended.
pub(super) fn end_session(db: &Connection, ended: &SessionKey) -> Result<(), Fault> {
    db.prepare_cached(
        "UPDATE outbox SET state = ?6, reason = ?7 WHERE run IN (
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

/// True if an open run was told of the outcome of this one.
pub(super) fn is_taken(db: &Connection, no: i64) -> Result<bool, Fault> {
    let mut taken = db.prepare_cached("SELECT 1 FROM outbox WHERE run = ?1 AND state = ?2")?;
    Ok(taken.exists([no, TAKEN])?)
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
    let sql = match change {
        ReportChange::Retry => {
            "UPDATE outbox SET state = 0, attempts = 0, taken_by = NULL, reason = NULL
             WHERE run = (SELECT no FROM runs WHERE id = ?1)"
        }
        ReportChange::Drop => "DELETE FROM outbox WHERE run = (SELECT no FROM runs WHERE id = ?1)",
    };
    db.prepare_cached(sql)?.execute([run.as_str()])?;
    Ok(true)
}

/// The columns of a report, of its run and of the run that was told.
const COLUMNS: &str = "SELECT r.id, o.place, o.state, o.attempts, t.id, o.reason";
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
    let id = |text: String| {
        RunId::new(&text).map_err(|error| Fault::Damaged(format!("run {text}: {error}")))
    };
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
        run,
    })
}

#[cfg(test)]
mod tests {
    use taskrun_journal::list::Scope;

    use super::*;
    use crate::sqlite::definition::all_tables;

    /// The way in which SQLite answers a question.
    fn plan(db: &Connection, sql: &str) -> String {
        let mut plan = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a statement");
        let values = vec![Value::Null; plan.parameter_count()];
        let steps = plan.query_map(params_from_iter(values), |row| row.get::<_, String>(3));
        steps.expect("explains").map(|step| step.expect("text")).collect::<Vec<_>>().join("; ")
    }

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
        let settled = "SELECT run, attempts FROM outbox INDEXED BY outbox_taken
                       WHERE taken_by = ?1 AND state = 1";
        assert!(plan(&db, settled).contains("outbox_taken (taken_by=?)"));
    }
}
