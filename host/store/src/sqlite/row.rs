//! Between rows and records.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params, params_from_iter};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::{HostId, RunId, Seq};
use taskrun_journal::list::{Head, Origin, Scope};
use taskrun_journal::run::{Run, RunState};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::PAGE_BYTES_MAX;
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::schema::{bits, int, status_code, time, unbits};

/// Most events that one statement writes: there is a statement for each number of them, and each is
/// kept compiled. An end is four events.
const EVENTS_AT_ONCE_MAX: usize = 8;

/// An event as it is written.
pub(crate) struct EventRow {
    pub(crate) seq: i64,
    pub(crate) id: i64,
    at: i64,
    pub(crate) sum: i64,
    body: Arc<str>,
}

impl EventRow {
    pub(crate) fn new(run: &RunId, recorded: &EventRecord) -> Self {
        Self::of_json(run, recorded, json(&recorded.event).into())
    }

    /// The row of an event whose JSON is made already.
    pub(crate) fn of_json(run: &RunId, recorded: &EventRecord, body: Arc<str>) -> Self {
        let (seq, id, at) = (int(recorded.seq), bits(recorded.id), bits(recorded.at.0));
        Self { seq, id, at, sum: event_sum(run.as_str(), [seq, id, at], &body), body }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Its columns in a row of a run.
    fn values<'a>(&'a self, run: &'a i64) -> [&'a dyn ToSql; 6] {
        [run, &self.seq, &self.id, &self.at, &self.sum, &self.body]
    }
}

/// Writes events of a run; returns the place of the last one among all events, `None` if there are
/// no events.
pub(crate) fn insert_events(
    db: &Connection,
    run: i64,
    events: &[EventRow],
) -> Result<Option<i64>, Fault> {
    let mut last_pos = None;
    for some in events.chunks(EVENTS_AT_ONCE_MAX) {
        let rows = vec!["(?, ?, ?, ?, ?, ?)"; some.len()].join(", ");
        // Without `OR FAIL` SQLite would copy each page before it changes, to undo this statement
        // alone; the transaction is undone as a whole.
        let sql = format!("INSERT OR FAIL INTO events (run, seq, id, at, sum, body) VALUES {rows}");
        let values = some.iter().flat_map(|event| event.values(&run));
        db.prepare_cached(&sql)?.execute(params_from_iter(values))?;
        last_pos = Some(db.last_insert_rowid());
    }
    Ok(last_pos)
}

/// Checksum of an event: SQLite has none of its own, and a flipped bit in a text is still JSON
/// more often than not. It covers the run, so that a damaged index cannot pass an event of one
/// run for that of another.
pub(crate) fn event_sum(run: &str, [seq, id, at]: [i64; 3], body: &str) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for number in [seq, id, at] {
        hasher.update(&number.to_le_bytes());
    }
    sum(hasher, run, body)
}

/// Checksum of a record. Of the columns beside the text each one is also in the text or in the
/// first event, and compared with that.
pub(crate) fn record_sum(run: &str, state: &str) -> i64 {
    sum(blake3::Hasher::new(), run, state)
}

/// Checksum of a fact: its place, key, text and labels, and its time.
pub(crate) fn fact_sum(parts: [&str; 6], at: i64) -> i64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&at.to_le_bytes());
    for part in &parts[..5] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    sum(hasher, "fact", parts[5])
}

/// Checksum of a policy: its path, digest and text, its number and its time.
pub(crate) fn policy_sum(parts: [&str; 3], numbers: [i64; 2]) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for number in numbers {
        hasher.update(&number.to_le_bytes());
    }
    let [path, digest, text] = parts;
    hasher.update(&(digest.len() as u64).to_le_bytes());
    hasher.update(digest.as_bytes());
    sum(hasher, path, text)
}

/// Checksum of a consent: all its texts and numbers.
pub(crate) fn consent_sum(texts: [&str; 10], numbers: [i64; 5]) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for number in numbers {
        hasher.update(&number.to_le_bytes());
    }
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    sum(hasher, "consent", "")
}

