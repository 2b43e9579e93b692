//! Hearing what other processes wrote.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use taskrun_journal::event::EventRecord;
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::run::Run;
use taskrun_journal::store::{RunWatch, SessionKey, StoreError};

use super::fault::Fault;
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

/// The watching thread. It rests while nobody waits.
pub(crate) struct Watcher {
    waker: WatcherWaker,
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// A handle that wakes the thread.
#[derive(Clone)]
pub(crate) struct WatcherWaker {
    shared: Arc<Shared>,
    thread: Thread,
}

impl WatcherWaker {
    /// Has the thread look after what other processes write. Called before a wait for that, once the
    /// wait is registered.
    pub(crate) fn wake(&self) {
        let resting = &self.shared.resting;
        if resting.load(Ordering::SeqCst) && resting.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
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
    async fn moved(&mut self, after: Seq) {
        self.waker.wake();
        self.watch.beyond(after).await;
    }

    fn follow(&mut self) {
        self.watch.follow();
    }

    async fn events(&mut self, after: Seq, limit: usize) -> Vec<EventRecord> {
        self.waker.wake();
        self.watch.events(after, limit).await
    }

    async fn ended(&mut self) -> Option<Run> {
        self.waker.wake();
        self.watch.ended().await
    }
}

struct Shared {
    wakes: Arc<Wakes>,
    resting: AtomicBool,
    closed: AtomicBool,
}

impl Watcher {
    pub(crate) fn start(
        place: StorePath,
        busy_timeout: Duration,
        wakes: Arc<Wakes>,
    ) -> std::io::Result<Self> {
        let resting = AtomicBool::new(false);
        let shared = Arc::new(Shared { wakes, resting, closed: AtomicBool::new(false) });
        let theirs = Arc::clone(&shared);
        let handle =
            taskrun_priority::spawn("taskrun-watch", move || theirs.run(&place, busy_timeout))?;
        let thread = handle.thread().clone();
        Ok(Self { waker: WatcherWaker { shared, thread }, handle: Mutex::new(Some(handle)) })
    }

    pub(crate) fn waker(&self) -> &WatcherWaker {
        &self.waker
    }

    /// Returns when the thread is gone.
    pub(crate) fn close(&self) {
        self.waker.shared.closed.store(true, Ordering::SeqCst);
        self.waker.thread.unpark();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if handle.is_some_and(|handle| handle.join().is_err()) {
            tracing::error!("the watching thread panicked");
        }
    }
}

impl Shared {
    fn run(&self, place: &StorePath, busy_timeout: Duration) {
        while !self.closed.load(Ordering::SeqCst) {
            self.rest();
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            if let Err(error) = self.watch(place, busy_timeout) {
                tracing::warn!(%error, "cannot watch the store; waiters look for themselves");
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
    fn watch(&self, place: &StorePath, busy_timeout: Duration) -> Result<(), StoreError> {
        let opened = open_reader(place, busy_timeout);
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
        let mut sql = db.prepare_cached(
            // By the places: the other index has the order of the groups, and would be walked from
            // its beginning to its end.
            "SELECT r.id, max(e.seq), max(e.pos), r.status < 5, r.tenant, r.session, r.root_session
             FROM events e NOT INDEXED
             CROSS JOIN runs r ON r.no = e.run WHERE e.pos > ?1 GROUP BY e.run",
        )?;
        let mut rows = sql.query([after])?;
        let mut last = after;
        while let Some(row) = rows.next()? {
            let id: String = row.get(0)?;
            let (head, position): (i64, i64) = (row.get(1)?, row.get(2)?);
            last = last.max(position);
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

fn last_position(db: &Connection) -> Result<i64, Fault> {
    let sql = "SELECT coalesce(max(pos), 0) FROM events";
    Ok(db.query_row(sql, [], |row| row.get(0))?)
}
