//! A store in one SQLite file, shared by the processes of one machine.

mod fault;
mod heart;
mod hosts;
mod list;
mod locks;
mod open;
mod readers;
mod row;
mod schema;
mod watch;
mod write;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::event::{Recorded, Seq};
use taskrun::ids::{HostId, RunId};
use taskrun::list::{Cursor, ListFilter, Page, Scope};
use taskrun::ports::store::{
    Append, Appended, Claim, Created, HEARTBEAT, Host, Hosts, NewRun, Store, StoreError,
};
use taskrun::run::{Lifecycle, Run};

use self::fault::io_error;
use self::heart::Heart;
use self::locks::Locks;
use self::readers::Readers;
use self::watch::Watcher;
use self::write::{AppendRow, NewRow};
use self::writer::{Counts, Writer};
use crate::door;
use crate::wake::Wakes;

pub use self::schema::SCHEMA_VERSION;
pub use self::writer::TRANSACTIONS_WAITING_MAX;

/// Connections that read at the same time, unless another number is asked for.
pub const READERS_DEFAULT: usize = 4;
/// Bytes that a claim or a change of hosts counts for in a batch.
const SMALL: usize = 1 << 10;

/// What an acknowledged change survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A loss of power (`synchronous=FULL`).
    #[default]
    Power,
    /// The death of the process. A loss of power may undo the last changes, and never damages
    /// the file (`synchronous=NORMAL`). For development.
    Process,
}

/// How a [`SqliteStore`] works.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// What an acknowledged change survives. Default: [`Durability::Power`].
    pub durability: Durability,
    /// How long to wait for other processes before [`StoreError::Locked`]. Default: 5 s, far
    /// more than any transaction of this program takes.
    pub busy_timeout: Duration,
    /// Connections that read at the same time. Default: [`READERS_DEFAULT`].
    pub readers: usize,
    /// Most bytes of the file, without its log; beyond that [`StoreError::Full`]. Default: as
    /// many as the disk has. Holds for the writes of this process.
    pub bytes_max: Option<u64>,
    /// How often hosts say that they live. Default: [`HEARTBEAT`]; another number is of use only
    /// to tests.
    pub heartbeat: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            busy_timeout: Duration::from_secs(5),
            readers: READERS_DEFAULT,
            bytes_max: None,
            heartbeat: HEARTBEAT,
        }
    }
}

/// What a store has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits. Each is one wait for the disk, however many transactions it keeps.
    pub commits: u64,
    /// Transactions: creations, appends, claims, changes of hosts.
    pub transactions: u64,
    /// Rounds of heartbeats that were written.
    pub heartbeats: u64,
    /// Runs that somebody waits for in [`Store::changed`].
    pub watched: u64,
}

/// A store in the file `taskrun.db` of a data directory. Any number of processes of one machine
/// may have it open at once.
///
/// All writing is done by one thread of each process, which commits together what waits
/// together; reading by a few connections on threads that may block. Needs a tokio runtime.
///
/// # Hosts
/// A host lives while its process holds the lock of `hosts/<id>.lock` and its heart beat within
/// [`taskrun::ports::store::HOST_STALE`]. The kernel frees the lock when the process dies, so its
/// death is known at once; silence is known by the machine's monotonic clock, which all processes
/// share and nobody can set. Lock and clock hold for one machine (and for containers on it that
/// share the directory, unless they are in a time namespace of their own); so does the store.
///
/// # Panics
/// [`Store::create`] and [`Store::append`] if the events do not follow one another or do not
/// lead to the record.
pub struct SqliteStore {
    writer: Writer,
    readers: Readers,
    watcher: Watcher,
    heart: Arc<Heart>,
    locks: Arc<Locks>,
    wakes: Arc<Wakes>,
    counts: Arc<Counts>,
}

impl SqliteStore {
    /// Opens the store of a data directory; makes both if they are not there, readable by their
    /// owner only. Blocks while it does.
    ///
    /// # Errors
    /// - [`StoreError::Locked`] if another program keeps the file locked for longer than
    ///   [`SqliteOptions::busy_timeout`].
    /// - [`StoreError::Version`] if a newer program wrote it.
    /// - [`StoreError::Corrupt`] if it is damaged, or not a store; it is not touched.
    /// - [`StoreError::ReadOnly`] and [`StoreError::Full`] if it cannot be written.
    /// - [`StoreError::Unavailable`] if it is on a network file system, or for what the operating
    ///   system says.
    pub fn open(dir: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        let (place, db) = open::open(dir.as_ref(), &options)?;
        let wakes = Arc::new(Wakes::new());
        let counts = Arc::new(Counts::default());
        let locks = Arc::new(Locks::new(place.dir.join("hosts")));
        let failed = |error| io_error(&place.file, &error);
        let busy = options.busy_timeout;
        Ok(Self {
            writer: Writer::start(db, place.shown.clone(), Arc::clone(&counts)).map_err(failed)?,
            readers: Readers::new(place.clone(), busy, options.readers),
            watcher: Watcher::start(place.clone(), busy, Arc::clone(&wakes)).map_err(failed)?,
            heart: Arc::new(Heart::start(place.clone(), options).map_err(failed)?),
            locks,
            wakes,
            counts,
        })
    }

