//! Opening: the folder, the file, what is in it, and how SQLite is to treat it.

mod permission;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::FlockOperation;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;

use self::permission::check_writable;
use super::content::{FileContent, read_content};
use super::fault::{Fault, io_error};
use super::identity::{FileId, Identity};
use super::options::{Durability, SqliteOptions};
use super::schema::{APPLICATION_ID, FileVersion};
use super::store_path::{StorePath, store_path};
use super::{definition, header, identity, layer, room, sums};

/// 3.51.3: older ones have a race between resetting and writing the write-ahead log that
/// corrupts files which several processes share.
const SQLITE_MIN: i32 = 3_051_003;
/// Statements kept compiled by each connection: more than there are of those that are always written
/// alike, some 170 and one for each number of events. Lists are written in as many ways as there are
/// filters; of these the last ones are kept.
const STATEMENTS_MAX: usize = 256;
/// Memory in which the writer changes pages, so that a full batch need not spill.
const WRITER_CACHE_KIB: i64 = 16 << 10;
const PAGE_BYTES: u64 = header::PAGE_BYTES as u64;
/// The smallest page that SQLite knows.
const PAGE_BYTES_LEAST: u64 = 512;
/// The pause between two questions whether another process is done opening.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Opens or makes the file, with a connection that writes.
pub(crate) fn open(
    dir: &Path,
    options: &SqliteOptions,
) -> Result<(StorePath, Connection, Identity), StoreError> {
    let place = store_path(dir);
    if rusqlite::version_number() < SQLITE_MIN {
        let detail = format!("SQLite {} is older than 3.51.3", rusqlite::version());
        return Err(StoreError::Unavailable { path: place.shown, detail });
    }
    if !dir.is_dir() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|error| io_error(dir, &error))?;
    }
    refuse_network(&place)?;
    let _opening = lock_opening(&place, options.busy_timeout)?;
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place.file);
    match new {
        // Closed before SQLite opens it: the kernel drops all locks of a process on a file with any
        // handle of it that is closed.
        Ok(file) => drop(file),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_length(&place)?,
        Err(error) => return Err(io_error(&place.file, &error)),
    }
    check_writable(&place)?;
    let file = identity::database_at(&place)?;
    let db = open_writer(&place, options)?;
    let identity = begin_writing(&place, options, &db, file)?;
    Ok((place, db, identity))
}

