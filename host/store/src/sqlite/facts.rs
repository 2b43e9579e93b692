//! Facts, and the words in them.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, params};
use taskrun_journal::fact::{FACTS_MAX, Fact, FactNamespace, rank};
use taskrun_journal::memory::{FactChange, FactOutcome, FactWriter};
use taskrun_journal::message::Labels;
use taskrun_journal::schedule;
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::row::{fact_sum, json, parse};
use super::schema::{bits, int, unbits};

/// The tables of facts.
///
/// - `facts` has those of a tenant (`owner` and `session` are empty) and those of a session as one
///   owner has it. `sum` is a checksum of all of it.
/// - `fact_words` is an index of the words in them. It is given words that were taken out of the
///   texts before, so that all stores mean the same by a word; its own tokenizer only separates
///   them again. `place` is a word too, so that a search looks at the facts of one place alone. The
///   texts themselves are not in it.
/// - `fact_changes` are changes that runs made, for as long as those are kept.
pub(crate) const FACTS: &str = "
CREATE TABLE facts (
    no      INTEGER PRIMARY KEY,
    tenant  TEXT NOT NULL,
    owner   TEXT NOT NULL,
    session TEXT NOT NULL,
    key     TEXT NOT NULL,
    text    TEXT NOT NULL,
    labels  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    sum     INTEGER NOT NULL,
    UNIQUE (tenant, owner, session, key)
) STRICT;
CREATE INDEX facts_session ON facts (tenant, session);

CREATE VIRTUAL TABLE fact_words USING fts5(
    place, words, content = '', contentless_delete = 1, detail = column, tokenize = 'ascii'
);

CREATE TABLE fact_changes (
    run    INTEGER NOT NULL,
    change TEXT NOT NULL,
    PRIMARY KEY (run, change)
) STRICT, WITHOUT ROWID;
";

/// Columns of a place, in the order of the key.
fn columns(place: &FactNamespace) -> [&str; 3] {
    match &place.session {
        Some(session) => [&place.tenant, &session.owner_user_id, &session.id],
        None => [&place.tenant, "", ""],
    }
}

/// The word that stands for a place in the index: a hash, as names have any characters. Words
/// settle collisions.
fn place_word(place: &FactNamespace) -> String {
    let [tenant, owner, session] = columns(place);
    format!("{:016x}", schedule::hash(&["facts", tenant, owner, session]))
}

/// A change, with what takes time done before it is the writer's turn.
pub(crate) struct ChangeRow {
    place: FactNamespace,
    change: FactChange,
    words: String,
    by: Option<FactWriter>,
}

impl ChangeRow {
    pub(crate) fn new(place: &FactNamespace, change: FactChange, by: Option<FactWriter>) -> Self {
        let words = match &change {
            FactChange::Put(fact) => fact.words().into_iter().collect::<Vec<_>>().join(" "),
            FactChange::Delete(_) => String::new(),
        };
        Self { place: place.clone(), change, words, by }
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.change {
            FactChange::Put(fact) => fact.bytes() + self.words.len(),
            FactChange::Delete(key) => key.len(),
        }
    }

    /// Makes the change. What is refused has written nothing.
    pub(crate) fn change(&self, db: &Connection) -> Result<FactOutcome, Fault> {
        let writer = self.by.as_ref().map(|by| run_of(db, by)).transpose()?.flatten();
        if let (Some(run), Some(by)) = (writer, &self.by) {
            let known = "SELECT 1 FROM fact_changes WHERE run = ?1 AND change = ?2";
            if db.prepare_cached(known)?.exists(params![run, by.change])? {
                return Ok(FactOutcome::Repeated);
            }
        }
        let changed = match &self.change {
            FactChange::Put(fact) => self.put(db, fact)?,
            FactChange::Delete(key) => match number(db, &self.place, key)? {
                Some(no) => {
                    forget(db, no)?;
                    FactOutcome::Done
                }
                None => FactOutcome::Absent,
            },
        };
        if let (Some(run), Some(by), FactOutcome::Done) = (writer, &self.by, changed) {
            let note = "INSERT INTO fact_changes (run, change) VALUES (?1, ?2)";
            db.prepare_cached(note)?.execute(params![run, by.change])?;
        }
        Ok(changed)
    }

