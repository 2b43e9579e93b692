//! Connections that read, each on a thread of its own.
//!
//! A read is done by one of these threads and never by its caller's future: a caller that gives up,
//! or is not polled for a while, keeps no connection from the others. A store without threads is read
//! with the connection that writes, by the caller, while its future is polled.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;
use tokio::sync::oneshot;

use super::fault::{Fault, io_error};
use super::heartbeat::machine_ms;
use super::identity::Identity;
use super::idle::{self, Uses};
use super::one_connection::OneConnection;
use super::open::open_reader;
use super::options::SqliteOptions;
use super::store_path::StorePath;
use super::writer::format_of;

/// Reads in the queue from which on those are taken out whose callers gave up: far more than
/// callers wait at once in a host that is well.
const TIDY_AT: usize = 256;

/// Takes reads, and has them done.
pub(crate) enum Readers {
    Threads(ReaderThreads),
    Caller(OneConnection),
}

/// A few connections, opened when they are first needed.
pub(crate) struct ReaderThreads {
    queue: Arc<Queue>,
    count: usize,
}

struct Queue {
    place: StorePath,
    identity: Identity,
    busy_timeout: Duration,
    /// The latest format of journals that is read.
    format: JournalFormat,
    state: Mutex<State>,
    ready: Condvar,
}

struct State {
    jobs: VecDeque<Box<dyn Job>>,
    threads: usize,
    /// Those of the threads that wait for a job.
    idle: usize,
    /// Length of the queue at which it is looked through next.
    tidy_at: usize,
    closed: bool,
}

/// One read that somebody waits for.
trait Job: Send {
    fn is_wanted(&self) -> bool;
    /// Reads and answers, with the connection of the thread; opens that if need be.
    fn run(self: Box<Self>, queue: &Queue, connection: &mut Option<Connection>);
}

/// An answer, or the panic that came in its place.
type Answer<T> = Result<Result<T, StoreError>, Box<dyn Any + Send>>;

struct Read<T, R> {
    read: R,
    reply: oneshot::Sender<Answer<T>>,
}

impl<T, R> Job for Read<T, R>
where
    T: Send,
    R: FnOnce(&Connection) -> Result<T, Fault> + Send,
{
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    fn run(self: Box<Self>, queue: &Queue, connection: &mut Option<Connection>) {
        let Self { read, reply } = *self;
        if reply.is_closed() {
            return;
        }
        let answer = std::panic::catch_unwind(AssertUnwindSafe(|| {
            // A connection that is opened now would read another store than those that are open.
            queue.identity.check()?;
            let db = match connection.take() {
                Some(db) => db,
                None => open_reader(&queue.place, queue.busy_timeout)?,
            };
            let answer = at_one_moment(&db, &queue.place.shown, queue.format, read);
            // One whose transaction cannot be ended is not used again.
            *connection = Some(db).filter(Connection::is_autocommit);
            answer
        }));
        // Whoever gave up waiting has dropped the other end.
        reply.send(answer).ok();
    }
}

impl Readers {
    /// Reads at one moment of the store. Threads take the reads in their order.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the read: it is not begun, or its answer is lost.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self {
            Self::Threads(threads) => threads.read(read).await,
            Self::Caller(connection) => connection.with(|store| {
                store.identity.check()?;
                at_one_moment(&store.db, &store.path, store.format, read)
            }),
        }
    }

    /// Refuses what comes and what waits, and closes the connections that only read. One that is in
    /// use is closed after its read, for which nobody waits: a disk that hangs must not keep a program
    /// from ending.
    pub(crate) fn close(&self) {
        match self {
            Self::Threads(threads) => threads.close(),
            // The writer's.
            Self::Caller(_) => {}
        }
    }
}

