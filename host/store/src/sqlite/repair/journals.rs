//! Runs, made again from their journals.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params};
use taskrun_journal::checkpoint::Settled;
use taskrun_journal::ids::RunId;
use taskrun_journal::machine;
use taskrun_journal::run::{Run, RunState};
use taskrun_journal::status::Status;
use taskrun_journal::store::{Admission, NewRun};

use super::events::{self, CopiedEvents, StoredEvent};
use super::pages::TablePages;
use super::source::Source;
use crate::sqlite::create::NewRow;
use crate::sqlite::fault::Fault;
use crate::sqlite::queue::Queue;
use crate::sqlite::row::{record_sum, recorded};
use crate::sqlite::{settled, waits};

/// The journals of the new store.
pub(super) struct Journals {
    /// Runs that were kept.
    pub(super) kept: u64,
    /// Runs that were left out, one in each line with the reason.
    pub(super) left_out: Vec<String>,
    /// Events that cannot be read, or whose checksum does not fit.
    pub(super) unreadable: u64,
    /// Parts of runs that no journal tells and that are lost, or may be, in words.
    pub(super) lost: Vec<String>,
}

/// Copies all events that are what was written, and makes the runs whose journals are whole.
pub(super) fn copy(source: &Source, db: &Connection) -> Result<Journals, Fault> {
    let CopiedEvents { unreadable, is_counted, consent } = events::copy(source, db)?;
    let any_unreadable = unreadable > 0 || !is_counted;
    let mut journals = Journals { kept: 0, left_out: Vec::new(), unreadable, lost: Vec::new() };
    let mut sql = db.prepare("SELECT no, id, is_known FROM temp.begun ORDER BY no")?;
    let begun = sql.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let (mut kept, mut settled) = (Vec::new(), Vec::new());
    let mut lost_keys = LostKeys::default();
    for one in begun.collect::<rusqlite::Result<Vec<(i64, String, bool)>>>()? {
        let (no, id, is_known) = one;
        let told = match is_known || is_listed(source, no, &id)? {
            true => whole(source, db, (no, &id), any_unreadable)?,
            false => Err("it may have been removed, and nothing tells if it was".to_owned()),
        };
        match told {
            Ok(run) => {
                keep(source, db, no, &run, &mut lost_keys)?;
                kept.push((no, run.state.hold));
                settled.push((run.spec.root_run_id.clone(), left_behind(db, no, &id)?));
            }
            Err(reason) => {
                db.prepare_cached("DELETE FROM events WHERE run = ?1")?.execute([no])?;
                journals.left_out.push(format!("run {id}: {reason}"));
            }
        }
    }
    journals.left_out.extend(nameless(source, db, any_unreadable)?);
    journals.kept = kept.len() as u64;
    // Now that all are there: whether a wait is over, and whose turn it is, depends on the others.
    let queue = Queue::new(db);
    for (no, hold) in kept {
        waits::begin(&queue, &queue.member(no)?, &hold)?;
    }
    for (root, settled) in settled {
        settled::settle(db, &root, &settled)?;
    }
    journals.lost.extend(lost_keys.lines(source));
    journals.lost.extend(numbers(source, db, consent)?);
    if !is_counted && unreadable == 0 {
        let line = "some events may be missing: the index of their table is damaged as well";
        journals.lost.push(line.to_owned());
    }
    Ok(journals)
}

/// The keys by which answers are used again for the same task, as far as they are not kept and their
/// runs have an answer or may have one.
#[derive(Default)]
struct LostKeys {
    /// Those that stand on damaged pages.
    left_out: u64,
    /// Runs whose rows cannot be read, whether they had a key or not.
    unreadable: u64,
}

impl LostKeys {
    fn lines(&self, source: &Source) -> Vec<String> {
        let Self { left_out, unreadable } = *self;
        if !source.has("runs", "task") {
            return vec!["no keys by which answers are used again can be read".to_owned()];
        }
        let left_out = (left_out > 0).then(|| {
            format!(
                "{left_out} keys by which answers are used again are left out: they stand on \
                 damaged pages, and their tasks are done once more"
            )
        });
        let unreadable = (unreadable > 0).then(|| {
            format!("keys by which answers of {unreadable} runs are used again cannot be read")
        });
        left_out.into_iter().chain(unreadable).collect()
    }
}

