//! The processes that share the file.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Rows, params};
use taskrun_journal::hold::Lane;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::pin::{Pins, Ready};
use taskrun_journal::run::Run;
use taskrun_journal::store::{Host, PresentHost, Stay};
use taskrun_journal::time::{Timestamp, millis};

use super::dispatches;
use super::failure_detector::{FailureDetector, Liveness};
use super::fault::Fault;
use super::heartbeat::machine_ms;
use super::locks::Locks;
use super::outbox;
use super::row::run_by_number;
use super::schema::{bits, int, time, unbits};

/// Enters a host that gave its first sign of life at a time of [`machine_ms`].
pub(crate) fn enter(db: &Connection, host: &Host, sent_ms: i64) -> Result<(), Fault> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO hosts VALUES (?1, ?2, ?8, ?3, ?9, ?4, ?5, ?6, ?7,
            coalesce((SELECT entered_ms FROM hosts WHERE id = ?1 AND started_at = ?4), ?7))",
    )?
    .execute(params![
        host.id.as_str(),
        host.pid,
        serde_json::to_string(&host.agents).unwrap_or_default(),
        bits(host.started_at.0),
        host.slots,
        int(millis(host.lease)),
        sent_ms,
        host.policy,
        serde_json::to_string(&host.subscribers).unwrap_or_default()
    ])?;
    Ok(())
}

/// When a host's last beat was sent, in the time of its `started_at`.
pub(crate) fn heard(db: &Connection, host: &HostId) -> Result<Option<Timestamp>, Fault> {
    let mut sql =
        db.prepare_cached("SELECT started_at, entered_ms, beat_ms FROM hosts WHERE id = ?1")?;
    let row = sql.query_row([host.as_str()], |row| {
        let (started_at, entered_ms, beat_ms): (i64, i64, i64) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let alive_ms = u64::try_from(beat_ms.saturating_sub(entered_ms)).unwrap_or(0);
        Ok(Timestamp(unbits(started_at)).plus(Duration::from_millis(alive_ms)))
    });
    Ok(row.optional()?)
}

/// Takes a host out, unless it has a reason to stay.
pub(crate) fn retire(db: &Connection, host: &HostId, stay: &Stay) -> Result<bool, Fault> {
    if is_needed(db, host, stay)? {
        return Ok(false);
    }
    db.prepare_cached("DELETE FROM hosts WHERE id = ?1")?.execute([host.as_str()])?;
    Ok(true)
}

/// True if a host has a reason to stay.
pub(crate) fn is_needed(db: &Connection, host: &HostId, stay: &Stay) -> Result<bool, Fault> {
    let mut sql = db.prepare_cached("SELECT agents, subscribers FROM hosts WHERE id = ?1")?;
    let known = sql.query_row([host.as_str()], |row| {
        Ok((names_of(&row.get::<_, String>(0)?), names_of(&row.get::<_, String>(1)?)))
    });
    let is_awaited = match known.optional()? {
        Some((agents, subscribers)) => {
            outbox::are_due(db, &agents)?
                || is_wanted(db, &Ready::Named(agents), stay)?
                || dispatches::keep_host(db, &subscribers)?
        }
        None => false,
    };
    Ok(is_awaited || holds(db, host)?)
}

