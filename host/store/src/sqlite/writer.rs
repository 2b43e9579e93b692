//! Writing: what waits is taken, committed together, and then answered, by one thread of its own or by
//! the thread of a caller.

mod job;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Semaphore, oneshot};

use self::job::{Job, Task};
use super::commit_writes::together;
use super::fault::{Fault, unconfirmed};
use super::heartbeat::machine_ms;
use super::identity::Identity;
use super::idle;
use super::one_connection::OneConnection;
use super::open::leave_log;
use super::room::LogRoom;
use super::schema::FileVersion;

/// Most transactions that wait for the writer. Twice the largest batch: while one is written the
/// next one fills. Beyond that, callers wait.
pub(crate) const TRANSACTIONS_WAITING_MAX: usize = 1_024;
/// Most transactions in one commit: bounds how long the first of them waits for the last.
const BATCH_MAX: usize = 512;
/// Most bytes in one commit, unless a single transaction is larger: bounds the log's growth
/// between two commits, and the pages that are changed at once.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Most transactions of a batch that may fail before the rest is done one by one.
const FAILURES_MAX: usize = 8;

/// Counts of the writer.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) commits: AtomicU64,
    pub(crate) transactions: AtomicU64,
}

/// Takes transactions, and has them done.
pub(crate) struct Writer {
    queue: Arc<Queue>,
    worker: Worker,
}

/// The part of the process that does the transactions.
enum Worker {
    Thread(Mutex<Option<JoinHandle<()>>>),
    /// The thread of the first caller that comes back to the queue.
    Caller(OneConnection, Arc<Counts>),
}

struct Queue {
    state: Mutex<PendingJobs>,
    ready: Condvar,
    room: Semaphore,
}

struct PendingJobs {
    jobs: VecDeque<Box<dyn Job>>,
    closed: bool,
}

impl Writer {
    /// One with a thread.
    pub(crate) fn start(store: WriterStore, counts: Arc<Counts>) -> std::io::Result<Self> {
        let queue = Arc::<Queue>::default();
        let theirs = Arc::clone(&queue);
        let thread =
            taskrun_priority::spawn("taskrun-write", move || work(&theirs, &store, &counts))?;
        Ok(Self { queue, worker: Worker::Thread(Mutex::new(Some(thread))) })
    }

    /// One whose callers do the transactions, over a connection that they may also read with.
    pub(crate) fn of_callers(connection: OneConnection, counts: Arc<Counts>) -> Self {
        Self { queue: Arc::default(), worker: Worker::Caller(connection, counts) }
    }

