//! Sessions, and the events of their runs in the order in which they became durable.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rusqlite::{Connection, OptionalExtension, Row, params};
use taskrun_journal::ids::RunId;
use taskrun_journal::schedule;
use taskrun_journal::store::{Session, SessionEvent, SessionKey, SessionPage};
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::row::{PageBytes, recorded};
use super::schema::{KeyKind, bits, int, unbits};
use super::{consents, outbox};

/// So many events of the whole store are looked through for those of one session: whoever
/// follows a session is that near to the end.
const NEAR: u64 = 1_000;
/// Statuses that there are.
const STATUSES: std::ops::Range<i64> = 0..8;

/// All records whose keys cover that of a session, some of them more than once. Each acceptance asks for
/// them: of lists such as `owner IN ('', ?3)` SQLite would make tables, with twenty pages of memory each.
const RECORDS_OF_A_SESSION: &str = "
    SELECT owner, app, created_at, ended_at FROM sessions
    WHERE tenant = ?1 AND id = ?2 AND owner = '' AND app = '' UNION ALL
    SELECT owner, app, created_at, ended_at FROM sessions
    WHERE tenant = ?1 AND id = ?2 AND owner = '' AND app = ?4 UNION ALL
    SELECT owner, app, created_at, ended_at FROM sessions
    WHERE tenant = ?1 AND id = ?2 AND owner = ?3 AND app = '' UNION ALL
    SELECT owner, app, created_at, ended_at FROM sessions
    WHERE tenant = ?1 AND id = ?2 AND owner = ?3 AND app = ?4";

/// The columns of a key: empty where it covers everybody's.
fn columns(key: &SessionKey) -> [&str; 4] {
    let (owner, app) = (key.owner_user_id.as_deref(), key.parent_app_name.as_deref());
    [&key.tenant, &key.id, owner.unwrap_or_default(), app.unwrap_or_default()]
}

