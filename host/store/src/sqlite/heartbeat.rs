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
use super::fault::{Fault, io_error};
use super::identity::Identity;
use super::open::open_heart;
use super::options::SqliteOptions;
use super::schema::int;
use super::store_path::StorePath;

/// After a beat that could not be written the next one is tried so soon, for ever.
const RETRY: Duration = Duration::from_millis(250);
/// While beats cannot be written the log is told again so seldom: a full disk may last for days.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

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

/// The last line of the log about beats that cannot be written, since one was.
#[derive(Default)]
struct FailureLog {
    told_ms: Option<i64>,
}

impl FailureLog {
    /// Notes a beat that could not be written, and is true if the log is to be told of it.
    fn failed(&mut self, now_ms: i64) -> bool {
        let again_ms = int(millis(TOLD_AGAIN));
        let is_told = self.told_ms.is_some_and(|told_ms| now_ms.saturating_sub(told_ms) < again_ms);
        if !is_told {
            self.told_ms = Some(now_ms);
        }
        !is_told
    }

    /// Notes a beat that was written, and is true if the log was told of some that were not.
    fn wrote(&mut self) -> bool {
        self.told_ms.take().is_some()
    }
}

impl HeartbeatThread {
    /// One that has not begun.
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

    /// Starts the thread, unless that was done or the store is closed.
    ///
    /// # Errors
    /// [`StoreError`] if the system has no thread for it.
    pub(crate) fn begin(&self) -> Result<(), StoreError> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
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
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
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
        let (mut db, mut log) = (None, FailureLog::default());
        while let Some(hosts) = self.next() {
            let mut sent = Vec::new();
            match store.beat(&mut db, &hosts, &mut sent) {
                Ok(()) => {
                    self.beats.fetch_add(1, Ordering::Relaxed);
                    if log.wrote() {
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
    /// can read, as the store's files were replaced, is none.
    fn beat(
        &self,
        db: &mut Option<Connection>,
        hosts: &[HostId],
        sent: &mut Vec<(HostId, i64)>,
    ) -> Result<(), StoreError> {
        self.identity.check()?;
        let db = match db {
            Some(db) => db,
            None => db.insert(open_heart(&self.place, &self.options)?),
        };
        let at = |error| Fault::Sqlite(error).at(&self.place.shown);
        let mut sql =
            db.prepare_cached("UPDATE hosts SET beat_ms = ?2 WHERE id = ?1").map_err(at)?;
        for host in hosts {
            let now_ms = machine_ms();
            if sql.execute(params![host.as_str(), now_ms]).map_err(at)? > 0 {
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
    use super::FailureLog;

    #[test]
    fn beats_that_fail_are_told_of_once_a_minute_and_once_when_they_are_written_again() {
        let mut log = FailureLog::default();
        assert!(!log.wrote(), "nothing was told");
        let told = |log: &mut FailureLog, from_ms: i64, to_ms: i64| {
            (from_ms..to_ms).step_by(250).filter(|now_ms| log.failed(*now_ms)).count()
        };
        assert_eq!(told(&mut log, 1_000, 61_000), 1);
        assert_eq!(told(&mut log, 61_000, 181_000), 2);
        assert!(log.wrote());
        assert!(!log.wrote());
        assert_eq!(told(&mut log, 181_000, 182_000), 1, "it is another failure");
    }
}
