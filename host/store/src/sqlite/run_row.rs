//! The columns of a run's row: those that a change compares, and those that it writes.

use rusqlite::{Connection, OptionalExtension};
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::pin::Pins;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{ReportRequest, Settlement, Succession};
use taskrun_journal::status::StopReason;
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::row::{json, record_sum};
use super::schema::{int, status_code, time, unbits};

/// The columns of a row of `runs` that change.
pub(crate) struct MutableColumns {
    pub(crate) status: i64,
    /// The reason for which it ended.
    pub(crate) stop: Option<&'static str>,
    pub(crate) updated_at: i64,
    pub(crate) holder: Option<String>,
    pub(crate) epoch: i64,
    pub(crate) head: i64,
    pub(crate) sum: i64,
    pub(crate) state: String,
    pub(crate) hold: Hold,
    pub(crate) pins: Pins,
    /// The request to tell of the outcome of a run that has ended.
    pub(crate) report: Option<ReportRequest>,
    /// The settlement of the reports of which that was told.
    pub(crate) settlement: Option<Settlement>,
    /// The consequence of its end for reports that waited for it.
    pub(crate) succession: Option<Succession>,
}

impl MutableColumns {
    pub(crate) fn new(run: &Run) -> Self {
        let state = &run.state;
        let text = json(state);
        Self {
            status: status_code(run.status()),
            stop: run.stop_reason().map(StopReason::as_str),
            updated_at: time(state.updated_at),
            holder: state.hold.host().map(|host| host.as_str().to_owned()),
            epoch: int(state.epoch),
            head: int(state.head),
            sum: record_sum(run.id().as_str(), &text),
            state: text,
            hold: state.hold.clone(),
            pins: Pins::of(run),
            report: ReportRequest::of(run),
            settlement: Settlement::of(run),
            succession: Succession::of(run),
        }
    }

    /// When it last changed.
    pub(crate) fn at(&self) -> Timestamp {
        Timestamp(unbits(self.updated_at))
    }
}

/// The columns that are compared before a row changes.
pub(super) struct CurrentRow {
    pub(super) no: i64,
    pub(super) status: i64,
    pub(super) updated_at: i64,
    pub(super) holder: Option<String>,
    pub(super) epoch: u64,
    pub(super) head: u64,
    pub(super) tree: Option<i64>,
    pub(super) serial: Option<i64>,
    pub(super) place: Option<i64>,
    pub(super) pins: Pins,
}

/// The row of a run; `None` if it is not there.
pub(super) fn present(db: &Connection, id: &RunId) -> Result<Option<CurrentRow>, Fault> {
    let row = db
        .prepare_cached(
            "SELECT no, status, updated_at, holder, epoch, head, tree, serial, queue,
                pins
             FROM runs WHERE id = ?1",
        )?
        .query_row([id.as_str()], |row| {
            Ok(CurrentRow {
                no: row.get(0)?,
                status: row.get(1)?,
                updated_at: row.get(2)?,
                holder: row.get(3)?,
                epoch: unbits(row.get(4)?),
                head: unbits(row.get(5)?),
                tree: row.get(6)?,
                serial: row.get(7)?,
                place: row.get(8)?,
                pins: Pins::from_text(row.get(9)?),
            })
        });
    Ok(row.optional()?)
}
