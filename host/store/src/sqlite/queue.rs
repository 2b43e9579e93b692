//! Wanted runs: which of them may be taken, and in which order.
//!
//! `runs.queue` says where a wanted run stands; it is NULL for all others:
//!
//! | | resumes | never began | |
//! | --- | --- | --- | --- |
//! | [`READY`] | 0 | 1 | may be taken, unless a claim finds its tree full |
//! | [`PARKED`] | 2 | 3 | behind another run of its tree and pins, or its tree is full |
//! | [`TURN`] | | 4 | serial, and not the first open one of its session |
//! | [`DELAYED`] | 5 | 6 | its time `due` has not come |
//! | [`BEAT`] | | 7 | an entry that waits for a heartbeat; no claim takes it |
//!
//! Of a tree with a slot left the best wanted run with each pins is always ready, and usually no
//! other. So a claim looks at one run of a full tree, however many wait in it: it parks that one
//! and marks the tree (`trees.full`), and nothing of the tree is looked at again before a slot is
//! free. A run whose tree is not kept in `trees` is alone in it.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;

use rusqlite::{Connection, OptionalExtension, Row, params};
use taskrun_journal::hold::Lane;
use taskrun_journal::pin::{Pins, Ready};
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, Rank};
use taskrun_journal::store::Claim;
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::schema::{FINALIZING, int, time, unbits};

const READY: i64 = 0;
const PARKED: i64 = 2;
pub(super) const TURN: i64 = 4;
const DELAYED: i64 = 5;
/// See `entries.rs`.
pub(crate) const BEAT: i64 = 7;

/// A run that was canceled as its parent ended.
#[derive(Debug)]
pub(crate) struct CanceledRun {
    pub(crate) run: Run,
    /// Place of the last of its events, and how many there are.
    pub(crate) place: u64,
    pub(crate) events: usize,
}

/// The queue within a transaction.
pub(crate) struct Queue<'a> {
    pub(crate) db: &'a Connection,
    /// There may be a run to take that was not there before.
    stirred: Cell<bool>,
    /// Runs that ended with the one that is written.
    canceled: RefCell<Vec<CanceledRun>>,
}

/// A run, as far as its place in the queue depends on it.
pub(crate) struct Member {
    pub(crate) no: i64,
    pub(crate) tree: Option<i64>,
    pub(crate) serial: Option<i64>,
    pub(crate) pins: String,
}

impl Member {
    /// Columns for [`Self::of`].
    const COLUMNS: &str = "no, tree, serial, pins";

    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { no: row.get(0)?, tree: row.get(1)?, serial: row.get(2)?, pins: row.get(3)? })
    }
}

/// Number of a lane within each kind of place.
fn lane_code(lane: Lane) -> i64 {
    match lane {
        Lane::Resume => 0,
        Lane::Fresh => 1,
    }
}

pub(super) fn lane_of(code: i64) -> Lane {
    if code == 0 { Lane::Resume } else { Lane::Fresh }
}

/// Where a run stands that may be taken at once and is alone in its tree.
pub(crate) fn ready(lane: Lane) -> i64 {
    READY + lane_code(lane)
}

/// True for a place from which a run is taken.
pub(crate) fn is_ready(place: Option<i64>) -> bool {
    place.is_some_and(|place| place < PARKED)
}

/// A run that may be taken.
pub(crate) struct ReadyRun {
    pub(crate) no: i64,
    pub(crate) rank: Rank,
    tree: Option<i64>,
    due: Option<i64>,
    pins: Pins,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(db: &'a Connection) -> Self {
        Self { db, stirred: Cell::new(false), canceled: RefCell::default() }
    }

    /// Says that there may be more to take.
    pub(crate) fn stir(&self) {
        self.stirred.set(true);
    }

    pub(crate) fn stirred(&self) -> bool {
        self.stirred.get()
    }

    /// Says that a run ended with the one that started it.
    pub(crate) fn canceled(&self, run: CanceledRun) {
        self.canceled.borrow_mut().push(run);
    }

    pub(crate) fn into_canceled(self) -> Vec<CanceledRun> {
        self.canceled.into_inner()
    }

    pub(crate) fn member(&self, no: i64) -> Result<Member, Fault> {
        let sql = format!("SELECT {} FROM runs WHERE no = ?1", Member::COLUMNS);
        Ok(self.db.prepare_cached(&sql)?.query_row([no], Member::of)?)
    }

