//! The pins of runs, for those who keep what they stand for.

use rusqlite::{Connection, Row, params};
use taskrun_journal::pin::Pins;
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::schema::{TERMINAL, time};

/// Those of all open runs, and with a time of those that ended then or later: each once, sorted.
pub(crate) fn pins(db: &Connection, ended_since: Option<Timestamp>) -> Result<Vec<Pins>, Fault> {
    let open = "SELECT pins FROM runs INDEXED BY runs_by_tenant WHERE status < ?1";
    let pins = |row: &Row<'_>| row.get(0).map(Pins::from_text);
    let Some(since) = ended_since else {
        let mut sql =
            db.prepare_cached(&format!("SELECT DISTINCT pins FROM ({open}) ORDER BY 1"))?;
        return Ok(sql.query_map([TERMINAL], pins)?.collect::<Result<_, _>>()?);
    };
    let mut sql = db.prepare_cached(&format!(
        "{open} UNION SELECT pins FROM runs WHERE status >= ?1 AND updated_at >= ?2 ORDER BY 1"
    ))?;
    Ok(sql.query_map(params![TERMINAL, time(since)], pins)?.collect::<Result<_, _>>()?)
}
