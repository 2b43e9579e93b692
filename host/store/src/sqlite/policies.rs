//! The texts of policy files that are in force.

use rusqlite::{Connection, Row, params};
use taskrun_journal::store::{PolicyRevision, PolicyText};
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::row::policy_sum;
use super::schema::{bits, int, unbits};

/// The table of policies: of each file one text. `sum` is a checksum of all of it. The digest is
/// empty where the text was lost to damage: then the row has nothing but the number, which goes on,
/// and no run goes on that the text would bind.
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

/// The columns of the table, in their order.
pub(crate) const COLUMNS: &str = "path, number, digest, text, read_at, sum";

/// Puts a text in force, unless it is, or one that was read later. A row that is not what was
/// written is replaced.
pub(crate) fn apply(db: &Connection, policy: &PolicyText) -> Result<PolicyRevision, Fault> {
    let before = match row(db, &policy.path) {
        Ok(Some(before)) if before.stays_before(policy) => return Ok(before),
        Ok(before) => before.map_or(0, |before| before.number),
        // It binds nothing, and all that is wanted of it is that its number goes on.
        Err(fault) if fault.is_damage() => number(db, &policy.path)?,
        Err(fault) => return Err(fault),
    };
    let revision = PolicyRevision { policy: policy.clone(), number: before.saturating_add(1) };
    insert(db, &revision)?;
    Ok(revision)
}

/// The text in force of a file. One that was lost is damage and not none: what it bound is not
/// without bounds now.
pub(crate) fn in_force(db: &Connection, path: &str) -> Result<Option<PolicyRevision>, Fault> {
    match row(db, path)? {
        Some(revision) if revision.policy.digest.is_empty() => {
            Err(Fault::Damaged(format!("policy {path}: its text was lost; apply it again")))
        }
        found => Ok(found),
    }
}

/// The text in force of a file, if it is this one. A row that is not what was written is none.
pub(crate) fn same(db: &Connection, policy: &PolicyText) -> Result<Option<PolicyRevision>, Fault> {
    match in_force(db, &policy.path) {
        Err(fault) if fault.is_damage() => Ok(None),
        found => Ok(found?.filter(|known| known.policy.digest == policy.digest)),
    }
}

/// Replaces the row of a file.
pub(crate) fn insert(db: &Connection, revision: &PolicyRevision) -> Result<(), Fault> {
    write(db, "INSERT OR REPLACE", revision)
}

/// Makes the row of a file whose text was lost, unless it has one: the path may be lost as well,
/// and be that of another file since.
pub(crate) fn insert_without_text(db: &Connection, path: String, number: u64) -> Result<(), Fault> {
    let (digest, text) = (String::new(), String::new());
    let policy = PolicyText { path, digest, text, read_at: Timestamp(0) };
    write(db, "INSERT OR IGNORE", &PolicyRevision { policy, number })
}

fn write(db: &Connection, insert: &str, revision: &PolicyRevision) -> Result<(), Fault> {
    let PolicyRevision { policy: PolicyText { path, digest, text, read_at }, number } = revision;
    db.prepare_cached(&format!("{insert} INTO policies VALUES (?1, ?2, ?3, ?4, ?5, ?6)"))?
        .execute(params![path, int(*number), digest, text, bits(read_at.0), sum(revision)])?;
    Ok(())
}

/// From the columns of the table, in their order, if the checksum fits.
pub(crate) fn revision(row: &Row<'_>) -> Result<PolicyRevision, Fault> {
    let texts = [row.get(0)?, row.get(2)?, row.get(3)?];
    checked(texts, [row.get(1)?, row.get(4)?], row.get(5)?)
}

/// The revision of a path, a digest and a text, a number and a time, if this is their checksum.
pub(crate) fn checked(
    [path, digest, text]: [String; 3],
    [number, read_at]: [i64; 2],
    found: i64,
) -> Result<PolicyRevision, Fault> {
    let policy = PolicyText { path, digest, text, read_at: Timestamp(unbits(read_at)) };
    let revision = PolicyRevision { policy, number: unbits(number) };
    match sum(&revision) == found {
        true => Ok(revision),
        false => {
            let path = revision.policy.path;
            Err(Fault::Damaged(format!("policy {path}: it is not what was written")))
        }
    }
}

fn row(db: &Connection, path: &str) -> Result<Option<PolicyRevision>, Fault> {
    let mut sql = db.prepare_cached(&format!("SELECT {COLUMNS} FROM policies WHERE path = ?1"))?;
    let mut rows = sql.query([path])?;
    rows.next()?.map(revision).transpose()
}

/// The number in the row of a file, whatever else is in it.
fn number(db: &Connection, path: &str) -> Result<u64, Fault> {
    let mut sql = db.prepare_cached("SELECT max(number, 0) FROM policies WHERE path = ?1")?;
    Ok(unbits(sql.query_row([path], |row| row.get(0))?))
}

fn sum(revision: &PolicyRevision) -> i64 {
    let PolicyRevision { policy: PolicyText { path, digest, text, read_at }, number } = revision;
    policy_sum([path, digest, text], [int(*number), bits(read_at.0)])
}