/// Opens the file to write. Unless its header is empty it is not changed, and not even recovered, before
/// it is known to be ours.
fn open_writer(place: &StorePath, options: &SqliteOptions) -> Result<Connection, StoreError> {
    let connect = || connect(place, options.busy_timeout, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let db = connect()?;
    let header = sums::header_of(&db).map_err(|fault| fault.at(&place.shown))?;
    // Of a maker that died there may be nothing yet, or a journal by which it is nothing again.
    if header.is_none_or(|header| header.is_empty() || header.is_of_store(options.format)) {
        return Ok(db);
    }
    let is_writable = !db.is_readonly("main").map_err(|error| at(place, error))?;
    drop(db);
    match look(place, options) {
        // With permission to write, it is the change of another program that has to be undone first.
        Err(StoreError::ReadOnly { path, detail: _ }) if is_writable => {
            let detail = "another program began to change it, and did not end that".to_owned();
            Err(StoreError::Corrupt { path, detail })
        }
        looked => looked.and_then(|()| connect()),
    }
}

/// Makes a connection ready to write, and its file ours if there is nothing in it. The log is left
/// alone until it is known that the file is ours.
///
/// # Errors
/// [`StoreError::Replaced`] if the database is not the one that stood in its place before the
/// connection was opened; others of [`StoreError`].
fn begin_writing(
    place: &StorePath,
    options: &SqliteOptions,
    db: &Connection,
    file: FileId,
) -> Result<Identity, StoreError> {
    leave_log(db).map_err(|error| at(place, error))?;
    let is_writable = !db.is_readonly("main").map_err(|error| at(place, error))?;
    let denied = || StoreError::ReadOnly {
        path: place.shown.clone(),
        detail: "permission denied".to_owned(),
    };
    let is_of_content = |error: &StoreError| {
        matches!(
            error,
            StoreError::Corrupt { .. } | StoreError::Version { .. } | StoreError::Format { .. }
        )
    };
    let content = read_content(place, db, options.format).map_err(|error| {
        match (is_of_content(&error), is_writable) {
            (true, _) => error,
            (false, true) => room::explain(place, error),
            // Without permission to write it may not even be possible to read.
            (false, false) => denied(),
        }
    })?;
    if !is_writable {
        return Err(denied());
    }
    match content {
        FileContent::Empty => {
            make_tables(db, options.format).map_err(|fault| fault.at(&place.shown))?;
        }
        FileContent::Ours => {}
    }
    set_up_writer(db, options).map_err(|fault| fault.at(&place.shown))?;
    // From now on the log stays for as long as the connection is open. Had another database come into the
    // place, its log would have been opened with this one.
    let identity = Identity::of(place, file)?;
    keep_log(db, false).map(|()| identity).map_err(|error| at(place, error))
}

/// A connection that reads only.
pub(crate) fn open_reader(
    place: &StorePath,
    busy_timeout: Duration,
) -> Result<Connection, StoreError> {
    let db = connect(place, busy_timeout, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    db.pragma_update(None, "query_only", true).map_err(|error| at(place, error))?;
    Ok(db)
}

/// Another connection that writes, for hearts.
pub(crate) fn open_heart(
    place: &StorePath,
    options: &SqliteOptions,
) -> Result<Connection, StoreError> {
    let db = connect(place, options.busy_timeout, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // A beat need not outlive the machine, and must not wait for its disk; to copy the log into the
    // database is the writer's business, unless a beat finds no room in it.
    db.pragma_update(None, "synchronous", "NORMAL").map_err(|error| at(place, error))?;
    db.pragma_update(None, "wal_autocheckpoint", 0).map_err(|error| at(place, error))?;
    leave_log(&db).map_err(|error| at(place, error))?;
    Ok(db)
}

/// Neither copies nor removes the log when the connection is closed, as the last one does.
pub(crate) fn leave_log(db: &Connection) -> rusqlite::Result<()> {
    keep_log(db, true)
}

/// Says if the log is left as it is when the connection is closed.
pub(crate) fn keep_log(db: &Connection, keep: bool) -> rusqlite::Result<()> {
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(drop)
}

fn at(place: &StorePath, error: rusqlite::Error) -> StoreError {
    Fault::Sqlite(error).at(&place.shown)
}

pub(crate) fn connect(
    place: &StorePath,
    busy_timeout: Duration,
    flags: OpenFlags,
) -> Result<Connection, StoreError> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    layer::register().map_err(|fault| fault.at(&place.shown))?;
    let db = Connection::open_with_flags_and_vfs(&place.file, flags, layer::LAYER)
        .map_err(|error| at(place, error))?;
    db.busy_timeout(busy_timeout).map_err(|error| at(place, error))?;
    db.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // Without this a statement is compiled anew whenever a value is bound with which it could be
    // compared with the condition of a partial index: for half of ours at each use.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map_err(|error| at(place, error))?;
    // The file may come from somebody else: nothing in it may make SQLite do more than read and
    // write rows, nor may a statement of ours change how the file itself is understood.
    for (option, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
    ] {
        db.set_db_config(option, on).map_err(|error| at(place, error))?;
    }
    // Looks at each page that is read for what cannot be.
    db.pragma_update(None, "cell_size_check", true).map_err(|error| at(place, error))?;
    Ok(db)
}

/// Only one process at a time makes tables and switches modes. Others wait their turn.
pub(crate) fn lock_opening(place: &StorePath, patience: Duration) -> Result<File, StoreError> {
    let path = place.dir.join("taskrun.open.lock");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&path).map_err(|error| io_error(&path, &error))?;
    let mut waited = Duration::ZERO;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if waited < patience => {
                std::thread::park_timeout(LOCK_POLL);
                waited += LOCK_POLL;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StoreError::Locked { path: path.display().to_string() });
            }
            Err(error) => return Err(io_error(&path, &error.into())),
        }
    }
}

