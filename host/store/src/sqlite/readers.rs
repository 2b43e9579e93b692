//! Connections that read, off the executor's threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use taskrun::ports::store::StoreError;
use tokio::sync::Semaphore;

use super::fault::Fault;
use super::open::{Place, open_reader};

/// A few connections, opened when they are first needed.
pub(crate) struct Readers {
    place: Place,
    busy_timeout: Duration,
    idle: Arc<Mutex<Vec<Connection>>>,
    free: Arc<Semaphore>,
}

impl Readers {
    pub(crate) fn new(place: Place, busy_timeout: Duration, count: usize) -> Self {
        let free = Arc::new(Semaphore::new(count.max(1)));
        Self { place, busy_timeout, idle: Arc::default(), free }
    }

    /// Reads at one moment of the store, on a thread that may block.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let free = Arc::clone(&self.free).acquire_owned().await;
        let permit = free.map_err(|_| StoreError::Closed)?;
        let (place, busy_timeout) = (self.place.clone(), self.busy_timeout);
        let idle = Arc::clone(&self.idle);
        let done = tokio::task::spawn_blocking(move || {
            let waiting = lock(&idle).pop();
            let db = match waiting {
                Some(db) => db,
                None => open_reader(&place, busy_timeout)?,
            };
            let answer = at_one_moment(&db, read).map_err(|fault| fault.at(&place.shown));
            if db.is_autocommit() {
                lock(&idle).push(db);
            }
            // Kept until the connection is back, also if the caller gave up.
            drop(permit);
            answer
        });
        match done.await {
            Ok(answer) => answer,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being shut down.
                Err(_) => Err(StoreError::Closed),
            },
        }
    }

    /// Refuses what comes and closes the connections that are not in use.
    pub(crate) fn close(&self) {
        self.free.close();
        lock(&self.idle).clear();
    }
}

fn lock(idle: &Mutex<Vec<Connection>>) -> MutexGuard<'_, Vec<Connection>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

fn at_one_moment<T>(
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
