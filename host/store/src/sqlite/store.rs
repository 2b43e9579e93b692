//! The store: its threads and connections, opened and closed together.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;

use super::absence::Absence;
use super::check;
use super::failure_detector::FailureDetector;
use super::fault::io_error;
use super::heartbeat::HeartbeatThread;
use super::locks::Locks;
use super::one_connection::OneConnection;
use super::open;
use super::options::{SqliteOptions, StoreThreads};
use super::readers::{ReaderThreads, Readers};
use super::repair::{self, Repair};
use super::room::LogRoom;
use super::scrub::{self, Scrub};
use super::watch::Watcher;
use super::writer::{Counts, Writer, WriterStore};
use crate::wake::Wakes;

/// Counts of a store's work since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits. Each is one wait for the disk, however many transactions it keeps.
    pub commits: u64,
    /// Transactions: creations, appends, claims, removals, changes of hosts and sessions.
    pub transactions: u64,
    /// Rounds of heartbeats that were written.
    pub heartbeats: u64,
    /// Runs that somebody watches by [`Store::watch`], and sessions that somebody waits for in
    /// [`Sessions::session_changed`].
    ///
    /// [`Store::watch`]: taskrun_journal::store::Store::watch
    /// [`Sessions::session_changed`]: taskrun_journal::store::Sessions::session_changed
    pub watched: u64,
    /// Rounds of the check beside a host's work that came to their end.
    pub scrubs: u64,
}

/// A store in the file `taskrun.db` of a data directory. Any number of processes of one machine
/// may have it open at once.
///
/// All writing is done by one thread of each process, which commits together what waits
/// together; reading by a few connections on threads that may block. With [`StoreThreads::Callers`]
/// callers do both themselves. Needs a tokio runtime.
///
/// # Hosts
/// A host lives while its process holds the lock of `hosts/<id>.lock` and its heart beat within
/// its lease. The kernel frees the lock when the process dies, so its
/// death is known at once; silence is known by the machine's monotonic clock, which all processes
/// share and nobody can set. A silent host is taken for dead by a process that saw no beat of it
/// for a whole lease in which it could write itself. Lock and clock hold for one machine (and for
/// containers on it that share the directory, unless they are in a time namespace of their own); so
/// does the store.
///
/// # Panics
/// [`Store::create`], [`Store::batch`] and [`Store::append`] if the events do not follow one
/// another or do not lead to the record, and [`Store::batch`] for a batch without a key.
///
/// [`Store::create`]: taskrun_journal::store::Store::create
/// [`Store::batch`]: taskrun_journal::store::Store::batch
/// [`Store::append`]: taskrun_journal::store::Store::append
pub struct SqliteStore {
    pub(super) writer: Writer,
    pub(super) readers: Readers,
    pub(super) watcher: Watcher,
    pub(super) heart: Arc<HeartbeatThread>,
    pub(super) detector: Arc<FailureDetector>,
    pub(super) locks: Arc<Locks>,
    pub(super) wakes: Arc<Wakes>,
    counts: Arc<Counts>,
    pub(super) absence: Arc<Absence>,
    pub(super) scrub: Scrub,
    dir: PathBuf,
}