/// True if one of these runs is wanted, though it may not be had yet, or waits for a heartbeat. A host
/// stays for agents, whichever lane their runs are in.
fn is_wanted(db: &Connection, ready: &Ready, stay: &Stay) -> Result<bool, Fault> {
    let until = stay.until.map_or(i64::MAX, time);
    // Those whose time has not come are looked at in the order of their times.
    let at_once = "SELECT DISTINCT pins FROM runs INDEXED BY runs_queued
         WHERE queue IS NOT NULL AND (queue < 5 OR queue > 6) AND ?1 = ?1";
    let later = "SELECT pins FROM runs INDEXED BY runs_due
         WHERE queue >= 5 AND queue < 7 AND due <= ?1 ORDER BY due";
    for sql in [at_once, later] {
        let mut sql = db.prepare_cached(sql)?;
        let mut rows = sql.query([until])?;
        while let Some(row) = rows.next()? {
            let pins = Pins::from_text(row.get(0)?);
            if ready.includes(&pins, Lane::Fresh)
                && pins.all().all(|pin| !stay.without.contains(pin))
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The agents of a host, or its subscribers, from its row. One that cannot be read has none.
fn names_of(text: &str) -> Arc<BTreeSet<String>> {
    Arc::new(serde_json::from_str(text).unwrap_or_default())
}

/// Takes dead hosts out that hold nothing; returns which.
pub(crate) fn sweep(db: &Connection, dead: &[HostId]) -> Result<Vec<HostId>, Fault> {
    let mut out = Vec::new();
    for host in dead {
        if !holds(db, host)? {
            db.prepare_cached("DELETE FROM hosts WHERE id = ?1")?.execute([host.as_str()])?;
            out.push(host.clone());
        }
    }
    Ok(out)
}

fn holds(db: &Connection, host: &HostId) -> Result<bool, Fault> {
    let mut sql = db.prepare_cached("SELECT 1 FROM runs WHERE holder = ?1 LIMIT 1")?;
    Ok(sql.exists([host.as_str()])?)
}

/// A host that is in the list, and whether it lives.
struct HostRow {
    host: Host,
    /// When its last beat was sent.
    beat_ms: i64,
    /// Its lock is held: its process is there.
    is_there: bool,
    /// And its heart beats.
    lives: bool,
}

fn listed(db: &Connection, locks: &Locks) -> Result<Vec<HostRow>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT id, pid, agents, started_at, slots, lease_ms, beat_ms, policy,
            subscribers FROM hosts
         ORDER BY id",
    )?;
    let rows = sql.query_map([], |row| {
        let id: String = row.get(0)?;
        let host = Host {
            id: HostId::new(&id),
            pid: row.get(1)?,
            policy: row.get(7)?,
            agents: names_of(&row.get::<_, String>(2)?),
            subscribers: names_of(&row.get::<_, String>(8)?),
            started_at: Timestamp(unbits(row.get(3)?)),
            slots: row.get(4)?,
            lease: Duration::from_millis(unbits(row.get(5)?)),
        };
        let beat_ms: i64 = row.get(6)?;
        Ok((host, beat_ms))
    })?;
    let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    let now = machine_ms();
    let look = |(host, beat_ms): (Host, i64)| {
        let is_there = locks.is_held(&host.id);
        let lives = is_there && now.saturating_sub(beat_ms) < int(millis(host.lease));
        HostRow { host, beat_ms, is_there, lives }
    };
    Ok(rows.into_iter().map(look).collect())
}

/// The hosts that live, and take runs up.
pub(crate) fn living(db: &Connection, locks: &Locks) -> Result<Vec<Host>, Fault> {
    let listed = listed(db, locks)?.into_iter();
    let living = listed.filter(|listed| listed.lives && !listed.host.is_leaving());
    Ok(living.map(|listed| listed.host).collect())
}

/// The hosts whose process is there, also those whose hearts do not beat.
pub(crate) fn present(db: &Connection, locks: &Locks) -> Result<Vec<PresentHost>, Fault> {
    let there = listed(db, locks)?.into_iter().filter(|listed| listed.is_there);
    let now = machine_ms();
    let present = |HostRow { host, beat_ms, lives, .. }: HostRow| {
        let silent_ms = u64::try_from(now.saturating_sub(beat_ms)).unwrap_or(0);
        PresentHost { host, silence: (!lives).then(|| Duration::from_millis(silent_ms)) }
    };
    Ok(there.map(present).collect())
}

/// Writes what is there, to find out whether that is possible.
pub(crate) fn touch(db: &Connection, hosts: &[HostId]) -> Result<(), Fault> {
    let mut sql = db.prepare_cached("UPDATE hosts SET lease_ms = lease_ms WHERE id = ?1")?;
    for host in hosts {
        sql.execute([host.as_str()])?;
    }
    Ok(())
}

/// Hosts that died or may have, and the runs that they left behind.
pub(crate) struct DeadHosts {
    pub(crate) runs: Vec<Run>,
    /// Hosts that died and hold nothing.
    pub(crate) dead: Vec<HostId>,
    /// Hosts that are silent, and may be because nobody can write.
    pub(crate) doubtful: Vec<HostId>,
}

/// Runs of hosts that do not live, and what is to be done about these. A host that is there
/// and silent keeps its row: it may go on.
pub(crate) fn orphans(
    db: &Connection,
    locks: &Locks,
    detector: &FailureDetector,
    limit: usize,
) -> Result<DeadHosts, Fault> {
    // Both lists are of one moment: who holds a run in it was entered before it.
    let holders = holders(db)?;
    let listed = listed(db, locks)?;
    detector.retain(|host| listed.iter().any(|one| one.host.id == *host));
    let now = machine_ms();
    let (mut living, mut doubtful) = (HashSet::new(), Vec::new());
    for HostRow { host, beat_ms, .. } in listed.iter().filter(|one| one.is_there) {
        match detector.of(&host.id, *beat_ms, int(millis(host.lease)), now) {
            Liveness::Dead => continue,
            Liveness::Lives => {}
            Liveness::Doubtful => doubtful.push(host.id.clone()),
        }
        living.insert(host.id.as_str());
    }
    let mut runs = Vec::new();
    let mut held = db.prepare_cached("SELECT no FROM runs WHERE holder = ?1 ORDER BY no")?;
    for holder in holders.iter().filter(|holder| !living.contains(holder.as_str())) {
        collect(db, held.query([holder])?, &mut runs, limit)?;
    }
    let dead = listed.iter().filter(|one| !one.is_there && !holders.contains(one.host.id.as_str()));
    let dead = dead.map(|one| one.host.id.clone()).collect();
    Ok(DeadHosts { runs, dead, doubtful })
}

/// Runs that a host holds, in the order of their ids.
pub(crate) fn held(
    db: &Connection,
    host: &HostId,
    after: Option<&RunId>,
    limit: usize,
) -> Result<Vec<Run>, Fault> {
    let after = after.map_or("", RunId::as_str);
    let mut sql = db.prepare_cached(
        "SELECT no FROM runs INDEXED BY runs_held WHERE holder = ?1 AND id > ?2
         ORDER BY id",
    )?;
    let mut runs = Vec::new();
    collect(db, sql.query([host.as_str(), after])?, &mut runs, limit)?;
    Ok(runs)
}

/// Reads the runs of these numbers that can be read, up to so many in all: the others are to be freed
/// all the same.
fn collect(
    db: &Connection,
    mut numbers: Rows<'_>,
    runs: &mut Vec<Run>,
    limit: usize,
) -> Result<(), Fault> {
    while runs.len() < limit
        && let Some(row) = numbers.next()?
    {
        match run_by_number(db, row.get(0)?) {
            Ok(run) => runs.push(run),
            Err(Fault::Damaged(detail)) => {
                tracing::error!(detail, "a run that is held cannot be read");
            }
            Err(fault @ Fault::Sqlite(_)) => return Err(fault),
        }
    }
    Ok(())
}

/// Everybody who holds a run; a jump from one to the next in the index, however many runs each
/// of them holds.
fn holders(db: &Connection) -> Result<HashSet<String>, Fault> {
    let mut next = db.prepare_cached("SELECT min(holder) FROM runs WHERE holder > ?1")?;
    let mut holders = HashSet::new();
    let mut last = String::new();
    loop {
        let found: Option<String> = next.query_row([&last], |row| row.get(0))?;
        let Some(holder) = found else { return Ok(holders) };
        last.clone_from(&holder);
        holders.insert(holder);
    }
}
