//! A check that everything in the file is as it was written, beyond what an answer needs.
//!
//! A page that changed is known when it is read. Nobody reads what nobody asks for, and a page that
//! another program wrote has no checksum; so this looks at every page, and compares the columns of
//! each run and its entries in the indexes with what its journal says of it.

use rusqlite::{Connection, OpenFlags, OptionalExtension, ffi, params};
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::machine;
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;

use super::attached::attached_key;
use super::fault::Fault;
use super::names::named_key;
use super::open::leave_log;
use super::policies;
use super::row::{events, run_by_number};
use super::run_row::MutableColumns;
use super::schema::{KeyKind, int, label_key, serial_key, time};
use super::{layer, sums, vfs};

/// Pages of one step: a mebibyte.
pub(crate) const PAGES_PER_STEP: i64 = 256;
const MEBIBYTE: u64 = 1 << 20;
/// Most runs of one step, which ends earlier after a mebibyte of their journals.
pub(crate) const RUNS_PER_STEP: usize = 16;
/// Findings that are told; where there are more, a few of them do.
pub(crate) const FINDINGS_MAX: usize = 100;
/// Events of a journal that are read at once.
const EVENTS_PAGE: usize = 1_000;

/// Where a round of steps stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Pages from this number on.
    Pages(i64),
    /// Runs after this number.
    Runs(i64),
    /// The texts of policies, of which there are few.
    Policies,
}

impl Step {
    /// The first of a round.
    pub(crate) const FIRST: Self = Self::Pages(1);

    /// The one that follows where damage ended this one: what it looks at cannot be walked any
    /// further.
    pub(crate) fn after_damage(self) -> Option<Self> {
        match self {
            Self::Pages(_) => Some(Self::Runs(0)),
            Self::Runs(_) => Some(Self::Policies),
            Self::Policies => None,
        }
    }
}

/// Differences from what was written, in words.
pub(crate) type Findings = Vec<String>;

/// The work of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepReport {
    /// The next one, or `None` at the end of the round.
    pub(crate) next: Option<Step>,
    /// The amount that was read, in mebibytes, rounded up: a journal can be long.
    pub(crate) mebibytes: u32,
}

/// Does one step, and fails when `stop` says so: the journal of one run can be long. The connection
/// is to be in a transaction.
pub(crate) fn step(
    db: &Connection,
    step: Step,
    findings: &mut Findings,
    stop: &dyn Fn() -> bool,
) -> Result<StepReport, Fault> {
    match step {
        Step::Pages(from) => {
            let mut looked = sums::look(db, from, PAGES_PER_STEP)?;
            if !looked.damaged.is_empty() {
                looked.damaged = confirmed(db, looked.damaged)?;
            }
            let page = |number| format!("page {number}: the checksum does not fit");
            findings.extend(looked.damaged.into_iter().map(page));
            Ok(StepReport {
                next: Some(looked.next.map_or(Step::Runs(0), Step::Pages)),
                mebibytes: 1,
            })
        }
        Step::Runs(after) => {
            let mut sql = db.prepare_cached(
                "SELECT no FROM runs NOT INDEXED WHERE no > ?1 ORDER BY no LIMIT ?2",
            )?;
            let numbers = sql.query_map([after, int(RUNS_PER_STEP as u64)], |row| row.get(0))?;
            let numbers = numbers.collect::<rusqlite::Result<Vec<i64>>>()?;
            let mut bytes = 0;
            for no in &numbers {
                let looked = run(db, *no, stop).map(|journal| bytes += journal);
                findings.extend(found(looked)?);
                if bytes >= MEBIBYTE {
                    let mebibytes = u32::try_from(bytes.div_ceil(MEBIBYTE)).unwrap_or(u32::MAX);
                    return Ok(StepReport { next: Some(Step::Runs(*no)), mebibytes });
                }
            }
            let more = numbers.len() == RUNS_PER_STEP;
            let last = numbers.last().filter(|_| more);
            let next = last.map_or(Step::Policies, |last| Step::Runs(*last));
            Ok(StepReport { next: Some(next), mebibytes: 1 })
        }
        Step::Policies => {
            policy_texts(db, findings)?;
            Ok(StepReport { next: None, mebibytes: 1 })
        }
    }
}

/// Those of some pages whose checksum does not fit that are read from where they stand. One that
/// was half written when power was lost is whole in the log, is read from there, and fits once it
/// has been copied again.
fn confirmed(db: &Connection, pages: Vec<i64>) -> Result<Vec<i64>, Fault> {
    if let Err(fault) = copy_log(db) {
        tracing::debug!(%fault, "the log is not copied into the file");
    }
    let mut confirmed = Vec::new();
    for page in pages {
        confirmed.extend(sums::look(db, page, 1)?.damaged);
    }
    Ok(confirmed)
}

/// Copies what can be copied of the log into the file, as happens again and again beside all work.
fn copy_log(db: &Connection) -> Result<(), Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let file = db.path().unwrap_or_default();
    let other = Connection::open_with_flags_and_vfs(file, flags, layer::LAYER)?;
    leave_log(&other)?;
    Ok(other.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?)
}