impl SqliteStore {
    /// Opens the store of a data directory; makes both if they are not there, readable by their
    /// owner only. Blocks while it does.
    ///
    /// # Errors
    /// - [`StoreError::Locked`] if another process keeps it locked, as while it opens or repairs it, for
    ///   longer than [`SqliteOptions::busy_timeout`].
    /// - [`StoreError::Version`] if its tables are of another version.
    /// - [`StoreError::Format`] if a later program wrote journals into it.
    /// - [`StoreError::Corrupt`] if it is damaged, or not a store; it is not touched.
    /// - [`StoreError::ReadOnly`] if its folder or files may not be written.
    /// - [`StoreError::Full`] if there is no room for what opening it writes, and [`StoreError::NoRoom`]
    ///   if that is the index of its log.
    /// - [`StoreError::Replaced`] if its files are replaced while it is opened.
    /// - [`StoreError::Unavailable`] if it is on a network file system, if SQLite is older than 3.51.3,
    ///   or for what else the operating system refuses.
    pub fn open(dir: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        let (place, db, identity) = open::open(dir.as_ref(), &options)?;
        let (wakes, detector) = (Arc::new(Wakes::new()), Arc::<FailureDetector>::default());
        let counts = Arc::new(Counts::default());
        let locks = Arc::new(Locks::new(place.dir.join("hosts")));
        let SqliteOptions { busy_timeout: busy, scrub_pause, format, at_rest, .. } = options;
        let (path, own) = (place.shown.clone(), identity.clone());
        let room = LogRoom::default();
        let store = WriterStore { db, path, identity: own, format, at_rest, room };
        let (writer, readers) = match options.threads {
            StoreThreads::Own => {
                let writer = Writer::start(store, Arc::clone(&counts))
                    .map_err(|error| io_error(&place.file, &error))?;
                let readers = ReaderThreads::new(place.clone(), identity.clone(), &options);
                (writer, Readers::Threads(readers))
            }
            StoreThreads::Callers => {
                let one = OneConnection::new(store);
                (Writer::of_callers(one.clone(), Arc::clone(&counts)), Readers::Caller(one))
            }
        };
        Ok(Self {
            writer,
            readers,
            watcher: Watcher::new(place.clone(), busy, Arc::clone(&wakes)),
            heart: Arc::new(HeartbeatThread::new(
                place.clone(),
                identity.clone(),
                Arc::clone(&detector),
                options,
            )),
            detector,
            locks,
            wakes,
            counts,
            absence: Arc::default(),
            scrub: Scrub::new(place.clone(), identity, busy, scrub_pause),
            dir: place.dir,
        })
    }

    /// Counts of its work since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            commits: self.counts.commits.load(Ordering::Relaxed),
            transactions: self.counts.transactions.load(Ordering::Relaxed),
            heartbeats: self.heart.beats(),
            watched: self.wakes.watched() as u64,
            scrubs: self.scrub.rounds(),
        }
    }

    /// Commits what waits, ends all waiting, stops the hearts of this process's hosts and joins
    /// the threads. Every later call answers [`StoreError::Closed`]. Dropping the store does the
    /// same. Hosts that were not retired are dead from then on, as if the process had died.
    pub fn close(&self) {
        self.wakes.close();
        self.readers.close();
        self.watcher.close();
        self.scrub.close();
        self.heart.close();
        // The last one copies the log into the database and removes it.
        self.writer.close();
        self.locks.close();
    }

    /// Looks at everything in the file, and says what is not as it was written, in words; nothing
    /// if all is. Takes as long as reading all of it, and then some. Changes nothing but
    /// [`Self::findings`].
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be looked at for other reasons.
    pub async fn check(&self) -> Result<Vec<String>, StoreError> {
        let found = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&found);
        let look = move |db: &Connection| {
            let all = check::all(db)?;
            *told.lock().unwrap_or_else(PoisonError::into_inner) = all;
            Ok(())
        };
        let looked = self.readers.read(look).await;
        let mut found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        match looked {
            Ok(()) => {}
            // The connection that met it cannot end its transaction well.
            Err(StoreError::Corrupt { detail, .. }) => found.push(detail),
            Err(error) => return Err(error),
        }
        scrub::tell(&self.dir, &found);
        Ok(found)
    }

    /// The findings of the last look at everything, by [`Self::check`] or beside the work of a
    /// host, in whichever process; nothing if there was none, or all was well.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.join(scrub::FINDINGS_FILE));
        text.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Makes the store of a data directory anew from what of it can be read: all runs whose
    /// journals are whole, and everything else that has a checksum which fits. Blocks for as long
    /// as reading and writing all of it takes. No process may have the store open.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if one has; [`StoreError::Corrupt`] if so little can be read that
    /// nothing is known of it; [`StoreError::Format`] if its journals are of a later format than the
    /// program's; others of [`StoreError`]. The store is as it was then.
    pub fn repair(dir: &Path, format: JournalFormat) -> Result<Repair, StoreError> {
        repair::repair(dir, SqliteOptions::default().busy_timeout, format)
    }

    pub(super) fn is_open(&self) -> Result<(), StoreError> {
        if self.wakes.is_closed() { Err(StoreError::Closed) } else { Ok(()) }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}
