//! Opening: the folder, the file, what is in it, and how SQLite is to treat it.

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

use super::content::{FileContent, read_content};
use super::fault::{Fault, io_error};
use super::identity::Identity;
use super::options::{Durability, SqliteOptions};
use super::schema::{APPLICATION_ID, FileVersion};
use super::store_path::{StorePath, store_path};
use super::{definition, room, sums};

/// 3.51.3: older ones have a race between resetting and writing the write-ahead log that
/// corrupts files which several processes share.
const SQLITE_MIN: i32 = 3_051_003;
/// Statements kept compiled by each connection: more than there are of those that are always written
/// alike, some 170 and one for each number of events. Lists are written in as many ways as there are
/// filters; of these the last ones are kept.
const STATEMENTS_MAX: usize = 256;
/// Memory in which the writer changes pages, so that a full batch need not spill.
const WRITER_CACHE_KIB: i64 = 16 << 10;
const PAGE_BYTES: u64 = sums::PAGE_BYTES as u64;
/// The smallest page that SQLite knows.
const PAGE_BYTES_LEAST: u64 = 512;
/// The pause between two questions whether another process is done opening.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// The connections with which a store is opened.
pub(crate) struct Connections {
    /// The one that writes.
    pub(crate) writer: Connection,
    /// One that reads, with which the file was looked at, if that is still the one which is written.
    pub(crate) reader: Option<Connection>,
}

/// A file of ours, whose tables were held against ours.
struct CheckedFile {
    /// The files in its place before that.
    files: Identity,
    reader: Connection,
    /// The number of its schema, which SQLite counts up with each change, before its tables were held
    /// against ours.
    schema: i64,
}

