//! The layer between SQLite and its own one over the operating system, for all files of the store.

use std::ffi::CStr;

use rusqlite::ffi;

use super::fault::Fault;
use super::{commit_writes, sums, vfs};

/// Name under which SQLite knows the layer.
pub(crate) const LAYER: &CStr = c"taskrun";

/// Makes the layer known to SQLite, once in a process.
pub(crate) fn register() -> Result<(), Fault> {
    vfs::register(LAYER, |flags, methods| {
        if flags & ffi::SQLITE_OPEN_MAIN_DB != 0 {
            sums::replace(methods);
            true
        } else if flags & ffi::SQLITE_OPEN_WAL != 0 {
            commit_writes::replace(methods);
            true
        } else {
            false
        }
    })
}
