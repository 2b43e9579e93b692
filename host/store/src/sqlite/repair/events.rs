//! Events, copied past the checksums of their pages.
//!
//! They are found in the tree of their table, and where a page of it is damaged also on the leaves,
//! to which an inner page no longer leads.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params};
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::machine;
use taskrun_journal::time::Timestamp;

use super::leaves::LeafRow;
use super::pages::TablePages;
use super::source::Source;
use crate::sqlite::fault::Fault;
use crate::sqlite::row::event_sum;
use crate::sqlite::schema::{int, unbits};

/// The events of the new store.
pub(super) struct CopiedEvents {
    /// Those that are not among them: they cannot be read, or their checksums do not fit.
    pub(super) unreadable: u64,
    /// False if there may be more of these.
    pub(super) is_counted: bool,
    /// The largest number of a consent in those that are.
    pub(super) consent: i64,
}

/// An event as it stands in the store.
pub(super) struct StoredEvent {
    pos: i64,
    run: i64,
    /// Position, id and time.
    numbers: [i64; 3],
    sum: i64,
    body: String,
}

/// The place where an event was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Tree,
    /// A leaf that is in use.
    UsedLeaf,
    /// A leaf that may be free: the event may be one of a run that was removed.
    UnmappedLeaf,
}

impl StoredEvent {
    pub(super) const COLUMNS: &str = "pos, run, seq, id, at, sum, body";
    const COLUMN_COUNT: usize = 7;

    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let numbers = [row.get(2)?, row.get(3)?, row.get(4)?];
        Ok(Self {
            pos: row.get(0)?,
            run: row.get(1)?,
            numbers,
            sum: row.get(5)?,
            body: row.get(6)?,
        })
    }

    /// The event that a row of a leaf may be. Its position is the number of the row, and nothing
    /// stands in its column.
    fn of_leaf(row: LeafRow) -> Option<Self> {
        let values: [Value; Self::COLUMN_COUNT] = row.values.try_into().ok()?;
        match values {
            [
                Value::Null,
                Value::Integer(run),
                Value::Integer(seq),
                Value::Integer(id),
                Value::Integer(at),
                Value::Integer(sum),
                Value::Text(body),
            ] => Some(Self { pos: row.number, run, numbers: [seq, id, at], sum, body }),
            _ => None,
        }
    }

    /// True if it is what was written of the run with this id.
    pub(super) fn is_of(&self, run: &str) -> bool {
        event_sum(run, self.numbers, &self.body) == self.sum
    }

    /// The id of the run that this event begins, if it is one that begins a run.
    fn begins(&self) -> Option<String> {
        let [seq, id, at] = self.numbers;
        if seq != 1 {
            return None;
        }
        let event = serde_json::from_str(&self.body).ok()?;
        let first =
            EventRecord { seq: unbits(seq), id: unbits(id), at: Timestamp(unbits(at)), event };
        let run = machine::begin(&first).ok()?;
        let id = run.id().as_str();
        self.is_of(id).then(|| id.to_owned())
    }

    /// The number of the lasting consent by which this event let a tool call begin.
    fn consent(&self) -> Option<i64> {
        if !self.body.contains("\"consent\":") {
            return None;
        }
        let event = serde_json::from_str(&self.body).ok()?;
        if let Event::ToolAuthorization { consent, .. } = event { consent.map(int) } else { None }
    }

    /// Copies it; false if it is there already.
    fn keep(&self, db: &Connection) -> Result<bool, Fault> {
        let [seq, id, at] = self.numbers;
        let kept = db
            .prepare_cached("INSERT OR IGNORE INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
            .execute(params![self.pos, self.run, seq, id, at, self.sum, self.body])?;
        Ok(kept > 0)
    }
}