    fn put(&self, db: &Connection, fact: &Fact) -> Result<FactOutcome, Fault> {
        let [tenant, owner, session] = columns(&self.place);
        match number(db, &self.place, &fact.key)? {
            Some(no) => forget(db, no)?,
            None => {
                let count = "SELECT count(*) FROM facts
                             WHERE tenant = ?1 AND owner = ?2 AND session = ?3";
                let count: i64 = db
                    .prepare_cached(count)?
                    .query_row([tenant, owner, session], |row| row.get(0))?;
                if count >= int(FACTS_MAX as u64) {
                    return Ok(FactOutcome::Full);
                }
            }
        }
        let (labels, at) = (json(&fact.labels), bits(fact.written_at.0));
        let sum = fact_sum([tenant, owner, session, &fact.key, &fact.text, &labels], at);
        db.prepare_cached(
            "INSERT INTO facts (tenant, owner, session, key, text, labels, at, sum)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![tenant, owner, session, fact.key, fact.text, labels, at, sum])?;
        let no = db.last_insert_rowid();
        db.prepare_cached("INSERT INTO fact_words (rowid, place, words) VALUES (?1, ?2, ?3)")?
            .execute(params![no, place_word(&self.place), self.words])?;
        Ok(FactOutcome::Done)
    }
}

/// Number of the run that makes a change; `None` if it is gone, and with it what it did.
fn run_of(db: &Connection, by: &FactWriter) -> Result<Option<i64>, Fault> {
    let mut sql = db.prepare_cached("SELECT no FROM runs WHERE id = ?1")?;
    Ok(sql.query_row([by.run.as_str()], |row| row.get(0)).optional()?)
}

fn number(db: &Connection, place: &FactNamespace, key: &str) -> Result<Option<i64>, Fault> {
    let [tenant, owner, session] = columns(place);
    let mut sql = db.prepare_cached(
        "SELECT no FROM facts WHERE tenant = ?1 AND owner = ?2 AND session = ?3 AND key = ?4",
    )?;
    Ok(sql.query_row([tenant, owner, session, key], |row| row.get(0)).optional()?)
}

fn forget(db: &Connection, no: i64) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM fact_words WHERE rowid = ?1")?.execute([no])?;
    db.prepare_cached("DELETE FROM facts WHERE no = ?1")?.execute([no])?;
    Ok(())
}

/// From `key, text, labels, at, sum`.
fn fact(place: &FactNamespace, row: &Row<'_>) -> Result<Fact, Fault> {
    checked(place, [row.get(0)?, row.get(1)?, row.get(2)?], row.get(3)?, row.get(4)?)
}

/// The fact of a key, a text and labels, if their checksum fits.
pub(crate) fn checked(
    place: &FactNamespace,
    [key, text, labels]: [String; 3],
    at: i64,
    sum: i64,
) -> Result<Fact, Fault> {
    let [tenant, owner, session] = columns(place);
    if fact_sum([tenant, owner, session, &key, &text, &labels], at) != sum {
        return Err(Fault::Damaged(format!("fact {key:?}: the checksum does not fit")));
    }
    let labels: Labels = parse(&labels, || format!("fact {key:?}, labels"))?;
    Ok(Fact { key, text, labels, written_at: Timestamp(unbits(at)) })
}

pub(crate) fn get(
    db: &Connection,
    place: &FactNamespace,
    key: &str,
) -> Result<Option<Fact>, Fault> {
    let [tenant, owner, session] = columns(place);
    let mut sql = db.prepare_cached(
        "SELECT key, text, labels, at, sum FROM facts
         WHERE tenant = ?1 AND owner = ?2 AND session = ?3 AND key = ?4",
    )?;
    let mut rows = sql.query([tenant, owner, session, key])?;
    rows.next()?.map(|row| fact(place, row)).transpose()
}

