//! A store that is made anew from a damaged one.
//!
//! Nothing is mended in place. Journals are what happened; rows, labels, indexes, places in the
//! queue and waits follow from them. So every event that can be read, whatever the checksums of its
//! page and of those that lead to it say, and that has one of its own which fits, goes into a new
//! file, and of each run whose journal is whole everything else is made again. What no journal
//! tells (keys of repeated requests, sessions, facts, artifacts, hosts) is copied as far as it can
//! be read. Where it has no checksum of its own either, that of its page counts: what stands on one
//! that does not fit is left out or named.
//!
//! A file that ends before it says that it does is read up to its end, and never made longer.
//!
//! A store with tables of another version is made anew in the same way: journals have a format of
//! their own. What is not kept as this program keeps it is said to be lost.
//!
//! A run of whose journal anything is missing is left out: it would go on from where it stood
//! before, and do again what it has done. The damaged file is kept beside the new one.
//!
//! The new file takes the place of the old one by one renaming, when it is whole, checked and on
//! the disk; whatever dies before leaves the old one where it is.

mod events;
mod journals;
mod leaves;
mod pages;
mod rest;
mod source;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;

use super::check;
use super::content::other_tables;
use super::fault::{Fault, io_error};
use super::open::{connect, lock_opening, make_tables};
use super::scrub;
use super::store_path::{StorePath, store_path};
use source::Source;

/// The name of the file that is made; one that is there was left by a repair that died.
const NEW_NAME: &str = "taskrun.db.repair";
/// The name under which a damaged file is kept, before its number.
const KEPT_NAME: &str = "taskrun.db.damaged";
/// Damaged files that are kept; a repair beyond that is refused, as each is as large as the store.
const KEPT_MAX: u32 = 100;

/// The outcome of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Runs that were kept.
    pub runs: u64,
    /// Runs that were left out, one in each line with the reason.
    pub left_out: Vec<String>,
    /// Other things of which a part could not be read, or may not be what was written, in words.
    pub lost: Vec<String>,
    /// The file before, into which its log was copied.
    pub kept: PathBuf,
    /// The version of the tables before, where that was another one than this program's.
    pub other_version: Option<i64>,
}

/// Makes the store of a data directory anew. No process may have it open.
///
/// # Errors
/// [`StoreError::Locked`] if one has; [`StoreError::Corrupt`] if so little can be read that nothing
/// of it is known, or if what was made is not in order; [`StoreError::Version`] if its tables are of
/// another version, and its journals stand in them otherwise; others of [`StoreError`]. Nothing was
/// changed then, but that the log may have been copied into the file.
pub(crate) fn repair(
    dir: &Path,
    busy_timeout: Duration,
    format: JournalFormat,
) -> Result<Repair, StoreError> {
    let place = store_path(dir);
    let _opening = lock_opening(&place, busy_timeout)?;
    let source = Source::open(&place, busy_timeout, format)?;
    let other_version = source.other_version;
    let new = StorePath { file: dir.join(NEW_NAME), ..place.clone() };
    remove(&new)?;
    let made = make(&source, &new).and_then(|made| match (other_version, &made) {
        // There are runs, and not one of their journals means anything here.
        (Some(found), (0, left_out, _)) if !left_out.is_empty() => {
            Err(other_tables(&place.shown, found))
        }
        (Some(_) | None, _) => Ok(made),
    });
    // What is refused is left as it is.
    let made = made.and_then(|made| source.close().map(|()| made));
    let (runs, left_out, lost) = made.inspect_err(|_| {
        // It means nothing, and the next repair removes it.
        remove(&new).ok();
    })?;
    let kept = swap(&place, &new)?;
    scrub::tell(dir, &Vec::new());
    Ok(Repair { runs, left_out, lost, kept, other_version })
}

type RepairCounts = (u64, Vec<String>, Vec<String>);

/// Fills the new file, in one transaction.
fn make(source: &Source, new: &StorePath) -> Result<RepairCounts, StoreError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new.file);
    // Closed before SQLite opens it: with a handle the locks of this process would go.
    drop(made.map_err(|error| io_error(&new.file, &error))?);
    let db = connect(new, Duration::ZERO, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    fill(source, &db).map_err(|fault| fault.at(&new.shown))
}

fn fill(source: &Source, db: &Connection) -> Result<RepairCounts, Fault> {
    make_tables(db, source.format)?;
    db.execute_batch("BEGIN EXCLUSIVE")?;
    let journals = journals::copy(source, db)?;
    let mut lost = journals.lost;
    lost.extend(rest::copy(source, db)?);
    if journals.unreadable > 0 {
        lost.push(format!("{} events cannot be read", journals.unreadable));
    }
    db.execute_batch("COMMIT")?;
    // A transaction, as steps of the check want one.
    db.execute_batch("BEGIN")?;
    let findings = check::all(db)?;
    db.execute_batch("COMMIT")?;
    match findings.first() {
        Some(first) => Err(Fault::Damaged(format!("the new store is not in order: {first}"))),
        None => Ok((journals.kept, journals.left_out, lost)),
    }
}

/// Puts the new file in place of the old one, which is kept under a name of its own.
fn swap(place: &StorePath, new: &StorePath) -> Result<PathBuf, StoreError> {
    let kept = keep(place)?;
    fs::rename(&new.file, &place.file).map_err(|error| io_error(&place.file, &error))?;
    let dir = fs::File::open(&place.dir).and_then(|dir| dir.sync_all());
    dir.map_err(|error| io_error(&place.dir, &error))?;
    Ok(kept)
}

/// A second name for the file; the first free one.
fn keep(place: &StorePath) -> Result<PathBuf, StoreError> {
    for number in 1..=KEPT_MAX {
        let kept = place.dir.join(format!("{KEPT_NAME}-{number}"));
        match fs::hard_link(&place.file, &kept) {
            Ok(()) => return Ok(kept),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error(&kept, &error)),
        }
    }
    let detail = format!("{KEPT_MAX} damaged stores are kept in this folder; remove some");
    Err(StoreError::Unavailable { path: place.shown.clone(), detail })
}

fn remove(new: &StorePath) -> Result<(), StoreError> {
    for name in [NEW_NAME.to_owned(), format!("{NEW_NAME}-journal")] {
        match fs::remove_file(new.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(&new.file, &error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}
