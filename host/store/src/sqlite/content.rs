//! The content of a database file: nothing, a store of ours, or what is refused.

use rusqlite::{Connection, ErrorCode};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;

use super::definition;
use super::fault::Fault;
use super::schema::{APPLICATION_ID, FileVersion, SCHEMA_VERSION};
use super::store_path::StorePath;

/// The content of a database file.
pub(crate) enum FileContent {
    /// No tables yet.
    Empty,
    /// Our tables.
    Ours,
}

/// The content of a file, whose tables are held against ours.
pub(crate) fn read_content(
    place: &StorePath,
    db: &Connection,
    format: JournalFormat,
) -> Result<FileContent, StoreError> {
    let failed = |fault: Fault| match fault {
        // Nothing is wrong with the SQL; so it is with the tables, as in a format of the schema that
        // this SQLite does not know.
        Fault::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => {
            Fault::Damaged(error.to_string()).at(&place.shown)
        }
        fault @ (Fault::Sqlite(_) | Fault::Damaged(_)) => fault.at(&place.shown),
    };
    let number = |sql: &str| -> Result<i64, StoreError> {
        db.query_row(sql, [], |row| row.get(0)).map_err(|error| failed(Fault::Sqlite(error)))
    };
    let version = number("PRAGMA user_version")?;
    let application = number("PRAGMA application_id")?;
    match (application, version) {
        (0, 0) if number("SELECT count(*) FROM sqlite_schema")? == 0 => Ok(FileContent::Empty),
        (application, version) => {
            check_versions(&place.shown, (application, version), format)?;
            definition::check(db).map_err(failed)?;
            Ok(FileContent::Ours)
        }
    }
}

/// Refuses a file that is no store, or one of a program that this one does not follow: with tables of
/// another version, or with journals of a format later than `format`.
fn check_versions(
    shown: &str,
    (application, version): (i64, i64),
    format: JournalFormat,
) -> Result<(), StoreError> {
    match file_version(shown, (application, version), format)? {
        FileVersion { tables: SCHEMA_VERSION, format: _ } => Ok(()),
        FileVersion { tables: found, format: _ } => Err(other_tables(shown, found)),
    }
}

/// The error of a store with tables of another version.
pub(crate) fn other_tables(shown: &str, found: i64) -> StoreError {
    StoreError::Version { path: shown.to_owned(), found, known: SCHEMA_VERSION }
}

/// The versions of a file, which is refused if it is no store, or has journals of a format later than
/// `format`.
pub(crate) fn file_version(
    shown: &str,
    (application, version): (i64, i64),
    format: JournalFormat,
) -> Result<FileVersion, StoreError> {
    let path = shown.to_owned();
    if application != APPLICATION_ID || version <= 0 {
        let detail = format!("application {application:#x}, version {version}");
        return Err(StoreError::Corrupt { path, detail });
    }
    match FileVersion::of(version) {
        found if found.format > format => {
            Err(StoreError::Format { path, found: found.format, known: format })
        }
        found => Ok(found),
    }
}
