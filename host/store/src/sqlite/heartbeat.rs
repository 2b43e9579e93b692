//! Heartbeats, on a thread and a connection that nothing else uses.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, params};
use rustix::time::{ClockId, clock_gettime};
use taskrun_journal::ids::HostId;
use taskrun_journal::store::{BEATS_PER_LEASE, StoreError};
use taskrun_journal::time::millis;

use super::failure_detector::FailureDetector;
use super::failure_log::FailureLog;
use super::fault::{Fault, io_error};
use super::identity::Identity;
use super::open::open_heart;
use super::options::SqliteOptions;
use super::room::LogRoom;
use super::schema::int;
use super::store_path::StorePath;

/// After a beat that could not be written the next one is tried so soon, for ever.
const RETRY: Duration = Duration::from_millis(250);

/// Milliseconds of the machine's monotonic clock: one clock for all of its processes, which no
/// setting of the time of day moves. It begins anew when the machine does; but then no process
/// of before holds its lock file any more, and the beat does not count.
pub(crate) fn machine_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

/// The beating thread. It begins with the first host that is registered, and rests while none is.
pub(crate) struct HeartbeatThread {
    shared: Arc<Shared>,
    store: Arc<HeartbeatStore>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<HeartbeatState>,
    changed: Condvar,
    beats: AtomicU64,
}

#[derive(Default)]
struct HeartbeatState {
    hosts: BTreeMap<HostId, HostHeartbeat>,
    closed: bool,
}

/// The heart of one host; all times are of [`machine_ms`].
struct HostHeartbeat {
    /// From one beat to the next.
    interval_ms: i64,
    /// When the last beat that was written was sent.
    sent_ms: i64,
    /// When the next one is.
    due_ms: i64,
}

impl HeartbeatThread {
    /// A heart whose thread has not begun.
    pub(crate) fn new(
        place: StorePath,
        identity: Identity,
        detector: Arc<FailureDetector>,
        options: SqliteOptions,
    ) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            beats: AtomicU64::new(0),
        });
        let store = Arc::new(HeartbeatStore { place, identity, detector, options });
        Self { shared, store, thread: Mutex::default() }
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless that was done or the store is closed.
    ///
    /// # Errors
    /// [`StoreError`] if the system has no thread for it.
    pub(crate) fn begin(&self) -> Result<(), StoreError> {
        let mut thread = self.thread();
        if thread.is_some() || self.shared.lock().closed {
            return Ok(());
        }
        let (theirs, store) = (Arc::clone(&self.shared), Arc::clone(&self.store));
        let started = taskrun_priority::spawn("taskrun-heart", move || theirs.run(&store));
        *thread = Some(started.map_err(|error| io_error(&self.store.place.file, &error))?);
        Ok(())
    }

    /// Lets the heart of a host beat, whose row was sent to be written at a time and is.
    pub(crate) fn add(&self, host: HostId, lease: Duration, sent_ms: i64) {
        let interval_ms = int(millis(lease / BEATS_PER_LEASE)).max(1);
        let due_ms = sent_ms.saturating_add(interval_ms);
        self.shared.lock().hosts.insert(host, HostHeartbeat { interval_ms, sent_ms, due_ms });
        self.shared.changed.notify_all();
    }

    /// Stops the heart of a host.
    pub(crate) fn remove(&self, host: &HostId) {
        self.shared.lock().hosts.remove(host);
    }

    /// The time since the last written beat of a host was sent.
    pub(crate) fn silence(&self, host: &HostId) -> Option<Duration> {
        let sent_ms = self.shared.lock().hosts.get(host)?.sent_ms;
        let silent_ms = machine_ms().saturating_sub(sent_ms);
        Some(Duration::from_millis(u64::try_from(silent_ms).unwrap_or(0)))
    }

    /// Rounds of beats that were written.
    pub(crate) fn beats(&self) -> u64 {
        self.shared.beats.load(Ordering::Relaxed)
    }

    /// Returns when the thread is gone.
    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        let thread = self.thread().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the heart's thread panicked");
        }
        self.shared.lock().hosts.clear();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HeartbeatState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, store: &HeartbeatStore) {
        let (mut db, mut log, room) = (None, FailureLog::default(), LogRoom::default());
        while let Some(hosts) = self.next() {
            let mut sent = Vec::new();
            match store.beat(&mut db, &room, &hosts, &mut sent) {
                Ok(()) => {
                    self.beats.fetch_add(1, Ordering::Relaxed);
                    if log.succeeded() {
                        tracing::info!("heartbeats are written again");
                    }
                }
                Err(error) => {
                    if log.failed(machine_ms()) {
                        tracing::warn!(
                            %error, "a heartbeat could not be written; it is tried again"
                        );
                    }
                    db = None;
                }
            }
            self.note(&hosts, &sent);
        }
    }

    /// Waits for the time of the next beat and says whose; `None` once closed.
    fn next(&self) -> Option<Vec<HostId>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let now_ms = machine_ms();
            let soonest = state.hosts.values().map(|pulse| pulse.due_ms).min();
            state = match soonest {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due_ms) if due_ms <= now_ms => {
                    let due = state.hosts.iter().filter(|(_, pulse)| pulse.due_ms <= now_ms);
                    return Some(due.map(|(host, _)| host.clone()).collect());
                }
                Some(due_ms) => {
                    let pause = u64::try_from(due_ms - now_ms).unwrap_or(0);
                    let waited = self.changed.wait_timeout(state, Duration::from_millis(pause));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Keeps when the beats of some hosts were sent, as far as they were written.
    fn note(&self, hosts: &[HostId], sent: &[(HostId, i64)]) {
        let mut state = self.lock();
        for host in hosts {
            let Some(pulse) = state.hosts.get_mut(host) else { continue };
            match sent.iter().find(|(written, _)| written == host) {
                Some((_, sent_ms)) => {
                    pulse.sent_ms = *sent_ms;
                    pulse.due_ms = sent_ms.saturating_add(pulse.interval_ms);
                }
                None => {
                    let pause = pulse.interval_ms.min(int(millis(RETRY)));
                    pulse.due_ms = machine_ms().saturating_add(pause);
                }
            }
        }
    }
}