fn sum(mut hasher: blake3::Hasher, run: &str, text: &str) -> i64 {
    hasher.update(&(run.len() as u64).to_le_bytes());
    hasher.update(run.as_bytes());
    hasher.update(text.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    i64::from_le_bytes(first)
}

const SUM_DIFFERS: &str = "the checksum does not fit";

/// The text that is kept of a value.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("records have text keys and no failing serialisers")
}

pub(crate) fn parse<T: DeserializeOwned>(
    text: &str,
    of: impl FnOnce() -> String,
) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::Damaged(format!("{}: {error}", of())))
}

/// The part of a journal's first event that is needed.
#[derive(Deserialize)]
struct FirstEvent {
    spec: RunSpec,
}

/// The columns from which [`run_of`] makes a record.
const RUN_FROM: &str = "SELECT r.id, r.status, r.updated_at, r.holder, r.epoch, r.head, r.sum,
    r.state, e.id, e.at, e.sum, e.body
    FROM runs r LEFT JOIN events e ON e.run = r.no AND e.seq = 1";

/// The run of a row of [`RUN_FROM`], whose texts are read where SQLite has them.
fn run_of(row: &Row<'_>) -> Result<Run, Fault> {
    let text = |column| text(row, column);
    let number = |column| row.get::<_, i64>(column);
    let id = text(0)?.unwrap_or_default();
    let damaged = |part: &str, detail: &str| Fault::Damaged(format!("run {id}, {part}: {detail}"));
    let first = text(11)?.ok_or_else(|| damaged("position 1", "the event is missing"))?;
    if event_sum(id, [1, number(8)?, number(9)?], first) != number(10)? {
        return Err(damaged("position 1", SUM_DIFFERS));
    }
    let FirstEvent { spec } = parse(first, || format!("run {id}, position 1"))?;
    let record = text(7)?.unwrap_or_default();
    if record_sum(id, record) != number(6)? {
        return Err(damaged("record", SUM_DIFFERS));
    }
    let state: RunState = parse(record, || format!("run {id}, record"))?;
    let fits = spec.id.as_str() == id
        && status_code(state.lifecycle.status()) == number(1)?
        && time(state.updated_at) == number(2)?
        && state.hold.host().map(HostId::as_str) == text(3)?
        && (int(state.epoch), int(state.head)) == (number(4)?, number(5)?);
    if !fits {
        return Err(damaged("record", "its columns say something else"));
    }
    Ok(Run { spec: Arc::new(spec), state })
}

/// The text of a column where SQLite has it; `None` if the column has nothing.
pub(super) fn text<'r>(row: &'r Row<'_>, column: usize) -> rusqlite::Result<Option<&'r str>> {
    let value = row.get_ref(column)?;
    value.as_str_or_null().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, value.data_type(), Box::new(error))
    })
}

/// A run by its number.
///
/// # Errors
/// [`Fault::Damaged`] if it is damaged, also where SQLite finds that, so that those who read many go
/// on with the others; [`Fault::Sqlite`] if it could not be read.
pub(crate) fn run_by_number(db: &Connection, no: i64) -> Result<Run, Fault> {
    let sql = format!("{RUN_FROM} WHERE r.no = ?1");
    let read = db.prepare_cached(&sql)?.query_row([no], |row| Ok(run_of(row)));
    match read.map_err(Fault::from).flatten() {
        Err(Fault::Sqlite(error)) => Err(Fault::of_one(error, &format!("number {no}"))),
        read @ (Ok(_) | Err(Fault::Damaged(_))) => read,
    }
}

/// A run by its id.
pub(crate) fn run_by_id(db: &Connection, id: &RunId) -> Result<Option<Run>, Fault> {
    let sql = format!("{RUN_FROM} WHERE r.id = ?1");
    let run = db.prepare_cached(&sql)?.query_row([id.as_str()], |row| Ok(run_of(row)));
    run.optional()?.transpose()
}

/// The hold of a run, as its record says.
pub(crate) fn hold(db: &Connection, no: i64) -> Result<Hold, Fault> {
    Ok(run_by_number(db, no)?.state.hold)
}

