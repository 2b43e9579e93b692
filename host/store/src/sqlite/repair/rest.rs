//! The rows that no journal tells of, copied as far as they can be read.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};
use taskrun_journal::artifact::digest;
use taskrun_journal::fact::{FactNamespace, OwnerSession};
use taskrun_journal::memory::FactChange;

use super::source::Source;
use crate::sqlite::facts::{self, ChangeRow};
use crate::sqlite::fault::Fault;
use crate::sqlite::schema::unbits;

/// Tables without numbers whose rows are copied as they are: the table, its columns, those among
/// them without which a row is left out as its run was, and the name of the rows for people.
const PLAIN: [(&str, usize, Option<usize>, &str); 7] = [
    ("idempotency", 4, Some(3), "keys of repeated requests"),
    ("sessions", 6, None, "sessions"),
    ("hosts", 10, None, "hosts"),
    ("outbox", 14, Some(0), "reports of runs"),
    ("dispatches", 9, Some(1), "dispatches of runs"),
    ("artifacts", 2, Some(0), "artifacts of runs"),
    ("fact_changes", 2, Some(0), "changes of facts"),
];

/// Copies all of it; returns what a part of could not be read.
pub(super) fn copy(source: &Source, db: &Connection) -> Result<Vec<String>, Fault> {
    let mut lost = Vec::new();
    for (table, columns, run, name) in PLAIN {
        let read = |row: &Row<'_>| -> rusqlite::Result<Vec<Value>> {
            (0..columns).map(|column| row.get(column)).collect()
        };
        let marks = vec!["?"; columns].join(", ");
        let insert = format!("INSERT OR IGNORE INTO {table} VALUES ({marks})");
        let read_all = source.all(&format!("SELECT * FROM {table}"), read, |row| {
            if let Some(Value::Integer(no)) = run.map(|run| &row[run])
                && !db.prepare_cached("SELECT 1 FROM runs WHERE no = ?1")?.exists([no])?
            {
                return Ok(());
            }
            db.prepare_cached(&insert)?.execute(params_from_iter(row))?;
            Ok(())
        })?;
        if !read_all {
            lost.push(format!("some {name} cannot be read"));
        }
    }
    // A run that was left out tells nobody any more, and nothing comes of a wait for it.
    db.execute_batch(
        "UPDATE outbox SET state = 0, taken_by = NULL
         WHERE state = 1 AND taken_by NOT IN (SELECT no FROM runs WHERE status < 5);
         UPDATE outbox SET waits_for = NULL
         WHERE waits_for NOT IN (SELECT no FROM runs WHERE status < 5)",
    )?;
    lost.extend(lines("facts", facts_of(source, db)?));
    lost.extend(lines("artifacts", blobs(source, db)?));
    Ok(lost)
}

fn lines(name: &str, unreadable: u64) -> Option<String> {
    (unreadable > 0).then(|| format!("{unreadable} {name} cannot be read"))
}

/// Facts, with the index of their words made again.
fn facts_of(source: &Source, db: &Connection) -> Result<u64, Fault> {
    let mut damaged = 0;
    let columns = "no, tenant, owner, session, key, text, labels, at, sum";
    let read = |row: &Row<'_>| {
        let text = |column| row.get::<_, String>(column);
        let place = match text(3)? {
            session if session.is_empty() => None,
            session => Some(OwnerSession { owner_user_id: text(2)?, id: session }),
        };
        let place = FactNamespace { tenant: text(1)?, session: place };
        let texts = [text(4)?, text(5)?, text(6)?];
        Ok((place, texts, row.get(7)?, row.get(8)?))
    };
    let unreadable = source.rows(("facts", "no", columns), read, |(place, texts, at, sum)| {
        match facts::checked(&place, texts, at, sum) {
            Ok(fact) => {
                ChangeRow::new(&place, FactChange::Put(fact), None).change(db)?;
            }
            Err(_) => damaged += 1,
        }
        Ok(())
    })?;
    Ok(unreadable + damaged)
}

/// Bytes of artifacts, under their numbers; then what refers to bytes that are gone goes too.
fn blobs(source: &Source, db: &Connection) -> Result<u64, Fault> {
    let mut damaged = 0;
    let read = |row: &Row<'_>| {
        let (no, tenant, hash): (i64, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((no, tenant, hash, row.get::<_, i64>(3)?, row.get::<_, Vec<u8>>(4)?))
    };
    let columns = "no, tenant, hash, size, bytes";
    let unreadable = source.rows(("blobs", "no", columns), read, |blob| {
        let (no, tenant, hash, size, bytes) = blob;
        if digest(&bytes) != hash || unbits(size) != bytes.len() as u64 {
            damaged += 1;
            return Ok(());
        }
        db.prepare_cached("INSERT OR IGNORE INTO blobs VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![no, tenant, hash, size, bytes])?;
        Ok(())
    })?;
    db.execute_batch(
        "DELETE FROM artifacts WHERE blob NOT IN (SELECT no FROM blobs);
         DELETE FROM blobs WHERE no NOT IN (SELECT blob FROM artifacts)",
    )?;
    Ok(unreadable + damaged)
}
