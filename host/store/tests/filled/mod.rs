//! A store with runs of all kinds.

use std::collections::BTreeMap;

use taskrun_journal::hold::Wait;
use taskrun_journal::store::Store;

use crate::common::*;
use crate::damaged::file;

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
