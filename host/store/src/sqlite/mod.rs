//! A store in one SQLite file, shared by the processes of one machine.

mod absence;
mod artifacts;
mod attached;
mod change;
mod check;
mod create;
mod definition;
mod entries;
mod facts;
mod failure_detector;
mod fault;
mod heartbeat;
mod hosts;
mod identity;
mod list;
mod locks;
mod names;
mod open;
mod queue;
mod readers;
mod removal;
mod repair;
mod room;
mod row;
mod schema;
mod scrub;
mod sessions;
#[cfg(test)]
mod statements;
mod sums;
mod waits;
mod watch;
mod writer;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use taskrun_journal::event::EventRecord;
use taskrun_journal::fact::{Fact, FactNamespace};
use taskrun_journal::ids::{HostId, RunId, Seq};
use taskrun_journal::list::{Cursor, ListFilter, Page, Scope};
use taskrun_journal::memory::{FactChange, FactOutcome, FactWriter, Memory};
use taskrun_journal::run::Run;
use taskrun_journal::schedule;
use taskrun_journal::store::{
    Append, AppendOutcome, BatchOutcome, Claim, CreateOutcome, Host, Hosts, NewBatch, NewRun,
    Removal, RemovalOutcome, Session, SessionKey, SessionPage, Sessions, Store, StoreError, Until,
};
use taskrun_journal::time::Timestamp;

use self::absence::Absence;
use self::change::{AppendRow, WriteOutcome};
use self::create::NewRow;
use self::entries::BatchRow;
use self::facts::ChangeRow;
use self::failure_detector::FailureDetector;
use self::fault::io_error;
use self::heartbeat::{HeartbeatThread, machine_ms};
use self::hosts::DeadHosts;
use self::identity::Identity;
use self::locks::Locks;
use self::readers::Readers;
use self::scrub::Scrub;
use self::watch::Watcher;
use self::writer::{Counts, Writer};
use crate::wake::Wakes;

pub use self::open::FILE_NAMES;
pub use self::repair::Repair;
pub use self::schema::SCHEMA_VERSION;
pub use self::writer::TRANSACTIONS_WAITING_MAX;

/// Connections that read at the same time, unless another number is asked for.
pub const READERS_DEFAULT: usize = 4;
/// Bytes that a claim or a change of hosts counts for in a batch.
const SMALL: usize = 1 << 10;

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

/// Options of a [`SqliteStore`].
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The failures that an acknowledged change survives. Default: [`Durability::Power`].
    pub durability: Durability,
    /// The time to wait for other processes before [`StoreError::Locked`]. Default: 5 s, far
    /// more than any transaction of this program takes.
    pub busy_timeout: Duration,
    /// Connections that read at the same time. Default: [`READERS_DEFAULT`].
    pub readers: usize,
    /// Most bytes of the file, without its log; beyond that [`StoreError::Full`]. Default: as
    /// many as the disk has. Holds for the writes of this process.
    pub bytes_max: Option<u64>,
    /// Pause of the check that goes on beside a host's work, after each mebibyte and each few runs
    /// that it has looked at. Default: 1 s, so that it reads little beside what hosts do.
    pub scrub_pause: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            busy_timeout: Duration::from_secs(5),
            readers: READERS_DEFAULT,
            bytes_max: None,
            scrub_pause: Duration::from_secs(1),
        }
    }
}

/// Counts of a store's work since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits. Each is one wait for the disk, however many transactions it keeps.
    pub commits: u64,
    /// Transactions: creations, appends, claims, removals, changes of hosts and sessions.
    pub transactions: u64,
    /// Rounds of heartbeats that were written.
    pub heartbeats: u64,
    /// Runs and sessions that somebody waits for in [`Store::changed`] and
    /// [`Sessions::session_changed`].
    pub watched: u64,
    /// Rounds of the check beside a host's work that came to their end.
    pub scrubs: u64,
}

/// A store in the file `taskrun.db` of a data directory. Any number of processes of one machine
/// may have it open at once.
///
/// All writing is done by one thread of each process, which commits together what waits
/// together; reading by a few connections on threads that may block. Needs a tokio runtime.
///
/// # Hosts
/// A host lives while its process holds the lock of `hosts/<id>.lock` and its heart beat within
/// its lease. The kernel frees the lock when the process dies, so its
/// death is known at once; silence is known by the machine's monotonic clock, which all processes
/// share and nobody can set. A silent host is taken for dead by a process that saw no beat of it for a
/// whole lease in which it could write itself. Lock and clock hold for one machine (and for containers on it that
/// share the directory, unless they are in a time namespace of their own); so does the store.
///
/// # Panics
/// [`Store::create`], [`Store::batch`] and [`Store::append`] if the events do not follow one
/// another or do not lead to the record, and [`Store::batch`] for a batch without a key.
pub struct SqliteStore {
    writer: Writer,
    readers: Readers,
    watcher: Watcher,
    heart: Arc<HeartbeatThread>,
    detector: Arc<FailureDetector>,
    locks: Arc<Locks>,
    wakes: Arc<Wakes>,
    counts: Arc<Counts>,
    absence: Arc<Absence>,
    scrub: Scrub,
    dir: PathBuf,
}