    /// Does a transaction, among others in one commit. `run` may be called more than once; `done`
    /// is called after the commit and before the answer, even if nobody waits for that any more.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the answer. Without a thread the transaction may be left undone then,
    /// or be done with that of another caller.
    pub(crate) async fn submit<T, R, D>(
        &self,
        bytes: usize,
        run: R,
        done: D,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        R: FnMut(&Connection) -> Result<T, Fault> + Send + 'static,
        D: FnOnce(&T) + Send + 'static,
    {
        if let Worker::Caller(connection, counts) = &self.worker
            && self.queue.room.available_permits() == 0
        {
            // Their callers may be gone.
            self.drain(connection, counts)?;
        }
        let permit = self.queue.room.acquire().await.map_err(|_| StoreError::Closed)?;
        let (reply, mut answer) = oneshot::channel();
        {
            let mut state = self.queue.lock();
            if state.closed {
                return Err(StoreError::Closed);
            }
            state.jobs.push_back(Box::new(Task::new(bytes, run, done, reply)));
        }
        // The room is given back when the transaction is taken.
        permit.forget();
        let lost = || StoreError::Unknown { detail: "its writer is gone".to_owned() };
        match &self.worker {
            Worker::Thread(_) => {
                self.queue.ready.notify_one();
                answer.await.unwrap_or_else(|_| Err(lost()))
            }
            Worker::Caller(connection, counts) => {
                // Others that ask at the same time may join it.
                tokio::task::yield_now().await;
                let drained = self.drain(connection, counts);
                // Nobody else is about to answer now.
                match answer.try_recv() {
                    Ok(answer) => answer,
                    Err(TryRecvError::Closed) => Err(lost()),
                    // It waits still, and was not done.
                    Err(TryRecvError::Empty) => Err(drained.err().unwrap_or(StoreError::Closed)),
                }
            }
        }
    }

    /// Does what waits, on this thread.
    ///
    /// # Errors
    /// [`StoreError::Closed`] if the connection is, and from then on for whatever comes.
    fn drain(&self, connection: &OneConnection, counts: &Counts) -> Result<(), StoreError> {
        let drained = connection.with(|store| {
            while let Some(batch) = self.queue.next_batch(self.queue.lock()) {
                run_batch(store, batch, counts);
            }
            Ok(())
        });
        if drained.is_err() {
            self.queue.close();
        }
        drained
    }

    /// Commits what waits, refuses what comes, and returns when the thread is gone.
    pub(crate) fn close(&self) {
        self.queue.close();
        match &self.worker {
            Worker::Thread(thread) => {
                let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
                if thread.is_some_and(|thread| thread.join().is_err()) {
                    tracing::error!("the writing thread panicked");
                }
            }
            Worker::Caller(connection, counts) => {
                // One that is closed has nothing that could be done.
                self.drain(connection, counts).ok();
                connection.close();
            }
        }
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            state: Mutex::new(PendingJobs { jobs: VecDeque::new(), closed: false }),
            ready: Condvar::new(),
            room: Semaphore::new(TRANSACTIONS_WAITING_MAX),
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, PendingJobs> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.room.close();
        self.ready.notify_all();
    }

    /// The waiting jobs, as far as they fit into one commit; `None` once closed and empty. Calls each of
    /// `rests` when none has come for its time.
    fn take(&self, rests: &[(Duration, &dyn Fn())]) -> Option<Vec<Box<dyn Job>>> {
        let is_idle = |state: &mut PendingJobs| state.jobs.is_empty() && !state.closed;
        self.next_batch(idle::wait(self.lock(), &self.ready, || self.lock(), is_idle, rests))
    }

    /// The waiting jobs, as far as they fit into one commit; `None` if there are none.
    fn next_batch(&self, mut state: MutexGuard<'_, PendingJobs>) -> Option<Vec<Box<dyn Job>>> {
        if state.jobs.is_empty() {
            return None;
        }
        let mut batch: Vec<Box<dyn Job>> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = state.jobs.front() {
            bytes += next.bytes();
            if !batch.is_empty() && (batch.len() == BATCH_MAX || bytes > BATCH_BYTES_MAX) {
                break;
            }
            batch.extend(state.jobs.pop_front());
        }
        drop(state);
        self.room.add_permits(batch.len());
        Some(batch)
    }
}

/// Closes the queue also if a transaction panics, so that nobody waits for an answer that never
/// comes.
struct CloseAtEnd<'a>(&'a Queue);

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
        self.0.lock().jobs.clear();
    }
}

/// The store as it is written.
pub(crate) struct WriterStore {
    pub(crate) db: Connection,
    /// Its file, as it is shown.
    pub(crate) path: String,
    pub(crate) identity: Identity,
    /// The format of the journals that are written.
    pub(crate) format: JournalFormat,
    /// Called when all connections have given back their pages.
    pub(crate) at_rest: Option<fn()>,
    pub(crate) room: LogRoom,
}

fn work(queue: &Queue, store: &WriterStore, counts: &Counts) {
    let _guard = CloseAtEnd(queue);
    let release = || idle::release(&store.db);
    let all_rest = || store.at_rest.iter().for_each(|at_rest| at_rest());
    let rests: [(Duration, &dyn Fn()); 2] = [(idle::REST, &release), (idle::ALL_REST, &all_rest)];
    while let Some(batch) = queue.take(&rests) {
        run_batch(store, batch, counts);
    }
}

/// Commits a batch and answers it. One that fails is taken out and answered, and the others are
/// done again. Where the disk has no room, they are done once more if the log gives some.
fn run_batch(store: &WriterStore, mut batch: Vec<Box<dyn Job>>, counts: &Counts) {
    let mut failed = 0;
    while !batch.is_empty() {
        // Where everything fails, as on a full disk, doing the rest again each time would not end
        // soon.
        let rest = if failed < FAILURES_MAX { batch.len() } else { 1 };
        let mut committed = store.commit(&mut batch[..rest]);
        let is_full = matches!(&committed, Err(failure) if failure.is_full(&batch));
        // At most once for each answer, however long an attempt takes.
        if is_full && store.room.make(machine_ms(), &store.db, || store.check()) {
            committed = store.commit(&mut batch[..rest]);
        }
        match committed {
            Ok(()) => {
                counts.commits.fetch_add(1, atomic::Ordering::Relaxed);
                answer(batch.drain(..rest), counts, || Ok(()));
            }
            Err(BatchFailure::Job(index)) => {
                failed += 1;
                let lost = || StoreError::Unknown { detail: "it was rolled back".to_owned() };
                answer(batch.drain(index..=index), counts, || Err(lost()));
            }
            Err(BatchFailure::Commit(error)) => {
                answer(batch.drain(..rest), counts, || Err(error.clone()));
            }
        }
    }
}

