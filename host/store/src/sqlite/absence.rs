//! Runs that an index does not know: are they really not there?
//!
//! A damaged event or record is known by its checksum. A damaged entry of the index of ids is
//! known by nothing: a run that was acknowledged would seem never to have been. So whoever finds
//! nothing looks once more. An entry whose text changed stands beside the place where it was
//! looked for, and differs from its row; a page that lost entries makes the index shorter than
//! another one. The second look takes a while (about 0.1 s for a million runs) and is done once
//! for each time that a store is opened.

use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, OptionalExtension};
use taskrun_journal::ids::RunId;

use super::fault::Fault;

/// The knowledge about the index of ids.
#[derive(Default)]
pub(crate) struct Absence {
    counted: AtomicBool,
}

impl Absence {
    /// # Errors
    /// [`Fault::Damaged`] if the run may be there all the same.
    pub(crate) fn check(&self, db: &Connection, id: &RunId) -> Result<(), Fault> {
        let damaged = || Fault::Damaged(format!("run {id}: the index of ids is damaged"));
        for sql in [
            "SELECT no, id FROM runs WHERE id < ?1 ORDER BY id DESC LIMIT 1",
            "SELECT no, id FROM runs WHERE id > ?1 ORDER BY id LIMIT 1",
        ] {
            let mut sql = db.prepare_cached(sql)?;
            let beside = sql.query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)));
            let Some((no, beside)): Option<(i64, String)> = beside.optional()? else { continue };
            let mut sql = db.prepare_cached("SELECT id FROM runs WHERE no = ?1")?;
            let found: Option<String> = sql.query_row([no], |row| row.get(0)).optional()?;
            if found != Some(beside) {
                return Err(damaged());
            }
        }
        if !self.counted.load(Ordering::Relaxed) {
            if count(db, "sqlite_autoindex_runs_1 WHERE id > ''")?
                != count(db, "runs_by_created WHERE tenant_key >= -9223372036854775808")?
            {
                return Err(damaged());
            }
            self.counted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Entries of an index. The condition keeps SQLite from counting in an index of its choice.
fn count(db: &Connection, index: &str) -> Result<i64, Fault> {
    let sql = format!("SELECT count(*) FROM runs INDEXED BY {index}");
    Ok(db.query_row(&sql, [], |row| row.get(0))?)
}
