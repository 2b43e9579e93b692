//! The rows that no journal tells of, copied as far as they can be read.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};
use taskrun_journal::artifact::digest;
use taskrun_journal::fact::{FactNamespace, OwnerSession};
use taskrun_journal::memory::FactChange;

use super::source::Source;
use crate::sqlite::consents::{self, COLUMNS};
use crate::sqlite::facts::{self, ChangeRow};
use crate::sqlite::fault::Fault;
use crate::sqlite::schema::unbits;

/// Tables whose rows are copied as they are, with numbers where they have some: the table, the column
/// with the run without which a row is left out, and the name of the rows for people.
const PLAIN: [(&str, Option<usize>, &str); 8] = [
    ("idempotency", Some(3), "keys of repeated requests"),
    ("sessions", None, "sessions"),
    ("hosts", None, "hosts"),
    ("policies", None, "policies"),
    ("outbox", Some(0), "reports of runs"),
    ("dispatches", Some(1), "dispatches of runs"),
    ("artifacts", Some(0), "artifacts of runs"),
    ("fact_changes", Some(0), "changes of facts"),
];

/// The first version with the table of consents: one before that has lost none.
const CONSENTS_SINCE: i64 = 14;

/// The columns of facts and of the bytes of artifacts, their numbers first.
const FACTS: &str = "no, tenant, owner, session, key, text, labels, at, sum";
const BLOBS: &str = "no, tenant, hash, size, bytes";

/// Copies all of it; returns what a part of could not be read.
pub(super) fn copy(source: &Source, db: &Connection) -> Result<Vec<String>, Fault> {
    let mut lost = Vec::new();
    for (table, run, name) in PLAIN {
        // By their names: those of another version may stand in another order.
        let columns = columns_of(db, table)?;
        let read = |row: &Row<'_>| -> rusqlite::Result<Vec<Value>> {
            (0..columns.len()).map(|column| row.get(column)).collect()
        };
        let marks = vec!["?"; columns.len()].join(", ");
        let insert = format!("INSERT OR IGNORE INTO {table} VALUES ({marks})");
        let read_all =
            source.all(&format!("SELECT {} FROM {table}", columns.join(", ")), read, |row| {
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
    let has_none = source.other_version.is_some_and(|found| found < CONSENTS_SINCE)
        && !source.has("consents", "no");
    lost.extend(match source.has("consents", COLUMNS) {
        true => lines("lasting consents", consents_of(source, db)?),
        false if has_none => None,
        false => Some("no lasting consents can be read".to_owned()),
    });
    lost.extend(match source.has("facts", FACTS) {
        true => lines("facts", facts_of(source, db)?),
        false => Some("no facts can be read".to_owned()),
    });
    lost.extend(match source.has("blobs", BLOBS) {
        true => lines("artifacts", blobs(source, db)?),
        false => {
            db.execute_batch("DELETE FROM artifacts")?;
            Some("no artifacts can be read".to_owned())
        }
    });
    if source.other_version.is_some() {
        let line = |table: String| format!("{table} of another version is not taken over");
        lost.extend(source.further_tables(db)?.into_iter().map(line));
    }
    Ok(lost)
}

/// The columns of a table of the new store, in their order. In brackets a name is never taken for a
/// text where there is no such column.
fn columns_of(db: &Connection, table: &str) -> Result<Vec<String>, Fault> {
    let sql = db.prepare(&format!("SELECT * FROM {table}"))?;
    Ok(sql.column_names().map(|name| format!("[{name}]")).collect())
}

fn lines(name: &str, unreadable: u64) -> Option<String> {
    (unreadable > 0).then(|| format!("{unreadable} {name} cannot be read"))
}

/// Consents, under their numbers.
fn consents_of(source: &Source, db: &Connection) -> Result<u64, Fault> {
    let mut damaged = 0;
    let kept = ("consents", "no", COLUMNS);
    let unreadable = source.rows(kept, consents::stored, |(record, sum)| {
        match consents::checked(record, sum) {
            Ok(record) => {
                consents::insert(db, &record, Some(record.number))?;
            }
            // It would have let begin what nobody consented to.
            Err(_) => damaged += 1,
        }
        Ok(())
    })?;
    Ok(unreadable + damaged)
}

/// Facts, with the index of their words made again.
fn facts_of(source: &Source, db: &Connection) -> Result<u64, Fault> {
    let mut damaged = 0;
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
    let unreadable = source.rows(("facts", "no", FACTS), read, |(place, texts, at, sum)| {
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
    let unreadable = source.rows(("blobs", "no", BLOBS), read, |blob| {
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