/// The runs that a journal leaves behind.
fn left_behind(db: &Connection, no: i64, id: &str) -> Result<Vec<RunId>, Fault> {
    let sql = "SELECT seq, id, at, sum, body FROM events WHERE run = ?1 AND body LIKE '%settled%'";
    let mut sql = db.prepare_cached(sql)?;
    let (mut rows, mut runs) = (sql.query([no])?, Vec::new());
    while let Some(row) = rows.next()? {
        runs.extend(Settled::in_events(&[recorded(id, row)?]).cloned());
    }
    Ok(runs)
}

/// The run that a journal tells, or why something of it is missing.
fn whole(
    source: &Source,
    db: &Connection,
    (no, id): (i64, &str),
    any_unreadable: bool,
) -> Result<Result<Run, String>, Fault> {
    let run = match folded(db, (no, id), any_unreadable)? {
        Ok(run) => run,
        Err(reason) => return Ok(Err(reason)),
    };
    let sql = "SELECT sum, state FROM runs NOT INDEXED WHERE no = ?1";
    let row = source.one(sql, no, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
    let record = row.filter(|(sum, state)| record_sum(id, state) == *sum);
    let record = record.and_then(|(_, state)| serde_json::from_str::<RunState>(&state).ok());
    let head = run.state.head;
    Ok(match record {
        Some(record) if record.head > head => {
            let absence = absence(any_unreadable);
            Err(format!("of {} events those after {head} are {absence}", record.head))
        }
        Some(_) => Ok(run),
        // Without a record nothing tells whether there were more events.
        None if any_unreadable && !run.status().is_terminal() => {
            Err("its record is damaged, and its last events may be".to_owned())
        }
        None => Ok(run),
    })
}

/// True if a run is among those of the damaged store, as far as that can be read.
fn is_listed(source: &Source, no: i64, id: &str) -> Result<bool, Fault> {
    let sql = "SELECT id FROM runs NOT INDEXED WHERE no = ?1";
    let listed = source.one(sql, no, |row| row.get::<_, String>(0))?;
    Ok(listed.as_deref() == Some(id))
}

/// The words for events that are not there.
fn absence(any_unreadable: bool) -> &'static str {
    if any_unreadable { "missing or cannot be read" } else { "missing" }
}