impl ReaderThreads {
    /// Those of a store with this identity.
    pub(crate) fn new(place: StorePath, identity: Identity, options: &SqliteOptions) -> Self {
        let SqliteOptions { busy_timeout, format, readers: count, .. } = *options;
        let state =
            State { jobs: VecDeque::new(), threads: 0, idle: 0, tidy_at: TIDY_AT, closed: false };
        let (state, ready) = (Mutex::new(state), Condvar::new());
        let queue = Arc::new(Queue { place, identity, busy_timeout, format, state, ready });
        Self { queue, count: count.max(1) }
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.push(Box::new(Read { read, reply }))?;
        match answer.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => Err(StoreError::Closed),
        }
    }

    fn push(&self, job: Box<dyn Job>) -> Result<(), StoreError> {
        let mut state = self.queue.lock();
        if state.closed {
            return Err(StoreError::Closed);
        }
        state.jobs.push_back(job);
        if state.jobs.len() >= state.tidy_at {
            state.jobs.retain(|job| job.is_wanted());
            state.tidy_at = TIDY_AT.max(state.jobs.len().saturating_mul(2));
        }
        if state.idle < state.jobs.len() && state.threads < self.count {
            match self.start() {
                Ok(()) => state.threads += 1,
                // Those that are there come to it.
                Err(error) if state.threads > 0 => tracing::warn!(%error, "one reader less"),
                Err(error) => {
                    state.jobs.clear();
                    return Err(io_error(&self.queue.place.file, &error));
                }
            }
        }
        drop(state);
        self.queue.ready.notify_one();
        Ok(())
    }

    fn start(&self) -> std::io::Result<()> {
        let queue = Arc::clone(&self.queue);
        taskrun_priority::spawn("taskrun-read", move || queue.work())?;
        Ok(())
    }

    fn close(&self) {
        let mut state = self.queue.lock();
        state.closed = true;
        let given_up = std::mem::take(&mut state.jobs);
        drop(state);
        self.queue.ready.notify_all();
        drop(given_up);
    }
}

impl Drop for ReaderThreads {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut connection = None;
        let mut uses = Uses::since(machine_ms());
        while let Some(job) = self.next(&|| connection.iter().for_each(idle::release)) {
            job.run(self, &mut connection);
            if uses.add(machine_ms()) {
                connection.iter().for_each(idle::release);
            }
        }
    }

    /// The read that waits longest; `None` once closed. Calls `at_rest` when none has come for a
    /// while.
    fn next(&self, at_rest: &dyn Fn()) -> Option<Box<dyn Job>> {
        let is_idle = |state: &mut State| state.jobs.is_empty() && !state.closed;
        let mut state = self.lock();
        state.idle += 1;
        let rests = [(idle::REST, at_rest)];
        state = idle::wait(state, &self.ready, || self.lock(), is_idle, &rests);
        state.idle -= 1;
        if state.closed { None } else { state.jobs.pop_front() }
    }
}

