//! Runs as a table.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::money::UsdDisplay;
use taskrun_journal::run::{Lifecycle, Run, RunView};
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::time::Timestamp;

use super::escape::excerpt;
use super::human;
use super::table::table_with_free;
use crate::args::RunColumn;

/// Characters of an id in a narrow terminal, where that many tell all of them apart: of a UUIDv7
/// the part that is time, and one digit more.
const SHORT_ID_CHARS: usize = 13;
/// Below this many columns ids are shortened.
const WIDE: usize = 100;
/// Longest name of an agent that is shown whole.
const AGENT_CHARS_MAX: usize = 24;
/// Longest name of a run, an owner or a session that is shown whole.
const NAME_CHARS_MAX: usize = 24;
/// Characters that are shown of a text before the last column.
const TEXT_CHARS_MAX: usize = 60;

/// The times of the heartbeats that take entries which wait, by the entries, as far as known.
pub type Beats = BTreeMap<RunId, Timestamp>;

/// The runs, as `ps` shows them. There is a column for names if one of them has a name.
#[must_use]
pub fn run_table(runs: &[Run], beats: &Beats, now: Timestamp, width: Option<usize>) -> String {
    PlacedRuns::listed(runs).table(&[], (beats, now), width)
}

/// The same with each run under the one that started it, as far as that is among them.
#[must_use]
pub fn run_tree(runs: &[Run], beats: &Beats, now: Timestamp, width: Option<usize>) -> String {
    PlacedRuns::tree(runs).table(&[], (beats, now), width)
}

/// Runs in the order of their lines, each with the number of those above it that are shown.
pub(crate) struct PlacedRuns<'r>(Vec<(usize, &'r Run)>);

impl<'r> PlacedRuns<'r> {
    /// One after the other, as they are given.
    #[must_use]
    pub(crate) fn listed(runs: &'r [Run]) -> Self {
        Self(runs.iter().map(|run| (0, run)).collect())
    }

    /// Each under the one that started it, as far as that is among them.
    #[must_use]
    pub(crate) fn tree(runs: &'r [Run]) -> Self {
        let here: HashSet<&RunId> = runs.iter().map(Run::id).collect();
        let mut beneath: HashMap<&RunId, Vec<&Run>> = HashMap::new();
        let mut left = Vec::new();
        for run in runs {
            match run.spec.parent_run_id.as_ref().filter(|id| here.contains(id)) {
                Some(parent) => beneath.entry(parent).or_default().push(run),
                None => left.push((0, run)),
            }
        }
        // Taken from the end: the first of those that are left is the next line.
        left.reverse();
        let mut placed = Vec::with_capacity(runs.len());
        while let Some((depth, run)) = left.pop() {
            placed.push((depth, run));
            let mut children = beneath.remove(run.id()).unwrap_or_default();
            // The one started last is taken last.
            children.sort_by_key(|run| std::cmp::Reverse((run.spec.created_at, run.id().clone())));
            left.extend(children.into_iter().map(|child| (depth + 1, child)));
        }
        Self(placed)
    }

    /// Their table. Without `columns` it has the usual ones.
    #[must_use]
    pub(crate) fn table(
        &self,
        columns: &[RunColumn],
        (beats, now): (&Beats, Timestamp),
        width: Option<usize>,
    ) -> String {
        let usual = self.usual_columns();
        let columns = if columns.is_empty() { &usual[..] } else { columns };
        let id_chars = match width {
            Some(width) if width < WIDE => self.unique_chars(),
            Some(_) | None => usize::MAX,
        };
        let last = columns.len().saturating_sub(1);
        let rows = self.0.iter().map(|(depth, run)| {
            let beat = beats.get(run.id()).copied();
            let line = RunLine { run, view: RunView::from(*run), beat, now, id_chars };
            let cell = |(index, column): (usize, &RunColumn)| match line.cell(*column) {
                // The last one is cut to what is left.
                text if column.is_free() && index < last => excerpt(&text, TEXT_CHARS_MAX),
                text => text,
            };
            let mut cells: Vec<String> = columns.iter().enumerate().map(cell).collect();
            if let Some(first) = cells.first_mut() {
                first.insert_str(0, &indent(*depth));
            }
            cells
        });
        let headings: Vec<&str> = columns.iter().map(|column| column.heading()).collect();
        let free = columns.iter().enumerate().filter(|(_, column)| column.is_free());
        let free: Vec<usize> = free.map(|(index, _)| index).collect();
        table_with_free(&headings, rows.collect(), width, &free)
    }

