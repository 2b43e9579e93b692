//! Stores with runs of all kinds, of which something is damaged.

use std::collections::BTreeMap;
use std::path::Path;

use taskrun_journal::hold::Wait;
use taskrun_journal::store::Store;
use tempfile::TempDir;

use crate::common::*;

pub(crate) const PAGE: usize = 4096;
/// Bytes of its checksum, at the end of a page.
pub(crate) const SUM: usize = 8;

pub(crate) fn file(dir: &Path) -> std::path::PathBuf {
    dir.join("taskrun.db")
}

/// Runs of all kinds: ended, blocked, wanted, waiting, with labels, of a tree, of two owners.
pub(crate) async fn filled() -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    for n in 0..40_u32 {
        let mut spec = spec(&format!("run-{n:02}"));
        spec.labels = BTreeMap::from([("n".to_owned(), (n % 3).to_string())]);
        spec.owner_user_id = if n % 2 == 0 { "ann" } else { "bob" }.to_owned();
        spec.name = (n % 5 == 0).then(|| format!("name-{n}"));
        spec.parent_app_name = (n % 4 == 0).then(|| "mail".to_owned());
        spec.serial = n % 6 == 0;
        if n % 8 == 1 && n > 1 {
            spec.parent_run_id = Some(run_id("run-01"));
            spec.root_run_id = run_id("run-01");
        }
        create(&store, spec).await;
    }
    for n in 0..25_usize {
        let claimed = store.claim(wish("h", 1, 2_000)).await.expect("claims");
        let Some(run) = claimed.into_iter().next() else { break };
        let notes = vec![note("a"), note(&"long ".repeat(100 * n)), note("b")];
        let run = append(&store, next(&run, 50, 3_000, notes)).await;
        let last = match n % 4 {
            0 => continue,
            1 => vec![blocked(Wait::Word)],
            _ => end(),
        };
        append(&store, next(&run, 60, 4_000 + n as u64, last)).await;
    }
    drop(store);
    let bytes = std::fs::read(file(dir.path())).expect("reads");
    assert!(!dir.path().join("taskrun.db-wal").exists(), "all is in the file");
    bytes
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
