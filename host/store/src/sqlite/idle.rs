//! The wait of a thread for work, and the memory that its connection gives back meanwhile.

use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

/// Time without work after which a connection gives back its pages. They are read again when work
/// comes, which costs a few milliseconds for each mebibyte: seldom beside such a pause, and a host
/// at rest needs no copy of what the system has in its cache anyway.
pub(super) const REST: Duration =
    if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(5) };

/// Waits for as long as `is_idle` holds. `at_rest` is called without the lock, once, when it held
/// for [`REST`].
///
/// `lock` takes the lock again.
pub(super) fn wait<'q, T>(
    state: MutexGuard<'q, T>,
    ready: &Condvar,
    lock: impl FnOnce() -> MutexGuard<'q, T>,
    is_idle: impl Fn(&mut T) -> bool,
    at_rest: impl FnOnce(),
) -> MutexGuard<'q, T> {
    let (state, waited) =
        ready.wait_timeout_while(state, REST, &is_idle).unwrap_or_else(PoisonError::into_inner);
    if !waited.timed_out() {
        return state;
    }
    drop(state);
    at_rest();
    ready.wait_while(lock(), is_idle).unwrap_or_else(PoisonError::into_inner)
}

/// Gives back the memory of the pages that a connection keeps.
pub(super) fn release(db: &Connection) {
    if let Err(error) = db.release_memory() {
        tracing::warn!(%error, "a connection at rest keeps its memory");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rusqlite::ffi;

    use super::*;

    /// Bytes of the pages that a connection keeps.
    #[expect(unsafe_code, reason = "rusqlite has no such call")]
    pub(in super::super) fn kept_bytes(db: &Connection) -> i32 {
        let (mut now, mut most) = (0, 0);
        let kind = ffi::SQLITE_DBSTATUS_CACHE_USED;
        // SAFETY: the connection is open, and the call writes to two numbers of its own type.
        let answer =
            unsafe { ffi::sqlite3_db_status(db.handle(), kind, &raw mut now, &raw mut most, 0) };
        assert_eq!(answer, ffi::SQLITE_OK);
        now
    }
}
