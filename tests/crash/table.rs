//! The table that is printed: a row for each way to die.

use std::collections::BTreeMap;

use taskrun_journal::ending::EndStatus;
use taskrun_journal::event::Event;
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::time::Timestamp;

use crate::book::Book;
use crate::idle::process_of;
use crate::journal::is_interrupted;
use crate::load::Kind;

/// The outcome of the deaths of one sort.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    times: u32,
    /// Of these the ones that came to nothing: the host did not come to the point and was killed
    /// at another time, or was stopped while it held the store.
    missed: u32,
    /// Runs that were taken from the dead, and how they ended.
    runs: u32,
    ended: [u32; 3],
    repeated: u32,
    interrupted: u32,
    failed: u32,
}

/// The outcome of the runs of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct KindRow {
    runs: u32,
    ended: [u32; 3],
    /// The times that they changed hands because a host died, and because one handed over.
    lost: u32,
    handed_over: u32,
    repeated: u32,
    /// Repetitions that a person agreed to, and others.
    accepted: u32,
    declined: u32,
}

impl KindRow {
    fn count(&mut self, event: &Event) {
        if let Event::Lost { crashed, .. } = event {
            self.lost += u32::from(*crashed);
            self.handed_over += u32::from(!*crashed);
        }
        self.repeated += u32::from(matches!(event, Event::ToolCallRepeated { .. }));
        if let Event::Answered { answer: Answer::Confirmed(yes), .. } = event {
            self.accepted += u32::from(*yes);
            self.declined += u32::from(!*yes);
        }
    }
}

/// Rows by what the death is called.
#[derive(Default)]
pub(crate) struct Table {
    rows: BTreeMap<String, Row>,
    kinds: BTreeMap<&'static str, KindRow>,
    runs: [u32; 4],
}

/// The outcome of all deaths together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) passed: u32,
    pub(crate) missed: u32,
    pub(crate) failed: u32,
}

/// A death in a round, or a stop that others take for one.
#[derive(Clone, Debug)]
pub(crate) struct Death {
    /// Its name.
    pub(crate) name: String,
    /// The process.
    pub(crate) pid: u32,
    /// When it was.
    pub(crate) at: Timestamp,
    /// True if the host died where it was to.
    pub(crate) hit: bool,
    /// True if it handed over what it executed.
    pub(crate) handed_over: bool,
    /// True if something was wrong after it.
    pub(crate) failed: bool,
}

impl Table {
    /// Adds the deaths of a round, with what became of the runs they hit.
    pub(crate) fn add(&mut self, deaths: &[Death], book: &Book, kinds: &BTreeMap<String, Kind>) {
        self.add_kinds(book, kinds);
        for death in deaths {
            let row = self.rows.entry(death.name.clone()).or_default();
            row.times += 1;
            row.missed += u32::from(!death.hit);
            row.failed += u32::from(death.failed);
        }
        for run in book.runs() {
            let id = run.id().as_str();
            let ended = ended(run);
            self.runs[0] += 1;
            ended.into_iter().for_each(|ended| self.runs[ended + 1] += 1);
            let mut after: Option<&str> = None;
            for recorded in book.journals.get(id).into_iter().flatten() {
                if let Event::Lost { host, crashed, .. } = &recorded.event {
                    let pid = process_of(host.as_str());
                    // What a host gives back on the way is none of its death.
                    let is_it = |death: &&Death| {
                        let taken = *crashed || death.handed_over;
                        taken && death.pid == pid && death.at <= recorded.at
                    };
                    after = deaths.iter().rev().find(is_it).map(|death| death.name.as_str());
                    let Some(row) = after.and_then(|name| self.rows.get_mut(name)) else {
                        continue;
                    };
                    row.runs += 1;
                    ended.into_iter().for_each(|ended| row.ended[ended] += 1);
                }
                let Some(row) = after.and_then(|name| self.rows.get_mut(name)) else { continue };
                if matches!(recorded.event, Event::ToolCallRepeated { .. }) {
                    row.repeated += 1;
                }
                if let Event::ToolResult { output, .. } = &recorded.event
                    && is_interrupted(output)
                {
                    row.interrupted += 1;
                }
            }
        }
    }

    fn add_kinds(&mut self, book: &Book, kinds: &BTreeMap<String, Kind>) {
        for run in book.runs() {
            let id = run.id().as_str();
            let Some(kind) = kinds.get(id) else { continue };
            let row = self.kinds.entry(kind.name()).or_default();
            row.runs += 1;
            ended(run).into_iter().for_each(|ended| row.ended[ended] += 1);
            let journal = book.journals.get(id).into_iter().flatten();
            journal.for_each(|recorded| row.count(&recorded.event));
        }
    }

    /// Ways to die that no kill hit, of those that were tried.
    pub(crate) fn never_hit(&self) -> Vec<&str> {
        let never = self.rows.iter().filter(|(_, row)| row.times == row.missed);
        never.map(|(name, _)| name.as_str()).collect()
    }

    /// Deaths where they were to be after which all was well; those that came to nothing; and those
    /// after which something was wrong.
    pub(crate) fn verdict(&self) -> Verdict {
        let sum = |of: fn(&Row) -> u32| self.rows.values().map(of).sum();
        let (times, failed): (u32, u32) = (sum(|row| row.times), sum(|row| row.failed));
        // One that came to nothing may have failed all the same.
        let missed = sum(|row| row.missed).min(times - failed);
        Verdict { passed: times - failed - missed, missed, failed }
    }

    /// Prints it.
    pub(crate) fn print(&self) {
        println!(
            "{:<42} {:>5} {:>6} {:>5} {:>9} {:>6} {:>8} {:>8} {:>11}  checker",
            "killed",
            "times",
            "missed",
            "runs",
            "completed",
            "failed",
            "canceled",
            "repeated",
            "interrupted",
        );
        for (name, row) in &self.rows {
            let [completed, failed, canceled] = row.ended;
            let verdict = if row.failed == 0 { "holds" } else { "VIOLATED" };
            println!(
                "{name:<42} {:>5} {:>6} {:>5} {completed:>9} {failed:>6} {canceled:>8} {:>8} {:>11}  \
                 {verdict}",
                row.times, row.missed, row.runs, row.repeated, row.interrupted,
            );
        }
        self.print_kinds();
        let [all, completed, failed, canceled] = self.runs;
        println!("{all} runs: {completed} completed, {failed} failed, {canceled} canceled");
    }

    fn print_kinds(&self) {
        println!(
            "{:<12} {:>5} {:>9} {:>6} {:>8} {:>5} {:>11} {:>8} {:>8} {:>8}",
            "runs",
            "",
            "completed",
            "failed",
            "canceled",
            "lost",
            "handed over",
            "repeated",
            "accepted",
            "declined",
        );
        for (name, row) in &self.kinds {
            let [completed, failed, canceled] = row.ended;
            println!(
                "{name:<12} {:>5} {completed:>9} {failed:>6} {canceled:>8} {:>5} {:>11} {:>8} {:>8} {:>8}",
                row.runs, row.lost, row.handed_over, row.repeated, row.accepted, row.declined,
            );
        }
    }
}

/// The end of a run, as a place in a row.
fn ended(run: &Run) -> Option<usize> {
    run.ending().map(|ending| match ending.status {
        EndStatus::Completed => 0,
        EndStatus::Failed => 1,
        EndStatus::Canceled => 2,
    })
}