impl SqliteStore {
    /// Opens the store of a data directory; makes both if they are not there, readable by their
    /// owner only. Blocks while it does.
    ///
    /// # Errors
    /// - [`StoreError::Locked`] if another process makes it for longer than
    /// - [`StoreError::Version`] if a program of another version wrote it.
    /// - [`StoreError::Corrupt`] if it is damaged, or not a store; it is not touched.
    /// - [`StoreError::ReadOnly`] and [`StoreError::Full`] if it cannot be written where that is needed
    /// - [`StoreError::Unavailable`] if it is on a network file system, or for what the operating
    pub fn open(dir: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        let (place, db) = open::open(dir.as_ref(), &options)?;
        let identity = Identity::of(&place)?;
        let (wakes, detector) = (Arc::new(Wakes::new()), Arc::<FailureDetector>::default());
        let counts = Arc::new(Counts::default());
        let locks = Arc::new(Locks::new(place.dir.join("hosts")));
        let failed = |error| io_error(&place.file, &error);
        let (busy, scrub_pause) = (options.busy_timeout, options.scrub_pause);
        Ok(Self {
            writer: Writer::start(db, place.shown.clone(), identity.clone(), Arc::clone(&counts))
                .map_err(failed)?,
            readers: Readers::new(place.clone(), identity.clone(), busy, options.readers),
            watcher: Watcher::start(place.clone(), busy, Arc::clone(&wakes)).map_err(failed)?,
            heart: Arc::new(
                HeartbeatThread::start(
                    place.clone(),
                    identity.clone(),
                    Arc::clone(&detector),
                    options,
                )
                .map_err(failed)?,
            ),
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

    /// Looks at everything in the file, and says what is not as it was written, in words; nothing if
    /// all is. Takes as long as reading all of it, and then some. Changes nothing but
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

    /// Makes the store of a data directory anew from what of it can be read: all runs whose journals
    /// are whole, and everything else that has a checksum which fits. Blocks for as long as reading and
    /// writing all of it takes. No process may have the store open.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if one has; [`StoreError::Corrupt`] if so little can be read that nothing
    /// is known of it; others of [`StoreError`]. The store is as it was then.
    pub fn repair(dir: &Path) -> Result<Repair, StoreError> {
        repair::repair(dir, SqliteOptions::default().busy_timeout)
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
    async fn create(&self, new: NewRun) -> Result<CreateOutcome, StoreError> {
        self.is_open()?;
        schedule::check_new(&new);
        let (run, events) = (new.run.clone(), new.events.len());
        let row = NewRow::new(new);
        let (wakes, locks) = (Arc::clone(&self.wakes), Arc::clone(&self.locks));
        let tell = move |told: &WriteOutcome<CreateOutcome>| {
            tell(&wakes, told, std::slice::from_ref(&run), events)
        };
        let told = self.writer.submit(row.bytes(), move |db| row.create(db, &locks), tell).await?;
        Ok(told.answer)
    }

    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        self.is_open()?;
        let runs = std::iter::once(&batch.run.run).chain(batch.entries.iter().map(|one| &one.run));
        let runs: Vec<Run> = runs.cloned().collect();
        let added = batch.entries.iter().map(|one| one.events.len());
        let events = batch.run.events.len() + added.sum::<usize>();
        let (row, wakes) = (BatchRow::new(batch), Arc::clone(&self.wakes));
        let tell = move |told: &WriteOutcome<BatchOutcome>| tell(&wakes, told, &runs, events);
        let told = self.writer.submit(row.bytes(), move |db| row.batch(db), tell).await?;
        Ok(told.answer)
    }

    async fn entries(
        &self,
        policy_digest: &str,
        agent_name: &str,
        limit: usize,
    ) -> Result<Vec<Vec<RunId>>, StoreError> {
        let (policy, agent) = (policy_digest.to_owned(), agent_name.to_owned());
        self.readers.read(move |db| entries::waiting(db, &policy, &agent, limit)).await
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        schedule::check_append(&append);
        let (run, row) = (append.run.clone(), AppendRow::new(&append));
        let (wakes, events) = (Arc::clone(&self.wakes), append.events.len());
        let tell = move |told: &WriteOutcome<AppendOutcome>| {
            tell(&wakes, told, std::slice::from_ref(&run), events)
        };
        let told = self.writer.submit(row.bytes(), move |db| row.append(db), tell).await?;
        Ok(told.answer)
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        let before = self.wakes.before_claim();
        let (wakes, limit) = (Arc::clone(&self.wakes), claim.limit);
        let tell = move |told: &WriteOutcome<Vec<Run>>| {
            tell(&wakes, told, &told.answer, told.answer.len());
            if told.answer.len() < limit {
                wakes.drained(before);
            }
        };
        let told = self.writer.submit(SMALL, move |db| change::claim(db, &claim), tell).await?;
        Ok(told.answer)
    }

    async fn wanted_agents(&self, policy_digest: &str) -> Result<BTreeSet<String>, StoreError> {
        let policy = policy_digest.to_owned();
        self.readers.read(move |db| queue::wanted_agents(db, &policy)).await
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        let (id, absence) = (id.clone(), Arc::clone(&self.absence));
        let read = move |db: &Connection| {
            let run = row::run_by_id(db, &id)?;
            if run.is_none() {
                absence.check(db, &id)?;
            }
            Ok(run)
        };
        self.readers.read(read).await
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
    ) -> Result<Vec<EventRecord>, StoreError> {
        let (id, absence) = (id.clone(), Arc::clone(&self.absence));
        let read = move |db: &Connection| match row::events(db, &id, after, limit)? {
            Some(events) => Ok(events),
            None => absence.check(db, &id).map(|()| Vec::new()),
        };
        self.readers.read(read).await
    }

    async fn artifact(&self, id: &RunId, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        let (id, hash, absence) = (id.clone(), hash.to_owned(), Arc::clone(&self.absence));
        let read = move |db: &Connection| {
            let bytes = artifacts::get(db, &id, &hash)?;
            if bytes.is_none() && row::head(db, &id)? == 0 {
                absence.check(db, &id)?;
            }
            Ok(bytes)
        };
        self.readers.read(read).await
    }

    async fn changed(&self, id: &RunId, until: Until) {
        let watch = self.wakes.watch(id);
        self.watcher.wake();
        let wanted = id.clone();
        let reached = move |db: &Connection| match until {
            Until::Beyond(after) => Ok(row::head(db, &wanted)? > after),
            Until::Ended => row::ended(db, &wanted),
        };
        // Otherwise the caller is to find out for himself.
        if let Ok(false) = self.readers.read(reached).await {
            match until {
                Until::Beyond(after) => watch.beyond(after).await,
                Until::Ended => watch.ended().await,
            }
        }
    }

    async fn work(&self) {
        self.wakes.wait_for_work(|| self.watcher.wake()).await;
    }

    async fn remove(&self, removal: Removal) -> Result<RemovalOutcome, StoreError> {
        self.writer.submit(SMALL, move |db| removal::remove(db, &removal), |_| {}).await
    }
}

/// Wakes those who wait for some runs that were written with so many events, for their sessions,
/// or for work.
fn tell<T>(wakes: &Wakes, told: &WriteOutcome<T>, runs: &[Run], events: usize) {
    if told.place > 0 {
        if wakes.anybody() {
            for run in runs {
                wakes.moved(run.id(), run.state.head, !run.status().is_terminal());
                schedule::widest_of(&run.spec)
                    .for_each(|key| wakes.session_moved(&key, told.place));
            }
            for canceled in &told.canceled {
                let run = &canceled.run;
                wakes.moved(run.id(), run.state.head, !run.status().is_terminal());
                let sessions = schedule::widest_of(&run.spec);
                sessions.for_each(|key| wakes.session_moved(&key, canceled.place));
            }
        }
        let last = told.canceled.iter().map(|canceled| canceled.place).fold(told.place, u64::max);
        let events = told.canceled.iter().map(|canceled| canceled.events).sum::<usize>() + events;
        // One transaction after the other: its events have the places just before its last.
        wakes.wrote(last.saturating_sub(events as u64), last);
    }
    if told.stirred {
        wakes.queued();
    }
}

#[async_trait]
impl Sessions for SqliteStore {
    async fn open_session(&self, session: Session) -> Result<Session, StoreError> {
        self.writer.submit(SMALL, move |db| sessions::open(db, &session), |_| {}).await
    }

    async fn end_session(&self, key: &SessionKey, at: Timestamp) -> Result<Session, StoreError> {
        let key = key.clone();
        self.writer.submit(SMALL, move |db| sessions::end(db, &key, at), |_| {}).await
    }

    async fn session(&self, key: &SessionKey) -> Result<Option<Session>, StoreError> {
        let key = key.clone();
        self.readers.read(move |db| sessions::get(db, &key)).await
    }

    async fn read_session(
        &self,
        key: &SessionKey,
        after: u64,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        let key = key.clone();
        self.readers.read(move |db| sessions::events(db, &key, after, limit)).await
    }

    async fn session_changed(&self, key: &SessionKey, after: u64) {
        let watch = self.wakes.watch_session(&schedule::widest(key));
        self.watcher.wake();
        let wanted = key.clone();
        match self.readers.read(move |db| sessions::events(db, &wanted, after, 1)).await {
            Ok(page) if page.events.is_empty() => watch.beyond(after).await,
            // The caller is to find out for himself.
            Ok(_) | Err(_) => {}
        }
    }
}

#[async_trait]
impl Memory for SqliteStore {
    async fn change_fact(
        &self,
        place: &FactNamespace,
        change: FactChange,
        by: Option<FactWriter>,
    ) -> Result<FactOutcome, StoreError> {
        let row = ChangeRow::new(place, change, by);
        self.writer.submit(row.bytes(), move |db| row.change(db), |_| {}).await
    }

    async fn fact(&self, place: &FactNamespace, key: &str) -> Result<Option<Fact>, StoreError> {
        let (place, key) = (place.clone(), key.to_owned());
        self.readers.read(move |db| facts::get(db, &place, &key)).await
    }

    async fn search_facts(
        &self,
        place: &FactNamespace,
        words: &[String],
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError> {
        let (place, words) = (place.clone(), words.to_vec());
        self.readers.read(move |db| facts::search(db, &place, &words, limit)).await
    }

    async fn facts(
        &self,
        place: &FactNamespace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError> {
        let (place, after) = (place.clone(), after.map(str::to_owned));
        self.readers.read(move |db| facts::list(db, &place, after.as_deref(), limit)).await
    }

    async fn forget_session(
        &self,
        tenant: &str,
        owner: Option<&str>,
        session: &str,
    ) -> Result<u64, StoreError> {
        let (tenant, owner, id) = (tenant.to_owned(), owner.map(str::to_owned), session.to_owned());
        let forget =
            move |db: &Connection| facts::forget_session(db, &tenant, owner.as_deref(), &id);
        self.writer.submit(SMALL, forget, |_| {}).await
    }
}

#[async_trait]
impl Hosts for SqliteStore {
    async fn register(&self, host: Host) -> Result<(), StoreError> {
        self.is_open()?;
        let (locks, id) = (Arc::clone(&self.locks), host.id.clone());
        let taken = tokio::task::spawn_blocking(move || locks.take(&id)).await;
        taken.unwrap_or(Err(StoreError::Closed))?;
        let (heart, id, lease) = (Arc::clone(&self.heart), host.id.clone(), host.lease);
        let sent_ms = machine_ms();
        let beat = move |(): &()| heart.add(id, lease, sent_ms);
        let id = host.id.clone();
        let enter = move |db: &Connection| hosts::enter(db, &host, sent_ms);
        let entered = self.writer.submit(SMALL, enter, beat).await;
        match entered {
            Ok(()) => self.scrub.begin(),
            Err(_) => self.locks.remove(&id),
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
        let (locks, detector) = (Arc::clone(&self.locks), Arc::clone(&self.detector));
        let left = move |db: &Connection| hosts::orphans(db, &locks, &detector, limit);
        let DeadHosts { runs, dead, doubtful } = self.readers.read(left).await?;
        if !doubtful.is_empty() {
            let detector = Arc::clone(&self.detector);
            let wrote = move |(): &()| detector.wrote(machine_ms());
            let touch = move |db: &Connection| hosts::touch(db, &doubtful);
            if let Err(error) = self.writer.submit(SMALL, touch, wrote).await {
                tracing::debug!(%error, "nobody is taken for dead by who cannot write");
            }
        }
        if !dead.is_empty() {
            let locks = Arc::clone(&self.locks);
            let tidy = move |gone: &Vec<HostId>| gone.iter().for_each(|host| locks.remove(host));
            self.writer.submit(SMALL, move |db| hosts::sweep(db, &dead), tidy).await?;
        }
        Ok(runs)
    }

    async fn heard(&self, host: &HostId) -> Result<Option<Timestamp>, StoreError> {
        let host = host.clone();
        self.readers.read(move |db| hosts::heard(db, &host)).await
    }

    async fn held(
        &self,
        host: &HostId,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        let (host, after) = (host.clone(), after.cloned());
        self.readers.read(move |db| hosts::held(db, &host, after.as_ref(), limit)).await
    }

    fn silence(&self, host: &HostId) -> Option<Duration> {
        self.heart.silence(host)
    }
}
