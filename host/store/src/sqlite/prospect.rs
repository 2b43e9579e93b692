//! A look at the queue without taking from it.

use std::collections::HashMap;

use rusqlite::Connection;
use taskrun_journal::pin::Pins;
use taskrun_journal::schedule::Rank;
use taskrun_journal::store::{Claim, Prospect};

use super::fault::Fault;
use super::queue::{Queue, TURN, lane_of, rank};
use super::schema::time;

/// The pins of wanted runs that may be taken, or whose tree is full: each once, best first.
pub(crate) fn wanted(db: &Connection) -> Result<Vec<Pins>, Fault> {
    let mut sql = db.prepare_cached(
        "SELECT queue % 2, priority, no, pins FROM runs INDEXED BY runs_queued WHERE queue < ?1",
    )?;
    let mut rows = sql.query([TURN])?;
    let mut best: HashMap<Pins, Rank> = HashMap::new();
    while let Some(row) = rows.next()? {
        let (rank, pins) = (rank(row)?, Pins::from_text(row.get(3)?));
        best.entry(pins).and_modify(|best| *best = rank.min(*best)).or_insert(rank);
    }
    let mut ranked: Vec<(Pins, Rank)> = best.into_iter().collect();
    ranked.sort_by_key(|(_, rank)| *rank);
    Ok(ranked.into_iter().map(|(pins, _)| pins).collect())
}

/// The prospects of a claim. Whatever [`Queue::look`] would move is one.
pub(crate) fn prospect(db: &Connection, claim: &Claim) -> Result<Prospect, Fault> {
    let moves = [
        (
            "SELECT 1 FROM runs INDEXED BY runs_due
             WHERE queue >= 5 AND due <= ?1 ORDER BY due LIMIT 1",
            time(claim.now),
        ),
        (
            "SELECT 1 FROM trees INDEXED BY trees_full
             WHERE full = 1 AND slots IS NULL AND held < ?1 LIMIT 1",
            i64::from(claim.tree_slots),
        ),
    ];
    for (sql, value) in moves {
        if db.prepare_cached(sql)?.exists([value])? {
            return Ok(Prospect::Claim);
        }
    }
    if Queue::new(db).first_finalizer(&claim.ready, claim.now, &[])?.is_some() {
        return Ok(Prospect::Claim);
    }
    let mut sql = db.prepare_cached(
        "SELECT pins, queue % 2 FROM runs INDEXED BY runs_queued WHERE queue < 2
         ORDER BY queue, priority DESC, no",
    )?;
    let (mut rows, mut prospect) = (sql.query([])?, Prospect::Nothing);
    while let Some(row) = rows.next()? {
        if claim.ready.includes(&Pins::from_text(row.get(0)?), lane_of(row.get(1)?)) {
            return Ok(Prospect::Claim);
        }
        prospect = Prospect::Unready;
    }
    Ok(prospect)
}
