//! Hearing what other processes wrote.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use taskrun_journal::event::EventRecord;
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{RunWatch, SessionKey, StoreError};

use super::failure_log::FailureLog;
use super::fault::Fault;
use super::heartbeat::machine_ms;
use super::open::open_reader;
use super::schema::{bits, unbits};
use super::store_path::StorePath;
use crate::wake::{Wakes, Watch};

/// The pause between two questions whether the file was written. One question takes about a
/// microsecond.
const POLL: Duration = Duration::from_millis(10);
/// After so many questions that said no, new events are looked for all the same: within half the
/// second that the port allows.
const POLLS_UNTIL_LOOK: u32 = 50;
/// After so many polls without a waiter the thread rests; two seconds, so that somebody who
/// waits again and again does not start it each time.
const POLLS_UNTIL_REST: u32 = 200;
/// The time after which a waiter looks at the store itself where the system has no thread for that.
const UNWATCHED_LOOK: Duration = POLL.saturating_mul(POLLS_UNTIL_LOOK);

/// The watching thread. It begins with the first wait, as most commands never wait, and rests while there
/// is none.
pub(crate) struct Watcher {
    waker: WatcherWaker,
}

/// A handle that wakes the thread.
#[derive(Clone)]
pub(crate) struct WatcherWaker {
    shared: Arc<Shared>,
}

/// The part of the process that looks after what other processes write during a wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watchman {
    /// The watching thread. It also stands for a closed store, whose waits end at once.
    Thread,
    /// The waiter itself, from time to time, as the system has no thread for it.
    Waiter,
}

impl WatcherWaker {
    /// Has the thread look after what other processes write. Called before a wait for that, once the
    /// wait is registered.
    pub(crate) fn wake(&self) -> Watchman {
        match self.shared.resting.load(Ordering::SeqCst) {
            true => self.shared.begin_or_wake(),
            false => Watchman::Thread,
        }
    }

    /// True if the thread looks after what other processes write, or has everybody look for himself as it
    /// begins. To be asked once a wait is registered.
    fn is_awake(&self) -> bool {
        !self.shared.resting.load(Ordering::SeqCst)
    }
}

impl Watchman {
    /// The result of a wait; none once it is time that the waiter looks, where no thread does.
    pub(crate) async fn wait<T: Default>(self, wait: impl Future<Output = T>) -> T {
        match self {
            Self::Thread => wait.await,
            Self::Waiter => tokio::time::timeout(UNWATCHED_LOOK, wait).await.unwrap_or_default(),
        }
    }
}

/// A registration whose waits have the thread look at what others write.
pub(crate) struct SqliteWatch {
    pub(crate) watch: Watch,
    pub(crate) waker: WatcherWaker,
}

#[async_trait]
impl RunWatch for SqliteWatch {
    fn known_open(&self) -> Option<Arc<RunSpec>> {
        // While the thread rests, nobody would tell what others wrote since.
        self.waker.is_awake().then(|| self.watch.known_open()).flatten()
    }

    async fn moved(&mut self, after: Seq) {
        self.waker.wake().wait(self.watch.beyond(after)).await;
    }

    fn follow(&mut self) {
        self.watch.follow();
    }

    async fn events(&mut self, after: Seq, limit: usize) -> Vec<EventRecord> {
        self.waker.wake().wait(self.watch.events(after, limit)).await
    }

    async fn ended(&mut self) -> Option<Run> {
        self.waker.wake().wait(self.watch.ended()).await
    }
}

struct Shared {
    place: StorePath,
    busy_timeout: Duration,
    wakes: Arc<Wakes>,
    /// The thread rests, or has not begun.
    resting: AtomicBool,
    closed: AtomicBool,
    thread: Mutex<WatchThread>,
}

/// The thread, unless it has not begun or is gone.
#[derive(Default)]
struct WatchThread {
    handle: Option<JoinHandle<()>>,
    /// Starts for which the system had no thread; each wait tries another one.
    starts: FailureLog,
}

