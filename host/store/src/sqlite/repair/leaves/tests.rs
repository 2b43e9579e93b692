use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, params};

use super::*;
use crate::sqlite::{layer, sums};

/// A file of SQLite's, laid out as a store, with a table of three columns.
fn file(dir: &Path) -> (PathBuf, Connection) {
    let file = dir.join("some.db");
    layer::register().expect("registered");
    let flags = OpenFlags::default();
    let db = Connection::open_with_flags_and_vfs(&file, flags, layer::LAYER).expect("opens");
    db.execute_batch("PRAGMA page_size = 4096").expect("set");
    sums::reserve(&db).expect("reserved");
    db.execute_batch(
        "PRAGMA auto_vacuum = INCREMENTAL;
         CREATE TABLE some (no INTEGER PRIMARY KEY, a, b);
         CREATE TABLE other (no INTEGER PRIMARY KEY, a)",
    )
    .expect("made");
    (file, db)
}

fn insert(db: &Connection, no: i64, a: &Value, b: &Value) {
    let inserted = db.execute("INSERT INTO some VALUES (?1, ?2, ?3)", params![no, a, b]);
    assert_eq!(inserted, Ok(1), "row {no}");
    db.execute("INSERT INTO other VALUES (?1, ?2)", params![no, a]).expect("inserted");
}

/// The rows of three columns that are found, in the order of their numbers.
fn found(file: &Path) -> Vec<LeafRow> {
    let mut found = Vec::new();
    let read = rows(&SummedFile::open(file).expect("opens"), 3, |row| {
        found.push(row);
        Ok(())
    });
    read.expect("reads");
    found.sort_by_key(|row| row.number);
    found
}

#[test]
fn rows_are_what_sqlite_wrote() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, db) = file(dir.path());
    let bits = [0, 1, 2, 7, 8, 15, 23, 31, 47, 62];
    let mut numbers: Vec<i64> = bits.iter().flat_map(|n| [1_i64 << n, -(1_i64 << n) - 1]).collect();
    numbers.extend([0, -1, i64::MIN, i64::MAX]);
    let others = [
        Value::Null,
        Value::Real(-0.5),
        Value::Text(String::new()),
        Value::Text("fünf".to_owned()),
        Value::Blob(vec![0xff; 3]),
    ];
    for (no, other) in numbers.iter().zip(others.iter().cycle()) {
        insert(&db, *no, &Value::Integer(*no), other);
    }
    // Around those that fill a leaf, or a leaf and one further page.
    let lengths = (480..500).chain(4_020..4_060).chain(8_110..8_160).chain([100_000]);
    for (length, no) in lengths.zip(1_000..) {
        insert(&db, no, &Value::Null, &Value::Text("x".repeat(length)));
    }
    let mut sql = db.prepare("SELECT no, a, b FROM some ORDER BY no").expect("a statement");
    let written = sql.query_map([], |row| {
        let values = vec![Value::Null, row.get(1)?, row.get(2)?];
        Ok(LeafRow { number: row.get(0)?, values, is_in_use: true })
    });
    let written = written.expect("selects").collect::<rusqlite::Result<Vec<_>>>();
    assert!(found(&file) == written.expect("rows"), "a row is another, or not there");
}

#[test]
fn rows_on_free_pages_are_told_from_others_by_the_map_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, db) = file(dir.path());
    for no in 1..=40 {
        insert(&db, no, &Value::Null, &Value::Blob(vec![7; 3_000]));
    }
    db.execute("DELETE FROM some WHERE no > 5", []).expect("deleted");
    drop(db);
    let numbers = |rows: &[LeafRow]| rows.iter().map(|row| row.number).collect::<Vec<_>>();
    let rows = found(&file);
    assert_eq!(numbers(&rows), [1, 2, 3, 4, 5]);
    assert!(rows.iter().all(|row| row.is_in_use));
    let mut bytes = std::fs::read(&file).expect("reads");
    bytes[PAGE_BYTES..2 * PAGE_BYTES].fill(0);
    std::fs::write(&file, bytes).expect("writes");
    let rows = found(&file);
    assert!(rows.iter().any(|row| row.number > 5), "{:?}", numbers(&rows));
    assert!(!rows.iter().any(|row| row.is_in_use), "nothing tells");
}

/// The numbers of the pages of a kind that the table has.
fn pages(db: &Connection, kind: &str) -> Vec<usize> {
    let sql = "SELECT pageno FROM dbstat WHERE name = 'some' AND pagetype = ?1 ORDER BY path";
    let mut sql = db.prepare(sql).expect("a statement");
    let pages = sql.query_map([kind], |row| row.get::<_, i64>(0)).expect("selects");
    pages.map(|page| usize::try_from(page.expect("a page")).expect("small")).collect()
}

