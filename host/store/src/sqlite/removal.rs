//! Removing what ended long ago.

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension, Row, params};
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, ContinuationNeeds, Successor};
use taskrun_journal::store::{Removal, RemovalOutcome};

use super::fault::Fault;
use super::row::run_by_number;
use super::schema::{KeyKind, TERMINAL, label_key, status_code, time, unbits};
use super::{artifacts, dispatches, facts, outbox, settled};

/// Pages that are given back to the file system after a removal; a mebibyte. It takes longer the more
/// pages are unused, some 50 ms where half a gigabyte is.
const PAGES_FREED_MAX: u32 = 256;

/// A run that ended before the time.
struct Candidate {
    /// When, and which: the order in which runs are removed.
    order: (i64, i64),
    kept: bool,
}

/// The answers that hold for several runs of one removal, as far as they were found.
#[derive(Default)]
struct SharedAnswers {
    /// The ancestors of open runs, by tree.
    open_ancestors: HashMap<i64, HashSet<String>>,
    needs: ContinuationNeeds,
}

pub(crate) fn remove(db: &Connection, removal: &Removal) -> Result<RemovalOutcome, Fault> {
    let mut candidates = Vec::new();
    let mut known = SharedAnswers::default();
    let walks = if removal.limit > 0 { walks(db, removal)? } else { Vec::new() };
    for walk in walks {
        candidates.extend(candidates_of(db, removal, &walk, &mut known)?);
    }
    candidates.sort_unstable_by_key(|candidate| candidate.order);
    let mut removed = RemovalOutcome::default();
    for candidate in candidates {
        if removed.runs >= removal.limit as u64 {
            break;
        }
        if candidate.kept {
            removed.kept += 1;
            continue;
        }
        match remove_one(db, candidate.order.1, removal, &mut removed) {
            Ok(()) => {}
            // It stays, and keeps no other one here.
            Err(Fault::Damaged(detail)) => {
                tracing::error!(detail, "an ended run cannot be removed");
            }
            Err(fault @ Fault::Sqlite(_)) => return Err(fault),
        }
    }
    if removal.dry_run {
        return Ok(removed);
    }
    if removed.runs > 0 {
        db.prepare_cached("DELETE FROM queues WHERE runs = 0")?.execute([])?;
    }
    if removed.runs > 0 || removal.limit == 0 {
        free_pages(db)?;
    }
    let number = |sql| db.query_row(sql, [], |row| row.get::<_, u32>(0)).map(u64::from);
    removed.unused = number("PRAGMA freelist_count")? * number("PRAGMA page_size")?;
    Ok(removed)
}

/// Gives some of the pages that nothing uses back to the file system.
fn free_pages(db: &Connection) -> Result<(), Fault> {
    let mut free = db.prepare(&format!("PRAGMA incremental_vacuum({PAGES_FREED_MAX})"))?;
    let mut rows = free.query([])?;
    // Each step frees one.
    while rows.next()?.is_some() {}
    Ok(())
}

