use std::cell::Cell;
use std::ffi::CStr;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use super::*;
use crate::sqlite::layer;

const FRAME_BYTES: usize = FRAME_HEADER_BYTES + PAGE_BYTES;
/// Frames that fit into one write.
const FRAMES_MAX: usize = WRITE_BYTES_MAX / FRAME_BYTES;

thread_local! {
    /// The lengths of the writes of logs on this thread.
    static LENGTHS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The number of writes after which one fails.
    static FAILS_AFTER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts a write of a log; its error if it is to fail.
pub(super) fn meet(length: usize) -> Option<c_int> {
    LENGTHS.with_borrow_mut(|lengths| lengths.push(length));
    let left = FAILS_AFTER.get()?;
    FAILS_AFTER.set(left.checked_sub(1));
    (left == 0).then_some(ffi::SQLITE_FULL)
}

/// The writes of logs while something is done.
fn lengths_of<T>(work: impl FnOnce() -> T) -> (T, Vec<usize>) {
    LENGTHS.take();
    let done = work();
    (done, LENGTHS.take())
}

fn header(ends: bool) -> Vec<u8> {
    let mut header = vec![7; FRAME_HEADER_BYTES];
    header[4..8].copy_from_slice(&u32::from(ends).to_be_bytes());
    header
}

fn page() -> Vec<u8> {
    vec![1; PAGE_BYTES]
}

/// Frames, and what was written of them: a place and a length each.
#[derive(Default)]
struct Collected {
    frames: Option<Frames>,
    writes: Vec<(i64, usize)>,
    /// The result of each write from now on.
    code: c_int,
}

impl Collected {
    fn put(&mut self, bytes: &[u8], at: i64) -> c_int {
        let Self { frames, writes, code } = self;
        frames.get_or_insert(Frames::NONE).put(bytes, at, |bytes: &[u8], at| {
            writes.push((at, bytes.len()));
            *code
        })
    }

    /// Puts so many frames from a place on, of which the last ends a commit if that is said.
    fn frames(&mut self, count: usize, mut at: i64, ends: bool) -> i64 {
        for number in 1..=count {
            for bytes in [header(ends && number == count), page()] {
                assert_eq!(self.put(&bytes, at), ffi::SQLITE_OK);
                at += bytes.len() as i64;
            }
        }
        at
    }

    fn left(&self) -> usize {
        self.frames.as_ref().map_or(0, |frames| frames.bytes.len())
    }
}

#[test]
fn the_frames_of_a_commit_are_one_write() {
    for count in 1..4 {
        let mut collected = Collected::default();
        collected.frames(count, 32, true);
        assert_eq!(collected.writes, [(32, count * FRAME_BYTES)]);
        assert_eq!(collected.left(), 0, "it is written when its last page is");
    }
}

#[test]
fn the_header_of_the_log_is_written_at_once_and_frames_follow_it() {
    let mut collected = Collected::default();
    assert_eq!(collected.put(&[3; LOG_HEADER_BYTES], 0), ffi::SQLITE_OK);
    assert_eq!(collected.writes, [(0, LOG_HEADER_BYTES)]);
    collected.frames(2, 32, true);
    assert_eq!(collected.writes[1..], [(32, 2 * FRAME_BYTES)]);
}

#[test]
fn a_write_is_no_longer_than_sqlites_own_layer_takes() {
    let mut collected = Collected::default();
    collected.frames(200, 32, true);
    assert!(collected.writes.iter().all(|(_, length)| *length <= WRITE_BYTES_MAX));
    assert_eq!(collected.writes.len(), 200_usize.div_ceil(FRAMES_MAX));
    let mut at = 32;
    for (place, length) in &collected.writes {
        assert_eq!(*place, at, "nothing is written before what stands before it");
        at += *length as i64;
    }
    assert_eq!(at, 32 + 200 * FRAME_BYTES as i64);
}

#[test]
fn a_header_that_is_written_again_is_written_at_once() {
    let mut collected = Collected::default();
    collected.frames(2, 32, true);
    collected.writes.clear();
    assert_eq!(collected.put(&header(true), 32 + FRAME_BYTES as i64), ffi::SQLITE_OK);
    assert_eq!(collected.writes, [(32 + FRAME_BYTES as i64, FRAME_HEADER_BYTES)]);
}

#[test]
fn a_page_that_is_written_again_comes_after_what_was_put_before_it() {
    let mut collected = Collected::default();
    let end = collected.frames(2, 32, false);
    assert_eq!(collected.put(&page(), 32 + FRAME_HEADER_BYTES as i64), ffi::SQLITE_OK);
    let written = [(32, 2 * FRAME_BYTES), (32 + FRAME_HEADER_BYTES as i64, PAGE_BYTES)];
    assert_eq!(collected.writes, written);
    collected.frames(1, end, true);
    assert_eq!(collected.left(), 0);
}

/// As SQLite does to fill up a sector, which it does not do in a store.
#[test]
fn a_frame_in_pieces_is_kept_for_nothing() {
    for pieces in [[8, 16, PAGE_BYTES], [FRAME_HEADER_BYTES, 24, PAGE_BYTES - 24]] {
        let mut collected = Collected::default();
        let mut at = collected.frames(2, 32, true);
        let frame = [header(true), page()].concat();
        let mut from = 0;
        for length in pieces {
            assert_eq!(collected.put(&frame[from..from + length], at), ffi::SQLITE_OK);
            (from, at) = (from + length, at + length as i64);
        }
        assert_eq!(collected.left(), 0, "{pieces:?}");
    }
}

#[test]
fn a_failure_is_told_by_the_call_that_wrote_and_leaves_nothing() {
    let full = || Collected { code: ffi::SQLITE_FULL, ..Collected::default() };
    // With the last page.
    let mut collected = full();
    let end = collected.frames(2, 32, false);
    assert_eq!(collected.put(&header(true), end), ffi::SQLITE_OK, "it is collected");
    let last = end + FRAME_HEADER_BYTES as i64;
    assert_eq!(collected.put(&page(), last), ffi::SQLITE_FULL);
    assert_eq!(collected.left(), 0);
    // With the first header that has no room beside the others.
    let mut collected = full();
    let end = collected.frames(FRAMES_MAX, 32, false);
    let (room, at) = (WRITE_BYTES_MAX - FRAMES_MAX * FRAME_BYTES, end + FRAME_HEADER_BYTES as i64);
    assert!((FRAME_HEADER_BYTES..PAGE_BYTES).contains(&room));
    assert_eq!(collected.put(&header(false), end), ffi::SQLITE_OK);
    assert_eq!(collected.put(&page(), at), ffi::SQLITE_FULL);
    assert_eq!(collected.left(), 0);
    // With a write elsewhere, which is not done.
    let mut collected = full();
    collected.frames(2, 32, false);
    assert_eq!(collected.put(&page(), 32 + FRAME_HEADER_BYTES as i64), ffi::SQLITE_FULL);
    assert_eq!((collected.left(), collected.writes.len()), (0, 1));
}

fn open(file: &Path, layer: Option<&CStr>) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let opened = match layer {
        Some(layer) => Connection::open_with_flags_and_vfs(file, flags, layer),
        None => Connection::open_with_flags(file, flags),
    };
    opened.expect("opens")
}

