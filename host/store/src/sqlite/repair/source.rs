//! The damaged file, read past the checksums of its pages.

use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;

use super::events::StoredEvent;
use super::leaves::{self, LeafRow};
use super::pages::SummedFile;
use crate::sqlite::content::{file_version, other_tables};
use crate::sqlite::fault::Fault;
use crate::sqlite::open::{keep_log, leave_log};
use crate::sqlite::schema::{FileVersion, SCHEMA_VERSION};
use crate::sqlite::store_path::{LOG_NAME, StorePath};

/// SQLite's own layer over the operating system, which knows nothing of checksums.
const PLAIN_LAYER: &str = "unix";
/// Rows that are read at once; where that fails, they are read one by one.
const WINDOW: i64 = 1_000;
/// Windows without a readable row after which the rest of a table counts as one.
const EMPTY_WINDOWS_MAX: u32 = 10_000;

/// A store that this process alone has open.
pub(super) struct Source {
    db: Connection,
    /// The same file by what its checksums say.
    pub(super) summed: SummedFile,
    shown: String,
    /// The latest format of journals in it.
    pub(super) format: JournalFormat,
    /// The version of its tables, where that is another one than this program's: they may be others,
    /// have other columns, or not be there.
    pub(super) other_version: Option<i64>,
}

impl Source {
    pub(super) fn open(
        place: &StorePath,
        busy_timeout: Duration,
        format: JournalFormat,
    ) -> Result<Self, StoreError> {
        let shown = place.shown.clone();
        let open = || -> Result<Connection, Fault> {
            let db = connect(place, busy_timeout)?;
            // With the first look all others are kept out, or it fails as one of them is there.
            // It is undone: in the header of a file that was cut off SQLite would correct the length.
            db.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; ROLLBACK")?;
            Ok(db)
        };
        let db = open().map_err(|fault| fault.at(&shown))?;
        let number = |sql: &str| -> Result<i64, StoreError> {
            db.query_row(sql, [], |row| row.get(0)).map_err(|error| Fault::from(error).at(&shown))
        };
        let versions = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
        let FileVersion { tables, format } = file_version(&shown, versions, format)?;
        let other_version = (tables != SCHEMA_VERSION).then_some(tables);
        copy_log(&db, place)?;
        let summed = SummedFile::open(&place.file).map_err(|fault| fault.at(&shown))?;
        let source = Self { db, summed, shown, format, other_version };
        match other_version {
            // Without journals nothing is known of it.
            Some(found) if !source.has("events", StoredEvent::COLUMNS) => {
                Err(other_tables(&source.shown, found))
            }
            None if source.lacks_events() => Err(StoreError::Corrupt {
                path: source.shown,
                detail: "nothing in it tells where its tables are".to_owned(),
            }),
            Some(_) | None => Ok(source),
        }
    }

    /// True if the definition of the table of events is lost, as with the pages that it stood on.
    fn lacks_events(&self) -> bool {
        let prepared = self.db.prepare(&format!("SELECT {} FROM events", StoredEvent::COLUMNS));
        prepared.is_err_and(|error| Fault::from(error).is_of_tables())
    }

    /// True if there is a table with these columns; also where that cannot be told for damage.
    pub(super) fn has(&self, table: &str, columns: &str) -> bool {
        let prepared = self.db.prepare(&format!("SELECT {columns} FROM {table}"));
        match prepared.map_err(Fault::from) {
            Ok(_) => true,
            Err(fault) => self.other_version.is_none() || !fault.is_of_tables(),
        }
    }

    /// The names of the tables that it has and a new store does not, and in which there is something.
    pub(super) fn further_tables(&self, db: &Connection) -> Result<Vec<String>, Fault> {
        let mut further = Vec::new();
        let name = |row: &Row<'_>| row.get::<_, String>(0);
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
        self.all(sql, name, |name| {
            let is_known = "SELECT 1 FROM sqlite_schema WHERE name = ?1";
            // A name of another form could be anything in a statement.
            let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if is_plain && !db.prepare_cached(is_known)?.exists([&name])? {
                let first = self.db.prepare(&format!("SELECT 1 FROM [{name}] LIMIT 1"));
                if first.and_then(|mut first| first.exists([])).unwrap_or(true) {
                    further.push(name);
                }
            }
            Ok(())
        })?;
        Ok(further)
    }