pub(crate) fn list(
    db: &Connection,
    place: &FactNamespace,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Fact>, Fault> {
    let [tenant, owner, session] = columns(place);
    let mut sql = db.prepare_cached(
        "SELECT key, text, labels, at, sum FROM facts
         WHERE tenant = ?1 AND owner = ?2 AND session = ?3 AND (?4 IS NULL OR key > ?4)
         ORDER BY key LIMIT ?5",
    )?;
    let mut rows = sql.query(params![tenant, owner, session, after, int(limit as u64)])?;
    let mut facts = Vec::new();
    while let Some(row) = rows.next()? {
        facts.push(fact(place, row)?);
    }
    Ok(facts)
}

/// Facts with one of these words, in the order of [`rank`]. Each word is looked up by itself: how
/// many of them a fact has is all that counts, and nothing of what is in other places.
pub(crate) fn search(
    db: &Connection,
    place: &FactNamespace,
    words: &[String],
    limit: usize,
) -> Result<Vec<Fact>, Fault> {
    let place_word = place_word(place);
    let mut hits: HashMap<i64, usize> = HashMap::new();
    let mut sql = db.prepare_cached("SELECT rowid FROM fact_words WHERE fact_words MATCH ?1")?;
    for word in words {
        // Letters and digits only, so no part of a query language; in quotes it is no keyword.
        let query = format!("place : \"{place_word}\" AND words : \"{word}\"");
        for no in sql.query_map([query], |row| row.get(0))? {
            *hits.entry(no?).or_default() += 1;
        }
    }
    let [tenant, owner, session] = columns(place);
    let mut sql = db.prepare_cached(
        "SELECT key, at FROM facts WHERE no = ?1 AND tenant = ?2 AND owner = ?3 AND session = ?4",
    )?;
    // Ranked by what is short of them; only those that are given are read as a whole.
    let mut ranked = Vec::new();
    for (no, hits) in hits {
        let found = sql.query_row(params![no, tenant, owner, session], |row| {
            let (key, at): (String, i64) = (row.get(0)?, row.get(1)?);
            let written_at = Timestamp(unbits(at));
            Ok(Fact { key, text: String::new(), labels: Labels::new(), written_at })
        });
        ranked.extend(found.optional()?.map(|fact| rank(hits, &fact)));
    }
    ranked.sort_unstable();
    let mut facts = Vec::new();
    for (.., key) in ranked.into_iter().take(limit) {
        facts.extend(get(db, place, &key)?);
    }
    Ok(facts)
}

/// Facts of a session, of one owner or of all. Left to itself, SQLite (3.40) looks at all keys of the
/// tenant.
const OF_SESSION: &str = "SELECT no FROM facts INDEXED BY facts_session
     WHERE tenant = ?1 AND session = ?2 AND session <> '' AND (?3 IS NULL OR owner = ?3)";

pub(crate) fn forget_session(
    db: &Connection,
    tenant: &str,
    owner: Option<&str>,
    session: &str,
) -> Result<u64, Fault> {
    let mut sql = db.prepare_cached(OF_SESSION)?;
    let numbers = sql.query_map(params![tenant, session, owner], |row| row.get(0))?;
    let numbers = numbers.collect::<rusqlite::Result<Vec<i64>>>()?;
    for no in &numbers {
        forget(db, *no)?;
    }
    Ok(numbers.len() as u64)
}

/// Removes what is known of the changes of a run.
pub(crate) fn remove(db: &Connection, run: i64) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM fact_changes WHERE run = ?1")?.execute([run])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::definition::{plan, tables_in_memory};

    #[test]
    fn the_facts_of_a_session_are_found_by_an_index() {
        let db = tables_in_memory();
        let plan = plan(&db, OF_SESSION);
        assert!(plan.contains("facts_session (tenant=? AND session=?)"), "{plan}");
    }
}