/// Reads at one moment, if a later program has not written what is read.
fn at_one_moment<T>(
    db: &Connection,
    shown: &str,
    format: JournalFormat,
    read: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<T, StoreError> {
    let read = |db: &Connection| match format_of(db)? {
        found if found > format => Ok(Err(found)),
        _ => read(db).map(Ok),
    };
    match in_transaction(db, read).map_err(|fault| fault.at(shown))? {
        Ok(value) => Ok(value),
        Err(found) => Err(StoreError::Format { path: shown.to_owned(), found, known: format }),
    }
}

fn in_transaction<T>(
    db: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<T, Fault> {
    db.prepare_cached("BEGIN")?.execute([])?;
    let answer = read(db);
    let ended = db.prepare_cached("COMMIT").and_then(|mut end| end.execute([]));
    let value = answer?;
    ended?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    use super::super::identity::database_at;
    use super::super::idle::tests::kept_bytes;
    use super::super::store_path::{INDEX_NAME, LOG_NAME};
    use super::*;

    fn one_reader(dir: &tempfile::TempDir) -> ReaderThreads {
        let file = dir.path().join("store.db");
        Connection::open(&file).expect("it is made").execute_batch("CREATE TABLE t (a)").expect("");
        let shown = file.display().to_string();
        for name in [LOG_NAME, INDEX_NAME] {
            std::fs::write(dir.path().join(name), b"").expect("it is made");
        }
        let place = StorePath { dir: dir.path().to_owned(), file, shown };
        let database = database_at(&place).expect("it is there");
        let identity = Identity::of(&place, database).expect("all are there");
        let options = SqliteOptions { readers: 1, ..SqliteOptions::default() };
        ReaderThreads::new(place, identity, &options)
    }

    async fn within<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(30), future).await.expect("before the deadline")
    }

    #[tokio::test]
    async fn a_read_that_is_given_up_while_it_waits_is_not_made() {
        let dir = tempfile::tempdir().expect("a folder");
        let readers = one_reader(&dir);
        let (go, wait) = mpsc::channel::<()>();
        let mut first = Box::pin(readers.read(move |_| Ok(wait.recv().is_ok())));
        let made = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&made);
        let mut second = Box::pin(readers.read(move |_| {
            theirs.store(true, Ordering::SeqCst);
            Ok(())
        }));
        let mut asks = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut asks).is_pending());
        assert!(second.as_mut().poll(&mut asks).is_pending());
        drop(second);
        go.send(()).expect("it is read");
        assert!(within(first).await.expect("reads"));
        within(readers.read(|_| Ok(()))).await.expect("reads");
        assert!(!made.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn reads_that_are_given_up_do_not_fill_the_queue() {
        let dir = tempfile::tempdir().expect("a folder");
        let readers = one_reader(&dir);
        let (go, wait) = mpsc::channel::<()>();
        let mut first = Box::pin(readers.read(move |_| Ok(wait.recv().is_ok())));
        let mut asks = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut asks).is_pending());
        for _ in 0..10 * TIDY_AT {
            assert!(Box::pin(readers.read(|_| Ok(()))).as_mut().poll(&mut asks).is_pending());
            assert!(readers.queue.lock().jobs.len() <= TIDY_AT);
        }
        go.send(()).expect("it is read");
        assert!(within(first).await.expect("reads"));
    }

    #[tokio::test]
    async fn a_reader_at_rest_gives_back_its_pages() {
        let dir = tempfile::tempdir().expect("a folder");
        let readers = one_reader(&dir);
        let read = |db: &Connection| {
            let rows: i64 = db.query_row("SELECT sum(a <> '') FROM t", [], |row| row.get(0))?;
            Ok((rows, kept_bytes(db)))
        };
        {
            let db = Connection::open(dir.path().join("store.db")).expect("opens");
            db.execute_batch(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
                 INSERT INTO t SELECT printf('%0500d', i) FROM n",
            )
            .expect("written");
        }
        let (rows, kept) = within(readers.read(read)).await.expect("reads");
        assert_eq!(rows, 2_000);
        assert!(kept > 1 << 20, "{kept}");
        within(async {
            while readers.read(|db| Ok(kept_bytes(db))).await.expect("reads") > 64 << 10 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(within(readers.read(read)).await.expect("reads"), (rows, kept));
    }

    #[tokio::test]
    async fn a_panic_is_its_callers_and_the_next_read_is_made() {
        let dir = tempfile::tempdir().expect("a folder");
        let readers = Arc::new(one_reader(&dir));
        let theirs = Arc::clone(&readers);
        let fails = tokio::spawn(async move {
            theirs.read::<()>(|_| panic!("a bug")).await.expect("it panics before")
        });
        assert!(within(fails).await.expect_err("it panics").is_panic());
        assert_eq!(within(readers.read(|_| Ok(7))).await.expect("reads"), 7);
    }

    #[tokio::test]
    async fn who_waits_when_it_is_closed_is_told_so() {
        let dir = tempfile::tempdir().expect("a folder");
        let readers = one_reader(&dir);
        let (go, wait) = mpsc::channel::<()>();
        let (begins, begun) = mpsc::channel::<()>();
        let mut first = Box::pin(readers.read(move |_| {
            begins.send(()).expect("it is waited for");
            Ok(wait.recv().is_ok())
        }));
        let mut second = Box::pin(readers.read(|_| Ok(())));
        let mut asks = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut asks).is_pending());
        begun.recv_timeout(Duration::from_secs(30)).expect("it begins");
        assert!(second.as_mut().poll(&mut asks).is_pending());
        readers.close();
        assert!(matches!(within(second).await, Err(StoreError::Closed)));
        assert!(matches!(within(readers.read(|_| Ok(()))).await, Err(StoreError::Closed)));
        go.send(()).expect("it is read");
        assert!(within(first).await.expect("what was begun is answered"));
    }
}
