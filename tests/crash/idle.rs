//! No run may lie idle while there is a host that could take it.

use std::collections::BTreeMap;
use std::time::Duration;

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::time::Timestamp;

use crate::book::Book;
use crate::stalls::Stalls;

/// The time of a busy machine beside the lease and the sweep: a start of the program included.
const SLACK: Duration = Duration::from_secs(8);

/// Holds every wait for a host to the longest that is right: from when the run was wanted, its
/// back-off included, or from when the host that took it was started, to when it was taken.
/// The part of that at which the machine stood still. `starts` has the hosts by process.
pub(crate) fn check(
    book: &mut Book,
    starts: &BTreeMap<u32, Timestamp>,
    stalls: &Stalls,
    lease: Duration,
) {
    let longest = lease + lease / 6 + SLACK;
    let serial: Vec<Turn> = book.runs().filter(|run| run.spec.serial).map(Turn::of).collect();
    let mut wrong = Vec::new();
    for (run, journal) in &book.journals {
        let turn = turn_of(&serial, run);
        let mut wanted: Option<Timestamp> = None;
        for recorded in journal {
            if let Some((host, since)) = taken(recorded).zip(wanted) {
                let started = starts.get(&process_of(host)).copied().unwrap_or_default();
                let since = since.max(started).max(turn);
                let stood = stalls.between(since, recorded.at);
                let idle = recorded.at.since(since).saturating_sub(stood);
                if idle > longest {
                    let idle = idle.as_millis();
                    wrong
                        .push((run.clone(), format!("idle for {idle} ms before {}", recorded.seq)));
                }
            }
            wanted = wanted_after(wanted, recorded);
        }
    }
    wrong.into_iter().for_each(|(run, what)| book.say(&run, what));
}

/// A run that takes turns with others.
struct Turn {
    run: String,
    accepted: Timestamp,
    ended: Timestamp,
}

impl Turn {
    fn of(run: &Run) -> Self {
        let ended = RunView::from(run).finished_at.unwrap_or_default();
        Self { run: run.id().to_string(), accepted: run.spec.created_at, ended }
    }
}

/// When it was a run's turn: all that were accepted before it had ended. At once, if it takes none.
fn turn_of(serial: &[Turn], run: &str) -> Timestamp {
    let Some(own) = serial.iter().find(|one| one.run == run) else { return Timestamp(0) };
    let before = serial.iter().filter(|one| one.run != run && one.accepted <= own.accepted);
    before.map(|one| one.ended).max().unwrap_or_default()
}

/// The host that takes the run with this event.
fn taken(recorded: &EventRecord) -> Option<&str> {
    if let Event::Started { host, .. } | Event::Resumed { host, .. } = &recorded.event {
        return Some(host.as_str());
    }
    None
}

/// From when on a host could take the run, if that is told by this event.
fn wanted_after(before: Option<Timestamp>, recorded: &EventRecord) -> Option<Timestamp> {
    let at = recorded.at;
    if let Event::Lost { not_before, .. } = &recorded.event {
        return Some(at.max(*not_before));
    }
    // These runs ask one thing at a time, so an answer is the last one.
    if matches!(recorded.event, Event::Queued { .. } | Event::Answered { .. }) {
        return Some(at);
    }
    let is_held = taken(recorded).is_some();
    if is_held || matches!(recorded.event, Event::Blocked { .. }) { None } else { before }
}

/// The process that a host is: its name says so.
pub(crate) fn process_of(host: &str) -> u32 {
    host.split('-').nth(1).and_then(|pid| pid.parse().ok()).unwrap_or_default()
}