/// Everything at once: the steps of a round, and what SQLite itself finds.
pub(crate) fn all(db: &Connection) -> Result<Findings, Fault> {
    let mut findings = Findings::new();
    let mut next = Some(Step::FIRST);
    while let Some(at) = next.filter(|_| findings.len() < FINDINGS_MAX) {
        match step(db, at, &mut findings, &|| false) {
            Ok(done) => next = done.next,
            Err(fault) => {
                findings.extend(found(Err(fault))?);
                next = at.after_damage();
            }
        }
    }
    let looked = integrity(db, &mut findings);
    findings.extend(found(looked)?);
    findings.truncate(FINDINGS_MAX);
    Ok(findings)
}

/// The texts of policies that are not what was written.
fn policy_texts(db: &Connection, findings: &mut Findings) -> Result<(), Fault> {
    let sql = format!("SELECT {} FROM policies ORDER BY path", policies::COLUMNS);
    let mut sql = db.prepare_cached(&sql)?;
    let mut rows = sql.query([])?;
    while let Some(row) = rows.next()? {
        findings.extend(found(policies::revision(row).map(drop))?);
    }
    Ok(())
}

/// The findings of SQLite itself: how pages hang together, and what indexes lack.
fn integrity(db: &Connection, findings: &mut Findings) -> Result<(), Fault> {
    let mut sql = db.prepare(&format!("PRAGMA integrity_check({FINDINGS_MAX})"))?;
    let said = sql.query_map([], |row| row.get::<_, String>(0))?;
    for line in said {
        findings.extend(Some(line?).filter(|line| line != "ok"));
    }
    Ok(())
}

/// Damage as a finding; anything else is an error of the look itself.
fn found(looked: Result<(), Fault>) -> Result<Option<String>, Fault> {
    match looked {
        Ok(()) => Ok(None),
        Err(Fault::Damaged(detail)) => Ok(Some(detail)),
        Err(fault) if fault.is_damage() => Ok(Some(fault.to_string())),
        Err(fault) => Err(fault),
    }
}

/// One run: its record, journal, columns, and entries in the indexes. Gives the bytes of the
/// journal.
fn run(db: &Connection, no: i64, stop: &dyn Fn() -> bool) -> Result<u64, Fault> {
    let run = run_by_number(db, no)?;
    let damaged = |detail: &str| Fault::Damaged(format!("run {}: {detail}", run.id()));
    if !columns_fit(db, no, &run)? {
        return Err(damaged("its columns say something else"));
    }
    if let Some(index) = missing_entry(db, no, &run)? {
        return Err(damaged(&format!("the index {index} lacks it")));
    }
    if !labels_fit(db, no, &run)? {
        return Err(damaged("it is not found by its labels"));
    }
    if !is_placed(db, no, &run)? {
        return Err(damaged("the queue has it where it does not belong"));
    }
    let (told, bytes) = told(db, run.id(), stop)?;
    if told == run { Ok(bytes) } else { Err(damaged("its journal tells another record")) }
}

/// The record that the journal of a run tells, read a page at a time, and the bytes of the journal.
fn told(db: &Connection, id: &RunId, stop: &dyn Fn() -> bool) -> Result<(Run, u64), Fault> {
    let damaged = |detail: String| Fault::Damaged(format!("run {id}: {detail}"));
    let (mut told, mut bytes): (Option<Run>, u64) = (None, 0);
    loop {
        if stop() {
            return Err(vfs::failure(ffi::SQLITE_INTERRUPT));
        }
        let after = told.as_ref().map_or(0, |run| run.state.head);
        let page = events(db, id, after, EVENTS_PAGE)?.unwrap_or_default();
        for recorded in &page {
            bytes = bytes.saturating_add(recorded.event.journal_bytes());
            told = Some(match told.take() {
                None => machine::begin(recorded).map_err(|error| damaged(error.to_string()))?,
                Some(run) => {
                    let state = machine::apply(run.state, recorded);
                    Run { state: state.map_err(|error| damaged(error.to_string()))?, ..run }
                }
            });
        }
        // A page may be short of events that are many bytes.
        if page.is_empty() {
            let run = told.ok_or_else(|| damaged("the journal is empty".to_owned()))?;
            return Ok((run, bytes));
        }
    }
}

/// The words of a run's request that have an index.
fn words(spec: &RunSpec) -> Vec<(KeyKind, &str)> {
    let all = [
        (KeyKind::Tenant, Some(spec.tenant.as_str())),
        (KeyKind::Owner, Some(spec.owner_user_id.as_str())),
        (KeyKind::Session, Some(spec.parent_session_id.as_str())),
        (KeyKind::App, spec.parent_app_name.as_deref()),
        (KeyKind::Agent, Some(spec.agent_name.as_str())),
        (KeyKind::Parent, spec.parent_run_id.as_ref().map(RunId::as_str)),
        (KeyKind::Name, spec.name.as_deref()),
        (KeyKind::Root, root_session(spec)),
    ];
    all.into_iter().filter_map(|(by, word)| Some((by, word?))).collect()
}