/// The fold of the events that were copied.
fn folded(
    db: &Connection,
    (no, id): (i64, &str),
    any_unreadable: bool,
) -> Result<Result<Run, String>, Fault> {
    let sql = "SELECT seq, id, at, sum, body FROM events WHERE run = ?1 ORDER BY seq";
    let mut sql = db.prepare_cached(sql)?;
    let mut rows = sql.query([no])?;
    let mut run: Option<Run> = None;
    while let Some(row) = rows.next()? {
        let next = run.as_ref().map_or(0, |run| run.state.head) + 1;
        let event = match recorded(id, row) {
            Ok(event) => event,
            // Its checksum fits, or it would not have been copied.
            Err(Fault::Damaged(_)) => return Ok(Err(of_other_version(next))),
            Err(fault) => return Err(fault),
        };
        if event.seq != next {
            return Ok(Err(format!("event {next} is {}", absence(any_unreadable))));
        }
        let folded = match run.take() {
            None => machine::begin(&event).map_err(|error| error.to_string()),
            Some(run) => machine::apply(run.state, &event)
                .map(|state| Run { spec: run.spec, state })
                .map_err(|error| error.to_string()),
        };
        match folded {
            Ok(folded) => run = Some(folded),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(run.ok_or_else(|| format!("event 1 is {}", absence(any_unreadable))))
}

/// The reason to leave out a run with an event that was written well and means nothing here.
fn of_other_version(seq: u64) -> String {
    format!("event {seq} is of another version")
}

/// Makes the row of a run, under its number, in no place of the queue.
fn keep(
    source: &Source,
    db: &Connection,
    no: i64,
    run: &Run,
    lost_keys: &mut LostKeys,
) -> Result<(), Fault> {
    let new = NewRun {
        run: run.clone(),
        events: Vec::new(),
        idempotency: None,
        task: None,
        artifacts: Vec::new(),
        admission: Admission::UNBOUNDED,
    };
    set_number(db, "runs", no - 1)?;
    NewRow::new(new).keep_row(&Queue::new(db))?;
    let task = task_key(source, no, run, lost_keys)?;
    db.prepare_cached(
        "UPDATE runs SET task = ?2, last_pos = (SELECT max(pos) FROM events WHERE run = ?1)
         WHERE no = ?1",
    )?
    .execute(params![no, task])?;
    Ok(())
}

/// The key of a run's task. It is not in the journal, and has no checksum but that of its page; a
/// wrong one would answer a task with the answer to another.
fn task_key(
    source: &Source,
    no: i64,
    run: &Run,
    lost_keys: &mut LostKeys,
) -> Result<Option<i64>, Fault> {
    // Of others no answer is used again.
    let is_used = !run.status().is_terminal() || run.status() == Status::Completed;
    let sql = "SELECT task FROM runs NOT INDEXED WHERE no = ?1";
    match source.one(sql, no, |row| row.get(0))? {
        Some(Value::Integer(task)) => {
            let sql = "SELECT 1 FROM runs NOT INDEXED WHERE no = ?1 AND task = ?2";
            let is_written = source.summed.has(sql, [no, task])?;
            lost_keys.left_out += u64::from(is_used && !is_written);
            Ok(is_written.then_some(task))
        }
        Some(Value::Null) => Ok(None),
        Some(Value::Real(_) | Value::Text(_) | Value::Blob(_)) | None => {
            lost_keys.unreadable += u64::from(is_used);
            Ok(None)
        }
    }
}

/// Runs of which not even the first event is known.
fn nameless(source: &Source, db: &Connection, any_unreadable: bool) -> Result<Vec<String>, Fault> {
    let mut left_out = Vec::new();
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    if !source.has("runs", "no, id") {
        return Ok(left_out);
    }
    source.rows(("runs", "no", "no, id"), read, |(no, id)| {
        if !db.prepare_cached("SELECT 1 FROM temp.begun WHERE no = ?1")?.exists([no])? {
            let reason = match is_first_event_written(source, no, &id)? {
                true => of_other_version(1),
                false => format!("event 1 is {}", absence(any_unreadable)),
            };
            left_out.push(format!("run {id:?}: {reason}"));
        }
        Ok(())
    })?;
    Ok(left_out)
}

/// True if the first event of a run is there, as it was written.
fn is_first_event_written(source: &Source, no: i64, id: &str) -> Result<bool, Fault> {
    let sql = format!("SELECT {} FROM events WHERE run = ?1 AND seq = 1", StoredEvent::COLUMNS);
    let found = source.one(&sql, no, StoredEvent::read)?;
    Ok(found.is_some_and(|event| event.is_of(id)))
}

/// Goes on with the numbers of the damaged store: none is ever given twice. `consent` is the largest
/// number of one in a journal: a version that keeps none forgets how many there were. Says so if
/// they may be others than those that were given.
fn numbers(source: &Source, db: &Connection, consent: i64) -> Result<Option<String>, Fault> {
    let columns = ["name", "seq"].map(str::to_owned);
    let is_whole = source.has("sqlite_sequence", "name, seq")
        && matches!(
            source.summed.table(("sqlite_sequence", columns.as_slice(), 1))?,
            TablePages::Whole
        );
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
    let mut given = Vec::new();
    source.all("SELECT name, seq FROM sqlite_sequence", read, |one| {
        given.push(one);
        Ok(())
    })?;
    let largest = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0));
    for (table, largest) in [
        ("runs", largest("SELECT coalesce(max(no), 0) FROM runs")?),
        ("events", largest("SELECT coalesce(max(pos), 0) FROM events")?),
        // Of these no row is copied yet; each that is raises the number where need be.
        ("consents", consent),
        ("dispatches", 0),
    ] {
        let known = given.iter().filter(|(name, _)| name == table).map(|(_, seq)| *seq).max();
        let given = known.map_or(largest, |known| known.max(largest));
        // A table in which nothing ever was has no number.
        if given > 0 {
            set_number(db, table, given)?;
        }
    }
    let line = "the numbers that were given last may not be what was written";
    Ok((!is_whole).then(|| line.to_owned()))
}

/// Sets the number that was given last.
fn set_number(db: &Connection, table: &str, number: i64) -> Result<(), Fault> {
    let mut sql = db.prepare_cached("UPDATE sqlite_sequence SET seq = ?2 WHERE name = ?1")?;
    if sql.execute(params![table, number])? == 0 {
        db.prepare_cached("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)")?
            .execute(params![table, number])?;
    }
    Ok(())
}