    /// Those of a table for which none were asked: names only where a run has one.
    fn usual_columns(&self) -> Vec<RunColumn> {
        let named = self.0.iter().any(|(_, run)| run.spec.name.is_some());
        RunColumn::USUAL.into_iter().filter(|one| named || *one != RunColumn::Name).collect()
    }

    /// The number of characters of the ids that tells them apart.
    fn unique_chars(&self) -> usize {
        let distinct = |chars: usize| {
            let mut seen = HashSet::new();
            self.0.iter().all(|(_, run)| {
                seen.insert(run.id().as_str().chars().take(chars).collect::<String>())
            })
        };
        (SHORT_ID_CHARS..36).find(|chars| distinct(*chars)).unwrap_or(usize::MAX)
    }
}

fn indent(depth: usize) -> String {
    match depth {
        0 => String::new(),
        depth => format!("{}└ ", "  ".repeat(depth - 1)),
    }
}

/// A run in a line of the table.
struct RunLine<'r> {
    run: &'r Run,
    view: RunView,
    /// The heartbeat that takes it, if it is an entry that waits.
    beat: Option<Timestamp>,
    now: Timestamp,
    /// Most characters of its id.
    id_chars: usize,
}

impl RunLine<'_> {
    fn cell(&self, column: RunColumn) -> String {
        let Self { run, view, beat, now, id_chars } = self;
        match column {
            RunColumn::Run => view.id.as_str().chars().take(*id_chars).collect(),
            RunColumn::Name => excerpt(view.name.as_deref().unwrap_or_default(), NAME_CHARS_MAX),
            RunColumn::Agent => excerpt(&view.agent_name, AGENT_CHARS_MAX),
            RunColumn::Status => status_at(run, *beat, *now),
            RunColumn::Age => human::age(now.since(view.created_at)),
            RunColumn::Time => running_time(view, *now).map_or_else(String::new, human::duration),
            RunColumn::Turns => view.turns.to_string(),
            RunColumn::Tools => run.state.tool_calls.to_string(),
            RunColumn::Task => view.task.clone(),
            RunColumn::Owner => excerpt(&view.owner_user_id, NAME_CHARS_MAX),
            RunColumn::Session => excerpt(&view.parent_session_id, NAME_CHARS_MAX),
            RunColumn::Parent => text(view.parent_run_id.as_ref()),
            RunColumn::Labels => {
                let labels = view.labels.iter().map(|(key, value)| format!("{key}={value}"));
                labels.collect::<Vec<_>>().join(",")
            }
            RunColumn::Rounds => text(view.rounds),
            RunColumn::Tokens => run.state.progress.total_tokens.to_string(),
            RunColumn::Cost => {
                view.cost_microusd.map_or_else(String::new, |cost| format!("${}", UsdDisplay(cost)))
            }
            RunColumn::Reason => text(view.stop_reason),
            RunColumn::Created => view.created_at.to_string(),
            RunColumn::Updated => view.updated_at.to_string(),
            RunColumn::Finished => text(view.finished_at),
            RunColumn::Summary => view.summary.clone().unwrap_or_default(),
        }
    }
}

/// The text of what there may be.
fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// The same with the time that is left of a wait for a time: `blocked (schedule, due in 6h)`, also
/// for the heartbeat that takes an entry.
fn status_at(run: &Run, beat: Option<Timestamp>, now: Timestamp) -> String {
    let (waits, due) = match (&run.state.lifecycle, &run.state.hold, &run.state.pause) {
        (
            Lifecycle::Blocked { on: BlockedOn::Schedule, .. },
            Hold::Wanted { not_before, .. },
            None,
        ) => ("blocked (schedule", Some(*not_before)),
        (Lifecycle::Queued, Hold::Beat, None) => ("queued (heartbeat", beat),
        (Lifecycle::Running { .. }, _, None) if run.state.failed_attempts > 0 => {
            return format!("running (attempt {} failed)", run.state.failed_attempts);
        }
        (
            Lifecycle::Queued
            | Lifecycle::Running { .. }
            | Lifecycle::Blocked { .. }
            | Lifecycle::Canceling { .. }
            | Lifecycle::Finalizing { .. }
            | Lifecycle::Ended { .. },
            Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Runs { .. } | Hold::Host { .. },
            _,
        ) => return status_text(run),
    };
    match due {
        Some(due) if due > now => format!("{waits}, {})", human::due(due, now)),
        Some(_) => format!("{waits}, due)"),
        None => format!("{waits})"),
    }
}

