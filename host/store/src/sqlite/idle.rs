//! The wait of a thread for work, and the memory that its connection gives back meanwhile.

use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use taskrun_journal::time::millis;

use super::schema::int;

/// Time without work after which a connection gives back its pages. They are read again when work
/// comes, which costs a few milliseconds for each mebibyte: seldom beside such a pause, and a host
/// at rest needs no copy of what the system has in its cache anyway.
pub(super) const REST: Duration =
    if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(5) };

/// Most uses in [`REST`] of a connection that is as good as at rest: a host without work looks a few
/// times a second whether there is any, and its connections take turns in that, so that none of them
/// ever has so long a pause.
const SELDOM: u32 = 40;

/// Time after the last write, and after [`REST`], by when the readers have given back their pages, too:
/// one that only looks for work does so at the end of the next [`REST`] in which it did nothing else.
pub(super) const ALL_REST: Duration = REST.saturating_mul(2);

/// The uses of a connection since a time.
pub(super) struct Uses {
    since_ms: i64,
    count: u32,
}

impl Uses {
    /// None yet, at a time of the machine.
    pub(super) fn since(now_ms: i64) -> Self {
        Self { since_ms: now_ms, count: 0 }
    }

    /// Counts one that ended at a time. True, at most once in [`REST`], if there were so few that the
    /// connection is to give back its pages.
    pub(super) fn add(&mut self, now_ms: i64) -> bool {
        self.count = self.count.saturating_add(1);
        if now_ms.saturating_sub(self.since_ms) < int(millis(REST)) {
            return false;
        }
        let is_seldom = self.count <= SELDOM;
        *self = Self::since(now_ms);
        is_seldom
    }
}

/// Waits for as long as `is_idle` holds. Each of `rests` is called without the lock, once, when it held
/// for its time after the one before.
///
/// `lock` takes the lock again.
pub(super) fn wait<'q, T>(
    mut state: MutexGuard<'q, T>,
    ready: &Condvar,
    lock: impl Fn() -> MutexGuard<'q, T>,
    is_idle: impl Fn(&mut T) -> bool,
    rests: &[(Duration, &dyn Fn())],
) -> MutexGuard<'q, T> {
    for (time, at_rest) in rests {
        let (guard, waited) = ready
            .wait_timeout_while(state, *time, &is_idle)
            .unwrap_or_else(PoisonError::into_inner);
        if !waited.timed_out() {
            return guard;
        }
        drop(guard);
        at_rest();
        state = lock();
    }
    ready.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn a_connection_that_is_seldom_used_gives_back_its_pages_and_one_that_is_often_used_does_not() {
        let rest = int(millis(REST));
        let mut uses = Uses::since(0);
        let told: Vec<bool> = (1..4).map(|n| uses.add(n * rest / 2)).collect();
        assert_eq!(told, [false, true, false], "once in each such time");
        let mut uses = Uses::since(0);
        assert!((0..=SELDOM).all(|_| !uses.add(rest - 1)));
        assert!(!uses.add(rest), "it is busy");
        assert!(uses.add(2 * rest), "and was");
    }
}
