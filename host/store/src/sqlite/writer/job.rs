//! A logical transaction that waits for the writer.

use rusqlite::Connection;
use taskrun_journal::store::StoreError;
use tokio::sync::oneshot;

use super::super::fault::Fault;

/// One logical transaction.
pub(super) trait Job: Send {
    fn bytes(&self) -> usize;
    /// Does it, keeps the answer, and says whether that is no error.
    fn run(&mut self, db: &Connection, path: &str) -> bool;
    /// True if the answer that is kept is that there is no room for it.
    fn is_full(&self) -> bool;
    /// Answers, once the fate of the commit is known.
    fn answer(self: Box<Self>, commit: Result<(), StoreError>);
}

pub(super) struct Task<T, R, D> {
    run: R,
    done: D,
    bytes: usize,
    outcome: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, R, D> Task<T, R, D> {
    /// A transaction of so many bytes that was not done yet.
    pub(super) fn new(
        bytes: usize,
        run: R,
        done: D,
        reply: oneshot::Sender<Result<T, StoreError>>,
    ) -> Self {
        Self { run, done, bytes, outcome: None, reply }
    }
}

impl<T, R, D> Job for Task<T, R, D>
where
    T: Send,
    R: FnMut(&Connection) -> Result<T, Fault> + Send,
    D: FnOnce(&T) + Send,
{
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn run(&mut self, db: &Connection, path: &str) -> bool {
        let outcome = (self.run)(db).map_err(|fault| fault.at(path));
        let kept = outcome.is_ok();
        self.outcome = Some(outcome);
        kept
    }

    fn is_full(&self) -> bool {
        matches!(self.outcome, Some(Err(StoreError::Full { .. })))
    }

    fn answer(self: Box<Self>, commit: Result<(), StoreError>) {
        let outcome = match (commit, self.outcome) {
            (Ok(()), Some(Ok(value))) => {
                (self.done)(&value);
                Ok(value)
            }
            (_, Some(Err(error))) | (Err(error), _) => Err(error),
            (Ok(()), None) => Err(StoreError::Closed),
        };
        // Whoever gave up waiting has dropped the other end.
        self.reply.send(outcome).ok();
    }
}
