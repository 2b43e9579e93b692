//! The threads that do the work which servers make: reading, parsing, waiting for names.

use std::future::Future;

use hyper::rt::Executor;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::threads::Lane;

/// One of each: for calls that have a slice left, and for the others.
#[derive(Debug, Clone, Default)]
pub(crate) struct ByLane<T> {
    pub(crate) first: T,
    pub(crate) share: T,
}

impl<T> ByLane<T> {
    /// The one for a call that is polled on this lane.
    pub(super) fn of(&self, lane: Lane) -> &T {
        match lane {
            Lane::Owner | Lane::First => &self.first,
            Lane::Share | Lane::Behind => &self.share,
        }
    }
}

/// The runtime of exchanges, with their timers and connections: that of these threads, or the current
/// one.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExchangeThreads(Option<Handle>);

impl ExchangeThreads {
    /// Those of a runtime with timers and a reactor; `None` for those of the runtime that spawns.
    pub(crate) fn new(runtime: Option<Handle>) -> Self {
        Self(runtime)
    }

    /// Starts a task on them.
    ///
    /// # Panics
    /// Outside of a runtime, if it has none of its own.
    pub(super) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match &self.0 {
            None => Handle::current().spawn(future),
            Some(threads) => threads.spawn(future),
        }
    }
}

impl<F> Executor<F> for ExchangeThreads
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        // Tasks of a client end by themselves, with their connection.
        drop(self.spawn(future));
    }
}