/// Copies all events that are what was written, and lists the runs that they begin in the table
/// `temp.begun`: `is_known` is false of those that may have been removed.
pub(super) fn copy(source: &Source, db: &Connection) -> Result<CopiedEvents, Fault> {
    db.execute_batch(
        "CREATE TEMP TABLE begun
             (no INTEGER PRIMARY KEY, id TEXT NOT NULL, is_known INTEGER NOT NULL)",
    )?;
    let columns: Vec<String> = StoredEvent::COLUMNS.split(", ").map(str::to_owned).collect();
    let pages = source.summed.table(("events", columns.as_slice(), 1))?;
    let is_whole = matches!(pages, TablePages::Whole);
    each(source, is_whole, |event, origin| {
        let Some(id) = event.begins() else { return Ok(()) };
        db.prepare_cached(
            "INSERT INTO temp.begun VALUES (?1, ?2, ?3) ON CONFLICT (no) DO UPDATE
             SET is_known = max(is_known, excluded.is_known) WHERE id = excluded.id",
        )?
        .execute(params![event.run, id, origin != Origin::UnmappedLeaf])?;
        Ok(())
    })?;
    let (mut differs, mut found, mut consent) = (0, 0, 0);
    let unreadable = each(source, is_whole, |event, origin| {
        let mut sql = db.prepare_cached("SELECT id, is_known FROM temp.begun WHERE no = ?1")?;
        let begun: Option<(String, bool)> =
            sql.query_row([event.run], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        if let Some((_, is_known)) = begun.filter(|(id, _)| event.is_of(id)) {
            // Its first event alone may stand where nothing tells if it was removed.
            if !is_known && origin != Origin::UnmappedLeaf {
                db.prepare_cached("UPDATE temp.begun SET is_known = 1 WHERE no = ?1")?
                    .execute([event.run])?;
            }
            consent = event.consent().map_or(consent, |number| number.max(consent));
            found += u64::from(event.keep(db)? && origin != Origin::Tree);
        } else if origin == Origin::Tree {
            differs += 1;
        }
        Ok(())
    })?;
    if !is_damaged(is_whole, unreadable) {
        return Ok(CopiedEvents { unreadable: differs, is_counted: true, consent });
    }
    let missing = missing(source, db)?;
    let unreadable = missing.unwrap_or(unreadable.saturating_sub(found) + differs);
    Ok(CopiedEvents { unreadable, is_counted: missing.is_some(), consent })
}

fn is_damaged(is_whole: bool, unreadable: u64) -> bool {
    !is_whole || unreadable > 0
}

/// Gives each event that can be read to `keep`: those that are found in the tree of their table,
/// which has only pages that fit if it `is_whole`, and then, if it is damaged, those on leaves,
/// most of them once more. Returns how many cannot be read in the tree.
fn each(
    source: &Source,
    is_whole: bool,
    mut keep: impl FnMut(StoredEvent, Origin) -> Result<(), Fault>,
) -> Result<u64, Fault> {
    let table = ("events", "pos", StoredEvent::COLUMNS);
    let unreadable = source.rows(table, StoredEvent::read, |event| keep(event, Origin::Tree))?;
    if is_damaged(is_whole, unreadable) {
        source.leaf_rows(StoredEvent::COLUMN_COUNT, |row| {
            let origin = if row.is_in_use { Origin::UsedLeaf } else { Origin::UnmappedLeaf };
            StoredEvent::of_leaf(row).map_or(Ok(()), |event| keep(event, origin))
        })?;
    }
    Ok(unreadable)
}

/// The number of events that were not copied, by the index of their table; `None` if that is
/// damaged as well. The tree cannot tell it: a number that is not found there may be that of an
/// event that was removed.
fn missing(source: &Source, db: &Connection) -> Result<Option<u64>, Fault> {
    let mut missing = 0;
    let is_whole = source.summed.numbers("SELECT pos FROM events ORDER BY run, seq", |pos| {
        let is_there = db.prepare_cached("SELECT 1 FROM events WHERE pos = ?1")?.exists([pos])?;
        missing += u64::from(!is_there);
        Ok(())
    })?;
    Ok(is_whole.then_some(missing))
}
