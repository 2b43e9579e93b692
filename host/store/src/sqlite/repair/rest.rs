//! The rows that no journal tells of, copied as far as they can be read.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};
use taskrun_journal::artifact::digest;
use taskrun_journal::fact::{FactNamespace, OwnerSession};
use taskrun_journal::memory::FactChange;

use super::pages::TablePages;
use super::source::Source;
use crate::sqlite::consents::{self, COLUMNS};
use crate::sqlite::facts::{self, ChangeRow};
use crate::sqlite::fault::Fault;
use crate::sqlite::policies;
use crate::sqlite::schema::unbits;

/// A table whose rows are copied as they are, and have no checksum but those of their pages.
struct PlainTable {
    name: &'static str,
    /// The columns of its key, which are its first ones.
    key: Key,
    /// The column with the run without which a row is left out.
    run: Option<usize>,
    /// The name of its rows for people.
    rows: &'static str,
    doubt: Doubt,
}

/// The key of a table.
#[derive(Clone, Copy)]
enum Key {
    /// A number.
    Number,
    /// So many columns.
    Columns(usize),
}

/// The fate of rows that stand on pages whose checksums do not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    Kept,
    /// A wrong one would answer a request with the run of another, or tell a subscriber what is for
    /// another.
    LeftOut,
}

const PLAIN: [PlainTable; 7] = [
    PlainTable {
        name: "idempotency",
        key: Key::Columns(2),
        run: Some(3),
        rows: "keys of repeated requests",
        doubt: Doubt::LeftOut,
    },
    PlainTable {
        name: "sessions",
        key: Key::Columns(4),
        run: None,
        rows: "sessions",
        doubt: Doubt::Kept,
    },
    PlainTable {
        name: "hosts",
        key: Key::Columns(1),
        run: None,
        rows: "hosts",
        doubt: Doubt::Kept,
    },
    PlainTable {
        name: "outbox",
        key: Key::Number,
        run: Some(0),
        rows: "reports of runs",
        doubt: Doubt::Kept,
    },
    PlainTable {
        name: "dispatches",
        key: Key::Number,
        run: Some(1),
        rows: "dispatches of runs",
        doubt: Doubt::LeftOut,
    },
    PlainTable {
        name: "artifacts",
        key: Key::Columns(2),
        run: Some(0),
        rows: "artifacts of runs",
        doubt: Doubt::Kept,
    },
    PlainTable {
        name: "fact_changes",
        key: Key::Columns(2),
        run: Some(0),
        rows: "changes of facts",
        doubt: Doubt::Kept,
    },
];

/// The first version with the table of consents: one before that has lost none.
const CONSENTS_SINCE: i64 = 14;

/// The columns of facts and of the bytes of artifacts, their numbers first.
const FACTS: &str = "no, tenant, owner, session, key, text, labels, at, sum";
const BLOBS: &str = "no, tenant, hash, size, bytes";

/// Copies all of it; returns what a part of could not be read.
pub(super) fn copy(source: &Source, db: &Connection) -> Result<Vec<String>, Fault> {
    let mut lost = Vec::new();
    for table in &PLAIN {
        lost.extend(plain(source, db, table)?);
    }
    lost.extend(policies_of(source, db)?);
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

/// Copies a table as it is; returns what is lost of it, or may be.
fn plain(source: &Source, db: &Connection, table: &PlainTable) -> Result<Vec<String>, Fault> {
    let PlainTable { name, key, run, rows, doubt } = *table;
    // By their names: those of another version may stand in another order.
    let columns = columns_of(db, name)?;
    let list = columns.join(", ");
    if !source.has(name, &list) {
        return Ok(vec![format!("some {rows} cannot be read")]);
    }
    let key_columns = match key {
        Key::Number => 1,
        Key::Columns(count) => count,
    };
    let mut pages = source.summed.table((name, columns.as_slice(), key_columns))?;
    let read = |row: &Row<'_>| -> rusqlite::Result<Vec<Value>> {
        (0..columns.len()).map(|column| row.get(column)).collect()
    };
    let marks = vec!["?"; columns.len()].join(", ");
    // Only for a key that is there: a value that its column does not take is not passed over.
    let insert = format!("INSERT INTO {name} VALUES ({marks}) ON CONFLICT DO NOTHING");
    let mut takes_all = true;
    let keep = |row: Vec<Value>| -> Result<(), Fault> {
        if let Some(Value::Integer(no)) = run.map(|run| &row[run])
            && !db.prepare_cached("SELECT 1 FROM runs WHERE no = ?1")?.exists([no])?
        {
            return Ok(());
        }
        if doubt == Doubt::Kept || pages.has(&row)? {
            let kept = db.prepare_cached(&insert)?.execute(params_from_iter(row));
            match kept.map_err(Fault::from) {
                // On a damaged page a value may be of another type than it was written as.
                Err(fault) if fault.is_of_values() => takes_all = false,
                kept => {
                    kept?;
                }
            }
        }
        Ok(())
    };
    let is_read = match key {
        Key::Number => source.rows((name, columns[0].as_str(), list.as_str()), read, keep)? == 0,
        Key::Columns(count) => source.keyed((name, list.as_str(), count), read, keep)?,
    };
    let unread = (!is_read || !takes_all).then(|| format!("some {rows} cannot be read"));
    let doubtful = match (&pages, doubt) {
        (TablePages::Whole, _) => None,
        (TablePages::Damaged(_), Doubt::LeftOut) => {
            Some(format!("some {rows} are left out: they stand on damaged pages"))
        }
        (TablePages::Damaged(_), Doubt::Kept) | (TablePages::Unknown, _) => {
            Some(format!("some {rows} may not be what was written"))
        }
    };
    Ok(unread.into_iter().chain(doubtful).collect())
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

/// Texts of policies. Of one that is not what was written only the number goes on.
fn policies_of(source: &Source, db: &Connection) -> Result<Vec<String>, Fault> {
    if !source.has("policies", policies::COLUMNS) {
        return Ok(vec!["some policies cannot be read".to_owned()]);
    }
    let mut damaged = 0;
    let read = |row: &Row<'_>| {
        // A byte that is another may make a text none, or a number; then the checksum does not fit.
        let text = |column: usize| -> rusqlite::Result<String> {
            let bytes = row.get_ref(column)?.as_bytes().map_err(rusqlite::Error::from)?;
            Ok(String::from_utf8_lossy(bytes).into_owned())
        };
        let number = |column: usize| row.get::<_, i64>(column).unwrap_or_default();
        let texts = [text(0)?, text(2).unwrap_or_default(), text(3).unwrap_or_default()];
        Ok((texts, [number(1), number(4)], number(5)))
    };
    let table = ("policies", policies::COLUMNS, 1);
    let is_read = source.keyed(table, read, |(texts, numbers, sum)| {
        let path = texts[0].clone();
        match policies::checked(texts, numbers, sum) {
            Ok(revision) => policies::insert(db, &revision),
            Err(_) => {
                damaged += 1;
                policies::insert_without_text(db, path, unbits(numbers[0].max(0)))
            }
        }
    })?;
    if !is_read {
        // The path of a row may be read where the rest is not; nor is its number known then.
        let path = |row: &Row<'_>| row.get::<_, String>(0);
        let keep = |path| policies::insert_without_text(db, path, 0);
        source.all("SELECT path FROM policies", path, keep)?;
    }
    let unread = (!is_read).then(|| "some policies cannot be read".to_owned());
    Ok(unread.into_iter().chain(lines("policies", damaged)).collect())
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