impl Watcher {
    /// A watcher whose thread has not begun.
    pub(crate) fn new(place: StorePath, busy_timeout: Duration, wakes: Arc<Wakes>) -> Self {
        let (resting, closed) = (AtomicBool::new(true), AtomicBool::new(false));
        let thread = Mutex::default();
        let shared = Shared { place, busy_timeout, wakes, resting, closed, thread };
        Self { waker: WatcherWaker { shared: Arc::new(shared) } }
    }

    pub(crate) fn waker(&self) -> &WatcherWaker {
        &self.waker
    }

    /// Returns when the thread is gone.
    pub(crate) fn close(&self) {
        let shared = &self.waker.shared;
        shared.closed.store(true, Ordering::SeqCst);
        let Some(thread) = shared.thread().handle.take() else { return };
        thread.thread().unpark();
        if thread.join().is_err() {
            tracing::error!("the watching thread panicked");
        }
    }
}

impl Shared {
    fn thread(&self) -> MutexGuard<'_, WatchThread> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, or ends its rest.
    fn begin_or_wake(self: &Arc<Self>) -> Watchman {
        let mut thread = self.thread();
        if let Some(handle) = &thread.handle {
            if self.resting.swap(false, Ordering::SeqCst) {
                handle.thread().unpark();
            }
            return Watchman::Thread;
        }
        if self.closed.load(Ordering::SeqCst) {
            return Watchman::Thread;
        }
        let theirs = Arc::clone(self);
        match taskrun_priority::spawn("taskrun-watch", move || theirs.run()) {
            Ok(started) => {
                thread.handle = Some(started);
                if thread.starts.succeeded() {
                    tracing::info!("a thread watches the store again");
                }
                Watchman::Thread
            }
            Err(error) => {
                if thread.starts.failed(machine_ms()) {
                    tracing::warn!(
                        %error, "no thread can watch the store; waiters look for themselves"
                    );
                }
                Watchman::Waiter
            }
        }
    }

    fn run(&self) {
        let mut log = FailureLog::default();
        while !self.closed.load(Ordering::SeqCst) {
            self.rest();
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            if let Err(error) = self.watch(&mut log) {
                if log.failed(machine_ms()) {
                    tracing::warn!(%error, "cannot watch the store; waiters look for themselves");
                }
                // As often as the port promises, until the store can be read again.
                for _ in 0..POLLS_UNTIL_LOOK {
                    self.pause();
                }
            }
        }
    }

    fn pause(&self) {
        if !self.closed.load(Ordering::SeqCst) {
            std::thread::park_timeout(POLL);
        }
    }

    /// Returns when somebody waits.
    fn rest(&self) {
        self.resting.store(true, Ordering::SeqCst);
        while !self.wakes.anybody() && !self.closed.load(Ordering::SeqCst) {
            std::thread::park();
            self.resting.store(true, Ordering::SeqCst);
        }
        self.resting.store(false, Ordering::SeqCst);
    }

    /// Polls until nobody has waited for a while.
    fn watch(&self, log: &mut FailureLog) -> Result<(), StoreError> {
        let place = &self.place;
        let opened = open_reader(place, self.busy_timeout);
        let begun = opened.and_then(|db| {
            let position = last_position(&db).map_err(|fault| fault.at(&place.shown))?;
            Ok((db, position))
        });
        // An event from before that position and after a waiter's own look is announced by
        // nothing else.
        self.wakes.rouse();
        let (db, mut position) = begun?;
        self.wakes.looked(unbits(position));
        let mut version = None;
        let (mut unasked, mut alone) = (0, 0);
        while !self.closed.load(Ordering::SeqCst) && alone < POLLS_UNTIL_REST {
            alone = if self.wakes.anybody() { 0 } else { alone + 1 };
            let found = self.poll(&db, &mut version, &mut unasked, &mut position);
            if let Err(fault) = found {
                self.wakes.rouse();
                return Err(fault.at(&place.shown));
            }
            if log.succeeded() {
                tracing::info!("the store is watched again");
            }
            self.pause();
        }
        Ok(())
    }