    /// True if what stands there is at fault, and not the way to it: a row of a damaged page may have
    /// values of any type, and another version may have no such column.
    fn is_unreadable(&self, fault: &Fault) -> bool {
        fault.is_damage() || (self.other_version.is_some() && fault.is_of_tables())
    }

    /// Closes the file, whose log is empty since it was opened, and goes. Its pages stay as they
    /// were written, the first one with its checksum: should its place not be taken, it is what it
    /// was.
    pub(super) fn close(self) -> Result<(), StoreError> {
        let Self { db, summed, shown, .. } = self;
        drop(summed);
        let closed = keep_log(&db, false).and_then(|()| db.close().map_err(|(_, error)| error));
        closed.map_err(|error| Fault::from(error).at(&shown))
    }

    /// Gives each row with so many columns on the leaves of its tables to `keep`.
    pub(super) fn leaf_rows(
        &self,
        columns: usize,
        keep: impl FnMut(LeafRow) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        leaves::rows(&self.summed, columns, keep)
    }

    /// Gives each row of a table that can be read, in the order of its numbers, to `keep`; returns
    /// how many could not. `columns` begin with the number.
    pub(super) fn rows<T>(
        &self,
        (table, number, columns): (&str, &str, &str),
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
        mut keep: impl FnMut(T) -> Result<(), Fault>,
    ) -> Result<u64, Fault> {
        let known_last = self.last(table, number)?;
        let last = known_last.unwrap_or(i64::MAX);
        let window = format!(
            "SELECT {columns} FROM {table} NOT INDEXED WHERE {number} > ?1 ORDER BY {number} LIMIT {WINDOW}"
        );
        let single = format!("SELECT {columns} FROM {table} NOT INDEXED WHERE {number} = ?1");
        let (mut after, mut unreadable, mut empty) = (0, 0, 0);
        while after < last && empty < EMPTY_WINDOWS_MAX {
            let (at, failed) = self.window(&window, after, &read, &mut keep)?;
            empty = if at == after { empty + 1 } else { 0 };
            if !failed {
                match at == after {
                    true => return Ok(unreadable),
                    false => after = at,
                }
                continue;
            }
            // Nothing tells how many there are.
            if known_last.is_none() {
                return Ok(unreadable + 1);
            }
            let end = last.min(at.saturating_add(WINDOW));
            for no in at + 1..=end {
                let row = self.db.prepare_cached(&single)?.query_row([no], &read).optional();
                match row.map_err(Fault::from) {
                    Ok(Some(row)) => {
                        empty = 0;
                        keep(row)?;
                    }
                    Ok(None) => {}
                    Err(fault) if self.is_unreadable(&fault) => unreadable += 1,
                    Err(fault) => return Err(fault),
                }
            }
            after = end;
        }
        Ok(unreadable)
    }