/// Opens or makes the file.
pub(crate) fn open(
    dir: &Path,
    options: &SqliteOptions,
) -> Result<(StorePath, Connections), StoreError> {
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
    let checked = match new {
        // Closed before SQLite opens it: the kernel drops all locks of a process on a file with any
        // handle of it that is closed.
        Ok(file) => {
            drop(file);
            None
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => look(&place, options)?,
        Err(error) => return Err(io_error(&place.file, &error)),
    };
    let connections = open_writer(&place, options, checked)?;
    Ok((place, connections))
}

/// Opens the file to write, and makes it ours if there is nothing in it.
fn open_writer(
    place: &StorePath,
    options: &SqliteOptions,
    checked: Option<CheckedFile>,
) -> Result<Connections, StoreError> {
    let db = connect(place, options.busy_timeout, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let read_only = db.is_readonly("main").map_err(|error| at(place, error))?;
    if read_only {
        let detail = "permission denied".to_owned();
        return Err(StoreError::ReadOnly { path: place.shown.clone(), detail });
    }
    // Another file that came into its place meanwhile is checked itself.
    let checked = checked.filter(|checked| checked.files.check().is_ok());
    begin_writing(place, options, db, checked)
}

/// Makes a connection ready to write, and its file ours if there is nothing in it. The tables of a file
/// that was checked are not checked again.
///
/// # Errors
/// [`StoreError::Replaced`] if that is not the file any more; others of [`StoreError`].
fn begin_writing(
    place: &StorePath,
    options: &SqliteOptions,
    db: Connection,
    checked: Option<CheckedFile>,
) -> Result<Connections, StoreError> {
    let schema = checked.as_ref().map(|checked| checked.schema);
    let content = read_content(place, &db, options.format, schema);
    match content.map_err(|error| room::explain(place, error))? {
        FileContent::Empty => {
            make_tables(&db, options.format).map_err(|fault| fault.at(&place.shown))?;
        }
        FileContent::Ours { schema: _ } => {}
    }
    set_up_writer(&db, options).map_err(|fault| fault.at(&place.shown))?;
    // Once more, as the log was opened since: with that of another file the tables may be others.
    if let Some(checked) = &checked {
        checked.files.check()?;
    }
    Ok(Connections { writer: db, reader: checked.map(|checked| checked.reader) })
}

/// A connection that reads only.
pub(crate) fn open_reader(
    place: &StorePath,
    busy_timeout: Duration,
) -> Result<Connection, StoreError> {
    let db = connect(place, busy_timeout, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    set_up_reader(place, &db)?;
    Ok(db)
}

fn set_up_reader(place: &StorePath, db: &Connection) -> Result<(), StoreError> {
    db.pragma_update(None, "query_only", true).map_err(|error| at(place, error))
}

/// Another connection that writes, for hearts.
pub(crate) fn open_heart(
    place: &StorePath,
    options: &SqliteOptions,
) -> Result<Connection, StoreError> {
    let db = connect(place, options.busy_timeout, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // A beat need not outlive the machine, and must not wait for its disk; to copy the log into the
    // database is the writer's business, which knows whether both are still the same files.
    db.pragma_update(None, "synchronous", "NORMAL").map_err(|error| at(place, error))?;
    db.pragma_update(None, "wal_autocheckpoint", 0).map_err(|error| at(place, error))?;
    leave_log(&db).map_err(|error| at(place, error))?;
    Ok(db)
}

/// Neither copies nor removes the log when the connection is closed, as the last one does.
pub(crate) fn leave_log(db: &Connection) -> rusqlite::Result<()> {
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop)
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
    sums::register().map_err(|fault| fault.at(&place.shown))?;
    let db = Connection::open_with_flags_and_vfs(&place.file, flags, sums::LAYER)
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

/// Refuses what is not ours; gives what was looked at if that is ours and can be known again.
fn look(place: &StorePath, options: &SqliteOptions) -> Result<Option<CheckedFile>, StoreError> {
    // Without a log there is nothing by which a reader could be told from one of another file.
    let files = Identity::of(place).ok();
    let found = files.zip(check_identity(place, options)?);
    Ok(found.map(|(files, (reader, schema))| CheckedFile { files, reader, schema }))
}

/// Refuses what is not ours on a connection that cannot change it, and gives that and the number of
/// the schema if the file is ours.
///
/// The file is only ever opened by SQLite: whoever closes a file of his own loses the locks that
/// SQLite holds on it elsewhere in the process.
fn check_identity(
    place: &StorePath,
    options: &SqliteOptions,
) -> Result<Option<(Connection, i64)>, StoreError> {
    let mut log = place.file.clone().into_os_string();
    log.push("-wal");
    let log_bytes = std::fs::metadata(log).map_or(0, |log| log.len());
    let data = std::fs::metadata(&place.file).map_err(|error| io_error(&place.file, &error))?;
    match data.len() {
        // Its maker died before it wrote.
        0 => return Ok(None),
        // SQLite takes these for empty.
        1..PAGE_BYTES_LEAST => {
            let detail = "it is shorter than a page".to_owned();
            return Err(StoreError::Corrupt { path: place.shown.clone(), detail });
        }
        PAGE_BYTES_LEAST.. => {}
    }
    // SQLite takes what is missing of the last page for zeros. While there is a log, whoever
    // died when he copied from it may have left a part; the log has the whole.
    if data.len() % PAGE_BYTES != 0 && log_bytes == 0 {
        let detail = "it ends within a page".to_owned();
        return Err(StoreError::Corrupt { path: place.shown.clone(), detail });
    }
    let db = connect(place, options.busy_timeout, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    match read_content(place, &db, options.format, None) {
        Ok(FileContent::Empty) => Ok(None),
        Ok(FileContent::Ours { schema }) => set_up_reader(place, &db).map(|()| Some((db, schema))),
        Err(
            error @ (StoreError::Corrupt { .. }
            | StoreError::Version { .. }
            | StoreError::Format { .. }),
        ) => Err(error),
        // A reader can be kept from reading by what a writer puts right, such as a journal of
        // somebody who died while he made the tables. The writer finds out.
        Err(
            StoreError::Locked { .. }
            | StoreError::Full { .. }
            | StoreError::NoRoom { .. }
            | StoreError::ReadOnly { .. }
            | StoreError::Unavailable { .. }
            | StoreError::Replaced { .. }
            | StoreError::Refused { .. }
            | StoreError::Closed
            | StoreError::Unknown { .. },
        ) => Ok(None),
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
    db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(())
}

#[cfg(test)]
mod tests;