pub(crate) fn open(db: &Connection, session: &Session) -> Result<Session, Fault> {
    let [tenant, id, owner, app] = columns(&session.key);
    let (at, ended_at) = (bits(session.created_at.0), session.ended_at.map(|at| bits(at.0)));
    db.prepare_cached("INSERT OR IGNORE INTO sessions VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![tenant, id, owner, app, at, ended_at])?;
    known(db, &session.key)
}

pub(crate) fn end(db: &Connection, key: &SessionKey, at: Timestamp) -> Result<Session, Fault> {
    let [tenant, id, owner, app] = columns(key);
    db.prepare_cached(
        "INSERT INTO sessions VALUES (?1, ?2, ?3, ?4, ?5, ?5)
         ON CONFLICT DO UPDATE SET ended_at = coalesce(ended_at, excluded.ended_at)",
    )?
    .execute(params![tenant, id, owner, app, bits(at.0)])?;
    outbox::end_session(db, key)?;
    consents::end_session(db, &key.scope(), at)?;
    known(db, key)
}

fn known(db: &Connection, key: &SessionKey) -> Result<Session, Fault> {
    get(db, key)?.ok_or_else(|| Fault::Damaged(format!("session {}: it is missing", key.id)))
}

/// The record of a session.
pub(crate) fn get(db: &Connection, key: &SessionKey) -> Result<Option<Session>, Fault> {
    let mut sql = db.prepare_cached(RECORDS_OF_A_SESSION)?;
    let said = sql.query_map(columns(key), |row| {
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        let key = SessionKey {
            owner_user_id: text(row.get(0)?),
            parent_app_name: text(row.get(1)?),
            ..key.clone()
        };
        let ended_at: Option<i64> = row.get(3)?;
        let ended_at = ended_at.map(|at| Timestamp(unbits(at)));
        Ok(Session { key, created_at: Timestamp(unbits(row.get(2)?)), ended_at })
    })?;
    Ok(schedule::known_session(key, said.collect::<rusqlite::Result<_>>()?))
}

/// Events after a place. Near the end of the store they are picked from all events there; for
/// all others the journals of the session's runs are merged.
///
/// The end of the store is looked up before the events are: what became durable in between has a
/// later place.
pub(crate) fn events(
    db: &Connection,
    key: &SessionKey,
    after: u64,
    limit: usize,
) -> Result<SessionPage, Fault> {
    let last = last_place(db)?;
    let (events, is_full) = if last.saturating_sub(after) <= NEAR {
        picked(db, key, after, limit)?
    } else {
        merged(db, key, after, limit)?
    };
    let read = events.last().map_or(after, |event| event.place);
    Ok(SessionPage { events, next: if is_full { read } else { read.max(last) } })
}

/// The place of the last event.
pub(crate) fn last_place(db: &Connection) -> Result<u64, Fault> {
    let mut last = db.prepare_cached("SELECT coalesce(max(pos), 0) FROM events")?;
    Ok(unbits(last.query_row([], |row| row.get(0))?))
}

/// Some events, and whether there may be more.
fn picked(
    db: &Connection,
    key: &SessionKey,
    after: u64,
    limit: usize,
) -> Result<(Vec<SessionEvent>, bool), Fault> {
    let mut sql = db.prepare_cached(
        "SELECT e.seq, e.id, e.at, e.sum, e.body, e.pos, r.id
         FROM events e CROSS JOIN runs r ON r.no = e.run
         WHERE e.pos > ?1 AND r.tenant = ?2 AND (r.session = ?3 OR r.root_session = ?3)
           AND (?4 = '' OR r.owner = ?4) AND (?5 = '' OR r.app = ?5)
         ORDER BY e.pos LIMIT ?6",
    )?;
    let [tenant, id, owner, app] = columns(key);
    let mut rows = sql.query(params![int(after), tenant, id, owner, app, int(limit as u64)])?;
    let (mut events, mut page) = (Vec::new(), PageBytes::default());
    while let Some(row) = rows.next()? {
        if !page.takes(row)? {
            return Ok((events, true));
        }
        let id: String = row.get(6)?;
        events.push(event(&id, row)?);
    }
    let is_full = events.len() >= limit;
    Ok((events, is_full))
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

/// Like [`picked`].
fn merged(
    db: &Connection,
    key: &SessionKey,
    after: u64,
    limit: usize,
) -> Result<(Vec<SessionEvent>, bool), Fault> {
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
        let Some(Reverse((place, seq, index))) = ahead.pop() else { return Ok((events, false)) };
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
    Ok((events, true))
}

/// Runs of a session that may have events after a place.
fn journals(db: &Connection, key: &SessionKey, after: i64) -> Result<Vec<Journal>, Fault> {
    let [tenant, id, owner, app] = columns(key);
    let mut journals = Vec::new();
    // No run is found by both.
    for by in [KeyKind::Session, KeyKind::Root] {
        let (word, hash, index) = by.names();
        let mut sql = db.prepare_cached(&format!(
            "SELECT no, id, head FROM runs INDEXED BY {index}
             WHERE status = ?1 AND {hash} = ?2 AND tenant = ?3 AND {word} = ?4
               AND (last_pos > ?5 OR last_pos = 0)
               AND (?6 = '' OR owner = ?6) AND (?7 = '' OR app = ?7)"
        ))?;
        for status in STATUSES {
            let key = by.key(tenant, id);
            let rows = sql
                .query_map(params![status, key, tenant, id, after, owner, app], |row| {
                    Ok(Journal { no: row.get(0)?, id: row.get(1)?, head: row.get(2)? })
                })?;
            journals.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
        }
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

#[cfg(test)]
mod tests {
    use super::super::definition::{opcodes, tables_in_memory};
    use super::*;

    #[test]
    fn the_records_of_a_session_are_found_without_tables_of_sqlite_s_own() {
        let found = opcodes(&tables_in_memory(), RECORDS_OF_A_SESSION);
        assert_eq!(found.iter().filter(|code| *code == "SeekGE").count(), 4, "{found:?}");
        assert!(!found.iter().any(|code| code == "OpenEphemeral"), "{found:?}");
    }
}
