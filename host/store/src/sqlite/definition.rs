//! A check that the tables of a file are those that this program makes, and that nothing else is
//! there.
//!
//! The schema of a file is executed by SQLite: a trigger at our writes, a view in place of
//! a table at our reads. So a file with anything foreign in it is not used.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rusqlite::Connection;

use super::artifacts::ARTIFACTS;
use super::consents::CONSENTS;
use super::dispatches::DISPATCHES;
use super::facts::FACTS;
use super::fault::Fault;
use super::outbox::OUTBOX;
use super::policies::POLICIES;
use super::row::text;
use super::schema::TABLES;

/// SQL that makes everything in a file of this version.
pub(crate) fn all_tables() -> String {
    format!("{TABLES} {ARTIFACTS} {FACTS} {OUTBOX} {DISPATCHES} {POLICIES} {CONSENTS}")
}

/// The definitions of a schema, by kind and name: the table it belongs to and its SQL.
type Definitions = BTreeMap<(String, String), (String, Option<String>)>;

/// Room for the definitions as text.
const DEFINITION_BYTES: usize = 16 << 10;

/// Tables of the index of words, which SQLite makes by itself; their SQL is its own.
const MADE_BY_SQLITE: &str = "fact_words_";

fn definitions(db: &Connection) -> Result<Definitions, Fault> {
    let mut sql = db.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema")?;
    let rows = sql.query_map([], |row| {
        let name: String = row.get(1)?;
        let sql: Option<String> = row.get(3)?;
        let sql = sql.filter(|_| !name.starts_with(MADE_BY_SQLITE));
        Ok(((row.get(0)?, name), (row.get(2)?, sql)))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The digest of the definitions of a file that this version made, in their order: one with it need
/// not be held against ours by name, for which SQLite makes all tables once more.
const OURS_DIGEST: &str = "1e01a721c2cf4a3eee3303f66e25fc0766f9ea168d96f72b659f1b93b0c84e2d";

/// The digest of the definitions in a file, in its order.
fn digest(db: &Connection) -> Result<blake3::Hash, Fault> {
    let mut sql = db.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema")?;
    let mut rows = sql.query([])?;
    // One text for all, as many short pieces take the digest longer.
    let mut all = Vec::with_capacity(DEFINITION_BYTES);
    while let Some(row) = rows.next()? {
        let text = |column| text(row, column);
        let is_of_sqlite = text(1)?.is_some_and(|name| name.starts_with(MADE_BY_SQLITE));
        for column in 0..4 {
            let text = text(column)?.filter(|_| column < 3 || !is_of_sqlite);
            let length = text.map_or(u64::MAX, |text| text.len() as u64);
            all.extend_from_slice(&length.to_le_bytes());
            all.extend_from_slice(text.unwrap_or_default().as_bytes());
        }
    }
    Ok(blake3::hash(&all))
}

fn ours() -> Result<&'static Definitions, Fault> {
    static OURS: OnceLock<Definitions> = OnceLock::new();
    if let Some(ours) = OURS.get() {
        return Ok(ours);
    }
    let db = Connection::open_in_memory()?;
    db.execute_batch(&all_tables())?;
    let ours = definitions(&db)?;
    Ok(OURS.get_or_init(|| ours))
}

/// # Errors
/// [`Fault::Damaged`] with the first thing that is foreign, missing or another.
pub(crate) fn check(db: &Connection) -> Result<(), Fault> {
    if digest(db)?.to_hex().as_str() == OURS_DIGEST {
        return Ok(());
    }
    let (found, ours) = (definitions(db)?, ours()?);
    let said = |is: &str, (kind, name): &(String, String)| {
        Err(Fault::Damaged(format!("its definition is not ours: the {kind} {name:?} {is}")))
    };
    if let Some(foreign) = found.keys().find(|key| !ours.contains_key(*key)) {
        return said("is foreign", foreign);
    }
    match ours.iter().find(|(key, definition)| found.get(*key) != Some(definition)) {
        Some((key, _)) if found.contains_key(key) => said("is another", key),
        Some((key, _)) => said("is missing", key),
        None => Ok(()),
    }
}

/// A connection to our tables in memory, with nothing in them.
#[cfg(test)]
pub(super) fn tables_in_memory() -> Connection {
    let db = Connection::open_in_memory().expect("opens");
    db.execute_batch(&all_tables()).expect("makes tables");
    db
}

/// The way in which SQLite answers a question.
#[cfg(test)]
pub(super) fn plan(db: &Connection, sql: &str) -> String {
    explained(db, &format!("EXPLAIN QUERY PLAN {sql}"), 3).join("; ")
}

/// The instructions with which SQLite answers a question.
#[cfg(test)]
pub(super) fn opcodes(db: &Connection, sql: &str) -> Vec<String> {
    explained(db, &format!("EXPLAIN {sql}"), 1)
}

/// A column of an explanation.
#[cfg(test)]
fn explained(db: &Connection, sql: &str, column: usize) -> Vec<String> {
    let mut sql = db.prepare(sql).expect("a statement");
    let values = vec![rusqlite::types::Value::Null; sql.parameter_count()];
    let steps = sql.query_map(rusqlite::params_from_iter(values), |row| row.get(column));
    steps.expect("explains").map(|step| step.expect("text")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_our_tables_and_of_no_others() {
        let found = |change: &str| {
            let db = tables_in_memory();
            db.execute_batch(change).expect("changed");
            let digest = digest(&db).expect("reads").to_hex();
            (digest.as_str() == OURS_DIGEST, check(&db).is_ok(), digest)
        };
        let (is_ours, is_taken, digest) = found("");
        assert!(is_ours && is_taken, "the tables have changed: {digest}");
        for change in [
            "CREATE TABLE told (n)",
            "DROP INDEX waits_waiter",
            "ALTER TABLE hosts RENAME COLUMN beat_ms TO beats",
            "ALTER TABLE hosts ADD COLUMN told TEXT",
            "CREATE VIEW seen AS SELECT no FROM runs",
        ] {
            let (is_ours, is_taken, _) = found(change);
            assert!(!is_ours && !is_taken, "{change}");
        }
        let index = "CREATE INDEX waits_waiter ON waits (waiter, run)";
        let (is_ours, is_taken, _) = found(&format!("DROP INDEX waits_waiter; {index}"));
        assert!(!is_ours && is_taken, "in another order they are ours all the same");
    }
}
