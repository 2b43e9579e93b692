//! The check that goes on beside a host's work.
//!
//! One thread of low priority does one step after another, each a transaction that reads, with a
//! pause after it that is the longer the more it read; a round looks at everything in the file
//! once. What a round found is logged, and stands in a file of the data directory until a round, or
//! a check by command, finds nothing: whoever looks there need not wait for the next one.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use taskrun_journal::store::StoreError;
use taskrun_priority::Priority;

use super::check::{self, FINDINGS_MAX, Findings, Step, StepReport};
use super::fault::Fault;
use super::identity::Identity;
use super::open::open_reader;
use super::store_path::StorePath;

/// Name of the file in the data directory that has the findings, one a line.
pub(crate) const FINDINGS_FILE: &str = "damage.txt";
/// Pause between two rounds: what is at rest changes slowly.
const ROUND_PAUSE: Duration = Duration::from_secs(60 * 60);
/// Memory in which the check has pages, each of which it looks at once: a round may take hours.
const CACHE_KIB: i64 = 256;

/// A handle of the thread, which begins with [`Self::begin`].
pub(crate) struct Scrub {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    place: StorePath,
    identity: Identity,
    busy_timeout: Duration,
    pause: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    rounds: u64,
}

impl Scrub {
    /// One that pauses so long after each step.
    pub(crate) fn new(
        place: StorePath,
        identity: Identity,
        busy_timeout: Duration,
        pause: Duration,
    ) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { place, identity, busy_timeout, pause, state, changed });
        Self { shared, thread: Mutex::default() }
    }

    /// Begins the first round, unless it has begun.
    pub(crate) fn begin(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() || self.shared.lock().closed {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("taskrun-scrub".to_owned());
        match builder.spawn(move || shared.run()) {
            Ok(started) => *thread = Some(started),
            Err(error) => tracing::warn!(%error, "the store is not checked in the background"),
        }
    }

    /// Rounds that came to their end.
    pub(crate) fn rounds(&self) -> u64 {
        self.shared.lock().rounds
    }

    /// Returns when the thread is gone.
    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that checks the store panicked");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns after a time, at once when closed; says whether to go on.
    fn pause(&self, time: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, time, |state| !state.closed);
        !waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    fn run(&self) {
        // One of the lowest might keep a lock of SQLite for as long as others compute.
        if let Err(error) = taskrun_priority::lower(Priority::Low) {
            tracing::debug!(%error, "the store is checked with the usual priority");
        }
        while let Some(findings) = self.round() {
            if let Some(findings) = findings {
                tell(&self.place.dir, &findings);
            }
            self.lock().rounds += 1;
            self.changed.notify_all();
            if !self.pause(ROUND_PAUSE) {
                return;
            }
        }
    }

    fn open(&self) -> Result<Connection, StoreError> {
        self.identity.check()?;
        let db = open_reader(&self.place, self.busy_timeout)?;
        let bounded = db.pragma_update(None, "cache_size", -CACHE_KIB);
        bounded.map_err(|error| Fault::Sqlite(error).at(&self.place.shown))?;
        Ok(db)
    }

    /// The findings of one round; the inner `None` if it found nothing and could not come to its
    /// end, the outer one when closed.
    fn round(&self) -> Option<Option<Findings>> {
        let db = match self.open() {
            Ok(db) => db,
            Err(StoreError::Corrupt { detail, .. }) => return Some(Some(vec![detail])),
            Err(error) => return Some(ended_early(&error, Findings::new())),
        };
        let mut findings = Findings::new();
        let mut next = Some(Step::FIRST);
        while let Some(step) = next {
            let mut mebibytes = 1;
            // A connection that is opened in between would put the log of one store into another.
            if let Err(error) = self.identity.check() {
                return Some(ended_early(&error, findings));
            }
            match in_transaction(&db, step, &mut findings, &|| self.lock().closed) {
                Ok(done) => (next, mebibytes) = (done.next, done.mebibytes),
                Err(fault) if fault.is_damage() => {
                    findings.push(fault.to_string());
                    next = step.after_damage();
                }
                Err(fault) => return Some(ended_early(&fault, findings)),
            }
            findings.truncate(FINDINGS_MAX);
            if !self.pause(self.pause.saturating_mul(mebibytes)) {
                return None;
            }
        }
        Some(Some(findings))
    }
}

/// The findings of a round that could not come to its end, if there are any.
fn ended_early(error: &dyn std::fmt::Display, findings: Findings) -> Option<Findings> {
    tracing::debug!(%error, "a round of the check ends early");
    Some(findings).filter(|findings| !findings.is_empty())
}