#[test]
fn bytes_that_are_no_rows_are_passed_over() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, db) = file(dir.path());
    for (no, length) in [(1, 10), (2, 5_000), (3, 200)] {
        insert(&db, no, &Value::Integer(no), &Value::Blob(vec![7; length]));
    }
    let (leaf, further) = (pages(&db, "leaf"), pages(&db, "overflow"));
    let (leaf, further) = ((leaf[0] - 1) * PAGE_BYTES, (further[0] - 1) * PAGE_BYTES);
    drop(db);
    let bytes = std::fs::read(&file).expect("reads");
    let page: Page = bytes[leaf..leaf + PAGE_BYTES].try_into().expect("a page");
    // The rows fill the leaf from its end, each one before the last.
    let places = [0, 1, 2].map(|n| usize::from(short(&page, PLACES + 2 * n)));
    let ends = [USABLE, places[0], places[1]];
    let way = PLACES + 2 * places.len();
    let on_leaf = (0..way).chain((places[2]..USABLE).step_by(7)).map(|at| leaf + at);
    for place in on_leaf.chain((0..NEXT_BYTES + 2).map(|at| further + at)) {
        let mut harmed = bytes.clone();
        harmed[place] ^= 0xff;
        std::fs::write(&file, harmed).expect("writes");
        let found = found(&file);
        // What kind of page it is, and the count and the places of its rows.
        let at = place.checked_sub(leaf).filter(|at| *at < PAGE_BYTES);
        let is_of_way =
            |at: usize| at == 0 || (ROWS..ROWS + 2).contains(&at) || (PLACES..way).contains(&at);
        if at.is_some_and(is_of_way) {
            continue;
        }
        assert!(found.len() <= 3, "byte {place}: {} rows", found.len());
        for (n, (no, length)) in [(1, 10), (2, 5_000), (3, 200)].into_iter().enumerate() {
            let is_harmed = match at {
                Some(at) => (places[n]..ends[n]).contains(&at),
                None => no == 2,
            };
            let values = vec![Value::Null, Value::Integer(no), Value::Blob(vec![7; length])];
            let written = LeafRow { number: no, values, is_in_use: true };
            assert!(is_harmed || found.contains(&written), "byte {place}: row {no}");
        }
    }
    std::fs::write(&file, &bytes[..bytes.len() - PAGE_BYTES / 2]).expect("writes");
    assert!(found(&file).len() <= 3);
}

#[test]
fn further_pages_that_lead_back_are_those_of_no_row() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, db) = file(dir.path());
    for (no, length) in [(1, 10), (2, 100_000), (3, 200)] {
        insert(&db, no, &Value::Null, &Value::Blob(vec![7; length]));
    }
    let further = pages(&db, "overflow");
    drop(db);
    let whole = std::fs::read(&file).expect("reads");
    assert_eq!(found(&file).len(), 3);
    // To itself, and to one of those before it.
    for (from, to) in [(0, 0), (6, 6), (9, 7)] {
        let mut bytes = whole.clone();
        let next = u32::try_from(further[to]).expect("small").to_be_bytes();
        let at = (further[from] - 1) * PAGE_BYTES;
        bytes[at..at + NEXT_BYTES].copy_from_slice(&next);
        std::fs::write(&file, bytes).expect("writes");
        let numbers: Vec<i64> = found(&file).iter().map(|row| row.number).collect();
        assert_eq!(numbers, [1, 3], "{from} to {to}");
    }
}

#[test]
fn a_place_that_a_leaf_names_twice_is_that_of_one_row() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, db) = file(dir.path());
    insert(&db, 1, &Value::Null, &Value::Blob(vec![7; 10]));
    let leaf = (pages(&db, "leaf")[0] - 1) * PAGE_BYTES;
    drop(db);
    let mut bytes = std::fs::read(&file).expect("reads");
    let place = [bytes[leaf + PLACES], bytes[leaf + PLACES + 1]];
    for n in 1..100 {
        bytes[leaf + PLACES + 2 * n..][..2].copy_from_slice(&place);
    }
    bytes[leaf + ROWS + 1] = 100;
    std::fs::write(&file, bytes).expect("writes");
    assert_eq!(found(&file).len(), 1);
}

#[test]
fn a_row_has_no_more_bytes_than_its_file() {
    let mut page = [0; PAGE_BYTES];
    // Of 16,384 bytes, as its first three ones say.
    page[0..3].copy_from_slice(&[0x81, 0x80, 0x00]);
    assert!(Cell::at(&page, 0, row_bytes_max(5)).is_some());
    assert!(Cell::at(&page, 0, row_bytes_max(4)).is_none());
    assert_eq!(row_bytes_max(i64::MAX), 1_000_000_000);
}

#[test]
fn no_more_further_pages_are_read_than_a_file_has() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, db) = file(dir.path());
    insert(&db, 1, &Value::Null, &Value::Blob(vec![7; 10_000]));
    drop(db);
    let file = SummedFile::open(&file).expect("opens");
    let mut further = FurtherPages { file: &file, left: file.pages };
    let mut page = [0; PAGE_BYTES];
    for n in 0..=file.pages {
        let is_read = further.read(1, &mut page).expect("reads");
        assert_eq!(is_read, n < file.pages, "page {n}");
    }
}
