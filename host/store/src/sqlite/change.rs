//! A record that is replaced, and all that follows from it in the same transaction.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use taskrun_journal::artifact::Artifact;
use taskrun_journal::checkpoint::{Settled, ends_round};
use taskrun_journal::delivery::ReportsTaken;
use taskrun_journal::dispatch::TaskEvent;
use taskrun_journal::hold::{Hold, Lane};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, After, Before, Change, ClaimCounts, NextRun};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Append, AppendOutcome, Claim};
use taskrun_journal::time::Timestamp;

use super::attached::{self, Cancellation};
use super::fault::Fault;
use super::queue::{self, CanceledRun, Member, Queue};
use super::row::{EventRow, hold, insert_events, run_by_number};
use super::run_row::{CurrentRow, MutableColumns, present};
use super::schema::{QUEUED, TERMINAL, label_key, unbits};
use super::{artifacts, dispatches, outbox, settled, waits};

/// The answer to a change, and the news for those who wait.
#[derive(Debug)]
pub(crate) struct WriteOutcome<T> {
    pub(crate) answer: T,
    /// Place of the last event that was written; 0 if there is none.
    pub(crate) place: u64,
    /// True if there may be more to claim than before.
    pub(crate) stirred: bool,
    /// Runs that ended with the one that was written.
    pub(crate) canceled: Vec<CanceledRun>,
}

impl<T> WriteOutcome<T> {
    pub(crate) fn new(answer: T, place: u64, queue: Queue<'_>) -> Self {
        let stirred = queue.stirred();
        Self { answer, place, stirred, canceled: queue.into_canceled() }
    }
}

/// Events to be added, made ready outside of the writing thread.
pub(crate) struct AppendRow {
    spec: Arc<RunSpec>,
    epoch: u64,
    expected_head: u64,
    mutable: MutableColumns,
    events: Vec<EventRow>,
    artifacts: Vec<Artifact>,
    reports: Option<ReportsTaken>,
    /// The runs that the events leave behind.
    settled: Vec<RunId>,
    /// True if they end a round of the run.
    ends_round: bool,
}

