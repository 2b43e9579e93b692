//! Stores for task runs, behind the ports of [`taskrun_journal::store`].
//!
//! | store | for | what is acknowledged |
//! | --- | --- | --- |
//! | [`MemoryStore`] | tests, and runs that need not outlive their process | is in memory |
//! | [`SqliteStore`] | one machine, any number of processes | is on disk |
//!
//! `tests/conformance` says in sentences what both promise.

mod blobs;
#[cfg(test)]
mod fixtures;
mod memory;
mod sqlite;
mod wake;

pub use blobs::{
    BlobError, BlobHold, BlobInfo, BlobRemoval, Blobs, RemovedBlobs, open_regular_file,
};
pub use memory::MemoryStore;
pub use sqlite::{
    Durability, FILE_NAMES, READERS_DEFAULT, Repair, SCHEMA_VERSION, SqliteOptions, SqliteStore,
    Stats, StoreThreads,
};
