use super::super::idle::tests::kept_bytes;
use super::super::store::SqliteStore;
use super::*;
use crate::sqlite::SqliteOptions;

#[tokio::test]
async fn a_writer_at_rest_gives_back_its_pages() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(dir.path(), Default::default()).expect("opens");
    let fill = |db: &rusqlite::Connection| {
        db.execute_batch(
            "CREATE TABLE t AS
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
             SELECT printf('%0500d', i) AS a FROM n",
        )?;
        Ok(kept_bytes(db))
    };
    let kept = store.writer.submit(0, fill, |_| ()).await.expect("written");
    assert!(kept > 1 << 20, "{kept}");
    let now = async || store.writer.submit(0, |db| Ok(kept_bytes(db)), |_| ()).await;
    tokio::time::timeout(Duration::from_secs(30), async {
        while now().await.expect("answers") > 64 << 10 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("it rests");
}

#[tokio::test]
async fn a_store_at_rest_says_so_after_each_time_that_it_was_written() {
    static TOLD: tokio::sync::Notify = tokio::sync::Notify::const_new();
    fn tell() {
        TOLD.notify_one();
    }
    let dir = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions { at_rest: Some(tell), ..SqliteOptions::default() };
    let store = SqliteStore::open(dir.path(), options).expect("opens");
    for _ in 0..3 {
        store.writer.submit(0, |_| Ok(()), |_| ()).await.expect("written");
        tokio::time::timeout(Duration::from_secs(30), TOLD.notified()).await.expect("it is told");
    }
}