/// Locks and shared memory do not work, or not between machines, on these; the damage shows
/// late. FUSE is let through with a warning: nearly all of it is local (encrypted folders,
/// folders that a desktop shares with its containers), and nothing tells the rest apart.
#[cfg(target_os = "linux")]
fn refuse_network(place: &StorePath) -> Result<(), StoreError> {
    const NETWORK: &[(u32, &str)] = &[
        (0x0000_6969, "NFS"),
        (0x0000_517b, "SMB"),
        (0xfe53_4d42, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0x0102_1997, "9p"),
        (0x5346_414f, "AFS"),
        (0x7375_7245, "Coda"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
    ];
    const FUSE: u32 = 0x6573_5546;
    let stat =
        rustix::fs::statfs(&place.dir).map_err(|error| io_error(&place.dir, &error.into()))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "magic numbers have 32 bits, in a type whose width and sign vary by machine"
    )]
    let magic = stat.f_type as u32;
    if let Some((_, name)) = NETWORK.iter().find(|(known, _)| *known == magic) {
        let detail = format!("it is on a network file system ({name}); use a local folder");
        return Err(StoreError::Unavailable { path: place.shown.clone(), detail });
    }
    if magic == FUSE {
        tracing::warn!(path = place.shown, "the store is on FUSE; it must not be a remote folder");
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_place: &StorePath) -> Result<(), StoreError> {
    Ok(())
}

/// Refuses a file that is too short for what it is.
fn check_length(place: &StorePath) -> Result<(), StoreError> {
    let mut log = place.file.clone().into_os_string();
    log.push("-wal");
    let log_bytes = std::fs::metadata(log).map_or(0, |log| log.len());
    let data = std::fs::metadata(&place.file).map_err(|error| io_error(&place.file, &error))?;
    let refused = |detail: &str| {
        Err(StoreError::Corrupt { path: place.shown.clone(), detail: detail.to_owned() })
    };
    match data.len() {
        // Its maker died before it wrote.
        0 => Ok(()),
        // SQLite takes these for empty.
        1..PAGE_BYTES_LEAST => refused("it is shorter than a page"),
        // SQLite takes what is missing of the last page for zeros. While there is a log, whoever
        // died when he copied from it may have left a part; the log has the whole.
        bytes if bytes % PAGE_BYTES != 0 && log_bytes == 0 => refused("it ends within a page"),
        PAGE_BYTES_LEAST.. => Ok(()),
    }
}

/// Refuses what is not ours on a connection that cannot change it.
///
/// The file is only ever opened by SQLite: whoever closes a file of his own loses the locks that
/// SQLite holds on it elsewhere in the process.
fn look(place: &StorePath, options: &SqliteOptions) -> Result<(), StoreError> {
    let db = connect(place, options.busy_timeout, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    match read_content(place, &db, options.format)? {
        FileContent::Empty | FileContent::Ours => Ok(()),
    }
}

/// One transaction in rollback mode: the header says whose file it is as soon as it says
/// anything.
pub(crate) fn make_tables(db: &Connection, format: JournalFormat) -> Result<(), Fault> {
    db.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL"
    ))?;
    // Before the next line, which writes the first page.
    sums::reserve(db)?;
    db.execute_batch(&format!(
        "PRAGMA auto_vacuum = INCREMENTAL; BEGIN EXCLUSIVE; {}
         PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {};
         COMMIT",
        definition::all_tables(),
        FileVersion::with(format).user_version(),
    ))?;
    sums::check_reserved(db)
}

fn set_up_writer(db: &Connection, options: &SqliteOptions) -> Result<(), Fault> {
    let mode: String = db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(Fault::Damaged(format!("journal mode {mode:?} instead of \"wal\"")));
    }
    let synchronous = match options.durability {
        Durability::Power => "FULL",
        Durability::Process => "NORMAL",
    };
    db.pragma_update(None, "synchronous", synchronous)?;
    db.execute_batch(&format!(
        "PRAGMA wal_autocheckpoint = 4000; PRAGMA journal_size_limit = {};
         PRAGMA mmap_size = 0; PRAGMA cache_size = -{WRITER_CACHE_KIB}",
        64 << 20
    ))?;
    if let Some(bytes) = options.bytes_max {
        let pages = (bytes / PAGE_BYTES).max(1);
        db.execute_batch(&format!("PRAGMA max_page_count = {pages}"))?;
    }
    // The first look opens the log, and takes the lock that is kept for as long as the connection
    // is open.
    db.pragma_query_value(None, "user_version", |_| Ok(()))?;
    Ok(())
}

#[cfg(test)]
mod tests;
