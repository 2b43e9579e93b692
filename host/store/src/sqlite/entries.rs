//! Entries that wait for a heartbeat, and the transaction in which a batch takes them.

use rusqlite::{Connection, OptionalExtension, params};
use taskrun_journal::ids::RunId;
use taskrun_journal::schedule;
use taskrun_journal::store::{AppendOutcome, BatchOutcome, Idempotency, NewBatch};

use super::change::{AppendRow, WriteOutcome};
use super::create::NewRow;
use super::fault::Fault;
use super::queue::{BEAT, Queue};
use super::row::run_by_number;
use super::schema::int;

/// A batch, made ready outside of the writing thread.
pub(crate) struct BatchRow {
    run: NewRow,
    tick: Idempotency,
    entries: Vec<AppendRow>,
}

impl BatchRow {
    /// # Panics
    /// Those of [`schedule::check_batch`].
    pub(crate) fn new(batch: NewBatch) -> Self {
        let tick = schedule::check_batch(&batch).clone();
        let entries = batch.entries.iter().map(AppendRow::new).collect();
        Self { run: NewRow::new(batch.run), tick, entries }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.run.bytes() + self.entries.iter().map(AppendRow::bytes).sum::<usize>()
    }

    pub(crate) fn batch(&self, db: &Connection) -> Result<WriteOutcome<BatchOutcome>, Fault> {
        let queue = Queue::new(db);
        let (answer, place) = match self.refusal(db)? {
            Some(refused) => (refused, 0),
            None => (BatchOutcome::New, self.keep(&queue)?),
        };
        Ok(WriteOutcome::new(answer, place, queue))
    }

    /// Looks at everything before anything is written.
    fn refusal(&self, db: &Connection) -> Result<Option<BatchOutcome>, Fault> {
        let spec = &self.run.run().spec;
        let mut last = db.prepare_cached(
            "SELECT fingerprint, run FROM idempotency WHERE tenant = ?1 AND key = ?2",
        )?;
        let last = last.query_row([&spec.tenant, &self.tick.key], |row| {
            Ok((row.get::<_, String>(0)?, row.get(1)?))
        });
        if let Some((made_in, no)) = last.optional()? {
            let last = run_by_number(db, no)?;
            if let Some(refused) = schedule::no_batch(&self.tick, &made_in, &last) {
                return Ok(Some(refused));
            }
        }
        if db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([spec.id.as_str()])? {
            return Ok(Some(BatchOutcome::Moved));
        }
        for entry in &self.entries {
            if !entry.is_next(db)? {
                return Ok(Some(BatchOutcome::Moved));
            }
        }
        Ok(None)
    }

    fn keep(&self, queue: &Queue<'_>) -> Result<u64, Fault> {
        let mut place = self.run.keep_unbounded(queue)?;
        for entry in &self.entries {
            let (appended, last) = entry.answer(queue)?;
            if appended != AppendOutcome::Done {
                // Nothing is kept then: the transaction is rolled back.
                let id = self.run.run().id();
                return Err(Fault::Damaged(format!("batch {id}: an entry is {appended:?}")));
            }
            place = last;
        }
        Ok(place)
    }
}

/// The entries that wait for an agent, in groups of those that may share a batch: the first of
/// each.
pub(crate) fn waiting(
    db: &Connection,
    agent_name: &str,
    limit: usize,
) -> Result<Vec<Vec<RunId>>, Fault> {
    let mut sql = db.prepare_cached(&format!(
        "SELECT id, place FROM (
            SELECT id, tenant, owner, session, app, row_number() OVER (
                PARTITION BY tenant, owner, session, app ORDER BY priority DESC, no) AS place
            FROM runs INDEXED BY runs_queued
            WHERE queue IS NOT NULL AND queue = {BEAT} AND agent = ?1)
         WHERE place <= ?2 ORDER BY tenant, owner, session, app, place"
    ))?;
    let mut rows = sql.query(params![agent_name, int(limit as u64)])?;
    let mut groups: Vec<Vec<RunId>> = Vec::new();
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        let id = RunId::new(&id).map_err(|error| Fault::Damaged(format!("run {id}: {error}")))?;
        match groups.last_mut() {
            Some(group) if row.get::<_, i64>(1)? > 1 => group.push(id),
            Some(_) | None => groups.push(vec![id]),
        }
    }
    Ok(groups)
}
