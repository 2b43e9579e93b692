//! A store that kills its process, and one that notes what was acknowledged: for the crash tests.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rustix::process::{Signal, getpid, kill_process};
use taskrun_journal::event::Recorded;
use taskrun_journal::layer::Layer;
use taskrun_journal::run::Run;
use taskrun_journal::store::{Append, Appended, Batched, Claim, NewBatch, Store, StoreError};

use crate::args::{CrashPoint, Persisted, Side};

/// Passes everything on, and dies where it is told.
///
/// The log of what was acknowledged has a line `RUN EPOCH SEQ ID...` for each append that the
/// store said is kept, with the place of its first event and the ids of all, and `RUN EPOCH SEQ
/// claimed` for each claim: written by this process before anyone in it hears of it, so that a line
/// may be missing, and never says what was not so.
pub(super) struct Crashing {
    store: Arc<dyn Store>,
    at: Option<CrashPoint>,
    passed: AtomicU32,
    acknowledged: Option<Mutex<File>>,
}

impl Crashing {
    /// # Errors
    /// If the log cannot be opened.
    pub(super) fn new(
        store: Arc<dyn Store>,
        at: Option<CrashPoint>,
        log: Option<&Path>,
    ) -> io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        let acknowledged = log.map(open).transpose()?.map(Mutex::new);
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
            Persisted::Append(_) => false,
        });
    }

    fn pass_append(&self, side: Side, events: &[Recorded]) {
        self.pass(side, |persisted| match persisted {
            Persisted::Claim => false,
            Persisted::Append(kind) => events.iter().any(|one| one.event.kind() == kind),
        });
    }

    fn note(&self, lines: impl FnOnce() -> String) {
        let Some(file) = &self.acknowledged else { return };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        // One write, so that a death leaves whole lines.
        if let Err(error) = file.write_all(lines().as_bytes()) {
            tracing::error!(%error, "what was acknowledged cannot be noted");
        }
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

    async fn batch(&self, batch: NewBatch) -> Result<Batched, StoreError> {
        // For the crash tests it is what it does to its entries.
        let entries = batch.entries.clone();
        entries.iter().for_each(|one| self.pass_append(Side::Before, &one.events));
        let batched = self.store.batch(batch).await?;
        if batched == Batched::New {
            self.note(|| entries.iter().map(acknowledged).collect());
            entries.iter().for_each(|one| self.pass_append(Side::After, &one.events));
        }
        Ok(batched)
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        let line = self.acknowledged.is_some().then(|| acknowledged(&append));
        let events = Arc::clone(&append.events);
        self.pass_append(Side::Before, &events);
        let appended = self.store.append(append).await?;
        if appended == Appended::Done {
            self.note(|| line.unwrap_or_default());
            self.pass_append(Side::After, &events);
        }
        Ok(appended)
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        self.pass_claim(Side::Before);
        let runs = self.store.claim(claim).await?;
        if !runs.is_empty() {
            let line = |run: &Run| {
                format!("{} {} {} claimed\n", run.id(), run.state.epoch, run.state.head)
            };
            self.note(|| runs.iter().map(line).collect());
            self.pass_claim(Side::After);
        }
        Ok(runs)
    }
}