/// An index to walk from the oldest on: the condition on its key, and that.
type Walk = (&'static str, i64);

fn walks(db: &Connection, removal: &Removal) -> Result<Vec<Walk>, Fault> {
    let by_tenant = "INDEXED BY runs_by_tenant WHERE tenant_key";
    let Some(scope) = &removal.scope else {
        return Ok(tenants(db)?.into_iter().map(|key| (by_tenant, key)).collect());
    };
    let tenant = &scope.tenant;
    Ok(match (&scope.parent_session_id, &scope.owner_user_id) {
        // No run is found by both.
        (Some(session), _) => vec![
            ("INDEXED BY runs_by_session WHERE session_key", KeyKind::Session.key(tenant, session)),
            ("INDEXED BY runs_by_root WHERE root_key", KeyKind::Root.key(tenant, session)),
        ],
        (None, Some(owner)) => {
            vec![("INDEXED BY runs_by_owner WHERE owner_key", KeyKind::Owner.key(tenant, owner))]
        }
        (None, None) => vec![(by_tenant, KeyKind::Tenant.key(tenant, tenant))],
    })
}

/// Tenants with ended runs; a jump from one to the next in the index.
fn tenants(db: &Connection) -> Result<BTreeSet<i64>, Fault> {
    let mut next = db.prepare_cached(
        "SELECT tenant_key FROM runs INDEXED BY runs_by_tenant
         WHERE status = ?1 AND tenant_key >= ?2 ORDER BY tenant_key LIMIT 1",
    )?;
    let mut tenants = BTreeSet::new();
    for status in TERMINAL..TERMINAL + 3 {
        let mut from = Some(i64::MIN);
        while let Some(least) = from {
            let found: Option<i64> =
                next.query_row([status, least], |row| row.get(0)).optional()?;
            from = found.and_then(|key| key.checked_add(1));
            tenants.extend(found);
        }
    }
    Ok(tenants)
}

/// The oldest runs of a walk, until there are enough that can be removed.
fn candidates_of(
    db: &Connection,
    removal: &Removal,
    (index, key): &Walk,
    known: &mut SharedAnswers,
) -> Result<Vec<Candidate>, Fault> {
    let part = |status| {
        format!(
            "SELECT updated_at, no, tree, id, parent FROM runs {index} = ?1 AND status = {status}
               AND updated_at < ?2 AND (?3 IS NULL OR tenant = ?3)
               AND (?4 IS NULL OR session = ?4 OR root_session = ?4)
               AND (?5 IS NULL OR owner = ?5) AND (?6 IS NULL OR app = ?6)"
        )
    };
    let parts: Vec<String> = (TERMINAL..TERMINAL + 3).map(part).collect();
    let sql = format!("{} ORDER BY 1, 2", parts.join(" UNION ALL "));
    let mut sql = db.prepare_cached(&sql)?;
    let scope = removal.scope.as_ref();
    let mut rows = sql.query(params![
        key,
        time(removal.before),
        scope.map(|scope| &scope.tenant),
        scope.and_then(|scope| scope.parent_session_id.as_ref()),
        scope.and_then(|scope| scope.owner_user_id.as_ref()),
        scope.and_then(|scope| scope.parent_app_name.as_ref()),
    ])?;
    let mut candidates = Vec::new();
    let mut removable = 0;
    while removable < removal.limit
        && let Some(row) = rows.next()?
    {
        // The questions for which a run is read come last.
        let kept = is_ancestor_of_open(db, row, &mut known.open_ancestors)?
            || is_beneath_open(db, row)?
            || dispatches::is_open(db, row.get(1)?)?
            || is_needed(db, row, &mut known.needs)?;
        removable += usize::from(!kept);
        candidates.push(Candidate { order: (row.get(0)?, row.get(1)?), kept });
    }
    Ok(candidates)
}

fn is_ancestor_of_open(
    db: &Connection,
    row: &Row<'_>,
    open_ancestors: &mut HashMap<i64, HashSet<String>>,
) -> Result<bool, Fault> {
    let Some(tree) = row.get::<_, Option<i64>>(2)?.map(i64::abs) else { return Ok(false) };
    let id: String = row.get(3)?;
    let ancestors = match open_ancestors.entry(tree) {
        std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
        std::collections::hash_map::Entry::Vacant(unknown) => unknown.insert(ancestors(db, tree)?),
    };
    Ok(ancestors.contains(&id))
}

/// True for a run that counts in its tree.
fn counts(row: &Row<'_>) -> Result<bool, Fault> {
    Ok(row.get::<_, Option<i64>>(2)?.is_none_or(|tree| tree >= 0))
}

/// True if a run above this one is open, which may want its result, and to whose budget it counts.
/// One that counts no longer in its tree is needed by nobody there: its use stands in the record of
/// the run that left it behind.
fn is_beneath_open(db: &Connection, row: &Row<'_>) -> Result<bool, Fault> {
    if !counts(row)? {
        return Ok(false);
    }
    let Some(parent) = row.get::<_, Option<String>>(4)? else { return Ok(false) };
    // `UNION` keeps one row of each run, so that the walk ends whatever the rows say.
    let mut open = db.prepare_cached(
        "WITH RECURSIVE above (id, parent, status) AS (
            SELECT id, parent, status FROM runs WHERE id = ?1 UNION
            SELECT r.id, r.parent, r.status FROM above a CROSS JOIN runs r ON r.id = a.parent)
         SELECT 1 FROM above WHERE status < ?2 LIMIT 1",
    )?;
    Ok(open.exists(params![parent, TERMINAL])?)
}

/// True if somebody is to be told of the outcome of a run, or the run is a batch one of whose entries
/// is open, or an open run that continues another one needs it. One that is damaged is not asked.
fn is_needed(db: &Connection, row: &Row<'_>, needs: &mut ContinuationNeeds) -> Result<bool, Fault> {
    let no = row.get(1)?;
    let run = match run_by_number(db, no) {
        Ok(run) => run,
        Err(Fault::Damaged(_)) => return Ok(false),
        Err(fault @ Fault::Sqlite(_)) => return Err(fault),
    };
    if outbox::is_needed(db, no, &run.spec)? {
        return Ok(true);
    }
    let mut open = db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1 AND status < ?2")?;
    for entry in &run.spec.entries {
        if open.exists(params![entry.as_str(), TERMINAL])? {
            return Ok(true);
        }
    }
    is_needed_by_continuation(db, (no, counts(row)?), &run, needs)
}

