//! Runs as a table.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::{Lifecycle, Run, RunView};
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::time::Timestamp;

use super::escape::excerpt;
use super::human;
use super::table::table;

/// Characters of an id in a narrow terminal, where that many tell all of them apart: of a UUIDv7
/// the part that is time, and one digit more.
const SHORT_ID_CHARS: usize = 13;
/// Below this many columns ids are shortened.
const WIDE: usize = 100;
/// Longest name of an agent that is shown whole.
const AGENT_CHARS_MAX: usize = 24;
/// Longest name of a run that is shown whole.
const NAME_CHARS_MAX: usize = 24;

/// The times of the heartbeats that take entries which wait, by the entries, as far as known.
pub type Beats = BTreeMap<RunId, Timestamp>;

/// The runs, as `ps` shows them. There is a column for names if one of them has a name.
#[must_use]
pub fn run_table(runs: &[Run], beats: &Beats, now: Timestamp, width: Option<usize>) -> String {
    rows(runs, &runs.iter().map(|run| (0, run)).collect::<Vec<_>>(), (beats, now), width)
}

/// The same with each run under the one that started it, as far as that is among them.
#[must_use]
pub fn run_tree(runs: &[Run], beats: &Beats, now: Timestamp, width: Option<usize>) -> String {
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
    rows(runs, &placed, (beats, now), width)
}

fn rows(
    runs: &[Run],
    placed: &[(usize, &Run)],
    (beats, now): (&Beats, Timestamp),
    width: Option<usize>,
) -> String {
    let id_chars = match width {
        Some(width) if width < WIDE => unique_chars(runs),
        Some(_) | None => usize::MAX,
    };
    let named = runs.iter().any(|run| run.spec.name.is_some());
    let rows = placed
        .iter()
        .map(|(depth, run)| {
            let view = RunView::from(*run);
            let id: String = view.id.as_str().chars().take(id_chars).collect();
            let mut row = vec![format!("{}{id}", indent(*depth))];
            row.extend(named.then(|| {
                view.name.as_deref().map_or_else(String::new, |n| excerpt(n, NAME_CHARS_MAX))
            }));
            row.extend([
                excerpt(&view.agent_name, AGENT_CHARS_MAX),
                status_at(run, beats.get(run.id()).copied(), now),
                human::age(now.since(view.created_at)),
                running_time(&view, now).map_or_else(String::new, human::duration),
                view.turns.to_string(),
                run.state.tool_calls.to_string(),
                view.task,
            ]);
            row
        })
        .collect();
    let mut headings = vec!["RUN", "AGENT", "STATUS", "AGE", "TIME", "TURNS", "TOOLS", "TASK"];
    if named {
        headings.insert(1, "NAME");
    }
    table(&headings, rows, width)
}

fn indent(depth: usize) -> String {
    match depth {
        0 => String::new(),
        depth => format!("{}└ ", "  ".repeat(depth - 1)),
    }
}

/// The number of characters of the ids that tells them apart.
fn unique_chars(runs: &[Run]) -> usize {
    let distinct = |chars: usize| {
        let mut seen = HashSet::new();
        runs.iter()
            .all(|run| seen.insert(run.id().as_str().chars().take(chars).collect::<String>()))
    };
    (SHORT_ID_CHARS..36).find(|chars| distinct(*chars)).unwrap_or(usize::MAX)
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