fn root_session(spec: &RunSpec) -> Option<&str> {
    spec.root_session_id.as_deref().filter(|root| !root.is_empty())
}

fn columns_fit(db: &Connection, no: i64, run: &Run) -> Result<bool, Fault> {
    let spec = &run.spec;
    let mut misfits = 0;
    for (by, word) in words(spec) {
        let (column, hash, _) = by.names();
        let sql = format!("SELECT 1 FROM runs WHERE no = ?1 AND {column} = ?2 AND {hash} = ?3");
        let key = by.key(&spec.tenant, word);
        misfits += usize::from(!db.prepare_cached(&sql)?.exists(params![no, word, key])?);
    }
    let mut rest = db.prepare_cached(
        "SELECT 1 FROM runs WHERE no = ?1 AND pins = ?2 AND priority = ?3
           AND created_at = ?4 AND serial IS ?5 AND named IS ?6 AND attached IS ?7
           AND (app IS NULL) = ?8 AND (parent IS NULL) = ?9 AND (name IS NULL) = ?10
           AND (root_session IS NULL) = ?11",
    )?;
    let rest = rest.exists(params![
        no,
        Pins::of(run).as_str(),
        spec.priority,
        time(spec.created_at),
        spec.serial.then(|| serial_key(spec)),
        named_key(spec),
        attached_key(spec),
        spec.parent_app_name.is_none(),
        spec.parent_run_id.is_none(),
        spec.name.is_none(),
        root_session(spec).is_none(),
    ])?;
    Ok(misfits == 0 && rest)
}

/// The first index of those by which the run is found that has no entry of it.
fn missing_entry(db: &Connection, no: i64, run: &Run) -> Result<Option<&'static str>, Fault> {
    let (spec, row) = (&run.spec, MutableColumns::new(run));
    for (by, word) in words(spec) {
        let (_, hash, index) = by.names();
        let sql = format!(
            "SELECT 1 FROM runs INDEXED BY {index}
             WHERE status = ?1 AND {hash} = ?2 AND updated_at = ?3 AND no = ?4"
        );
        let key = by.key(&spec.tenant, word);
        if !db.prepare_cached(&sql)?.exists(params![row.status, key, row.updated_at, no])? {
            return Ok(Some(index));
        }
    }
    let id = "SELECT 1 FROM runs INDEXED BY sqlite_autoindex_runs_1 WHERE id = ?1 AND no = ?2";
    if !db.prepare_cached(id)?.exists(params![spec.id.as_str(), no])? {
        return Ok(Some("of ids"));
    }
    if let Some(holder) = &row.holder {
        let held = "SELECT 1 FROM runs INDEXED BY runs_held WHERE holder = ?1 AND no = ?2";
        if !db.prepare_cached(held)?.exists(params![holder, no])? {
            return Ok(Some("runs_held"));
        }
    }
    let place: Option<i64> = db
        .prepare_cached("SELECT queue FROM runs WHERE no = ?1")?
        .query_row([no], |row| row.get(0))?;
    if let Some(place) = place {
        let mut queued = db.prepare_cached(
            "SELECT 1 FROM runs INDEXED BY runs_queued
             WHERE queue = ?1 AND priority = ?2 AND no = ?3",
        )?;
        if !queued.exists(params![place, spec.priority, no])? {
            return Ok(Some("runs_queued"));
        }
    }
    Ok(None)
}

fn labels_fit(db: &Connection, no: i64, run: &Run) -> Result<bool, Fault> {
    let row = MutableColumns::new(run);
    let mut label = db.prepare_cached(
        "SELECT 1 FROM labels WHERE status = ?1 AND key = ?2 AND updated_at = ?3 AND run = ?4
           AND name = ?5 AND value = ?6",
    )?;
    for (name, value) in &run.spec.labels {
        let key = label_key(&run.spec.tenant, name, value);
        if !label.exists(params![row.status, key, row.updated_at, no, name, value])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// True if a run stands in the queue or waits for others exactly if its hold says so, and is in
/// the tree of its root.
fn is_placed(db: &Connection, no: i64, run: &Run) -> Result<bool, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT queue IS NOT NULL, EXISTS (SELECT 1 FROM waits WHERE waiter = ?1),
            (SELECT root FROM trees WHERE no = abs(r.tree)) FROM runs r WHERE no = ?1",
    )?;
    let row = sql.query_row([no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let Some((queued, waits, root)): Option<(bool, bool, Option<String>)> = row.optional()? else {
        return Ok(false);
    };
    let fits = match &run.state.hold {
        Hold::Nobody | Hold::Host { .. } => !queued && !waits,
        Hold::Beat | Hold::Wanted { .. } => queued && !waits,
        Hold::Runs { .. } => queued || waits,
    };
    let in_tree = match root {
        Some(root) => root == run.spec.root_run_id.as_str(),
        None => run.spec.parent_run_id.is_none(),
    };
    Ok(fits && in_tree)
}