/// The answer of [`ContinuationNeeds`]: the first run of a tree stays, and so does one of which
/// nobody was told.
pub(super) fn is_needed_by_continuation(
    db: &Connection,
    (no, counts): (i64, bool),
    run: &Run,
    needs: &mut ContinuationNeeds,
) -> Result<bool, Fault> {
    let is_first = *run.id() == run.spec.root_run_id;
    let stays = is_first || outbox::is_pending(db, no)?;
    let mut by_key =
        db.prepare_cached("SELECT run FROM idempotency WHERE tenant = ?1 AND key = ?2")?;
    let next = |key: String| -> Result<Option<Successor>, Fault> {
        let found: Option<i64> =
            by_key.query_row(params![run.spec.tenant, key], |row| row.get(0)).optional()?;
        let Some(found) = found else { return Ok(None) };
        match run_by_number(db, found) {
            Ok(next) => Ok(Some(Successor::of(&next))),
            Err(Fault::Damaged(_)) => Ok(None),
            Err(fault @ Fault::Sqlite(_)) => Err(fault),
        }
    };
    needs.is_needed(&run.spec, (stays, counts), next)
}

/// The runs of a tree under which there is an open one.
fn ancestors(db: &Connection, tree: i64) -> Result<HashSet<String>, Fault> {
    let mut open = db.prepare_cached(
        "SELECT DISTINCT parent FROM runs INDEXED BY runs_by_tree
         WHERE tree = ?1 AND status = ?2 AND parent IS NOT NULL",
    )?;
    let mut parent_of = db.prepare_cached("SELECT parent FROM runs WHERE id = ?1")?;
    let mut ancestors = HashSet::new();
    for status in 0..TERMINAL {
        let parents = open.query_map([tree, status], |row| row.get(0))?;
        for parent in parents.collect::<rusqlite::Result<Vec<String>>>()? {
            let mut next = Some(parent);
            while let Some(id) = next.filter(|id| ancestors.insert(id.clone())) {
                next = parent_of.query_row([&id], |row| row.get(0)).optional()?.flatten();
            }
        }
    }
    Ok(ancestors)
}

fn remove_one(
    db: &Connection,
    no: i64,
    removal: &Removal,
    removed: &mut RemovalOutcome,
) -> Result<(), Fault> {
    let run = run_by_number(db, no)?;
    if removal.scope.as_ref().is_some_and(|scope| !scope.admits(&run)) {
        return Err(Fault::Damaged(format!("run {}: its columns say something else", run.id())));
    }
    let mut sql = db.prepare_cached(
        // The letters are counted for the reading: the pages that are freed later are read now, while
        // nothing was written.
        "SELECT count(*), coalesce(sum(octet_length(body)), 0), sum(length(body))
         FROM events WHERE run = ?1",
    )?;
    let counted = sql.query_row([no], |row| Ok((row.get(0)?, row.get(1)?)));
    let (events, bytes) = counted.map_err(|error| Fault::of_one(error, run.id().as_str()))?;
    removed.runs += 1;
    removed.events += unbits(events);
    removed.bytes += unbits(bytes);
    if removal.dry_run {
        return Ok(());
    }
    let (spec, state) = (&run.spec, &run.state);
    let mut label = db.prepare_cached(
        "DELETE FROM labels WHERE key = ?1 AND status = ?2 AND updated_at = ?3 AND run = ?4",
    )?;
    let status = status_code(run.status());
    for (name, value) in &spec.labels {
        let key = label_key(&spec.tenant, name, value);
        label.execute([key, status, time(state.updated_at), no])?;
    }
    db.prepare_cached("DELETE FROM idempotency WHERE run = ?1")?.execute([no])?;
    // Another run may have its id one day, which the one that continues this one does not continue.
    db.prepare_cached("DELETE FROM idempotency WHERE tenant = ?1 AND key = ?2")?
        .execute(params![spec.tenant, schedule::continuation_key(&spec.id)])?;
    db.prepare_cached("DELETE FROM events WHERE run = ?1")?.execute([no])?;
    artifacts::remove(db, no)?;
    facts::remove(db, no)?;
    outbox::remove(db, no)?;
    dispatches::remove(db, no)?;
    settled::leave_tree(db, no, &spec.root_run_id)?;
    db.prepare_cached("DELETE FROM runs WHERE no = ?1")?.execute([no])?;
    Ok(())
}