/// A database with a table, as the layer has it open.
fn database(dir: &TempDir, settings: &str) -> Connection {
    layer::register().expect("registered");
    let db = open(&dir.path().join("some.db"), Some(layer::LAYER));
    db.execute_batch(&format!(
        "PRAGMA page_size = 4096; {settings}; PRAGMA journal_mode = WAL;
         CREATE TABLE some (no INTEGER PRIMARY KEY, text TEXT);"
    ))
    .expect("made");
    db
}

/// Puts so many rows into the table, in a transaction that is not at its end.
fn begin(db: &Connection, rows: u32) {
    db.execute_batch("BEGIN IMMEDIATE").expect("begun");
    for row in 0..rows {
        let sql = "INSERT INTO some (text) VALUES (?1)";
        db.execute(sql, [format!("{row} of {rows}, ").repeat(40)]).expect("inserted");
    }
}

fn commit(db: &Connection) -> rusqlite::Result<()> {
    together(|| db.execute_batch("COMMIT"))
}

/// All rows, for comparison.
fn rows(db: &Connection) -> Vec<(i64, String)> {
    let mut sql = db.prepare("SELECT no, text FROM some ORDER BY no").expect("prepared");
    let rows = sql.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("asked");
    rows.collect::<Result<_, _>>().expect("read")
}

/// The rows that whoever finds the files after a death has, by SQLite alone.
fn recovered(dir: &TempDir) -> Vec<(i64, String)> {
    for end in ["", "-wal"] {
        let path = |name: &str| dir.path().join(format!("{name}.db{end}"));
        std::fs::copy(path("some"), path("copy")).expect("copied");
    }
    let found = open(&dir.path().join("copy.db"), None);
    let sound: String =
        found.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checked");
    assert_eq!(sound, "ok");
    rows(&found)
}