/// Answers; one that failed by itself keeps its own error.
fn answer(
    batch: impl Iterator<Item = Box<dyn Job>>,
    counts: &Counts,
    commit: impl Fn() -> Result<(), StoreError>,
) {
    for job in batch {
        counts.transactions.fetch_add(1, atomic::Ordering::Relaxed);
        job.answer(commit());
    }
}

/// Why nothing of a batch is kept.
enum BatchFailure {
    /// The transaction at this place failed.
    Job(usize),
    /// Beginning or committing failed.
    Commit(StoreError),
}

impl BatchFailure {
    /// True if there was no room for what the batch writes.
    fn is_full(&self, batch: &[Box<dyn Job>]) -> bool {
        match self {
            Self::Job(index) => batch[*index].is_full(),
            Self::Commit(error) => matches!(error, StoreError::Full { .. }),
        }
    }
}

impl WriterStore {
    /// Does the transactions in one, or nothing.
    ///
    /// There is no savepoint around each: SQLite would write every page that any of them is about
    /// to change to a temporary file first, in batches of 64 four pages for each one that goes to
    /// the log. A transaction that is refused has written nothing, and so only one that fails,
    /// which is rare, has to be undone with the others.
    ///
    /// Before, it is found out whether the files are still those that were opened, so that a log
    /// which nobody else has is not copied into a database that others use; and after, as only then
    /// it is certain that what was committed can be read.
    fn commit(&self, batch: &mut [Box<dyn Job>]) -> Result<(), BatchFailure> {
        let Self { db, path, .. } = self;
        let sql =
            |sql: &str| db.prepare_cached(sql).and_then(|mut all| all.execute([])).map(|_| ());
        let roll_back = || {
            // Some failures make SQLite roll back by itself.
            if !db.is_autocommit()
                && let Err(error) = sql("ROLLBACK")
            {
                tracing::error!(%error, "a transaction cannot be rolled back");
            }
        };
        self.check().map_err(BatchFailure::Commit)?;
        sql("BEGIN IMMEDIATE")
            .map_err(|error| BatchFailure::Commit(Fault::Sqlite(error).at(path)))?;
        self.note_format().map_err(|error| {
            roll_back();
            BatchFailure::Commit(error)
        })?;
        for (index, job) in batch.iter_mut().enumerate() {
            if !job.run(db, path) {
                roll_back();
                return Err(BatchFailure::Job(index));
            }
        }
        together(|| sql("COMMIT")).map_err(|error| {
            roll_back();
            BatchFailure::Commit(Fault::Sqlite(error).at_commit(path))
        })?;
        self.check().map_err(|error| BatchFailure::Commit(unconfirmed(error)))
    }

    /// Has the file say that it has journals of this program's format, in the transaction that is
    /// about to write some.
    ///
    /// # Errors
    /// [`StoreError::Format`] if a later program has written since it was opened.
    fn note_format(&self) -> Result<(), StoreError> {
        let Self { db, path, format, .. } = self;
        let found = format_of(db).map_err(|fault| fault.at(path))?;
        match found.cmp(format) {
            Ordering::Equal => Ok(()),
            Ordering::Less => {
                let version = FileVersion::with(*format).user_version();
                let noted = db.pragma_update(None, "user_version", version);
                noted.map_err(|error| Fault::Sqlite(error).at(path))
            }
            Ordering::Greater => {
                Err(StoreError::Format { path: path.clone(), found, known: *format })
            }
        }
    }

    /// # Errors
    /// Those of [`Identity::check`]. The log stays where it is when one of the files was replaced.
    fn check(&self) -> Result<(), StoreError> {
        let checked = self.identity.check();
        if matches!(checked, Err(StoreError::Replaced { .. }))
            && let Err(error) = leave_log(&self.db)
        {
            tracing::error!(%error, "the log of a store that was replaced is not left alone");
        }
        checked
    }
}

impl Drop for WriterStore {
    /// Looks once more whether the files are those that were opened, as closing the connection copies the
    /// log into the database.
    fn drop(&mut self) {
        self.check().ok();
    }
}

/// The latest format of journals in a file.
pub(crate) fn format_of(db: &Connection) -> Result<JournalFormat, Fault> {
    let mut version = db.prepare_cached("PRAGMA user_version")?;
    Ok(FileVersion::of(version.query_row([], |row| row.get(0))?).format)
}

#[cfg(test)]
mod tests;
