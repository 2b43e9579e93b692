//! A check that the tables of a file are those that this program makes, and that nothing else is
//! there.
//!
//! The schema of a file is executed by SQLite: a trigger at our writes, a view in place of
//! a table at our reads. So a file with anything foreign in it is not used.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rusqlite::Connection;

use super::artifacts::ARTIFACTS;
use super::dispatches::DISPATCHES;
use super::facts::FACTS;
use super::fault::Fault;
use super::outbox::OUTBOX;
use super::policies::POLICIES;
use super::schema::TABLES;

/// SQL that makes everything in a file of this version.
pub(crate) fn all_tables() -> String {
    format!("{TABLES} {ARTIFACTS} {FACTS} {OUTBOX} {DISPATCHES} {POLICIES}")
}

/// The definitions of a schema, by kind and name: the table it belongs to and its SQL.
type Definitions = BTreeMap<(String, String), (String, Option<String>)>;

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

/// The digest of [`ours`]: a file whose definitions have it need not be held against them, for which
/// SQLite makes all tables once more.
const OURS_DIGEST: &str = "0fa074aad0b805966cbd6d01944000edba989bd71ae71c48e0cfa38e64d4f907";

fn digest(definitions: &Definitions) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for ((kind, name), (table, sql)) in definitions {
        hasher.update(&[u8::from(sql.is_some())]);
        for text in [kind.as_str(), name, table, sql.as_deref().unwrap_or_default()] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
    hasher.finalize()
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
    let found = definitions(db)?;
    if digest(&found).to_hex().as_str() == OURS_DIGEST {
        return Ok(());
    }
    let ours = ours()?;
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
        let ours = ours().expect("tables are made");
        assert_eq!(digest(ours).to_hex().as_str(), OURS_DIGEST, "the tables have changed");
        let one = ours.keys().next().expect("there is one").clone();
        for change in [Some((one.0.clone(), None)), Some((String::new(), Some("x".into()))), None] {
            let mut others = ours.clone();
            match change {
                Some(other) => others.insert(one.clone(), other),
                None => others.remove(&one),
            };
            assert_ne!(digest(&others), digest(ours));
        }
    }
}
