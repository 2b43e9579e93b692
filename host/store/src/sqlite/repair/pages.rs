//! The damaged file as its checksums let it be read, beside the one that is read past them.
//!
//! Rows without a checksum of their own have nothing but that of their page, so those that stand on
//! a page that does not fit are not known to be what was written.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Params, Statement, ffi, params_from_iter};

use super::source::pass_over_length;
use crate::sqlite::fault::Fault;
use crate::sqlite::header::{Header, PAGE_BYTES};
use crate::sqlite::sums::{self, ChecksumState};
use crate::sqlite::{layer, vfs};

/// The file without its log, which is to be in it, and without a lock: the connection that reads
/// past the checksums keeps all others out.
pub(super) struct SummedFile {
    db: Connection,
    /// The number of its pages; the last one may be a part of one.
    pub(super) pages: i64,
}

/// The pages of a table.
pub(super) enum TablePages<'c> {
    /// All of them fit.
    Whole,
    /// Some do not. The statement finds a row that stands on others.
    Damaged(Statement<'c>),
    /// It is not known which fit: those that say where the table is do not.
    Unknown,
}

impl SummedFile {
    pub(super) fn open(file: &Path) -> Result<Self, Fault> {
        layer::register()?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_URI;
        let db = Connection::open_with_flags_and_vfs(address(file), flags, layer::LAYER)?;
        pass_over_length(&db)?;
        // By its name: with a handle that is closed the locks of this process would go.
        let bytes =
            std::fs::metadata(file).map_err(|_| vfs::failure(ffi::SQLITE_IOERR_FSTAT))?.len();
        let pages = i64::try_from(bytes.div_ceil(PAGE_BYTES as u64)).unwrap_or(i64::MAX);
        Ok(Self { db, pages })
    }

    /// Reads a table, whose first columns are its key, as many as `key` says.
    pub(super) fn table(
        &self,
        (table, columns, key): (&str, &[String], usize),
    ) -> Result<TablePages<'_>, Fault> {
        let list = columns.join(", ");
        // In the order of the key, so that no index is read in place of the table.
        let order: Vec<String> = (1..=key).map(|column| column.to_string()).collect();
        match self.read(&format!("SELECT {list} FROM {table} ORDER BY {}", order.join(", "))) {
            Err(fault) if fault.is_damage() => {}
            read => return read.map(|()| TablePages::Whole),
        }
        let same = columns.iter().zip(1..).map(|(column, n)| format!("{column} IS ?{n}"));
        let same = same.collect::<Vec<_>>().join(" AND ");
        match self.db.prepare(&format!("SELECT 1 FROM {table} WHERE {same}")).map_err(Fault::from) {
            Err(fault) if fault.is_damage() => Ok(TablePages::Unknown),
            found => found.map(TablePages::Damaged),
        }
    }

    fn read(&self, sql: &str) -> Result<(), Fault> {
        let mut sql = self.db.prepare(sql)?;
        let mut rows = sql.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    }

    /// Gives each number that a statement finds to `keep`; false where a page that does not fit is
    /// in the way.
    pub(super) fn numbers(
        &self,
        sql: &str,
        mut keep: impl FnMut(i64) -> Result<(), Fault>,
    ) -> Result<bool, Fault> {
        let mut sql = match self.db.prepare(sql).map_err(Fault::from) {
            Err(fault) if fault.is_damage() => return Ok(false),
            prepared => prepared?,
        };
        let mut rows = sql.query([])?;
        loop {
            match rows.next().map_err(Fault::from) {
                Ok(Some(row)) => keep(row.get(0)?)?,
                Ok(None) => return Ok(true),
                Err(fault) if fault.is_damage() => return Ok(false),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The header of the file; `None` of a shorter one.
    pub(super) fn header(&self) -> Result<Option<Header>, Fault> {
        sums::header_of(&self.db)
    }

    /// Reads a page whatever its checksum says, see [`sums::read_page`].
    pub(super) fn read_page(
        &self,
        number: i64,
        page: &mut [u8; PAGE_BYTES],
    ) -> Result<Option<ChecksumState>, Fault> {
        sums::read_page(&self.db, number, page)
    }

    /// True if there is such a row on pages that fit.
    pub(super) fn has(&self, sql: &str, params: impl Params) -> Result<bool, Fault> {
        match self.db.prepare_cached(sql) {
            Ok(mut sql) => undamaged(sql.exists(params)),
            Err(error) => undamaged(Err(error)),
        }
    }
}

impl TablePages<'_> {
    /// True if a row stands on pages that fit, or it is not known which do.
    pub(super) fn has(&mut self, row: &[Value]) -> Result<bool, Fault> {
        match self {
            Self::Whole | Self::Unknown => Ok(true),
            Self::Damaged(found) => undamaged(found.exists(params_from_iter(row))),
        }
    }
}

/// An answer; false where only damage stands in its place.
fn undamaged(found: rusqlite::Result<bool>) -> Result<bool, Fault> {
    match found.map_err(Fault::from) {
        Err(fault) if fault.is_damage() => Ok(false),
        found => found,
    }
}

/// The address by which SQLite opens a file that nobody changes.
fn address(file: &Path) -> String {
    // A path that begins with two slashes would begin with the name of a machine.
    let root = if file.is_absolute() { "//" } else { "" };
    let mut address = format!("file:{root}");
    for byte in file.as_os_str().as_bytes() {
        match byte.is_ascii_alphanumeric() || b"/.-_".contains(byte) {
            true => address.push(char::from(*byte)),
            false => write!(address, "%{byte:02x}").expect("a text takes all of it"),
        }
    }
    address.push_str("?immutable=1");
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_characters_is_an_address() {
        let of = |path: &str| address(Path::new(path));
        assert_eq!(of("/a/b c?d#e%f/x.db"), "file:///a/b%20c%3fd%23e%25f/x.db?immutable=1");
        assert_eq!(of("//a/x.db"), "file:////a/x.db?immutable=1");
        assert_eq!(of("x.db"), "file:x.db?immutable=1");
    }
}
