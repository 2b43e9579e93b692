//! Faults of SQLite and its files, and the errors that callers get for them.

use std::io;
use std::path::Path;

use rusqlite::ErrorCode;
use taskrun_journal::store::StoreError;

/// A fault, before it is known in which file.
#[derive(Debug)]
pub(crate) enum Fault {
    /// An error of SQLite.
    Sqlite(rusqlite::Error),
    /// Stored data that cannot be.
    Damaged(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(error) => error.fmt(f),
            Self::Damaged(detail) => f.write_str(detail),
        }
    }
}

impl Fault {
    /// An error of a statement that reads of one run only: damage is that of this run.
    pub(crate) fn of_one(error: rusqlite::Error, run: &str) -> Self {
        match is_corrupt(&error) {
            true => Self::Damaged(format!("run {run}: {error}")),
            false => Self::Sqlite(error),
        }
    }

    /// True if what is stored is at fault, and not the way to it.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_) => true,
            Self::Sqlite(error) => is_corrupt(error),
        }
    }

    /// True if a statement speaks of tables or columns that are not there.
    pub(crate) fn is_of_tables(&self) -> bool {
        use rusqlite::Error as E;
        match self {
            Self::Sqlite(E::SqliteFailure(error, _) | E::SqlInputError { error, .. }) => {
                error.code == ErrorCode::Unknown
            }
            Self::Sqlite(_) | Self::Damaged(_) => false,
        }
    }

    /// True if a row has a value that its table does not take.
    pub(crate) fn is_of_values(&self) -> bool {
        match self {
            Self::Sqlite(error) => {
                error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
            }
            Self::Damaged(_) => false,
        }
    }

    /// The error of the port.
    pub(crate) fn at(self, path: &str) -> StoreError {
        let path = path.to_owned();
        match self {
            Self::Damaged(detail) => StoreError::Corrupt { path, detail },
            Self::Sqlite(error) => {
                let detail = error.to_string();
                match kind(&error) {
                    Kind::Locked => StoreError::Locked { path },
                    Kind::Full => StoreError::Full { path },
                    Kind::ReadOnly => StoreError::ReadOnly { path, detail },
                    Kind::Corrupt => StoreError::Corrupt { path, detail },
                    Kind::Refused => StoreError::Refused { path, detail },
                    Kind::Io | Kind::Other => StoreError::Unavailable { path, detail },
                }
            }
        }
    }

    /// The error of a commit: after a failed write or sync nobody knows what a restart finds.
    pub(crate) fn at_commit(self, path: &str) -> StoreError {
        match &self {
            Self::Sqlite(error) if matches!(kind(error), Kind::Io | Kind::Other) => {
                StoreError::Unknown { detail: format!("{path}: {error}") }
            }
            Self::Sqlite(_) | Self::Damaged(_) => self.at(path),
        }
    }
}

/// True of an error of SQLite that says that the file is damaged.
fn is_corrupt(error: &rusqlite::Error) -> bool {
    match kind(error) {
        Kind::Corrupt => true,
        Kind::Locked | Kind::Full | Kind::ReadOnly | Kind::Refused | Kind::Io | Kind::Other => {
            false
        }
    }
}

enum Kind {
    Locked,
    Full,
    ReadOnly,
    Corrupt,
    /// It never will be possible.
    Refused,
    Io,
    Other,
}

/// An error of the file system itself that speaks of a damaged file (SQLITE_IOERR_CORRUPTFS).
const IO_ERROR_CORRUPT: i32 = 10 | (33 << 8);

#[expect(clippy::wildcard_enum_match_arm, reason = "SQLite's words, of which new ones come")]
fn kind(error: &rusqlite::Error) -> Kind {
    use rusqlite::Error as E;
    match error {
        E::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed => Kind::Locked,
            ErrorCode::DiskFull => Kind::Full,
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied => Kind::ReadOnly,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Kind::Corrupt,
            ErrorCode::SystemIoFailure if failure.extended_code == IO_ERROR_CORRUPT => {
                Kind::Corrupt
            }
            ErrorCode::SystemIoFailure => Kind::Io,
            ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch => {
                Kind::Refused
            }
            _ => Kind::Other,
        },
        E::FromSqlConversionFailure(..)
        | E::IntegralValueOutOfRange(..)
        | E::InvalidColumnType(..)
        | E::Utf8Error(..) => Kind::Corrupt,
        _ => Kind::Other,
    }
}

/// The error of the port for an operation on a file or folder.
#[expect(clippy::wildcard_enum_match_arm, reason = "the system's words, of which new ones come")]
pub(crate) fn io_error(path: &Path, error: &io::Error) -> StoreError {
    let (path, detail) = (path.display().to_string(), error.to_string());
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly { path, detail }
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
        _ => StoreError::Unavailable { path, detail },
    }
}

/// The error of a commit after which it is not known whether its files are in their places.
pub(crate) fn unconfirmed(error: StoreError) -> StoreError {
    match error {
        StoreError::Replaced { .. } => error,
        StoreError::Locked { .. }
        | StoreError::Version { .. }
        | StoreError::Format { .. }
        | StoreError::Corrupt { .. }
        | StoreError::Full { .. }
        | StoreError::NoRoom { .. }
        | StoreError::ReadOnly { .. }
        | StoreError::Unavailable { .. }
        | StoreError::Refused { .. }
        | StoreError::Closed
        | StoreError::Unknown { .. } => StoreError::Unknown { detail: error.to_string() },
    }
}