#[test]
fn a_commit_of_sqlite_is_few_writes() {
    let dir = tempfile::tempdir().expect("a folder");
    let db = database(&dir, "PRAGMA synchronous = FULL");
    begin(&db, 20);
    let ((), alone) = lengths_of(|| db.execute_batch("COMMIT").expect("committed"));
    assert!(alone.iter().all(|length| [FRAME_HEADER_BYTES, PAGE_BYTES].contains(length)));
    assert!(alone.len() >= 6, "{alone:?}");
    begin(&db, 20);
    let (done, one) = lengths_of(|| commit(&db));
    done.expect("committed");
    assert_eq!(one.len(), 1, "{one:?}");
    begin(&db, 600);
    let (done, some) = lengths_of(|| commit(&db));
    done.expect("committed");
    let bytes: usize = some.iter().sum();
    assert!(bytes > 2 * WRITE_BYTES_MAX, "{bytes}");
    assert_eq!(some.len(), bytes.div_ceil(FRAMES_MAX * FRAME_BYTES), "{some:?}");
}

#[test]
fn a_commit_that_has_no_room_is_undone_and_the_next_one_is_whole() {
    let dir = tempfile::tempdir().expect("a folder");
    let db = database(&dir, "PRAGMA synchronous = FULL");
    begin(&db, 10);
    commit(&db).expect("committed");
    let before = rows(&db);
    for after in 0..3 {
        begin(&db, 900);
        FAILS_AFTER.set(Some(after));
        let (failed, lengths) = lengths_of(|| commit(&db));
        FAILS_AFTER.set(None);
        let code = failed.expect_err("it has no room").sqlite_error_code();
        assert_eq!(code, Some(rusqlite::ErrorCode::DiskFull));
        assert_eq!(lengths.len(), after + 1, "nothing is written after the failure");
        if !db.is_autocommit() {
            db.execute_batch("ROLLBACK").expect("rolled back");
        }
        assert_eq!((&rows(&db), &recovered(&dir)), (&before, &before));
    }
    begin(&db, 300);
    commit(&db).expect("committed");
    assert_eq!(rows(&db).len(), 310);
    assert_eq!(recovered(&dir), rows(&db));
}

#[test]
fn frames_that_are_collected_are_written_before_the_log_is_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let db = database(&dir, "PRAGMA synchronous = OFF; PRAGMA cache_size = 10");
    // A transaction that is larger than its cache, of which all counts as its commit.
    let done = together(|| {
        begin(&db, 300);
        db.execute("UPDATE some SET text = upper(text)", [])?;
        db.execute_batch("COMMIT")
    });
    done.expect("committed");
    let found = rows(&db);
    assert_eq!(found.len(), 300);
    assert!(found.iter().all(|(_, text)| text.contains(" OF 300, ")), "{found:?}");
    assert!(recovered(&dir) == found);
}

#[test]
fn frames_that_no_end_of_a_commit_follows_are_written_all_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let db = database(&dir, "PRAGMA synchronous = OFF; PRAGMA cache_size = 10");
    for _ in 0..20 {
        let (done, written) = lengths_of(|| {
            together(|| {
                begin(&db, 60);
                Ok::<(), rusqlite::Error>(())
            })
        });
        done.expect("done");
        assert!(written.iter().sum::<usize>().is_multiple_of(FRAME_BYTES), "{written:?}");
        db.execute_batch("COMMIT").expect("committed");
    }
    let found = rows(&db);
    assert_eq!(found.len(), 20 * 60);
    assert!(recovered(&dir) == found);
}

/// Frames may be written before their commit, and then have checksums anew, pages may be moved in the
/// commit, and the disk may be waited for or not.
#[test]
fn what_is_committed_is_what_plain_sqlite_finds() {
    let vacuums = ["NONE", "FULL"];
    let settings = ["FULL", "OFF"].into_iter().flat_map(|synchronous| {
        [2_000, 10].into_iter().flat_map(move |pages| {
            vacuums.map(|vacuum| {
                format!(
                    "PRAGMA auto_vacuum = {vacuum}; PRAGMA synchronous = {synchronous};
                     PRAGMA cache_size = {pages}; PRAGMA wal_autocheckpoint = 300"
                )
            })
        })
    });
    for settings in settings {
        let dir = tempfile::tempdir().expect("a folder");
        let db = database(&dir, &settings);
        let plain = open(&dir.path().join("some.db"), None);
        for round in 0..30_u32 {
            begin(&db, 1 + round * 15);
            db.execute("UPDATE some SET text = upper(text) WHERE no % 50 = 0", []).expect("set");
            if round % 4 == 2 {
                db.execute("DELETE FROM some WHERE no % 3 > 0", []).expect("deleted");
            }
            if round % 5 == 4 {
                db.execute_batch("ROLLBACK").expect("rolled back");
                // The next writer stands where that was.
                plain.execute("INSERT INTO some (text) VALUES ('between')", []).expect("inserted");
            } else {
                commit(&db).expect("committed");
            }
            assert!(rows(&plain) == rows(&db), "{settings} {round}");
        }
        assert!(recovered(&dir) == rows(&db), "{settings}");
    }
}