    /// What it has done since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            commits: self.counts.commits.load(Ordering::Relaxed),
            transactions: self.counts.transactions.load(Ordering::Relaxed),
            heartbeats: self.heart.beats(),
            watched: self.wakes.watched() as u64,
        }
    }

    /// Commits what waits, ends all waiting, stops the hearts of this process's hosts and joins
    /// the threads. Every later call answers [`StoreError::Closed`]. Dropping the store does the
    /// same. Hosts that were not retired are dead from then on, as if the process had died.
    pub fn close(&self) {
        self.wakes.close();
        self.readers.close();
        self.writer.close();
        self.watcher.close();
        self.heart.close();
        self.locks.close();
    }

    fn is_open(&self) -> Result<(), StoreError> {
        if self.wakes.is_closed() { Err(StoreError::Closed) } else { Ok(()) }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn create(&self, new: NewRun) -> Result<Created, StoreError> {
        door::check_new(&new);
        let (id, head) = (new.run.id().clone(), new.run.state.head);
        let queued = matches!(new.run.state.lifecycle, Lifecycle::Queued);
        let row = NewRow::new(new);
        let wakes = Arc::clone(&self.wakes);
        let tell = move |created: &Created| {
            if matches!(created, Created::New) {
                wakes.moved(&id, head);
                if queued {
                    wakes.queued();
                }
            }
        };
        self.writer.submit(row.bytes(), move |db| row.create(db), tell).await
    }

    async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        door::check_append(&append);
        let (id, head) = (append.run.id().clone(), append.run.state.head);
        let row = AppendRow::new(&append);
        let wakes = Arc::clone(&self.wakes);
        let tell = move |appended: &Appended| {
            if *appended == Appended::Done {
                wakes.moved(&id, head);
            }
        };
        self.writer.submit(row.bytes(), move |db| row.append(db), tell).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        let before = self.wakes.before_claim();
        let (wakes, limit) = (Arc::clone(&self.wakes), claim.limit);
        let tell = move |runs: &Vec<Run>| {
            for run in runs {
                wakes.moved(run.id(), run.state.head);
            }
            if runs.len() < limit {
                wakes.drained(before);
            }
        };
        self.writer.submit(SMALL, move |db| write::claim(db, &claim), tell).await
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        let id = id.clone();
        self.readers.read(move |db| row::run_by_id(db, &id)).await
    }

    async fn list(
        &self,
        scope: &Scope,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let (scope, filter, after) = (scope.clone(), filter.clone(), after.cloned());
        let limit = limit.max(1);
        self.readers.read(move |db| list::page(db, &scope, &filter, after.as_ref(), limit)).await
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Recorded>, StoreError> {
        let id = id.clone();
        self.readers.read(move |db| row::events(db, &id, after, limit)).await
    }

    async fn changed(&self, id: &RunId, after: Seq) {
        let watch = self.wakes.watch(id);
        self.watcher.wake();
        let wanted = id.clone();
        match self.readers.read(move |db| row::head(db, &wanted)).await {
            Ok(head) if head <= after => watch.beyond(after).await,
            // The caller is to find out for himself.
            Ok(_) | Err(_) => {}
        }
    }

    async fn work(&self) {
        self.wakes.wait_for_work(|| self.watcher.wake()).await;
    }
}

#[async_trait]
impl Hosts for SqliteStore {
    async fn register(&self, host: Host) -> Result<(), StoreError> {
        self.is_open()?;
        let (locks, id) = (Arc::clone(&self.locks), host.id.clone());
        let taken = tokio::task::spawn_blocking(move || locks.take(&id)).await;
        taken.unwrap_or(Err(StoreError::Closed))?;
        let (heart, id) = (Arc::clone(&self.heart), host.id.clone());
        let beat = move |(): &()| heart.add(id);
        let id = host.id.clone();
        let entered = self.writer.submit(SMALL, move |db| hosts::enter(db, &host), beat).await;
        if entered.is_err() {
            self.locks.remove(&id);
        }
        entered
    }

    async fn retire(&self, host: &HostId) -> Result<bool, StoreError> {
        let (heart, locks) = (Arc::clone(&self.heart), Arc::clone(&self.locks));
        let (id, leaving) = (host.clone(), host.clone());
        let leave = move |out: &bool| {
            if *out {
                heart.remove(&leaving);
                locks.remove(&leaving);
            }
        };
        self.writer.submit(SMALL, move |db| hosts::retire(db, &id), leave).await
    }

    async fn hosts(&self) -> Result<Vec<Host>, StoreError> {
        let locks = Arc::clone(&self.locks);
        self.readers.read(move |db| hosts::living(db, &locks)).await
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Run>, StoreError> {
        let locks = Arc::clone(&self.locks);
        let (runs, dead) = self.readers.read(move |db| hosts::orphans(db, &locks, limit)).await?;
        if !dead.is_empty() {
            let locks = Arc::clone(&self.locks);
            let tidy = move |gone: &Vec<HostId>| gone.iter().for_each(|host| locks.remove(host));
            self.writer.submit(SMALL, move |db| hosts::sweep(db, &dead), tidy).await?;
        }
        Ok(runs)
    }
}
