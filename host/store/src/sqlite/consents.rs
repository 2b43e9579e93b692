//! Lasting consents.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};
use taskrun_journal::consent::{
    BY_HOST, CONSENTS_MAX, ConsentOutcome, ConsentRecord, ConsentSubject, Consents, LastingConsent,
    Revocation,
};
use taskrun_journal::list::Scope;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::row::consent_sum;
use super::schema::{int, time, unbits};
use super::store::SqliteStore;

/// The table of lasting consents.
///
/// - `app` and `session` are empty where there is none. `revoked_at` is set when a person revoked
///   it, or gave another one in its place. `sum` is a checksum of all of it but the number.
/// - A number is never used again (`AUTOINCREMENT`), as journals name consents by it.
pub(crate) const CONSENTS: &str = "
CREATE TABLE consents (
    no         INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     TEXT NOT NULL,
    owner      TEXT NOT NULL,
    app        TEXT NOT NULL,
    policy     TEXT NOT NULL,
    agent      TEXT NOT NULL,
    function   TEXT NOT NULL,
    session    TEXT NOT NULL,
    approved   INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    given_by   TEXT NOT NULL,
    given_at   INTEGER NOT NULL,
    until      INTEGER,
    replaces   INTEGER,
    revoked_at INTEGER,
    revoked_by TEXT,
    sum        INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX consents_open ON consents (
    tenant, owner, app, policy, agent, function, session
) WHERE revoked_at IS NULL;
CREATE INDEX consents_owner ON consents (tenant, owner);
CREATE INDEX consents_session ON consents (tenant, session)
WHERE session <> '' AND revoked_at IS NULL;
";

/// Bytes that a revocation or a removal counts for in a batch.
const SMALL: usize = 1 << 10;

/// The columns of the table, in their order.
pub(super) const COLUMNS: &str =
    "no, tenant, owner, app, policy, agent, function, session, approved,
     digest, given_by, given_at, until, replaces, revoked_at, revoked_by, sum";

/// The one of a subject and a session that nobody revoked.
const OPEN: &str = "consents INDEXED BY consents_open
    WHERE tenant = ?1 AND owner = ?2 AND app = ?3 AND policy = ?4 AND agent = ?5 AND function = ?6
      AND session = ?7 AND revoked_at IS NULL";

/// Those of a session that nobody revoked: of one owner and application, or of all.
const OF_SESSION: &str = "consents INDEXED BY consents_session
    WHERE tenant = ?1 AND session = ?3 AND session <> '' AND revoked_at IS NULL
      AND (?2 IS NULL OR owner = ?2) AND (?4 IS NULL OR (app = ?4 AND app <> ''))";

/// The condition of those that a caller sees. An empty name is the name of none.
const SEEN: &str = "tenant = ?1 AND (?2 IS NULL OR owner = ?2)
      AND (?3 IS NULL OR (session = ?3 AND session <> ''))
      AND (?4 IS NULL OR (app = ?4 AND app <> ''))";

/// The condition of a removal, beside that.
const REMOVED: &str = "(?5 IS NULL OR revoked_at < ?5 OR until < ?5)";

/// The statement that reads such rows.
fn select(rows: &str) -> String {
    format!("SELECT {COLUMNS} FROM {rows}")
}

/// The columns of what a consent is about.
fn columns(subject: &ConsentSubject) -> [&str; 6] {
    let app = subject.parent_app_name.as_deref().unwrap_or_default();
    let ConsentSubject { tenant, owner_user_id, policy, agent_name, function, .. } = subject;
    [tenant, owner_user_id, app, policy, agent_name, function]
}

/// The columns by which a caller sees consents.
fn seen(scope: &Scope) -> [Option<&str>; 4] {
    [
        Some(&scope.tenant),
        scope.owner_user_id.as_deref(),
        scope.parent_session_id.as_deref(),
        scope.parent_app_name.as_deref(),
    ]
}

/// Checksum of the row of a consent.
fn sum(record: &ConsentRecord) -> i64 {
    let ConsentRecord { number: _, consent, replaces, revocation } = record;
    let LastingConsent { subject, session, approved, digest, by, at, until } = consent;
    let [tenant, owner, app, policy, agent, function] = columns(subject);
    let session = session.as_deref().unwrap_or_default();
    let revoked_by = revocation.as_ref().map_or("", |revocation| revocation.by.as_str());
    let texts = [tenant, owner, app, policy, agent, function, session, digest, by, revoked_by];
    // No number of a row and no time is less than zero.
    let or_none = |number: Option<i64>| number.unwrap_or(-1);
    let numbers = [
        i64::from(*approved),
        time(*at),
        or_none(until.map(time)),
        or_none(replaces.map(int)),
        or_none(revocation.as_ref().map(|revocation| time(revocation.at))),
    ];
    consent_sum(texts, numbers)
}

/// From the columns of the table, in their order, if the checksum fits.
fn record(row: &Row<'_>) -> Result<ConsentRecord, Fault> {
    let (record, sum) = stored(row)?;
    checked(record, sum)
}

/// The same without a look at the checksum, and that.
pub(super) fn stored(row: &Row<'_>) -> rusqlite::Result<(ConsentRecord, i64)> {
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    let at = |number: i64| Timestamp(unbits(number));
    let revoked_at: Option<i64> = row.get(14)?;
    let revoked_by: Option<String> = row.get(15)?;
    let revocation = revoked_at.map(at).zip(revoked_by).map(|(at, by)| Revocation { at, by });
    let consent = LastingConsent {
        subject: ConsentSubject {
            tenant: row.get(1)?,
            owner_user_id: row.get(2)?,
            parent_app_name: text(row.get(3)?),
            policy: row.get(4)?,
            agent_name: row.get(5)?,
            function: row.get(6)?,
        },
        session: text(row.get(7)?),
        approved: row.get(8)?,
        digest: row.get(9)?,
        by: row.get(10)?,
        at: at(row.get(11)?),
        until: row.get::<_, Option<i64>>(12)?.map(at),
    };
    let number = unbits(row.get(0)?);
    let replaces = row.get::<_, Option<i64>>(13)?.map(unbits);
    Ok((ConsentRecord { number, consent, replaces, revocation }, row.get(16)?))
}

/// The consent, if this is its checksum.
pub(super) fn checked(record: ConsentRecord, found: i64) -> Result<ConsentRecord, Fault> {
    match sum(&record) == found {
        true => Ok(record),
        false => {
            let detail = format!("consent {}: the checksum does not fit", record.number);
            Err(Fault::Damaged(detail))
        }
    }
}

/// The consent of a subject and a session that nobody revoked.
fn open(
    db: &Connection,
    subject: &ConsentSubject,
    session: &str,
) -> Result<Option<ConsentRecord>, Fault> {
    let [tenant, owner, app, policy, agent, function] = columns(subject);
    let mut sql = db.prepare_cached(&select(OPEN))?;
    let mut rows = sql.query([tenant, owner, app, policy, agent, function, session])?;
    rows.next()?.map(record).transpose()
}

/// Writes down that a consent was revoked.
fn end(
    db: &Connection,
    record: ConsentRecord,
    revocation: Revocation,
) -> Result<ConsentRecord, Fault> {
    let (at, by) = (time(revocation.at), revocation.by.clone());
    let revoked = ConsentRecord { revocation: Some(revocation), ..record };
    db.prepare_cached(
        "UPDATE consents SET revoked_at = ?2, revoked_by = ?3, sum = ?4 WHERE no = ?1",
    )?
    .execute(params![int(revoked.number), at, by, sum(&revoked)])?;
    Ok(revoked)
}

fn keep(db: &Connection, consent: &LastingConsent) -> Result<ConsentOutcome, Fault> {
    let LastingConsent { subject, session, by, at, .. } = consent;
    let [tenant, owner, ..] = columns(subject);
    let count = "SELECT count(*) FROM consents WHERE tenant = ?1 AND owner = ?2";
    let count: i64 = db.prepare_cached(count)?.query_row([tenant, owner], |row| row.get(0))?;
    let is_full = count >= int(CONSENTS_MAX as u64);
    let before = open(db, subject, session.as_deref().unwrap_or_default())?;
    let replaces = before.as_ref().map(|before| before.number);
    match before {
        None if is_full => return Ok(ConsentOutcome::Full),
        // Who has no room for another word can still take one back.
        Some(before) if is_full => {
            let remove = "DELETE FROM consents WHERE no = ?1";
            db.prepare_cached(remove)?.execute([int(before.number)])?;
        }
        Some(before) => {
            end(db, before, Revocation { at: *at, by: by.clone() })?;
        }
        None => {}
    }
    let kept = ConsentRecord { number: 0, consent: consent.clone(), replaces, revocation: None };
    let number = insert(db, &kept, None)?;
    Ok(ConsentOutcome::Kept(Box::new(ConsentRecord { number, ..kept })))
}

/// Adds the row of a consent with the next number, and gives that; or with this number, unless
/// there is one already.
pub(super) fn insert(
    db: &Connection,
    record: &ConsentRecord,
    number: Option<u64>,
) -> Result<u64, Fault> {
    let ConsentRecord { number: _, consent, replaces, revocation } = record;
    let LastingConsent { subject, session, approved, digest, by, at, until } = consent;
    let [tenant, owner, app, policy, agent, function] = columns(subject);
    let marks = ["?"; 17].join(", ");
    let or_not = if number.is_some() { "OR IGNORE" } else { "" };
    let insert = format!("INSERT {or_not} INTO consents VALUES ({marks})");
    db.prepare_cached(&insert)?.execute(params![
        number.map(int),
        tenant,
        owner,
        app,
        policy,
        agent,
        function,
        session.as_deref().unwrap_or_default(),
        approved,
        digest,
        by,
        time(*at),
        until.map(time),
        replaces.map(int),
        revocation.as_ref().map(|revocation| time(revocation.at)),
        revocation.as_ref().map(|revocation| revocation.by.as_str()),
        sum(record)
    ])?;
    Ok(unbits(db.last_insert_rowid()))
}

/// Revokes what is bound to a session that ended. A row that is not as it was written lets nothing
/// begin anyway.
pub(super) fn end_session(db: &Connection, ended: &Scope, at: Timestamp) -> Result<(), Fault> {
    let [tenant, owner, session, app] = seen(ended);
    let mut open = Vec::new();
    {
        let mut sql = db.prepare_cached(&select(OF_SESSION))?;
        let mut rows = sql.query(params![tenant, owner, session, app])?;
        while let Some(row) = rows.next()? {
            match record(row) {
                Ok(record) => open.push(record),
                Err(Fault::Damaged(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
    }
    for record in open {
        end(db, record, Revocation { at, by: BY_HOST.to_owned() })?;
    }
    Ok(())
}

fn about(
    db: &Connection,
    subject: &ConsentSubject,
    session: Option<&str>,
) -> Result<Vec<ConsentRecord>, Fault> {
    let mut records = Vec::new();
    for session in std::iter::once("").chain(session) {
        records.extend(open(db, subject, session)?);
    }
    Ok(records)
}

fn list(
    db: &Connection,
    scope: &Scope,
    after: u64,
    limit: usize,
) -> Result<Vec<ConsentRecord>, Fault> {
    let [tenant, owner, session, app] = seen(scope);
    let rows = format!("consents WHERE {SEEN} AND no > ?5 ORDER BY no LIMIT ?6");
    let mut sql = db.prepare_cached(&select(&rows))?;
    let limit = int(limit as u64);
    let mut rows = sql.query(params![tenant, owner, session, app, int(after), limit])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        records.push(record(row)?);
    }
    Ok(records)
}

fn revoke(
    db: &Connection,
    scope: &Scope,
    number: u64,
    revocation: &Revocation,
) -> Result<Option<ConsentRecord>, Fault> {
    let found = {
        let mut sql = db.prepare_cached(&select("consents WHERE no = ?1"))?;
        let mut rows = sql.query([int(number)])?;
        rows.next()?.map(record).transpose()?
    };
    match found.filter(|record| record.consent.is_within(scope)) {
        Some(open) if open.revocation.is_none() => end(db, open, revocation.clone()).map(Some),
        known => Ok(known),
    }
}

fn remove(
    db: &Connection,
    scope: &Scope,
    over_before: Option<Timestamp>,
    dry_run: bool,
) -> Result<u64, Fault> {
    let [tenant, owner, session, app] = seen(scope);
    let before = over_before.map(time);
    if dry_run {
        let count = format!("SELECT count(*) FROM consents WHERE {SEEN} AND {REMOVED}");
        let mut sql = db.prepare_cached(&count)?;
        let count =
            sql.query_row(params![tenant, owner, session, app, before], |row| row.get(0))?;
        return Ok(unbits(count));
    }
    let remove = format!("DELETE FROM consents WHERE {SEEN} AND {REMOVED}");
    let mut sql = db.prepare_cached(&remove)?;
    Ok(sql.execute(params![tenant, owner, session, app, before])? as u64)
}

/// About how many bytes a consent takes.
fn bytes(consent: &LastingConsent) -> usize {
    let subject: usize = columns(&consent.subject).iter().map(|text| text.len()).sum();
    SMALL + subject + consent.digest.len() + consent.by.len()
}

#[async_trait]
impl Consents for SqliteStore {
    async fn keep_consent(&self, consent: LastingConsent) -> Result<ConsentOutcome, StoreError> {
        self.writer.submit(bytes(&consent), move |db| keep(db, &consent), |_| {}).await
    }

    async fn consents_about(
        &self,
        subject: &ConsentSubject,
        session: Option<&str>,
    ) -> Result<Vec<ConsentRecord>, StoreError> {
        let (subject, session) = (subject.clone(), session.map(str::to_owned));
        self.readers.read(move |db| about(db, &subject, session.as_deref())).await
    }

    async fn consents(
        &self,
        scope: &Scope,
        after: u64,
        limit: usize,
    ) -> Result<Vec<ConsentRecord>, StoreError> {
        let scope = scope.clone();
        self.readers.read(move |db| list(db, &scope, after, limit)).await
    }

    async fn revoke_consent(
        &self,
        scope: &Scope,
        number: u64,
        revocation: Revocation,
    ) -> Result<Option<ConsentRecord>, StoreError> {
        let scope = scope.clone();
        let write = move |db: &Connection| revoke(db, &scope, number, &revocation);
        self.writer.submit(SMALL, write, |_| {}).await
    }

    async fn remove_consents(
        &self,
        scope: &Scope,
        over_before: Option<Timestamp>,
        dry_run: bool,
    ) -> Result<u64, StoreError> {
        let scope = scope.clone();
        let write = move |db: &Connection| remove(db, &scope, over_before, dry_run);
        self.writer.submit(SMALL, write, |_| {}).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::definition::{plan, tables_in_memory};

    #[test]
    fn c_033_the_consents_about_a_call_are_found_by_an_index() {
        let plan = plan(&tables_in_memory(), &select(OPEN));
        assert!(plan.contains("USING INDEX consents_open (tenant=? AND owner=?"), "{plan}");
        assert!(plan.contains("session=?)"), "{plan}");
    }

    #[test]
    fn c_033_the_consents_of_a_session_that_ends_are_found_by_an_index() {
        let plan = plan(&tables_in_memory(), &select(OF_SESSION));
        let index = "USING INDEX consents_session (tenant=? AND session=?)";
        assert!(plan.contains(index), "{plan}");
    }

    #[test]
    fn c_033_a_row_that_is_not_as_it_was_written_lets_nothing_begin() {
        let db = tables_in_memory();
        let subject = ConsentSubject {
            tenant: "t".to_owned(),
            owner_user_id: "o".to_owned(),
            parent_app_name: None,
            policy: "/p".to_owned(),
            agent_name: "a".to_owned(),
            function: "t/f".to_owned(),
        };
        let consent = LastingConsent {
            subject: subject.clone(),
            session: None,
            approved: false,
            digest: "one".to_owned(),
            by: "p".to_owned(),
            at: Timestamp(1),
            until: Some(Timestamp(9)),
        };
        keep(&db, &consent).expect("kept");
        assert_eq!(about(&db, &subject, None).map(|found| found.len()).ok(), Some(1));
        for change in [
            "approved = 1",
            "digest = 'two'",
            "until = NULL",
            "until = 10",
            "given_by = 'q'",
            "replaces = 3",
        ] {
            db.execute_batch("SAVEPOINT one").expect("begins");
            db.execute_batch(&format!("UPDATE consents SET {change}")).expect("changed");
            let found = about(&db, &subject, None);
            assert!(matches!(found, Err(Fault::Damaged(_))), "{change}: {found:?}");
            db.execute_batch("ROLLBACK TO one; RELEASE one").expect("undone");
        }
    }
}