    fn poll(
        &self,
        db: &Connection,
        version: &mut Option<i64>,
        unasked: &mut u32,
        position: &mut i64,
    ) -> Result<(), Fault> {
        let mut asked = db.prepare_cached("PRAGMA data_version")?;
        let found: i64 = asked.query_row([], |row| row.get(0))?;
        *unasked += 1;
        if *version != Some(found) || *unasked >= POLLS_UNTIL_LOOK {
            *version = Some(found);
            *unasked = 0;
            *position = self.tell(db, *position)?;
        }
        Ok(())
    }

    /// Wakes whoever waits for what was written after a position; returns the last one. What this
    /// process wrote, up to the first thing that another one did, everybody knows.
    fn tell(&self, db: &Connection, after: i64) -> Result<i64, Fault> {
        let after = after.max(bits(self.wakes.told()));
        let last = last_position(db)?.max(after);
        let mut sql = db.prepare_cached(
            // By the places: the other index has the order of the groups, and would be walked from
            // its beginning to its end.
            "SELECT r.id, max(e.seq), max(e.pos), r.status < 5, r.tenant, r.session, r.root_session,
                    count(*)
             FROM events e NOT INDEXED
             CROSS JOIN runs r ON r.no = e.run WHERE e.pos > ?1 AND e.pos <= ?2 GROUP BY e.run",
        )?;
        let mut rows = sql.query([after, last])?;
        let mut found = 0;
        while let Some(row) = rows.next()? {
            let id: String = row.get(0)?;
            let (head, position): (i64, i64) = (row.get(1)?, row.get(2)?);
            found += row.get::<_, i64>(7)?;
            if let Ok(id) = RunId::new(&id) {
                self.wakes.moved(&id, unbits(head), row.get(3)?);
            }
            let (tenant, own, root): (String, String, Option<String>) =
                (row.get(4)?, row.get(5)?, row.get(6)?);
            for id in [own].into_iter().chain(root) {
                let tenant = tenant.clone();
                let key = SessionKey { tenant, owner_user_id: None, parent_app_name: None, id };
                self.wakes.session_moved(&key, unbits(position));
            }
        }
        // Of runs that ended and were removed since, nothing is left that tells of it. Who reads them
        // finds out.
        if after.saturating_add(found) < last {
            self.wakes.rouse();
        }
        // Whatever was written may have made a run ready, if only by an end that others waited
        // for.
        let mut ready = db.prepare_cached(
            "SELECT 1 FROM runs INDEXED BY runs_queued
             WHERE queue IS NOT NULL AND queue < 2 LIMIT 1",
        )?;
        if last > after && ready.exists([])? {
            self.wakes.queued();
        }
        self.wakes.looked(unbits(last));
        Ok(last)
    }
}

/// The last position that was given to an event, which may have been removed.
fn last_position(db: &Connection) -> Result<i64, Fault> {
    let sql = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'";
    Ok(db.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

#[cfg(test)]
mod tests {
    use super::super::options::SqliteOptions;
    use super::super::store::SqliteStore;
    use super::*;

    #[tokio::test]
    async fn the_thread_begins_with_the_first_wait_and_ends_with_the_store() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(dir.path(), SqliteOptions::default()).expect("opens");
        let is_there = || store.watcher.waker().shared.thread().handle.is_some();
        store.writer.submit(0, |_| Ok(()), |_| ()).await.expect("written");
        store.readers.read(|_| Ok(())).await.expect("read");
        assert!(!is_there(), "nobody waits");
        for _ in 0..2 {
            assert_eq!(store.watcher.waker().wake(), Watchman::Thread);
            assert!(is_there());
        }
        store.close();
        assert_eq!(store.watcher.waker().wake(), Watchman::Thread);
        assert!(!is_there(), "it does not begin again");
    }

    #[tokio::test(start_paused = true)]
    async fn where_no_thread_looks_a_wait_ends_when_it_is_time_to() {
        let wait = Watchman::Waiter.wait(std::future::pending::<Option<Run>>());
        let waited = tokio::time::timeout(UNWATCHED_LOOK * 2, wait).await;
        assert!(waited.expect("it ends").is_none());
    }
}
