//! Files of stores of which something is damaged.

use std::path::Path;

use tempfile::TempDir;

use crate::common::*;

pub(crate) const PAGE: usize = 4096;
/// Bytes of its checksum, at the end of a page.
pub(crate) const SUM: usize = 8;

pub(crate) fn file(dir: &Path) -> std::path::PathBuf {
    dir.join("taskrun.db")
}

pub(crate) fn store_of(bytes: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(file(dir.path()), bytes).expect("writes");
    dir
}

/// The pages of one type of a table or index, by number.
pub(crate) fn pages_of(bytes: &[u8], name: &str, kind: &str) -> Vec<usize> {
    let dir = store_of(bytes);
    drop(open(&dir));
    let db = stranger(&dir);
    let mut sql = db.prepare("SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = ?2");
    let sql = sql.as_mut().expect("it can be asked");
    let pages = sql.query_map([name, kind], |row| row.get::<_, i64>(0)).expect("selects");
    pages.map(|page| usize::try_from(page.expect("a number")).expect("small")).collect()
}

/// A store with one bit flipped in a page, whose checksum is left as it is or taken away, as from a
/// page that another program wrote.
pub(crate) fn flipped(bytes: &[u8], place: usize, with_sum: bool) -> TempDir {
    let mut bytes = bytes.to_vec();
    bytes[place] ^= 0x01;
    if !with_sum {
        let end = (place / PAGE + 1) * PAGE;
        bytes[end - SUM..end].fill(0);
    }
    store_of(&bytes)
}
