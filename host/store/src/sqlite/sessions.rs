//! Sessions, and the events of their runs in the order in which they became durable.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rusqlite::{Connection, OptionalExtension, Row, params};
use taskrun::ids::RunId;
use taskrun::ports::store::{Session, SessionEvent, SessionKey};
use taskrun::time::Timestamp;

use super::fault::Fault;
use super::row::{PageBytes, recorded};
use super::schema::{By, bits, int, unbits};

/// So many events of the whole store are looked through for those of one session: whoever
/// follows a session is that near to the end.
const NEAR: u64 = 1_000;
/// Statuses that there are.
const STATUSES: std::ops::Range<i64> = 0..8;

pub(crate) fn open(db: &Connection, session: &Session) -> Result<Session, Fault> {
    db.prepare_cached("INSERT OR IGNORE INTO sessions VALUES (?1, ?2, ?3, ?4, ?5)")?.execute(
        params![
            session.key.tenant,
            session.key.id,
            session.owner_user_id,
            bits(session.created_at.0),
            session.ended_at.map(|at| bits(at.0)),
        ],
    )?;
    known(db, &session.key)
}

pub(crate) fn end(db: &Connection, key: &SessionKey, at: Timestamp) -> Result<Session, Fault> {
    db.prepare_cached(
        "INSERT INTO sessions VALUES (?1, ?2, NULL, ?3, ?3)
         ON CONFLICT DO UPDATE SET ended_at = coalesce(ended_at, excluded.ended_at)",
    )?
    .execute(params![key.tenant, key.id, bits(at.0)])?;
    known(db, key)
}

fn known(db: &Connection, key: &SessionKey) -> Result<Session, Fault> {
    get(db, key)?.ok_or_else(|| Fault::Damaged(format!("session {}: it is missing", key.id)))
}

pub(crate) fn get(db: &Connection, key: &SessionKey) -> Result<Option<Session>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT owner, created_at, ended_at FROM sessions WHERE tenant = ?1 AND id = ?2",
    )?;
    let session = sql.query_row([&key.tenant, &key.id], |row| {
        let ended_at: Option<i64> = row.get(2)?;
        Ok(Session {
            key: key.clone(),
            owner_user_id: row.get(0)?,
            created_at: Timestamp(unbits(row.get(1)?)),
            ended_at: ended_at.map(|at| Timestamp(unbits(at))),
        })
    });
    Ok(session.optional()?)
}

/// Events after a place. Near the end of the store they are picked from all events there; for
/// all others the journals of the session's runs are merged.
pub(crate) fn events(
    db: &Connection,
    key: &SessionKey,
    after: u64,
    limit: usize,
) -> Result<Vec<SessionEvent>, Fault> {
    let last: i64 = db
        .prepare_cached("SELECT coalesce(max(pos), 0) FROM events")?
        .query_row([], |r| r.get(0))?;
    if unbits(last).saturating_sub(after) <= NEAR {
        picked(db, key, after, limit)
    } else {
        merged(db, key, after, limit)
    }
}

fn picked(
    db: &Connection,
    key: &SessionKey,
    after: u64,
    limit: usize,
) -> Result<Vec<SessionEvent>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT e.seq, e.id, e.at, e.sum, e.body, e.pos, r.id
         FROM events e CROSS JOIN runs r ON r.no = e.run
         WHERE e.pos > ?1 AND r.session_key = ?2 AND r.tenant = ?3 AND r.session = ?4
         ORDER BY e.pos LIMIT ?5",
    )?;
    let hash = By::Session.key(&key.tenant, &key.id);
    let mut rows = sql.query(params![int(after), hash, key.tenant, key.id, int(limit as u64)])?;
    let (mut events, mut page) = (Vec::new(), PageBytes::default());
    while let Some(row) = rows.next()? {
        if !page.takes(row)? {
            break;
        }
        let id: String = row.get(6)?;
        events.push(event(&id, row)?);
    }
    Ok(events)
}

/// From `seq, id, at, sum, body, pos`.
fn event(id: &str, row: &Row<'_>) -> Result<SessionEvent, Fault> {
    let run = RunId::new(id).map_err(|error| Fault::Damaged(format!("run {id}: {error}")))?;
    Ok(SessionEvent { place: unbits(row.get(5)?), run, recorded: recorded(id, row)? })
}

/// A run with events to come.
struct Journal {
    no: i64,
    id: String,
    head: i64,
}

fn merged(
    db: &Connection,
    key: &SessionKey,
    after: u64,
    limit: usize,
) -> Result<Vec<SessionEvent>, Fault> {
    let after = int(after);
    let journals = journals(db, key, after)?;
    // Place, position, and whose: the smallest place comes first.
    let mut ahead = BinaryHeap::new();
    for (index, journal) in journals.iter().enumerate() {
        if let Some((place, seq)) = first_after(db, journal, after)? {
            ahead.push(Reverse((place, seq, index)));
        }
    }
    let mut sql =
        db.prepare_cached("SELECT seq, id, at, sum, body, pos FROM events WHERE pos = ?1")?;
    let (mut events, mut page) = (Vec::new(), PageBytes::default());
    while events.len() < limit {
        let Some(Reverse((place, seq, index))) = ahead.pop() else { break };
        let journal = &journals[index];
        let mut rows = sql.query([place])?;
        let row = rows.next()?.ok_or_else(|| missing(journal, seq))?;
        if !page.takes(row)? {
            break;
        }
        events.push(event(&journal.id, row)?);
        if seq < journal.head {
            ahead.push(Reverse((place_of(db, journal, seq + 1)?, seq + 1, index)));
        }
    }
    Ok(events)
}

/// Runs of a session that may have events after a place.
fn journals(db: &Connection, key: &SessionKey, after: i64) -> Result<Vec<Journal>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT no, id, head FROM runs INDEXED BY runs_by_session
         WHERE status = ?1 AND session_key = ?2 AND tenant = ?3 AND session = ?4
           AND (last_pos > ?5 OR last_pos = 0)",
    )?;
    let hash = By::Session.key(&key.tenant, &key.id);
    let mut journals = Vec::new();
    for status in STATUSES {
        let rows = sql.query_map(params![status, hash, key.tenant, key.id, after], |row| {
            Ok(Journal { no: row.get(0)?, id: row.get(1)?, head: row.get(2)? })
        })?;
        journals.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(journals)
}

/// The first event after a place, by halving: places grow with positions.
fn first_after(
    db: &Connection,
    journal: &Journal,
    after: i64,
) -> Result<Option<(i64, i64)>, Fault> {
    if journal.head == 0 || place_of(db, journal, journal.head)? <= after {
        return Ok(None);
    }
    let (mut low, mut high) = (1, journal.head);
    while low < high {
        let middle = low + (high - low) / 2;
        if place_of(db, journal, middle)? > after {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(Some((place_of(db, journal, low)?, low)))
}

fn place_of(db: &Connection, journal: &Journal, seq: i64) -> Result<i64, Fault> {
    let mut sql = db.prepare_cached("SELECT pos FROM events WHERE run = ?1 AND seq = ?2")?;
    let place = sql.query_row([journal.no, seq], |row| row.get(0)).optional()?;
    place.ok_or_else(|| missing(journal, seq))
}

fn missing(journal: &Journal, seq: i64) -> Fault {
    Fault::Damaged(format!("run {}, position {seq}: the event is missing", journal.id))
}
