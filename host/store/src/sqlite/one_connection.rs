//! The connection of a store whose work is done by the threads that ask for it.

use std::sync::{Arc, Mutex, PoisonError};

use taskrun_journal::store::StoreError;

use super::writer::WriterStore;

/// A connection that is used by one caller at a time, until it is closed. Clones are the same one.
#[derive(Clone)]
pub(crate) struct OneConnection(Arc<Mutex<Option<WriterStore>>>);

impl OneConnection {
    pub(crate) fn new(store: WriterStore) -> Self {
        Self(Arc::new(Mutex::new(Some(store))))
    }

    /// Works with it on this thread, once no other thread does.
    ///
    /// # Errors
    /// [`StoreError::Closed`] once it is closed. A panic of `work` closes it, and so does a transaction
    /// that `work` left and that cannot be rolled back. Otherwise those of `work`.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&WriterStore) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It is out of its place meanwhile, so that a panic drops it and its transaction.
        let store = place.take().ok_or(StoreError::Closed)?;
        let answer = work(&store);
        if !store.db.is_autocommit() {
            store.db.execute_batch("ROLLBACK").ok();
        }
        if store.db.is_autocommit() {
            *place = Some(store);
        }
        answer
    }

    pub(crate) fn close(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tempfile::TempDir;

    use super::*;
    use crate::sqlite::options::{SqliteOptions, StoreThreads};
    use crate::sqlite::readers::Readers;
    use crate::sqlite::store::SqliteStore;
    use crate::sqlite::writer::TRANSACTIONS_WAITING_MAX;

    fn opened() -> (TempDir, SqliteStore) {
        let dir = tempfile::tempdir().expect("a folder");
        let options = SqliteOptions { threads: StoreThreads::Callers, ..SqliteOptions::default() };
        let store = SqliteStore::open(dir.path(), options).expect("opens");
        (dir, store)
    }

    const MAKE: &str = "CREATE TABLE told (n)";

    #[tokio::test]
    async fn what_callers_ask_at_the_same_time_is_one_commit() {
        let (_dir, store) = opened();
        let insert = |path: &'static str| {
            let sql = "INSERT INTO policies VALUES (?1, 1, 'd', 't', 0, 0)";
            store.writer.submit(0, move |db| Ok(db.execute(sql, [path])?), |_| ())
        };
        let (one, two) = tokio::join!(insert("one"), insert("two"));
        assert_eq!((one.expect("written"), two.expect("written")), (1, 1));
        assert_eq!((store.stats().commits, store.stats().transactions), (1, 2));
    }

    #[tokio::test]
    async fn what_another_caller_committed_is_answered_after_the_store_was_closed() {
        let (_dir, store) = opened();
        let make = |sql: &'static str| {
            store.writer.submit(0, move |db| Ok(db.execute_batch(sql)?), |_| ())
        };
        let mut asks = std::task::Context::from_waker(std::task::Waker::noop());
        let (mut first, mut last) = (Box::pin(make(MAKE)), Box::pin(make("DROP TABLE told")));
        assert!(first.as_mut().poll(&mut asks).is_pending());
        make("INSERT INTO told VALUES (1)").await.expect("both are written");
        assert!(last.as_mut().poll(&mut asks).is_pending());
        store.close();
        first.await.expect("it was written before");
        last.await.expect("closing writes what waits");
        let refused = make(MAKE).await;
        assert!(matches!(refused, Err(StoreError::Closed)), "{refused:?}");
    }

    #[tokio::test]
    async fn transactions_whose_callers_are_gone_keep_nobody_waiting() {
        let (_dir, store) = opened();
        let mut asks = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..=TRANSACTIONS_WAITING_MAX {
            let mut left = Box::pin(store.writer.submit(0, |_| Ok(()), |_| ()));
            assert!(left.as_mut().poll(&mut asks).is_pending());
        }
        store.writer.submit(0, |_| Ok(()), |_| ()).await.expect("written");
    }

    #[tokio::test]
    async fn a_panic_closes_the_store_and_leaves_no_transaction() {
        let (dir, store) = opened();
        let mut fails = Box::pin(store.writer.submit::<(), _, _>(
            0,
            |db| {
                db.execute_batch(MAKE)?;
                panic!("a bug")
            },
            |_| (),
        ));
        let mut asks = std::task::Context::from_waker(std::task::Waker::noop());
        // It lets others join it first.
        assert!(fails.as_mut().poll(&mut asks).is_pending());
        assert!(catch_unwind(AssertUnwindSafe(|| fails.as_mut().poll(&mut asks))).is_err());
        let closed = store.readers.read(|_| Ok(())).await;
        assert!(matches!(closed, Err(StoreError::Closed)), "{closed:?}");
        for _ in 0..2 * TRANSACTIONS_WAITING_MAX {
            let closed = store.writer.submit(0, |_| Ok(()), |_| ()).await;
            assert!(matches!(closed, Err(StoreError::Closed)), "{closed:?}");
        }
        let other = SqliteStore::open(dir.path(), SqliteOptions::default()).expect("opens");
        let made = other.writer.submit(0, |db| Ok(db.execute_batch(MAKE)?), |_| ()).await;
        made.expect("nobody has it locked, and nothing was kept");
    }

    #[tokio::test]
    async fn a_transaction_that_was_left_is_rolled_back() {
        let (_dir, store) = opened();
        let Readers::Caller(connection) = &store.readers else { panic!("it has no threads") };
        let left = connection.with(|store| {
            store.db.execute_batch(&format!("BEGIN IMMEDIATE; {MAKE}")).expect("written");
            Ok(())
        });
        left.expect("it works");
        let made = store.writer.submit(0, |db| Ok(db.execute_batch(MAKE)?), |_| ()).await;
        made.expect("written");
        store.close();
        let closed = store.writer.submit(0, |_| Ok(()), |_| ()).await;
        assert!(matches!(closed, Err(StoreError::Closed)), "{closed:?}");
    }
}