/// Where a journal ends; 0 if there is none.
pub(crate) fn head(db: &Connection, id: &RunId) -> Result<Seq, Fault> {
    let mut sql = db.prepare_cached("SELECT head FROM runs WHERE id = ?1")?;
    let head: Option<i64> = sql.query_row([id.as_str()], |row| row.get(0)).optional()?;
    Ok(head.map_or(0, unbits))
}

/// The same for those who follow it; `Some(None)` if the scope does not admit the run, `None` if
/// there is none.
pub(crate) fn head_within(
    db: &Connection,
    scope: &Scope,
    id: &RunId,
) -> Result<Option<Option<Head>>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT tenant, owner, session, root_session, app, head, status >= 5
         FROM runs WHERE id = ?1",
    )?;
    let head = sql.query_row([id.as_str()], |row| {
        let text = |column| text(row, column);
        let needed = |column| text(column).map(Option::unwrap_or_default);
        let is_admitted = scope.admits_origin(&Origin {
            tenant: needed(0)?,
            owner_user_id: needed(1)?,
            parent_session_id: needed(2)?,
            root_session_id: text(3)?,
            parent_app_name: text(4)?,
        });
        let head = Head { seq: unbits(row.get(5)?), has_ended: row.get(6)? };
        Ok(is_admitted.then_some(head))
    });
    Ok(head.optional()?)
}

/// A part of a journal; `None` if there is no such run.
pub(crate) fn events(
    db: &Connection,
    id: &RunId,
    after: Seq,
    limit: usize,
) -> Result<Option<Vec<EventRecord>>, Fault> {
    let mut run = db.prepare_cached("SELECT no, head FROM runs WHERE id = ?1")?;
    let run = run.query_row([id.as_str()], |row| Ok((row.get(0)?, unbits(row.get(1)?))));
    let Some((no, head)): Option<(i64, u64)> = run.optional()? else { return Ok(None) };
    let mut sql = db.prepare_cached(
        "SELECT seq, id, at, sum, body FROM events WHERE run = ?1 AND seq > ?2
         ORDER BY seq LIMIT ?3",
    )?;
    let mut rows = sql.query(params![no, int(after), int(limit as u64)])?;
    let mut events: Vec<EventRecord> = Vec::new();
    let missing = |seq| Fault::Damaged(format!("run {id}, position {seq}: the event is missing"));
    let mut page = PageBytes::default();
    while let Some(row) = rows.next()? {
        if !page.takes(row)? {
            return Ok(Some(events));
        }
        let recorded = recorded(id.as_str(), row)?;
        let expected = events.last().map_or(after, |last| last.seq) + 1;
        if recorded.seq != expected {
            return Err(missing(expected));
        }
        events.push(recorded);
    }
    let last = events.last().map_or(after, |last| last.seq);
    if events.len() < limit && last < head {
        return Err(missing(last + 1));
    }
    Ok(Some(events))
}

/// The bytes of a page of events, which is full when it has [`PAGE_BYTES_MAX`] of them.
#[derive(Default)]
pub(crate) struct PageBytes(usize);

impl PageBytes {
    /// True if the page takes one more event, from `seq, id, at, sum, body`. It takes a first one.
    pub(crate) fn takes(&mut self, row: &Row<'_>) -> Result<bool, Fault> {
        let bytes = row.get_ref(4)?.as_str().map_err(rusqlite::Error::from)?.len();
        let is_first = self.0 == 0;
        self.0 = self.0.saturating_add(bytes);
        Ok(is_first || self.0 <= PAGE_BYTES_MAX)
    }
}

/// An event of a run from `seq, id, at, sum, body`.
pub(crate) fn recorded(run: &str, row: &Row<'_>) -> Result<EventRecord, Fault> {
    let numbers: [i64; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
    let [seq, id, at] = numbers;
    let body = row.get_ref(4)?.as_str().map_err(rusqlite::Error::from)?;
    if event_sum(run, numbers, body) != row.get::<_, i64>(3)? {
        return Err(Fault::Damaged(format!("run {run}, position {seq}: {SUM_DIFFERS}")));
    }
    let event: Event = parse(body, || format!("run {run}, position {seq}"))?;
    Ok(EventRecord { seq: unbits(seq), id: unbits(id), at: Timestamp(unbits(at)), event })
}
