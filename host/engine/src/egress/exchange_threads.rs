//! The threads that do the work which servers make: reading, parsing, waiting for names.

use std::future::{Future, poll_fn};
use std::pin::pin;

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
pub(crate) struct ExchangeThreads {
    /// With timers and a reactor; `None` for the runtime that spawns.
    runtime: Option<Handle>,
    is_cooperative: bool,
}

impl ExchangeThreads {
    /// Those of a runtime with timers and a reactor.
    pub(crate) fn of(runtime: &Handle) -> Self {
        Self { runtime: Some(runtime.clone()), is_cooperative: false }
    }

    /// The same; they offer the processor to other threads after each poll.
    pub(crate) fn cooperative(runtime: &Handle) -> Self {
        Self { is_cooperative: true, ..Self::of(runtime) }
    }

    /// Starts a task on them.
    ///
    /// # Panics
    /// Outside of a runtime, if it has none of its own.
    pub(super) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match &self.runtime {
            None => Handle::current().spawn(future),
            Some(threads) if self.is_cooperative => threads.spawn(cooperative(future)),
            Some(threads) => threads.spawn(future),
        }
    }
}

/// Offers the processor to other threads after each poll. A server decides how often there is something
/// to read; and Linux lets a thread that has a claim to a processor keep it until the next tick, though
/// one of higher priority waits that had more than its share a moment ago.
async fn cooperative<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        std::thread::yield_now();
        polled
    })
    .await
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
