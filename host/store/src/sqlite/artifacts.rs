//! Bytes that are kept beside records, once for each tenant that has them.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use taskrun_journal::artifact::{Artifact, digest};
use taskrun_journal::ids::RunId;

use super::fault::Fault;
use super::row::run_by_number;
use super::schema::{int, unbits};

/// The tables of artifacts.
///
/// - `blobs` has the bytes. Their name is their checksum, so there is no other one.
/// - `artifacts` says which run refers to which of them; bytes to which no run refers are removed
///   with the last one that did, in the same transaction.
pub(crate) const ARTIFACTS: &str = "
CREATE TABLE blobs (
    no     INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    hash   TEXT NOT NULL,
    size   INTEGER NOT NULL,
    bytes  BLOB NOT NULL,
    UNIQUE (tenant, hash)
) STRICT;

CREATE TABLE artifacts (
    run  INTEGER NOT NULL,
    blob INTEGER NOT NULL,
    PRIMARY KEY (run, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX artifacts_blob ON artifacts (blob, run);
";

/// Keeps an artifact with a run. Bytes that are there already and were damaged are mended: whoever
/// brings them again has the right ones.
pub(crate) fn keep(
    db: &Connection,
    run: i64,
    tenant: &str,
    artifact: &Artifact,
) -> Result<(), Fault> {
    let (name, bytes) = (artifact.reference(), &artifact.bytes()[..]);
    db.prepare_cached(
        "INSERT INTO blobs (tenant, hash, size, bytes) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (tenant, hash) DO UPDATE SET size = excluded.size, bytes = excluded.bytes
            WHERE bytes <> excluded.bytes OR size <> excluded.size",
    )?
    .execute(params![tenant, name.hash, int(name.size), bytes])?;
    db.prepare_cached(
        "INSERT INTO artifacts (run, blob)
         SELECT ?1, no FROM blobs WHERE tenant = ?2 AND hash = ?3 ON CONFLICT DO NOTHING",
    )?
    .execute(params![run, tenant, name.hash])?;
    Ok(())
}

/// The bytes that are kept with a run under a name. The connection is to be in a transaction.
///
/// # Errors
/// [`Fault::Damaged`] if they are not those of the name, or are gone though the record names them.
pub(crate) fn get(db: &Connection, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, Fault> {
    let mut sql = db.prepare_cached("SELECT no FROM runs WHERE id = ?1")?;
    let Some(run): Option<i64> = sql.query_row([id.as_str()], |row| row.get(0)).optional()? else {
        return Ok(None);
    };
    let damaged = |detail| Fault::Damaged(format!("run {id}, artifact {hash}: {detail}"));
    let mut sql = db.prepare_cached(
        "SELECT b.size, b.bytes FROM artifacts a JOIN blobs b ON b.no = a.blob
         WHERE a.run = ?1 AND b.hash = ?2",
    )?;
    let found = sql.query_row(params![run, hash], |row| {
        Ok((unbits(row.get(0)?), row.get_ref(1)?.as_blob()?.into()))
    });
    match found.optional()? {
        Some((size, bytes)) => {
            let bytes: Arc<[u8]> = bytes;
            let whole = size == bytes.len() as u64 && digest(&bytes) == hash;
            if whole { Ok(Some(bytes)) } else { Err(damaged("its bytes are others")) }
        }
        None => {
            let run = run_by_number(db, run)?;
            match run.artifact() {
                Some(named) if named.hash == hash => Err(damaged("it is missing")),
                Some(_) | None => Ok(None),
            }
        }
    }
}

/// Removes what only this run refers to.
pub(crate) fn remove(db: &Connection, run: i64) -> Result<(), Fault> {
    let mut sql = db.prepare_cached("DELETE FROM artifacts WHERE run = ?1 RETURNING blob")?;
    let blobs = sql.query_map([run], |row| row.get(0))?;
    let blobs = blobs.collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut sql = db.prepare_cached(
        "DELETE FROM blobs WHERE no = ?1
           AND NOT EXISTS (SELECT 1 FROM artifacts WHERE blob = ?1)",
    )?;
    for blob in blobs {
        sql.execute([blob])?;
    }
    Ok(())
}
