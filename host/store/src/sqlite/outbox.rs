//! Reports of ended runs.

mod reports;

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use taskrun_journal::delivery::{Conversation, DeadReason, Delivery, ReportState, ReportsTaken};
use taskrun_journal::ids::RunId;
use taskrun_journal::schedule::{self, ReportRequest, Settlement, Succession};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{ReportChange, ReportQuery, SessionKey};
use taskrun_journal::time::{Timestamp, millis};

pub(crate) use self::reports::reports;
use super::fault::Fault;
use super::row::run_by_number;
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
CREATE INDEX outbox_due_to     ON outbox (agent, place) WHERE due IS NOT NULL;
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
    let has_open_session = is_session_open(db, spec)?;
    let Delivery { above, conversation, .. } = &request.delivery;
    let conversation = conversation.as_ref().filter(|_| has_open_session);
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

/// True if there is a conversation to which the outcome of a run may come, whose session has not
/// ended.
fn is_session_open(db: &Connection, spec: &RunSpec) -> Result<bool, Fault> {
    let Some(key) = schedule::conversation_key(spec) else { return Ok(false) };
    Ok(sessions::get(db, &key)?.is_none_or(|known| known.ended_at.is_none()))
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

/// The number of the nearest open run above one whose outcome is told. Of those between them some may
/// be gone, so that it is their list that tells; that of a run which is damaged tells of none.
fn open_above(db: &Connection, no: i64) -> Result<Option<i64>, Fault> {
    let run = match run_by_number(db, no) {
        Ok(run) => run,
        Err(Fault::Damaged(detail)) => {
            tracing::error!(detail, "nothing says for whose end a report waits");
            return Ok(None);
        }
        Err(fault @ Fault::Sqlite(_)) => return Err(fault),
    };
    let Some(delivery) = &run.spec.delivery else { return Ok(None) };
    Ok(nearest_open(db, &delivery.above)?.map(|(_, no)| no))
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

/// The reports of which a run was told are delivered, whatever becomes of it.
pub(super) fn deliver(db: &Connection, taker: i64) -> Result<(), Fault> {
    let mut deliver = db.prepare_cached(
        "UPDATE outbox INDEXED BY outbox_taken SET state = ?2 WHERE taken_by = ?1 AND state = 1",
    )?;
    deliver.execute([taker, DELIVERED])?;
    Ok(())
}

/// True if the report of a run is pending.
pub(super) fn is_pending(db: &Connection, no: i64) -> Result<bool, Fault> {
    let mut pending = db.prepare_cached("SELECT 1 FROM outbox WHERE run = ?1 AND state = ?2")?;
    Ok(pending.exists([no, PENDING])?)
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

/// The report of a run is gone, if nobody was told.
pub(super) fn withdraw(db: &Connection, run: &RunId) -> Result<(), Fault> {
    db.prepare_cached(
        "DELETE FROM outbox WHERE run = (SELECT no FROM runs WHERE id = ?1) AND state = ?2",
    )?
    .execute(params![run.as_str(), PENDING])?;
    Ok(())
}

/// Finds a row if the conversations of an agent have reports that are due, now or later.
const IS_DUE_TO: &str =
    "SELECT 1 FROM outbox INDEXED BY outbox_due_to WHERE due IS NOT NULL AND agent = ?1 LIMIT 1";

/// True if one of these agents is to be nudged, now or later.
pub(super) fn are_due(db: &Connection, agents: &BTreeSet<String>) -> Result<bool, Fault> {
    let mut sql = db.prepare_cached(IS_DUE_TO)?;
    for agent in agents {
        if sql.exists([agent])? {
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

/// True if an open run was told of the outcome of this one, or somebody is made to look for it, or a
/// run of a conversation may still be told.
pub(super) fn is_needed(db: &Connection, no: i64, spec: &RunSpec) -> Result<bool, Fault> {
    let mut report = db.prepare_cached(
        "SELECT state = ?2 OR due IS NOT NULL OR waits_for IS NOT NULL, state = ?3 FROM outbox
         WHERE run = ?1",
    )?;
    let report = report.query_row([no, TAKEN, PENDING], |row| Ok((row.get(0)?, row.get(1)?)));
    let Some((is_on_its_way, is_pending)): Option<(bool, bool)> = report.optional()? else {
        return Ok(false);
    };
    Ok(is_on_its_way || is_pending && is_session_open(db, spec)?)
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
