//! The pins of runs, for those who keep what they stand for.

use rusqlite::{Connection, params};
use taskrun_journal::pin::Pins;
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::schema::{TERMINAL, time};

/// Those of all open runs, and with a time of those that ended then or later: each once, sorted.
pub(crate) fn pins(db: &Connection, ended_since: Option<Timestamp>) -> Result<Vec<Pins>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT pins FROM runs INDEXED BY runs_by_tenant WHERE status < ?1
         UNION SELECT pins FROM runs WHERE status >= ?1 AND updated_at >= ?2
         ORDER BY 1",
    )?;
    // Later than any time of a run.
    let since = ended_since.map_or(i64::MAX, time);
    let pins = sql.query_map(params![TERMINAL, since], |row| row.get(0).map(Pins::from_text))?;
    Ok(pins.collect::<Result<_, _>>()?)
}
