//! Artifacts in a file: what is damaged is never served, and nothing stays that nobody names.

mod common;

use common::*;
use taskrun_journal::artifact::digest;
use taskrun_journal::list::Scope;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Removal, Store, StoreError};
use taskrun_journal::time::Timestamp;
use taskrun_store::SqliteStore;
use tempfile::TempDir;

const BYTES: &[u8] = b"more than fits";

async fn ended_with(store: &SqliteStore, spec: RunSpec, bytes: &[u8]) {
    create(store, spec).await;
    let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    append(store, end_with(&run, 50, 3_000, bytes)).await;
}

async fn get(store: &SqliteStore, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let kept = store.artifact(&run_id(id), &digest(BYTES)).await?;
    Ok(kept.map(|bytes| bytes.to_vec()))
}

fn rows(dir: &TempDir, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    stranger(dir).query_row(&sql, [], |row| row.get(0)).expect("counts")
}

#[tokio::test]
async fn an_artifact_is_there_when_the_store_is_opened_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    ended_with(&store, spec("r"), BYTES).await;
    drop(store);
    assert_eq!(get(&open(&dir), "r").await.expect("reads").as_deref(), Some(BYTES));
}

#[tokio::test]
async fn equal_bytes_are_kept_once_for_each_tenant() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    ended_with(&store, spec("a"), BYTES).await;
    ended_with(&store, spec("b"), BYTES).await;
    assert_eq!((rows(&dir, "blobs"), rows(&dir, "artifacts")), (1, 2));
    ended_with(&store, RunSpec { tenant: "zeta".to_owned(), ..spec("c") }, BYTES).await;
    assert_eq!((rows(&dir, "blobs"), rows(&dir, "artifacts")), (2, 3));
    let removal = Removal {
        scope: Some(Scope::tenant("acme")),
        before: Timestamp(9_000),
        limit: 1,
        dry_run: false,
    };
    store.remove(removal.clone()).await.expect("removes");
    assert_eq!((rows(&dir, "blobs"), rows(&dir, "artifacts")), (2, 2));
    store.remove(removal).await.expect("removes");
    assert_eq!((rows(&dir, "blobs"), rows(&dir, "artifacts")), (1, 1));
    assert_eq!(get(&store, "c").await.expect("reads").as_deref(), Some(BYTES));
}

#[tokio::test]
async fn no_flipped_bit_of_an_artifact_is_served() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    ended_with(&store, spec("r"), BYTES).await;
    for place in 0..BYTES.len() {
        for bit in 0..8 {
            let mut flipped = BYTES.to_vec();
            flipped[place] ^= 1 << bit;
            stranger(&dir).execute("UPDATE blobs SET bytes = ?1", [flipped]).expect("writes");
            let refused = get(&store, "r").await;
            assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
        }
    }
    // Whoever brings the bytes again mends them for all.
    ended_with(&store, spec("other"), BYTES).await;
    assert_eq!(get(&store, "r").await.expect("reads").as_deref(), Some(BYTES));
}

#[tokio::test]
async fn an_artifact_that_is_gone_is_missed() {
    for damage in [
        "DELETE FROM blobs",
        "DELETE FROM artifacts",
        "UPDATE artifacts SET run = 7",
        "UPDATE artifacts SET blob = 7",
        "UPDATE blobs SET hash = 'another'",
        "UPDATE blobs SET size = size + 1",
        "UPDATE blobs SET bytes = substr(bytes, 2)",
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        let store = open(&dir);
        ended_with(&store, spec("r"), BYTES).await;
        stranger(&dir).execute_batch(damage).expect("damages");
        let refused = get(&store, "r").await;
        assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{damage}: {refused:?}");
        assert_eq!(get(&store, "nobody").await.expect("answers"), None);
    }
}
