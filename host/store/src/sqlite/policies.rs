//! The texts of policy files that are in force.

use rusqlite::{Connection, OptionalExtension, params};
use taskrun_journal::store::{PolicyRevision, PolicyText};
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::row::policy_sum;
use super::schema::{bits, int, unbits};

/// The table of policies: of each file one text. `sum` is a checksum of all of it.
pub(crate) const POLICIES: &str = "
CREATE TABLE policies (
    path    TEXT PRIMARY KEY,
    number  INTEGER NOT NULL,
    digest  TEXT NOT NULL,
    text    TEXT NOT NULL,
    read_at INTEGER NOT NULL,
    sum     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Puts a text in force, unless one with its digest is.
pub(crate) fn apply(db: &Connection, policy: &PolicyText) -> Result<PolicyRevision, Fault> {
    let before = in_force(db, &policy.path)?;
    if let Some(before) = before.as_ref().filter(|before| before.policy.digest == policy.digest) {
        return Ok(before.clone());
    }
    let number = before.map_or(0, |before| before.number) + 1;
    let revision = PolicyRevision { policy: policy.clone(), number };
    let PolicyText { path, digest, text, read_at } = policy;
    db.prepare_cached("INSERT OR REPLACE INTO policies VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![path, int(number), digest, text, bits(read_at.0), sum(&revision)])?;
    Ok(revision)
}

/// The text in force of a file.
pub(crate) fn in_force(db: &Connection, path: &str) -> Result<Option<PolicyRevision>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT number, digest, text, read_at, sum FROM policies WHERE path = ?1",
    )?;
    let found = sql.query_row([path], |row| {
        let policy = PolicyText {
            path: path.to_owned(),
            digest: row.get(1)?,
            text: row.get(2)?,
            read_at: Timestamp(unbits(row.get(3)?)),
        };
        Ok((PolicyRevision { policy, number: unbits(row.get(0)?) }, row.get::<_, i64>(4)?))
    });
    match found.optional()? {
        Some((revision, kept)) if sum(&revision) != kept => {
            Err(Fault::Damaged(format!("policy {path}: it is not what was written")))
        }
        found => Ok(found.map(|(revision, _)| revision)),
    }
}

fn sum(revision: &PolicyRevision) -> i64 {
    let PolicyRevision { policy: PolicyText { path, digest, text, read_at }, number } = revision;
    policy_sum([path, digest, text], [int(*number), bits(read_at.0)])
}