    /// Reads rows after a number; returns the number of the last one, and whether it ended with
    /// what cannot be read.
    fn window<T>(
        &self,
        sql: &str,
        after: i64,
        read: &impl Fn(&Row<'_>) -> rusqlite::Result<T>,
        keep: &mut impl FnMut(T) -> Result<(), Fault>,
    ) -> Result<(i64, bool), Fault> {
        let mut at = after;
        let mut sql = self.db.prepare_cached(sql)?;
        let mut rows = sql.query([after])?;
        loop {
            let row = match rows.next().map_err(Fault::from) {
                Ok(Some(row)) => row,
                Ok(None) => return Ok((at, false)),
                Err(fault) if self.is_unreadable(&fault) => return Ok((at, true)),
                Err(fault) => return Err(fault),
            };
            let number: i64 = row.get(0)?;
            // Rows of a damaged page may stand in any order.
            if number <= at {
                return Ok((at, true));
            }
            match read(row).map_err(Fault::from) {
                Ok(row) => keep(row)?,
                Err(fault) if self.is_unreadable(&fault) => return Ok((at, true)),
                Err(fault) => return Err(fault),
            }
            at = number;
        }
    }

    /// The last number of a table: the one that was given last, or else the largest that is found;
    /// `None` if no number was given last and the largest cannot be read.
    fn last(&self, table: &str, number: &str) -> Result<Option<i64>, Fault> {
        let given = "SELECT seq FROM sqlite_sequence WHERE name = ?1";
        let given = self.db.query_row(given, [table], |row| row.get::<_, i64>(0)).optional();
        let largest = format!("SELECT coalesce(max({number}), 0) FROM {table} NOT INDEXED");
        let largest = self.db.query_row(&largest, [], |row| row.get::<_, i64>(0));
        match (given.map_err(Fault::from), largest.map_err(Fault::from)) {
            (Ok(given), Ok(largest)) => Ok(Some(given.unwrap_or(largest).max(largest))),
            (Ok(given), Err(fault)) if self.is_unreadable(&fault) => Ok(given),
            (Err(fault), Ok(largest)) if self.is_unreadable(&fault) => Ok(Some(largest)),
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
        }
    }

    /// Gives each row of a table without numbers to `keep`, in the order of its key, which is so many
    /// of its first columns; where one cannot be read it goes on from the end. False if there is
    /// such a one.
    pub(super) fn keyed<T>(
        &self,
        (table, columns, key): (&str, &str, usize),
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
        mut keep: impl FnMut(T) -> Result<(), Fault>,
    ) -> Result<bool, Fault> {
        let ordered = |direction: &str| {
            let key: Vec<String> = (1..=key).map(|column| format!("{column}{direction}")).collect();
            format!("SELECT {columns} FROM {table} ORDER BY {}", key.join(", "))
        };
        if self.all(&ordered(""), &read, &mut keep)? {
            return Ok(true);
        }
        self.all(&ordered(" DESC"), &read, &mut keep)?;
        Ok(false)
    }

    /// Gives each row that a statement finds to `keep`, up to the first that cannot be read; false if
    /// there is one.
    pub(super) fn all<T>(
        &self,
        sql: &str,
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
        mut keep: impl FnMut(T) -> Result<(), Fault>,
    ) -> Result<bool, Fault> {
        let mut sql = match self.db.prepare(sql).map_err(Fault::from) {
            Err(fault) if self.is_unreadable(&fault) => return Ok(false),
            prepared => prepared?,
        };
        let mut rows = sql.query([])?;
        loop {
            let row = match rows.next().map_err(Fault::from) {
                Ok(Some(row)) => read(row).map_err(Fault::from),
                Ok(None) => return Ok(true),
                Err(fault) => Err(fault),
            };
            match row {
                Ok(row) => keep(row)?,
                Err(fault) if self.is_unreadable(&fault) => return Ok(false),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// One row, if it is there and can be read.
    pub(super) fn one<T>(
        &self,
        sql: &str,
        no: i64,
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Fault> {
        let mut sql = match self.db.prepare_cached(sql).map_err(Fault::from) {
            Err(fault) if self.other_version.is_some() && fault.is_of_tables() => return Ok(None),
            prepared => prepared?,
        };
        let found = sql.query_row([no], read).optional();
        match found.map_err(Fault::from) {
            Err(fault) if self.is_unreadable(&fault) => Ok(None),
            found => found,
        }
    }
}

/// A connection to the file that knows nothing of checksums and leaves the log as it is.
fn connect(place: &StorePath, busy_timeout: Duration) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags_and_vfs(&place.file, flags, PLAIN_LAYER)?;
    db.busy_timeout(busy_timeout)?;
    leave_log(&db)?;
    pass_over_length(&db)?;
    Ok(db)
}

/// Lets a connection read a file that ends before it says that it does: what stands behind its end
/// is damaged then, and the rest is not.
pub(super) fn pass_over_length(db: &Connection) -> Result<(), Fault> {
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, true)?;
    Ok(())
}

/// Copies the log into the file, so that the file is all there is.
fn copy_log(db: &Connection, place: &StorePath) -> Result<(), StoreError> {
    let busy = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
    match busy.map_err(Fault::from) {
        Ok(false) => Ok(()),
        Ok(true) => Err(StoreError::Locked { path: place.shown.clone() }),
        Err(fault) if fault.is_damage() && has_log(place) => {
            let detail = "its log cannot be copied into it: it is damaged, or was cut off";
            Err(Fault::Damaged(detail.to_owned()).at(&place.shown))
        }
        Err(fault) => Err(fault.at(&place.shown)),
    }
}

fn has_log(place: &StorePath) -> bool {
    std::fs::metadata(place.dir.join(LOG_NAME)).is_ok_and(|log| log.len() > 0)
}