    fn put(&self, no: i64, place: i64) -> Result<(), Fault> {
        let mut sql = self.db.prepare_cached("UPDATE runs SET queue = ?2 WHERE no = ?1")?;
        sql.execute([no, place])?;
        Ok(())
    }

    /// Puts a run into a lane, whose time has come.
    pub(crate) fn place(&self, run: &Member, lane: Lane) -> Result<(), Fault> {
        let behind = || match run.serial {
            Some(serial) => self.has_open_serial(serial, run.no),
            None => Ok(false),
        };
        if schedule::waits_its_turn(lane, run.serial.is_some(), behind)? {
            return self.put(run.no, TURN);
        }
        match run.tree {
            None => {
                self.put(run.no, ready(lane))?;
                self.stir();
                Ok(())
            }
            Some(tree) => {
                self.put(run.no, PARKED + lane_code(lane))?;
                self.make_best_ready(tree, &run.pins)
            }
        }
    }

    /// Puts an entry where the heartbeat of its agent finds it.
    pub(crate) fn await_beat(&self, no: i64) -> Result<(), Fault> {
        self.put(no, BEAT)
    }

    /// Puts a run off.
    pub(crate) fn delay(&self, no: i64, lane: Lane, until: Timestamp) -> Result<(), Fault> {
        let mut sql =
            self.db.prepare_cached("UPDATE runs SET queue = ?2, due = ?3 WHERE no = ?1")?;
        sql.execute([no, DELAYED + lane_code(lane), time(until)])?;
        Ok(())
    }

    /// True if a serial run is open that was accepted before.
    pub(crate) fn has_open_serial(&self, serial: i64, before: i64) -> Result<bool, Fault> {
        let mut sql = self.db.prepare_cached(
            "SELECT 1 FROM runs INDEXED BY runs_serial
             WHERE serial = ?1 AND status < 5 AND no < ?2 LIMIT 1",
        )?;
        Ok(sql.exists([serial, before])?)
    }

    /// Lets the next serial run of a session begin, after one ended.
    pub(crate) fn next_turn(&self, serial: i64) -> Result<(), Fault> {
        let sql = format!(
            "SELECT {}, queue FROM runs INDEXED BY runs_serial
             WHERE serial = ?1 AND status < 5 ORDER BY no LIMIT 1",
            Member::COLUMNS
        );
        let next = self.db.prepare_cached(&sql)?.query_row([serial], |row| {
            let place: Option<i64> = row.get(4)?;
            Ok((Member::of(row)?, place))
        });
        match next.optional()? {
            Some((run, Some(TURN))) => self.place(&run, Lane::Fresh),
            Some(_) | None => Ok(()),
        }
    }

    /// Makes the best wanted run of a tree with these pins ready, if the tree may have a slot left.
    pub(crate) fn make_best_ready(&self, tree: i64, pins: &str) -> Result<(), Fault> {
        let Some(parked) = self.best_parked(tree, pins)? else { return Ok(()) };
        if self.best(tree, pins, READY, PARKED)?.is_none_or(|ready| parked < ready) {
            self.put(int(parked.number), ready(parked.lane))?;
            self.stir();
        }
        Ok(())
    }

