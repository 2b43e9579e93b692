//! Room on the disk for the index of the log, without which nothing can be read.

use taskrun_journal::store::StoreError;

use super::store_path::{FILE_NAMES, StorePath};

/// The index grows by so much,
const INDEX_BYTES: u64 = 32 << 10;
/// for so many pages of the log. The first part of it has a header and holds fewer.
const INDEX_PAGES: u64 = 4_096;
const HEADER_PAGES: u64 = 34;
/// A page in the log with what stands before it.
const LOGGED_BYTES: u64 = 4_096 + 24;

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