/// The effect of the time that ends a wait for an answer; `None` of a run that waits for something
/// else, or without a time.
#[must_use]
pub(crate) fn without_answer(run: &Run) -> Option<&'static str> {
    let is_timed = matches!(run.state.hold, Hold::Wanted { .. }) && run.state.pause.is_none();
    let is_open = is_timed && run.state.awaits.iter().any(|one| !one.answered);
    match &run.state.lifecycle {
        Lifecycle::Blocked { on, .. } if is_open => match on {
            BlockedOn::Confirmation => Some("the call is declined"),
            BlockedOn::Input => Some("it goes on without an answer"),
            BlockedOn::ExternalTools => Some("its calls fail"),
            BlockedOn::Children | BlockedOn::Pause | BlockedOn::Schedule => None,
        },
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Blocked { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => None,
    }
}

/// The status with what belongs to it: `failed (agent_trap)`, `blocked (input)`.
#[must_use]
pub(crate) fn status_text(run: &Run) -> String {
    let status = run.status();
    let detail = match &run.state.lifecycle {
        Lifecycle::Blocked { on, .. } => Some(on.as_str()),
        Lifecycle::Queued if run.state.hold == Hold::Beat => Some("heartbeat"),
        Lifecycle::Ended { ending, .. } if ending.stop_reason == StopReason::Deferred => {
            Some("deferred")
        }
        Lifecycle::Ended { ending, .. } if ending.partial => Some("partial"),
        Lifecycle::Ended { ending, .. } => match ending.status {
            taskrun_journal::ending::EndStatus::Completed => None,
            taskrun_journal::ending::EndStatus::Failed
            | taskrun_journal::ending::EndStatus::Canceled => Some(ending.stop_reason.as_str()),
        },
        Lifecycle::Queued
        | Lifecycle::Running { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. } => None,
    };
    let paused = run.state.pause.as_ref().map(|_| match &run.state.lifecycle {
        Lifecycle::Running { .. } => "pausing",
        Lifecycle::Queued
        | Lifecycle::Blocked { .. }
        | Lifecycle::Canceling { .. }
        | Lifecycle::Finalizing { .. }
        | Lifecycle::Ended { .. } => "paused",
    });
    match (detail, paused) {
        (Some("pause"), _) => format!("{status} (pause)"),
        (Some(detail), Some(paused)) => format!("{status} ({detail}, {paused})"),
        (None, Some(paused)) => format!("{status} ({paused})"),
        (Some("canceled_by_owner") | None, None) => status.to_string(),
        (Some(detail), None) => format!("{status} ({detail})"),
    }
}

/// The word for a run that waits for nothing any more but a host that takes it up.
pub(crate) const GOES_ON: &str = "goes on";

/// The status of a run as it stands after a command that may have ended its wait.
#[must_use]
pub(crate) fn progress_text(run: &Run, now: Timestamp) -> String {
    let is_due = match &run.state.hold {
        Hold::Wanted { not_before, .. } => *not_before <= now,
        Hold::Nobody | Hold::Beat | Hold::Runs { .. } | Hold::Host { .. } => false,
    };
    let is_free = is_due && run.state.pause.is_none();
    match run.status() == Status::Blocked && is_free {
        true => GOES_ON.to_owned(),
        false => status_text(run),
    }
}

fn running_time(view: &RunView, now: Timestamp) -> Option<Duration> {
    view.duration_ms
        .map(Duration::from_millis)
        .or_else(|| view.started_at.map(|started| now.since(started)))
}
