//! Heartbeats, on a thread and a connection that nothing else uses.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, params};
use rustix::time::{ClockId, clock_gettime};
use taskrun::ids::HostId;
use taskrun::ports::store::StoreError;

use super::SqliteOptions;
use super::fault::Fault;
use super::open::{Place, open_heart};

/// After a beat that could not be written the next one is tried so soon, for ever.
const RETRY: Duration = Duration::from_millis(250);

/// Milliseconds of the machine's monotonic clock: one clock for all of its processes, which no
/// setting of the time of day moves. It begins anew when the machine does; but then no process
/// of before holds its lock file any more, and the beat does not count.
pub(crate) fn machine_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

/// The beating thread. It rests while no host is registered.
pub(crate) struct Heart {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<Beating>,
    changed: Condvar,
    beats: AtomicU64,
}

#[derive(Default)]
struct Beating {
    hosts: BTreeSet<HostId>,
    closed: bool,
}

impl Heart {
    pub(crate) fn start(place: Place, options: SqliteOptions) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            beats: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("taskrun-heart".to_owned())
            .spawn(move || theirs.run(&place, &options))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Lets the heart of a host beat, whose row is written.
    pub(crate) fn add(&self, host: HostId) {
        self.shared.lock().hosts.insert(host);
        self.shared.changed.notify_all();
    }

    /// Stops the heart of a host.
    pub(crate) fn remove(&self, host: &HostId) {
        self.shared.lock().hosts.remove(host);
    }

    /// Beats that were written.
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
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Beating> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, place: &Place, options: &SqliteOptions) {
        let mut db = None;
        let mut pause = options.heartbeat;
        while let Some(hosts) = self.next(pause) {
            pause = match beat(&mut db, place, options, &hosts) {
                Ok(()) => {
                    self.beats.fetch_add(1, Ordering::Relaxed);
                    options.heartbeat
                }
                Err(error) => {
                    tracing::warn!(%error, "a heartbeat could not be written; it is tried again");
                    db = None;
                    RETRY.min(options.heartbeat)
                }
            };
        }
    }

    /// Waits for the time of the next beat and says whose; `None` once closed.
    fn next(&self, pause: Duration) -> Option<Vec<HostId>> {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, pause, |state| !state.closed);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let nobody = |state: &mut Beating| !state.closed && state.hosts.is_empty();
        let state = self.changed.wait_while(state, nobody).unwrap_or_else(PoisonError::into_inner);
        (!state.closed).then(|| state.hosts.iter().cloned().collect())
    }
}

fn beat(
    db: &mut Option<Connection>,
    place: &Place,
    options: &SqliteOptions,
    hosts: &[HostId],
) -> Result<(), StoreError> {
    let db = match db {
        Some(db) => db,
        None => db.insert(open_heart(place, options)?),
    };
    let at = |error| Fault::Sqlite(error).at(&place.shown);
    let mut sql = db.prepare_cached("UPDATE hosts SET beat_ms = ?2 WHERE id = ?1").map_err(at)?;
    for host in hosts {
        sql.execute(params![host.as_str(), machine_ms()]).map_err(at)?;
    }
    Ok(())
}
