//! The options with which a store is opened.

use std::time::Duration;

use taskrun_journal::format::JournalFormat;

/// Connections that read at the same time, unless another number is asked for.
pub const READERS_DEFAULT: usize = 4;

/// The failures that an acknowledged change survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A loss of power (`synchronous=FULL`).
    #[default]
    Power,
    /// The death of the process. A loss of power may undo the last changes, and never damages
    /// the file (`synchronous=NORMAL`). For development.
    Process,
}

/// The threads that do the work of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreThreads {
    /// Its own: one that writes, which commits together what waits together, and some that read.
    #[default]
    Own,
    /// Those of callers, over one connection, one thing after the other. For a process that asks for a
    /// few things and ends: a caller blocks its thread, for as long as [`SqliteOptions::busy_timeout`]
    /// where another process writes, and the connection gives back no memory before it is closed.
    Callers,
}

/// Options of a [`SqliteStore`](super::SqliteStore).
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The failures that an acknowledged change survives. Default: [`Durability::Power`].
    pub durability: Durability,
    /// The time to wait for other processes before
    /// [`StoreError::Locked`](taskrun_journal::store::StoreError::Locked). Default: 5 s, far more
    /// than any transaction of this program takes.
    pub busy_timeout: Duration,
    /// The threads that do the work. Default: its own.
    pub threads: StoreThreads,
    /// Connections that read at the same time, with [`StoreThreads::Own`]. Default:
    /// [`READERS_DEFAULT`].
    pub readers: usize,
    /// Most bytes of the file, without its log; beyond that
    /// [`StoreError::Full`](taskrun_journal::store::StoreError::Full). Default: as many as the disk
    /// has. Holds for the writes of this process.
    pub bytes_max: Option<u64>,
    /// Pause of the check that goes on beside a host's work, after each mebibyte and each few runs
    /// that it has looked at. Default: 1 s, so that it reads little beside what hosts do.
    pub scrub_pause: Duration,
    /// Called when nothing was written for so long that all connections have given back their pages, some
    /// fifteen seconds: once, until something is written. It has to come back soon. For a process whose
    /// allocator keeps what is freed, with [`StoreThreads::Own`]. Default: none.
    pub at_rest: Option<fn()>,
    /// The format in which the program writes journals, and the latest that it reads. Default:
    /// [`JournalFormat::CURRENT`].
    pub format: JournalFormat,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            busy_timeout: Duration::from_secs(5),
            threads: StoreThreads::default(),
            readers: READERS_DEFAULT,
            bytes_max: None,
            scrub_pause: Duration::from_secs(1),
            at_rest: None,
            format: JournalFormat::CURRENT,
        }
    }
}
