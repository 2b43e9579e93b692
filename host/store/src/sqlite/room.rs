//! Room on a full disk: for the index of the log, without which nothing can be read, and in the log
//! itself, without which nothing can be written.

use std::cell::Cell;
use std::time::Duration;

use rusqlite::Connection;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::millis;

use super::schema::int;
use super::store_path::{FILE_NAMES, StorePath};

/// The index grows by so much,
const INDEX_BYTES: u64 = 32 << 10;
/// for so many pages of the log. The first part of it has a header and holds fewer.
const INDEX_PAGES: u64 = 4_096;
const HEADER_PAGES: u64 = 34;
/// A page in the log with what stands before it.
const LOGGED_BYTES: u64 = 4_096 + 24;

/// Time from one attempt to make room in the log to the next: each writes up to all pages of the
/// log, and on a disk that stays full it may be of no use.
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);

/// The log of a connection that writes, on a disk that has no room for a longer one. All times are
/// of [`machine_ms`](super::heartbeat::machine_ms).
#[derive(Default)]
pub(crate) struct LogRoom {
    tried_ms: Cell<Option<i64>>,
}

impl LogRoom {
    /// Copies the log into the database after a transaction that found no room, unless that was
    /// tried within [`ATTEMPT_PAUSE`] or `check`, of the identity of the files, fails. True if all
    /// of the log was copied: the next transaction then begins at the log's start, needs no room up
    /// to the length that the log has, and can be tried again. No transaction may be open on `db`.
    ///
    /// Pages that the database has are overwritten where they stand. For others it has to grow, and
    /// the copy fails where there is no room for that; the log still has everything then. Nobody is
    /// waited for: while a reader needs the log, its start is left alone, and the next transaction
    /// may be refused once more. The log keeps its length, as other programs would take the room
    /// that it gave back.
    pub(crate) fn make(
        &self,
        now_ms: i64,
        db: &Connection,
        check: impl FnOnce() -> Result<(), StoreError>,
    ) -> bool {
        let pause_ms = int(millis(ATTEMPT_PAUSE));
        let is_tried =
            self.tried_ms.get().is_some_and(|tried_ms| now_ms.saturating_sub(tried_ms) < pause_ms);
        if is_tried || check().is_err() {
            return false;
        }
        self.tried_ms.set(Some(now_ms));
        let copied: rusqlite::Result<[i64; 3]> =
            db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                Ok([row.get(0)?, row.get(1)?, row.get(2)?])
            });
        match copied {
            // Another connection copies just now, which makes the same room.
            Ok([is_busy, ..]) if is_busy != 0 => {
                self.tried_ms.set(None);
                false
            }
            Ok([_, pages, copied]) => pages == copied,
            Err(error) => {
                tracing::debug!(%error, "the log is not copied into the database of a full disk");
                false
            }
        }
    }
}

/// The error that says how much room is missing, if that is why a store could not be read.
pub(crate) fn explain(place: &StorePath, error: StoreError) -> StoreError {
    match (&error, missing(place)) {
        (
            StoreError::Full { .. }
            | StoreError::Unavailable { .. }
            | StoreError::ReadOnly { .. }
            | StoreError::Locked { .. },
            Some(bytes @ 1..),
        ) => StoreError::NoRoom { path: place.shown.clone(), bytes },
        (_, Some(_) | None) => error,
    }
}

/// Bytes that the disk has too little for the index; `None` if that cannot be found out.
fn missing(place: &StorePath) -> Option<u64> {
    let [_, log, index] = FILE_NAMES
        .map(|name| std::fs::metadata(place.dir.join(name)).map_or(0, |found| found.len()));
    let parts = (log / LOGGED_BYTES + HEADER_PAGES).div_ceil(INDEX_PAGES);
    let wanted = (parts * INDEX_BYTES).saturating_sub(index);
    let disk = rustix::fs::statvfs(&place.dir).ok()?;
    Some(wanted.saturating_sub(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_once_a_second_in_files_that_are_those_that_were_opened() {
        let dir = tempfile::tempdir().expect("a folder");
        let db = Connection::open(dir.path().join("some.db")).expect("opens");
        db.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE told (n)").expect("written");
        let room = LogRoom::default();
        assert!(!room.make(5_000, &db, || Err(StoreError::Closed)), "that is no attempt");
        let made = |now_ms| room.make(now_ms, &db, || Ok(()));
        assert_eq!([5_000, 5_999, 6_000].map(made), [true, false, true]);
    }

    #[test]
    fn a_log_of_which_a_reader_needs_the_start_gives_no_room() {
        let dir = tempfile::tempdir().expect("a folder");
        let connect = || Connection::open(dir.path().join("some.db")).expect("opens");
        let (db, reader) = (connect(), connect());
        db.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE told (n)").expect("written");
        reader.execute_batch("BEGIN; SELECT * FROM told").expect("reads");
        db.execute_batch("INSERT INTO told VALUES (1)").expect("written");
        let room = LogRoom::default();
        assert!(!room.make(1_000, &db, || Ok(())), "it is copied as far as it was read");
        reader.execute_batch("COMMIT").expect("ends");
        assert!(room.make(2_000, &db, || Ok(())));
    }
}