    /// Makes one run ready that stands behind one of these, which cannot be taken; false if there is
    /// none.
    pub(crate) fn pass_over(&self, skipped: &[i64]) -> Result<bool, Fault> {
        for no in skipped {
            let member = match self.member(*no) {
                Ok(member) => member,
                // Nothing says what stands behind it.
                Err(fault) if fault.is_damage() => continue,
                Err(fault) => return Err(fault),
            };
            let Some(tree) = member.tree else { continue };
            if let Some(parked) = self.best_parked(tree, &member.pins)? {
                self.put(int(parked.number), ready(parked.lane))?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The best parked run of a tree with these pins, if the tree may have a slot left.
    fn best_parked(&self, tree: i64, pins: &str) -> Result<Option<Rank>, Fault> {
        let mut full = self.db.prepare_cached("SELECT 1 FROM trees WHERE no = ?1 AND full = 1")?;
        if full.exists([tree])? {
            return Ok(None);
        }
        self.best(tree, pins, PARKED, TURN)
    }

    /// The best run of a tree with these pins at places from one on and below another.
    fn best(&self, tree: i64, pins: &str, from: i64, to: i64) -> Result<Option<Rank>, Fault> {
        let mut sql = self.db.prepare_cached(
            "SELECT queue - ?3, priority, no FROM runs INDEXED BY runs_grouped
             WHERE tree = ?1 AND pins = ?2 AND queue >= ?3 AND queue < ?4
             ORDER BY queue, priority DESC, no LIMIT 1",
        )?;
        Ok(sql.query_row(params![tree, pins, from, to], rank).optional()?)
    }

    /// Takes the mark of being full from a tree.
    fn open_up(&self, tree: i64) -> Result<(), Fault> {
        self.db.prepare_cached("UPDATE trees SET full = 0 WHERE no = ?1")?.execute([tree])?;
        let mut next = self.db.prepare_cached(
            "SELECT pins FROM runs INDEXED BY runs_grouped
             WHERE tree = ?1 AND pins > ?2 AND queue IS NOT NULL
             ORDER BY pins LIMIT 1",
        )?;
        let mut pins = String::new();
        while let Some(found) = next.query_row(params![tree, pins], |row| row.get(0)).optional()? {
            pins = found;
            self.make_best_ready(tree, &pins)?;
        }
        Ok(())
    }

    /// One more run of a tree is held.
    pub(crate) fn hold(&self, tree: i64) -> Result<(), Fault> {
        self.db
            .prepare_cached("UPDATE trees SET held = held + 1 WHERE no = ?1")?
            .execute([tree])?;
        Ok(())
    }

    /// One less.
    pub(crate) fn release(&self, tree: i64) -> Result<(), Fault> {
        self.db
            .prepare_cached("UPDATE trees SET held = held - 1 WHERE no = ?1")?
            .execute([tree])?;
        // Whatever was ready before can be had since.
        self.stir();
        self.open_up(tree)
    }

    /// True if no more runs of a tree are to be held, where one without a number of slots of its own
    /// has so many.
    fn is_full(&self, tree: i64, tree_slots: u32) -> Result<bool, Fault> {
        let sql = "SELECT held >= coalesce(slots, ?2) FROM trees WHERE no = ?1";
        Ok(self.db.prepare_cached(sql)?.query_row(params![tree, tree_slots], |row| row.get(0))?)
    }

    /// Puts runs where they belong at this time and with so many slots for each tree. To be done
    /// before [`Self::first`].
    pub(crate) fn look(&self, tree_slots: u32, now: Timestamp) -> Result<(), Fault> {
        let sql = format!(
            "SELECT {}, queue FROM runs INDEXED BY runs_due
             WHERE queue >= 5 AND due <= ?1 ORDER BY due",
            Member::COLUMNS
        );
        let mut sql = self.db.prepare_cached(&sql)?;
        let due = sql.query_map([time(now)], |row| {
            let place: i64 = row.get(4)?;
            Ok((Member::of(row)?, place))
        })?;
        for (run, place) in due.collect::<rusqlite::Result<Vec<_>>>()? {
            self.place(&run, lane_of(place - DELAYED))?;
        }
        // Marked by a host that allows fewer.
        let mut sql = self.db.prepare_cached(
            "SELECT no FROM trees INDEXED BY trees_full
             WHERE full = 1 AND slots IS NULL AND held < ?1",
        )?;
        let trees = sql.query_map([tree_slots], |row| row.get(0))?;
        for tree in trees.collect::<rusqlite::Result<Vec<i64>>>()? {
            self.open_up(tree)?;
        }
        Ok(())
    }

    /// True if this claim finds nothing to take.
    pub(crate) fn is_idle(&self, claim: &Claim) -> Result<bool, Fault> {
        self.look(claim.tree_slots, claim.now)?;
        let all = (&claim.ready, Lane::Resume);
        if self.first(all, claim.tree_slots, claim.now, &[])?.is_some() {
            return Ok(false);
        }
        let has_finalizer =
            claim.finalizers > 0 && self.first_finalizer(&claim.ready, claim.now, &[])?.is_some();
        Ok(!has_finalizer)
    }

    /// The run of these to be taken first from a lane on, without those that are damaged.
    pub(crate) fn first(
        &self,
        (ready, from): (&Ready, Lane),
        tree_slots: u32,
        now: Timestamp,
        damaged: &[i64],
    ) -> Result<Option<ReadyRun>, Fault> {
        if tree_slots == 0 {
            return Ok(None);
        }
        let mut sql = self.db.prepare_cached(
            "SELECT queue, priority, no, tree, due, pins FROM runs INDEXED BY runs_queued
             WHERE queue >= ?1 AND queue < 2 ORDER BY queue, priority DESC, no",
        )?;
        loop {
            let mut rows = sql.query([READY + lane_code(from)])?;
            let mut first = None;
            while let Some(row) = rows.next()? {
                let (rank, no, pins) = (rank(row)?, row.get(2)?, Pins::from_text(row.get(5)?));
                if ready.includes(&pins, rank.lane) && !damaged.contains(&no) {
                    let found = ReadyRun { no, rank, tree: row.get(3)?, due: row.get(4)?, pins };
                    if from == Lane::Resume || !self.is_behind_resumes(&found, now)? {
                        first = Some(found);
                        break;
                    }
                }
            }
            drop(rows);
            let Some(first) = first else { return Ok(None) };
            if first.due.is_some_and(|due| due > time(now)) {
                self.put_off(&first)?;
            } else if let Some(tree) = first.tree
                && self.is_full(tree, tree_slots)?
            {
                self.put(first.no, PARKED + lane_code(first.rank.lane))?;
                let full = "UPDATE trees SET full = 1 WHERE no = ?1";
                self.db.prepare_cached(full)?.execute([tree])?;
            } else {
                return Ok(Some(first));
            }
        }
    }

    /// True if a run of the tree and the pins of this one is wanted that was executed before.
    fn is_behind_resumes(&self, run: &ReadyRun, now: Timestamp) -> Result<bool, Fault> {
        let Some(tree) = run.tree else { return Ok(false) };
        let (at_once, parked) = (ready(Lane::Resume), PARKED + lane_code(Lane::Resume));
        let mut sql = self.db.prepare_cached(
            "SELECT 1 FROM runs INDEXED BY runs_grouped
             WHERE tree = ?1 AND pins = ?2 AND queue IN (?3, ?4) AND (due IS NULL OR due <= ?5)
             LIMIT 1",
        )?;
        Ok(sql.exists(params![tree, run.pins.as_str(), at_once, parked, time(now)])?)
    }

    /// The run of these that waits for its finalizer alone and is to be taken first, wherever it
    /// stands among those whose time has come, without those that are damaged. The owner of whose
    /// runs the fewest are in their finalizers comes first, so that nobody's keep those of others
    /// waiting. There are few runs in that status.
    pub(crate) fn first_finalizer(
        &self,
        ready: &Ready,
        now: Timestamp,
        damaged: &[i64],
    ) -> Result<Option<i64>, Fault> {
        let resumes = lane_code(Lane::Resume);
        let places = (READY + resumes, PARKED + resumes);
        let waits = "SELECT 1 FROM runs INDEXED BY runs_by_tenant
                     WHERE status = ?1 AND queue IN (?2, ?3) LIMIT 1";
        // Most claims find none, and need not know what is under way.
        if !self.db.prepare_cached(waits)?.exists(params![FINALIZING, places.0, places.1])? {
            return Ok(None);
        }
        let mut sql = self.db.prepare_cached(
            "SELECT r.no, r.pins FROM runs AS r INDEXED BY runs_by_tenant
             LEFT JOIN (
                 SELECT tenant, owner, count(*) AS under_way FROM runs INDEXED BY runs_held
                 WHERE holder IS NOT NULL AND status = ?1 GROUP BY tenant, owner
             ) AS o ON o.tenant = r.tenant AND o.owner = r.owner
             WHERE r.status = ?1 AND r.queue IN (?2, ?3) AND (r.due IS NULL OR r.due <= ?4)
             ORDER BY coalesce(o.under_way, 0), r.priority DESC, r.no",
        )?;
        let mut rows = sql.query(params![FINALIZING, places.0, places.1, time(now)])?;
        while let Some(row) = rows.next()? {
            let no = row.get(0)?;
            let pins = Pins::from_text(row.get(1)?);
            if !damaged.contains(&no) && ready.includes(&pins, Lane::Resume) {
                return Ok(Some(no));
            }
        }
        Ok(None)
    }

    /// Puts a run off whose time had come by another clock.
    fn put_off(&self, run: &ReadyRun) -> Result<(), Fault> {
        self.put(run.no, DELAYED + lane_code(run.rank.lane))?;
        match run.tree {
            Some(tree) => self.make_best_ready(tree, run.pins.as_str()),
            None => Ok(()),
        }
    }
}

/// From the code of the lane, `priority` and `no`.
pub(super) fn rank(row: &Row<'_>) -> rusqlite::Result<Rank> {
    let (lane, priority) = (lane_of(row.get(0)?), Reverse(row.get(1)?));
    Ok(Rank { lane, priority, number: unbits(row.get(2)?) })
}
