//! From the tables of older versions to those of this one, in one transaction.
//!
//! From version 1: the journal is the truth, and each record is folded anew from its events, whose
//! texts are kept as they are, after a look at everything on a connection that cannot write; a file
//! that does not tell whole journals is refused and stays what it was.
//!
//! From version 2: columns, indexes and tables are added. No run of that version has anything in them.

use rusqlite::{Connection, params};
use taskrun::event::{Event, Recorded};
use taskrun::ids::HostId;
use taskrun::machine;
use taskrun::ports::store::{Admission, NewRun};
use taskrun::run::Run;
use taskrun::time::Timestamp;

use super::artifacts::ARTIFACTS;
use super::create::NewRow;
use super::facts::FACTS;
use super::fault::Fault;
use super::locks::Locks;
use super::queue::Queue;
use super::row::{event_sum, parse};
use super::schema::{NAMES, SCHEMA_VERSION, TABLES, bits, int, status_code, unbits};

/// A version that is read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Older {
    One,
    Two,
}

impl Older {
    /// The version of this number.
    pub(crate) fn of(number: i64) -> Option<Self> {
        match number {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }
}

/// What the tables of version 1 are called when those of this version are there.
const ASIDE: &str = "
ALTER TABLE runs RENAME TO runs_1;
ALTER TABLE events RENAME TO events_1;
ALTER TABLE labels RENAME TO labels_1;
ALTER TABLE idempotency RENAME TO idempotency_1;
ALTER TABLE hosts RENAME TO hosts_1;
DROP INDEX runs_by_tenant;
DROP INDEX runs_by_owner;
DROP INDEX runs_by_session;
DROP INDEX runs_by_app;
DROP INDEX runs_by_agent;
DROP INDEX runs_by_parent;
DROP INDEX runs_by_created;
DROP INDEX runs_queued;
DROP INDEX runs_held;
";
const GONE: &str = "
INSERT INTO idempotency SELECT tenant, key, fingerprint, run FROM idempotency_1;
DROP TABLE labels_1;
DROP TABLE idempotency_1;
DROP TABLE hosts_1;
DROP TABLE events_1;
DROP TABLE runs_1;
";

/// An event with its place and its text.
type Kept = (i64, Recorded, String);

/// Whether everything that is to be rewritten can be taken over; changes nothing. Rows that stay as
/// they are have checksums, and are looked at when they are used.
pub(crate) fn check(db: &Connection, version: Older) -> Result<(), Fault> {
    let (number, later) = match version {
        Older::One => (1, "trees"),
        Older::Two => (2, "blobs"),
    };
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = ?1";
    if db.query_row(sql, [later], |row| row.get::<_, i64>(0))? > 0 {
        // One flipped bit makes 3 of 2, and 1 of 3.
        return Err(Fault::Damaged(format!("version {number} with the table {later}")));
    }
    match version {
        Older::One => check_journals(db),
        Older::Two => Ok(()),
    }
}

fn check_journals(db: &Connection) -> Result<(), Fault> {
    let said: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if said != "ok" {
        return Err(Fault::Damaged(said));
    }
    for no in numbers(db, "runs")? {
        read(db, "", no)?;
    }
    Ok(())
}

/// A host of an older version that is still there; it would not understand what it reads.
pub(crate) fn host_that_lives(db: &Connection, locks: &Locks) -> Result<Option<HostId>, Fault> {
    let mut sql = db.prepare("SELECT id FROM hosts")?;
    let hosts = sql.query_map([], |row| row.get::<_, String>(0))?;
    let hosts = hosts.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(hosts.iter().map(|id| HostId::new(id)).find(|host| locks.is_held(host)))
}

pub(crate) fn migrate(db: &Connection, version: Older) -> Result<(), Fault> {
    db.execute_batch(
        "PRAGMA foreign_keys = OFF; PRAGMA legacy_alter_table = ON; PRAGMA synchronous = FULL;
         BEGIN EXCLUSIVE",
    )?;
    let moved = match version {
        Older::One => move_all(db),
        Older::Two => add(db),
    };
    let version = format!("PRAGMA user_version = {SCHEMA_VERSION}");
    let moved = moved.and_then(|()| Ok(db.execute_batch(&version)?));
    let ended = db.execute_batch(if moved.is_ok() { "COMMIT" } else { "ROLLBACK" });
    moved?;
    ended?;
    db.execute_batch("PRAGMA legacy_alter_table = OFF")?;
    Ok(())
}

/// From version 2.
fn add(db: &Connection) -> Result<(), Fault> {
    db.execute_batch(NAMES)?;
    db.execute_batch(ARTIFACTS)?;
    db.execute_batch(FACTS)?;
    Ok(())
}

/// From version 1.
fn move_all(db: &Connection) -> Result<(), Fault> {
    db.execute_batch(ASIDE)?;
    db.execute_batch(TABLES)?;
    db.execute_batch(NAMES)?;
    db.execute_batch(ARTIFACTS)?;
    db.execute_batch(FACTS)?;
    let queue = Queue::new(db);
    for no in numbers(db, "runs_1")? {
        let (run, events) = read(db, "_1", no)?;
        let mut insert = db.prepare_cached(
            "INSERT INTO events (pos, run, seq, id, at, sum, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        for (pos, recorded, body) in &events {
            let numbers = [int(recorded.seq), bits(recorded.id), bits(recorded.at.0)];
            let sum = event_sum(run.id().as_str(), numbers, body);
            let [seq, id, at] = numbers;
            insert.execute(params![pos, no, seq, id, at, sum, body])?;
        }
        let last_pos = events.last().map_or(0, |(pos, ..)| *pos);
        let admission = Admission::UNBOUNDED;
        let new = NewRun { run, events: Vec::new(), idempotency: None, admission };
        NewRow::new(new).restore(&queue, no, last_pos)?;
    }
    db.execute_batch(GONE)?;
    Ok(())
}

fn numbers(db: &Connection, table: &str) -> Result<Vec<i64>, Fault> {
    let mut sql = db.prepare(&format!("SELECT no FROM {table} ORDER BY no"))?;
    let numbers = sql.query_map([], |row| row.get(0))?;
    Ok(numbers.collect::<rusqlite::Result<_>>()?)
}

/// A run and its journal from the tables of version 1.
fn read(db: &Connection, suffix: &str, no: i64) -> Result<(Run, Vec<Kept>), Fault> {
    let run = format!("SELECT id, status, head FROM runs{suffix} WHERE no = ?1");
    let (id, status, head): (String, i64, i64) = db
        .prepare_cached(&run)?
        .query_row([no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let sql =
        format!("SELECT pos, seq, id, at, body FROM events{suffix} WHERE run = ?1 ORDER BY seq");
    let mut sql = db.prepare_cached(&sql)?;
    let mut rows = sql.query([no])?;
    let mut events: Vec<Kept> = Vec::new();
    while let Some(row) = rows.next()? {
        let (seq, event_id, at) =
            (unbits(row.get(1)?), unbits(row.get(2)?), Timestamp(unbits(row.get(3)?)));
        let body: String = row.get(4)?;
        let event: Event = parse(&body, || format!("run {id}, position {seq}"))?;
        events.push((row.get(0)?, Recorded { seq, id: event_id, at, event }, body));
    }
    let damaged = |detail: &str| Fault::Damaged(format!("run {id}, journal: {detail}"));
    let folded = machine::fold(events.iter().map(|(_, recorded, _)| recorded));
    let run = folded.map_err(|detail| damaged(&detail))?;
    let fits = run.id().as_str() == id
        && int(run.state.head) == head
        && status_code(run.status()) == status;
    if !fits {
        return Err(damaged("it tells another record"));
    }
    Ok((run, events))
}