fn in_transaction(
    db: &Connection,
    step: Step,
    findings: &mut Findings,
    stop: &dyn Fn() -> bool,
) -> Result<StepReport, Fault> {
    db.execute_batch("BEGIN")?;
    let done = check::step(db, step, findings, stop);
    let ended = db.execute_batch(if done.is_ok() { "COMMIT" } else { "ROLLBACK" });
    let done = done?;
    ended?;
    Ok(done)
}

/// Says what was found, in the log and in the file.
pub(crate) fn tell(dir: &Path, findings: &Findings) {
    let file = dir.join(FINDINGS_FILE);
    for finding in findings {
        tracing::error!(finding, "the store is damaged; see `taskrun doctor --check`");
    }
    let told = match findings.is_empty() {
        true => match std::fs::remove_file(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        },
        false => std::fs::write(&file, findings.join("\n")),
    };
    if let Err(error) = told {
        tracing::warn!(%error, "what the check found cannot be kept");
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::ids::RunId;
    use taskrun_journal::spec::RunSpec;
    use taskrun_journal::store::Store;

    use super::super::idle::tests::kept_bytes;
    use super::super::options::{Durability, SqliteOptions};
    use super::super::store::SqliteStore;
    use super::*;
    use crate::fixtures::{new_run, spec};

    #[tokio::test]
    async fn a_check_of_many_runs_keeps_few_pages() {
        let dir = tempfile::tempdir().expect("a folder");
        let options = SqliteOptions { durability: Durability::Process, ..Default::default() };
        let store = SqliteStore::open(dir.path(), options).expect("opens");
        for number in 0..200 {
            let id = RunId::new(&format!("run-{number}")).expect("a valid id");
            let run = RunSpec { task: "x".repeat(20_000), ..spec(&id) };
            store.create(new_run(run)).await.expect("kept");
        }
        let db = store.scrub.shared.open().expect("opens");
        let (mut next, mut findings, mut most) = (Some(Step::FIRST), Findings::new(), 0_i64);
        while let Some(step) = next {
            next = in_transaction(&db, step, &mut findings, &|| false).expect("read").next;
            most = most.max(kept_bytes(&db).into());
        }
        assert_eq!(findings, [] as [&str; 0]);
        // With what SQLite keeps beside each page.
        assert!(most <= 2 * CACHE_KIB * 1_024, "{most}");
    }

    #[tokio::test]
    async fn a_step_reads_a_mebibyte_or_one_journal_and_says_how_much_it_was() {
        let dir = tempfile::tempdir().expect("a folder");
        let open = || {
            let options = SqliteOptions { durability: Durability::Process, ..Default::default() };
            SqliteStore::open(dir.path(), options).expect("opens")
        };
        let store = open();
        // The tasks of 40 runs: one of three mebibytes, and 39 of a tenth of one.
        for number in 0..40 {
            let id = RunId::new(&format!("run-{number:02}")).expect("a valid id");
            let bytes = if number == 20 { 3 << 20 } else { 100 << 10 };
            let run = RunSpec { task: "x".repeat(bytes), ..spec(&id) };
            store.create(new_run(run)).await.expect("kept");
        }
        // Whoever closes it last has all of it in the file.
        store.close();
        drop(store);
        let store = open();
        let db = store.scrub.shared.open().expect("opens");
        let pages: i64 = db.pragma_query_value(None, "page_count", |row| row.get(0)).expect("told");
        let (mut next, mut findings) = (Some(Step::FIRST), Findings::new());
        let (mut of_pages, mut of_runs) = (Vec::new(), Vec::new());
        while let Some(step) = next {
            let done = in_transaction(&db, step, &mut findings, &|| false).expect("read");
            match step {
                Step::Pages(_) => of_pages.push(done.mebibytes),
                Step::Runs(_) => of_runs.push(done.mebibytes),
                Step::Policies => {}
            }
            next = done.next;
        }
        assert_eq!(findings, [] as [&str; 0]);
        let bytes: i64 = db.pragma_query_value(None, "page_size", |row| row.get(0)).expect("told");
        let steps = (pages * bytes).unsigned_abs().div_ceil(1 << 20);
        assert_eq!(of_pages, vec![1; usize::try_from(steps).expect("few")]);
        // Nine tenths and the long one, or eleven tenths, and what is left.
        assert!(
            of_runs.len() >= 4 && of_runs.iter().any(|read| (4..=5).contains(read)),
            "{of_runs:?}"
        );
        let read: u32 = of_runs.iter().sum();
        assert!((7..=12).contains(&read), "{of_runs:?}");
    }
}
