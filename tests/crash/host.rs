//! The host that the tests kill: the program itself, with a store that kills its process at a point
//! of persistence and notes in a file what it acknowledged.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rustix::process::{Signal, getpid, kill_process};
use taskrun_cli::Program;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::layer::Layer;
use taskrun_journal::run::Run;
use taskrun_journal::store::{
    Append, AppendOutcome, BatchOutcome, Claim, JointOutcome, NewBatch, NewRun, Store, StoreError,
};
use taskrun_runtime::StoreLayer;

use crate::point::{CrashPoint, Persisted, Side};

/// The file in which the host notes what its store acknowledged; makes this test's program the
/// host.
const LOG: &str = "TASKRUN_TEST_CRASH_LOG";
/// The point at which it kills itself, if there is one.
const POINT: &str = "TASKRUN_TEST_CRASH_AT";

/// Makes a command of this test's program, or of a copy of it, a host that notes what its store
/// acknowledged and dies at the point.
pub(crate) fn make_host(command: &mut Command, at: Option<CrashPoint>, log: &Path) {
    command.env(LOG, log);
    if let Some(at) = at {
        command.env(POINT, at.to_string());
    }
}

/// Acts as the host, or its compiler, if this process was started as that.
///
/// # Panics
/// If the point is none.
pub(crate) fn act_as_host() -> Option<ExitCode> {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let told = |name: &str| std::env::var_os(name);
    let log = PathBuf::from(told(LOG)?);
    let at = told(POINT).map(|at| at.to_string_lossy().parse().expect("a point"));
    let layer = move |store| Ok(Arc::new(Crashing::new(store, at, &log)?) as Arc<dyn Store>);
    let store_layer = Some(Arc::new(layer) as StoreLayer);
    Some(taskrun_cli::main_with(Program { store_layer, ..Program::default() }))
}

/// Passes everything on, and dies where it is told.
///
/// The log of what was acknowledged has a line `RUN EPOCH SEQ ID...` for each append that the
/// store said is kept, with the place of its first event and the ids of all, and `RUN EPOCH SEQ
/// claimed` for each claim: written by this process before anyone in it hears of it, so that a line
/// may be missing, and never says what was not so.
struct Crashing {
    store: Arc<dyn Store>,
    at: Option<CrashPoint>,
    passed: AtomicU32,
    acknowledged: Mutex<File>,
}

impl Crashing {
    /// # Errors
    /// If the log cannot be opened.
    fn new(store: Arc<dyn Store>, at: Option<CrashPoint>, log: &Path) -> io::Result<Self> {
        let acknowledged = OpenOptions::new().create(true).append(true).open(log)?;
        let acknowledged = Mutex::new(acknowledged);
        Ok(Self { store, at, passed: AtomicU32::new(0), acknowledged })
    }

    /// Dies if this is the point.
    fn pass(&self, side: Side, is_it: impl Fn(Persisted) -> bool) {
        let Some(point) = self.at.filter(|point| point.side == side && is_it(point.persisted))
        else {
            return;
        };
        if self.passed.fetch_add(1, Ordering::Relaxed) + 1 == point.nth.get() {
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
            loop {
                std::thread::park();
            }
        }
    }

    fn pass_claim(&self, side: Side) {
        self.pass(side, |persisted| match persisted {
            Persisted::Claim => true,
            Persisted::Append(_) | Persisted::Checkpoint => false,
        });
    }

    fn claimed(&self, runs: &[Run]) {
        if !runs.is_empty() {
            let line = |run: &Run| {
                format!("{} {} {} claimed\n", run.id(), run.state.epoch, run.state.head)
            };
            self.note(&runs.iter().map(line).collect::<String>());
            self.pass_claim(Side::After);
        }
    }

    fn pass_append(&self, side: Side, events: &[EventRecord]) {
        let is_checkpoint = |one: &EventRecord| {
            let Event::RoundEnded { checkpoint, .. } = &one.event else { return false };
            !checkpoint.is_none()
        };
        self.pass(side, |persisted| match persisted {
            Persisted::Claim => false,
            Persisted::Append(kind) => events.iter().any(|one| one.event.kind() == kind),
            Persisted::Checkpoint => events.iter().any(is_checkpoint),
        });
    }

    fn note(&self, lines: &str) {
        let mut file = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        // One write, so that a death leaves whole lines.
        file.write_all(lines.as_bytes()).expect("the log of the test can be written");
    }
}

/// The line of the log for an append.
fn acknowledged(append: &Append) -> String {
    let first = append.events.first().map_or(0, |one| one.seq);
    let ids: Vec<String> = append.events.iter().map(|one| one.id.to_string()).collect();
    format!("{} {} {first} {}\n", append.run.id(), append.epoch, ids.join(" "))
}

#[async_trait]
impl Layer for Crashing {
    fn behind(&self) -> &dyn Store {
        &*self.store
    }

    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        // For the crash tests it is what it does to its entries.
        let entries = batch.entries.clone();
        entries.iter().for_each(|one| self.pass_append(Side::Before, &one.events));
        let batched = self.store.batch(batch).await?;
        if batched == BatchOutcome::New {
            self.note(&entries.iter().map(acknowledged).collect::<String>());
            entries.iter().for_each(|one| self.pass_append(Side::After, &one.events));
        }
        Ok(batched)
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        let line = acknowledged(&append);
        let events = append.events.clone();
        self.pass_append(Side::Before, &events);
        let appended = self.store.append(append).await?;
        if appended == AppendOutcome::Done {
            self.note(&line);
            self.pass_append(Side::After, &events);
        }
        Ok(appended)
    }

    async fn create_and_claim(
        &self,
        run: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        self.pass_claim(Side::Before);
        let both = self.store.create_and_claim(run, claim).await?;
        if let JointOutcome::Done { claimed, .. } = &both {
            self.claimed(claimed);
        }
        Ok(both)
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        self.pass_claim(Side::Before);
        let runs = self.store.claim(claim).await?;
        self.claimed(&runs);
        Ok(runs)
    }
}