/// The store as the thread writes it.
struct HeartbeatStore {
    place: StorePath,
    identity: Identity,
    detector: Arc<FailureDetector>,
    options: SqliteOptions,
}

impl HeartbeatStore {
    /// Fills `sent` with the hosts whose beat was written, and when it was sent. A beat that nobody
    /// can read, as the store's files were replaced, is none. On a full disk room is looked for in
    /// the log.
    fn beat(
        &self,
        db: &mut Option<Connection>,
        room: &LogRoom,
        hosts: &[HostId],
        sent: &mut Vec<(HostId, i64)>,
    ) -> Result<(), StoreError> {
        self.identity.check()?;
        let db: &Connection = match db {
            Some(db) => db,
            None => db.insert(open_heart(&self.place, &self.options)?),
        };
        let at = |error| Fault::Sqlite(error).at(&self.place.shown);
        let mut sql =
            db.prepare_cached("UPDATE hosts SET beat_ms = ?2 WHERE id = ?1").map_err(at)?;
        for host in hosts {
            let mut now_ms = machine_ms();
            let mut written = sql.execute(params![host.as_str(), now_ms]).map_err(at);
            if matches!(written, Err(StoreError::Full { .. }))
                && room.make(now_ms, db, || self.identity.check())
            {
                now_ms = machine_ms();
                written = sql.execute(params![host.as_str(), now_ms]).map_err(at);
            }
            if written? > 0 {
                self.identity.check()?;
                self.detector.wrote(machine_ms());
                sent.push((host.clone(), now_ms));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::store::{Host, Hosts};
    use taskrun_journal::time::Timestamp;

    use super::super::store::SqliteStore;
    use super::*;

    #[tokio::test]
    async fn the_thread_begins_with_the_first_host_and_ends_with_the_store() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(dir.path(), SqliteOptions::default()).expect("opens");
        let is_there = || store.heart.thread().is_some();
        store.writer.submit(0, |_| Ok(()), |_| ()).await.expect("written");
        assert!(!is_there(), "no host is registered");
        for id in ["one", "two"] {
            let host = Host {
                id: HostId::new(id),
                pid: std::process::id(),
                policy: "taskrun.toml".to_owned(),
                agents: Arc::default(),
                subscribers: Arc::default(),
                started_at: Timestamp(1_000),
                slots: 1,
                lease: Duration::from_secs(60),
            };
            store.register(host).await.expect("registers");
            assert!(is_there());
        }
        store.close();
        assert!(!is_there());
        store.heart.begin().expect("there is nothing to do");
        assert!(!is_there(), "it does not begin again");
    }
}