impl AppendRow {
    pub(crate) fn new(append: &Append) -> Self {
        let id = append.run.id();
        let events = append.events.with_json();
        Self {
            spec: Arc::clone(&append.run.spec),
            epoch: append.epoch,
            expected_head: append.expected_head,
            mutable: MutableColumns::new(&append.run),
            events: events
                .map(|(one, json)| EventRow::of_json(id, one, Arc::clone(json)))
                .collect(),
            artifacts: append.artifacts.clone(),
            reports: append.reports.clone(),
            settled: Settled::in_events(&append.events).cloned().collect(),
            ends_round: ends_round(&append.events),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let artifacts = self.artifacts.iter().map(|artifact| artifact.bytes().len());
        self.mutable.state.len() + self.event_bytes() + artifacts.sum::<usize>()
    }

    pub(crate) fn event_bytes(&self) -> usize {
        self.events.iter().map(EventRow::bytes).sum()
    }

    pub(crate) fn append(&self, db: &Connection) -> Result<WriteOutcome<AppendOutcome>, Fault> {
        let queue = Queue::new(db);
        let (answer, place) = self.answer(&queue)?;
        Ok(WriteOutcome::new(answer, place, queue))
    }

    /// True if the journal ends where the writer believes, and the run is still his.
    pub(crate) fn is_next(&self, db: &Connection) -> Result<bool, Fault> {
        let present = present(db, &self.spec.id)?;
        Ok(present.is_some_and(|row| (row.head, row.epoch) == (self.expected_head, self.epoch)))
    }

    pub(crate) fn answer(&self, queue: &Queue<'_>) -> Result<(AppendOutcome, u64), Fault> {
        let db = queue.db;
        let refused = |answer| Ok((answer, 0));
        let Some(present) = present(db, &self.spec.id)? else {
            return refused(AppendOutcome::Missing);
        };
        if present.head == self.expected_head && present.epoch == self.epoch {
            let (row, spec) = (&self.mutable, &self.spec);
            // Between two holds without a host only the record tells whether they differ.
            let same_hold = present.pins == row.pins
                && match (&present.holder, &row.holder) {
                    (None, None) => hold(db, present.no)? == row.hold,
                    (before, after) => before == after,
                };
            if !same_hold && waits::would_be_cycle(db, present.no, &spec.id, &row.hold)? {
                return refused(AppendOutcome::Cycle);
            }
            if !outbox::may_take(db, self.reports.as_ref())? {
                return refused(AppendOutcome::Gone);
            }
            if let Some(taken) = &self.reports {
                outbox::take(db, present.no, taken)?;
            }
            let place = replace(queue, &present, spec, row, &self.events, same_hold)?;
            settled::settle(db, &spec.root_run_id, &self.settled)?;
            if self.ends_round {
                outbox::deliver(db, present.no)?;
            }
            for artifact in &self.artifacts {
                artifacts::keep(db, present.no, &spec.tenant, artifact)?;
            }
            Ok((AppendOutcome::Done, place))
        } else if let Some(known) = self.known(db, present.no)? {
            refused(known)
        } else if present.epoch != self.epoch {
            refused(AppendOutcome::Fenced(present.epoch))
        } else {
            refused(AppendOutcome::Moved(present.head))
        }
    }

    /// The answer if exactly these events stand at their places, or others under their ids.
    fn known(&self, db: &Connection, no: i64) -> Result<Option<AppendOutcome>, Fault> {
        let mut sql =
            db.prepare_cached("SELECT id, sum FROM events WHERE run = ?1 AND seq = ?2")?;
        let mut known = 0;
        for event in &self.events {
            let found = sql.query_row([no, event.seq], |row| Ok((row.get(0)?, row.get(1)?)));
            let found: Option<(i64, i64)> = found.optional()?;
            match found {
                // The sum is of everything that an event has.
                Some((id, sum)) if id == event.id && sum == event.sum => known += 1,
                Some((id, _)) if id == event.id => return Ok(Some(AppendOutcome::Conflict)),
                Some(_) | None => {}
            }
        }
        let all = !self.events.is_empty() && known == self.events.len();
        Ok(all.then_some(AppendOutcome::Done))
    }
}

/// Returns the place of the last event; 0 without one.
///
/// Most appends change no status; they name no column that stands in an index.
fn replace(
    queue: &Queue<'_>,
    present: &CurrentRow,
    spec: &RunSpec,
    row: &MutableColumns,
    events: &[EventRow],
    same_hold: bool,
) -> Result<u64, Fault> {
    let db = queue.db;
    let last_pos = insert_events(db, present.no, events)?;
    let place = last_pos.map_or(0, unbits);
    let same_status = (present.status, present.updated_at) == (row.status, row.updated_at);
    if same_status && same_hold {
        db.prepare_cached(
            "UPDATE runs SET epoch = ?2, head = ?3, sum = ?4, state = ?5,
                last_pos = coalesce(?6, last_pos) WHERE no = ?1",
        )?
        .execute(params![present.no, row.epoch, row.head, row.sum, row.state, last_pos])?;
        return Ok(place);
    }
    if same_hold {
        db.prepare_cached(
            "UPDATE runs SET status = ?2, updated_at = ?3, epoch = ?4, head = ?5, sum = ?6,
                state = ?7, last_pos = coalesce(?8, last_pos), stop = ?9 WHERE no = ?1",
        )?
        .execute(params![
            present.no,
            row.status,
            row.updated_at,
            row.epoch,
            row.head,
            row.sum,
            row.state,
            last_pos,
            row.stop
        ])?;
    } else {
        db.prepare_cached(
            "UPDATE runs SET status = ?2, updated_at = ?3, holder = ?4, epoch = ?5, head = ?6,
                sum = ?7, state = ?8, last_pos = coalesce(?9, last_pos), pins = ?10, queue = NULL,
                due = NULL, stop = ?11
             WHERE no = ?1",
        )?
        .execute(params![
            present.no,
            row.status,
            row.updated_at,
            row.holder,
            row.epoch,
            row.head,
            row.sum,
            row.state,
            last_pos,
            row.pins.as_str(),
            row.stop
        ])?;
    }
    if !same_status {
        move_labels(db, present, spec, row)?;
    }
    follow(queue, present, spec, row, (same_hold, place))?;
    Ok(place)
}

/// Moves a label of a run to its status and time. It names the whole key: rows that are found by a
/// part of it SQLite collects in a table of its own first, and copies each page that it is about to
/// change.
pub(super) const MOVE_LABEL: &str = "UPDATE labels SET status = ?6, updated_at = ?7
     WHERE status = ?1 AND key = ?2 AND updated_at = ?3 AND run = ?4 AND name = ?5";

fn move_labels(
    db: &Connection,
    present: &CurrentRow,
    spec: &RunSpec,
    row: &MutableColumns,
) -> Result<(), Fault> {
    let mut label = db.prepare_cached(MOVE_LABEL)?;
    for (name, value) in &spec.labels {
        let key = label_key(&spec.tenant, name, value);
        let (status, at) = (present.status, present.updated_at);
        label.execute(params![status, key, at, present.no, name, row.status, row.updated_at])?;
    }
    Ok(())
}

/// Applies the consequences of a change for counts, queue and other runs.
fn follow(
    queue: &Queue<'_>,
    present: &CurrentRow,
    spec: &RunSpec,
    row: &MutableColumns,
    (same_hold, place): (bool, u64),
) -> Result<(), Fault> {
    let before = Before {
        is_queued: present.status == QUEUED,
        has_ended: present.status >= TERMINAL,
        is_held: present.holder.is_some(),
        same_hold,
    };
    let (is_queued, has_ended) = (row.status == QUEUED, row.status >= TERMINAL);
    let (report, settlement) = (row.report.as_ref(), row.settlement);
    // No report waits for a run that is alone in its tree, unless it is a nudge.
    let succession = row.succession.filter(|_| present.tree.is_some() || spec.is_nudge());
    let hold = &row.hold;
    let after = After { is_queued, has_ended, hold, report, settlement, succession };
    for change in schedule::consequences(before, after) {
        apply(queue, present, (spec, row, place), change)?;
    }
    Ok(())
}

fn apply(
    queue: &Queue<'_>,
    present: &CurrentRow,
    (spec, row, place): (&RunSpec, &MutableColumns, u64),
    change: Change<'_>,
) -> Result<(), Fault> {
    match change {
        Change::Begin => count_queued(queue.db, spec, -1),
        Change::EndWait => waits::end(queue.db, present.no),
        Change::TakeSlot => present.tree.map_or(Ok(()), |tree| queue.hold(tree)),
        Change::FreeSlot => present.tree.map_or(Ok(()), |tree| queue.release(tree)),
        Change::Place(hold) => {
            if let Some(tree) = present.tree.filter(|_| queue::is_ready(present.place)) {
                queue.make_best_ready(tree, present.pins.as_str())?;
            }
            let (no, pins) = (present.no, row.pins.as_str().to_owned());
            let member = Member { no, tree: present.tree, serial: present.serial, pins };
            waits::begin(queue, &member, hold)
        }
        Change::Report(request) => {
            outbox::add(queue.db, present.no, spec, request, (place, row.at()))
        }
        Change::Settle(settlement) => outbox::settle(queue.db, present.no, settlement, row.at()),
        Change::Succeed(succession) => {
            let ended = (present.no, &spec.root_run_id);
            outbox::succeed(queue.db, ended, succession, row.at())
        }
        Change::Dispatch => {
            dispatches::add(queue.db, present.no, spec, TaskEvent::Completed, row.updated_at)
        }
        Change::Wake => waits::ended(queue, present.no),
        // The index of names is that of open runs.
        Change::FreeName => Ok(()),
        Change::NextTurn => present.serial.map_or(Ok(()), |serial| queue.next_turn(serial)),
        // A run that is alone in its tree started none.
        Change::CancelAttached if present.tree.is_none() => Ok(()),
        Change::CancelAttached => cancel_attached(queue, spec, row.at()),
    }
}

/// Cancels what is attached to a run that ended, and so on beneath what ends by that; no deeper
/// than runs stand above each other.
fn cancel_attached(queue: &Queue<'_>, parent: &RunSpec, at: Timestamp) -> Result<(), Fault> {
    for no in attached::open_attached(queue.db, parent)? {
        let Some(canceled) = attached::cancellation(queue.db, no, &parent.id, at)? else {
            continue;
        };
        let Cancellation { before, same_hold, after, events } = canceled;
        let row = MutableColumns::new(&after);
        let place = replace(queue, &before, &after.spec, &row, &events, same_hold)?;
        queue.canceled(CanceledRun { run: after, place, events: events.len() });
    }
    Ok(())
}

/// One run more, or less, waits to begin.
pub(crate) fn count_queued(db: &Connection, spec: &RunSpec, by: i64) -> Result<(), Fault> {
    db.prepare_cached(
        "INSERT INTO queues VALUES (?1, ?2)
         ON CONFLICT DO UPDATE SET runs = runs + excluded.runs",
    )?
    .execute(params![spec.tenant, by])?;
    Ok(())
}

/// Takes wanted runs. One that is damaged is left where it is and does not keep the others from
/// being taken.
pub(crate) fn claim(db: &Connection, claim: &Claim) -> Result<WriteOutcome<Vec<Run>>, Fault> {
    let queue = Queue::new(db);
    queue.look(claim.tree_slots, claim.now)?;
    let (mut runs, mut place) = (Vec::new(), 0);
    let mut skipped = Vec::new();
    let (ready, slots) = (&claim.ready, claim.tree_slots);
    let mut taken = ClaimCounts::new(claim);
    loop {
        let next = schedule::next_claimed(
            claim,
            taken,
            |lane| {
                let first = || queue.first((ready, lane), slots, claim.now, &skipped);
                let found = match first()? {
                    None if lane == Lane::Resume && queue.pass_over(&skipped)? => first()?,
                    found => found,
                };
                Ok(found.map(|first| first.no))
            },
            || queue.first_finalizer(ready, claim.now, &skipped),
        )?;
        let Some(NextRun { run: no, is_finalizer }) = next else { break };
        match claim_one(&queue, claim, no) {
            Ok((run, last)) => {
                taken.add(&run, is_finalizer);
                runs.push(run);
                place = last;
            }
            Err(Fault::Damaged(detail)) => {
                tracing::error!(detail, "a wanted run cannot be taken");
                skipped.push(no);
            }
            Err(fault @ Fault::Sqlite(_)) => return Err(fault),
        }
    }
    Ok(WriteOutcome::new(runs, place, queue))
}

fn claim_one(queue: &Queue<'_>, claim: &Claim, no: i64) -> Result<(Run, u64), Fault> {
    let run = run_by_number(queue.db, no)?;
    let id = run.id().clone();
    let damaged = |detail: &str| Fault::Damaged(format!("run {id}, record: {detail}"));
    let wanted = match run.state.hold {
        Hold::Wanted { lane, .. } => claim.ready.includes(&Pins::of(&run), lane),
        Hold::Runs { .. } => claim.ready.includes(&Pins::of(&run), Lane::Resume),
        Hold::Nobody | Hold::Beat | Hold::Host { .. } => false,
    };
    if !wanted {
        return Err(damaged("it is in the queue and not wanted"));
    }
    let (run, recorded) = schedule::claimed(run, &claim.host, claim.now)
        .map_err(|detail| damaged(&detail))?
        .ok_or_else(|| damaged("it is in the queue and cannot be had"))?;
    let present = present(queue.db, &id)?.ok_or_else(|| damaged("it has another id"))?;
    let (row, events) = (MutableColumns::new(&run), [EventRow::new(&id, &recorded)]);
    let place = replace(queue, &present, &run.spec, &row, &events, false)?;
    Ok((run, place))
}

/// Runs that a host holds.
pub(crate) fn held(db: &Connection, host: &HostId) -> Result<u64, Fault> {
    let mut sql = db.prepare_cached("SELECT count(*) FROM runs WHERE holder = ?1")?;
    let count: i64 = sql.query_row([host.as_str()], |row| row.get(0))?;
    Ok(unbits(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{append, new_run, spec};

    #[test]
    fn the_text_of_an_event_is_not_made_again_for_its_row() {
        let run = new_run(spec(&RunId::new("r").expect("a valid id"))).run;
        let append = append(&run, vec![taskrun_fixtures::started()], 0, Timestamp(2));
        let row = AppendRow::new(&append);
        let made: usize = append.events.with_json().map(|(_, json)| json.len()).sum();
        assert_eq!(row.event_bytes(), made);
        let mut texts = append.events.with_json();
        assert!(texts.all(|(_, json)| Arc::strong_count(json) == 2), "the row has another one");
    }
}
