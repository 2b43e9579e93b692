//! The news of a write for the waits of this process.

use taskrun_journal::run::Run;
use taskrun_journal::schedule;

use super::change::WriteOutcome;
use crate::wake::{Wakes, Written};

/// Wakes the waits for some runs that were written with so many events, for their sessions and for
/// work. Followers are given the events that are `written`, which are those of the only run.
pub(super) fn tell<T>(
    wakes: &Wakes,
    told: &WriteOutcome<T>,
    runs: &[Run],
    events: usize,
    written: Option<&Written>,
) {
    let all = || runs.iter().chain(told.canceled.iter().map(|canceled| &canceled.run));
    if told.place > 0 {
        all().for_each(|run| wakes.wrote_run(run));
        if wakes.anybody() {
            for run in runs {
                wakes.kept(run, written);
                schedule::widest_of(&run.spec)
                    .for_each(|key| wakes.session_moved(&key, told.place));
            }
            for canceled in &told.canceled {
                let run = &canceled.run;
                wakes.kept(run, None);
                let sessions = schedule::widest_of(&run.spec);
                sessions.for_each(|key| wakes.session_moved(&key, canceled.place));
            }
        }
        let last = told.canceled.iter().map(|canceled| canceled.place).fold(told.place, u64::max);
        let events = told.canceled.iter().map(|canceled| canceled.events).sum::<usize>() + events;
        // One transaction after the other: its events have the places just before its last.
        wakes.wrote(last.saturating_sub(events as u64), last);
    }
    if told.stirred {
        wakes.queued();
    }
    if all().any(|run| !run.spec.subscriptions.is_empty()) {
        wakes.dispatched();
    }
}

/// The same for runs that a host of this process took, each with one event.
pub(super) fn tell_claimed(wakes: &Wakes, told: &WriteOutcome<Vec<Run>>) {
    wakes.claimed(&told.answer);
    tell(wakes, told, &told.answer, told.answer.len(), None);
}
