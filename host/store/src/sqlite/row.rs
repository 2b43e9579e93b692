//! Between rows and records.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use taskrun::event::{Event, Recorded, Seq};
use taskrun::ids::RunId;
use taskrun::run::{Run, RunSpec, RunState};
use taskrun::time::Timestamp;

use super::fault::Fault;
use super::schema::{bits, int, unbits};

/// An event as it is written.
pub(crate) struct EventRow {
    pub(crate) seq: i64,
    pub(crate) id: i64,
    at: i64,
    body: String,
}

impl EventRow {
    pub(crate) fn new(recorded: &Recorded) -> Self {
        Self {
            seq: int(recorded.seq),
            id: bits(recorded.id),
            at: bits(recorded.at.0),
            body: json(&recorded.event),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.body.len()
    }

    pub(crate) fn insert(&self, db: &Connection, run: i64) -> Result<(), Fault> {
        db.prepare_cached(
            "INSERT INTO events (run, seq, id, at, body) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![run, self.seq, self.id, self.at, self.body])?;
        Ok(())
    }
}

/// What is kept of a value.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("records have text keys and no failing serialisers")
}

fn parse<T: DeserializeOwned>(text: &str, of: impl FnOnce() -> String) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::Damaged(format!("{}: {error}", of())))
}

/// What is needed of a journal's first event.
#[derive(Deserialize)]
struct First {
    spec: RunSpec,
}

/// Columns for [`run_of`].
const RUN_COLUMNS: &str =
    "r.id, r.state, (SELECT e.body FROM events e WHERE e.run = r.no AND e.seq = 1)";

/// What [`run_of`] makes a record of, as it is stored.
type RunTexts = (String, String, Option<String>);

fn run_texts(row: &Row<'_>) -> rusqlite::Result<RunTexts> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

fn run_of((id, state, first): RunTexts) -> Result<Run, Fault> {
    let first = first
        .ok_or_else(|| Fault::Damaged(format!("run {id}, position 1: the event is missing")))?;
    let First { spec } = parse(&first, || format!("run {id}, position 1"))?;
    let state: RunState = parse(&state, || format!("run {id}, record"))?;
    Ok(Run { spec: Arc::new(spec), state })
}

/// A run by its number.
pub(crate) fn run_by_number(db: &Connection, no: i64) -> Result<Run, Fault> {
    let sql = format!("SELECT {RUN_COLUMNS} FROM runs r WHERE r.no = ?1");
    run_of(db.prepare_cached(&sql)?.query_row([no], run_texts)?)
}

/// A run by its id.
pub(crate) fn run_by_id(db: &Connection, id: &RunId) -> Result<Option<Run>, Fault> {
    let sql = format!("SELECT {RUN_COLUMNS} FROM runs r WHERE r.id = ?1");
    let texts = db.prepare_cached(&sql)?.query_row([id.as_str()], run_texts).optional()?;
    texts.map(run_of).transpose()
}

/// Where a journal ends; 0 if there is none.
pub(crate) fn head(db: &Connection, id: &RunId) -> Result<Seq, Fault> {
    let mut sql = db.prepare_cached("SELECT head FROM runs WHERE id = ?1")?;
    let head: Option<i64> = sql.query_row([id.as_str()], |row| row.get(0)).optional()?;
    Ok(head.map_or(0, unbits))
}

/// A part of a journal.
pub(crate) fn events(
    db: &Connection,
    id: &RunId,
    after: Seq,
    limit: usize,
) -> Result<Vec<Recorded>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT e.seq, e.id, e.at, e.body FROM events e
         WHERE e.run = (SELECT no FROM runs WHERE id = ?1) AND e.seq > ?2
         ORDER BY e.seq LIMIT ?3",
    )?;
    let mut rows = sql.query(params![id.as_str(), int(after), int(limit as u64)])?;
    let mut events: Vec<Recorded> = Vec::new();
    while let Some(row) = rows.next()? {
        let seq = unbits(row.get(0)?);
        let expected = events.last().map_or(after, |last| last.seq) + 1;
        if seq != expected {
            let gap = format!("run {id}, position {expected}: the event is missing");
            return Err(Fault::Damaged(gap));
        }
        let body = row.get_ref(3)?.as_str().map_err(rusqlite::Error::from)?;
        let event: Event = parse(body, || format!("run {id}, position {seq}"))?;
        let (id, at) = (unbits(row.get(1)?), Timestamp(unbits(row.get(2)?)));
        events.push(Recorded { seq, id, at, event });
    }
    Ok(events)
}
