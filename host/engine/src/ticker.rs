//! The thread that makes guests look up: it has nothing else to do, so no guest can starve it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Time between two looks of a guest at its slice, deadline and stop signal.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Ticks without a guest after which the thread rests until there is one. Long enough that a run
/// of short calls wakes it once, and short enough that an idle host does nothing.
const IDLE_TICKS: u32 = 100;
/// Time that the thread rests before what is done once at rest.
const REST: Duration = Duration::from_millis(900);

/// Ticks while guests are on a processor, until dropped.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct Shared {
    /// Times that a guest was polled, and that it came back.
    begun: AtomicU64,
    ended: AtomicU64,
    rests: AtomicBool,
    stopped: AtomicBool,
}

/// A guest that is on a processor; ends with this value.
#[derive(Debug)]
pub(crate) struct OnProcessor<'a>(&'a Shared);

impl Drop for OnProcessor<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

impl Ticker {
    /// Starts the thread. It holds the engine weakly and ends with it in any case. It calls
    /// `at_rest` once each time that no guest ran for a second, and has to come back from it soon.
    pub(crate) fn start(
        engine: &wasmtime::Engine,
        at_rest: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (own, engine) = (Arc::clone(&shared), engine.weak());
        let ticks = move || tick(&own, &engine, &at_rest);
        let thread = taskrun_priority::spawn("taskrun-epoch", ticks)?.thread().clone();
        Ok(Self { shared, thread })
    }

    /// A guest is polled from now on.
    pub(crate) fn guest(&self) -> OnProcessor<'_> {
        // In one order with what the thread does before it rests: one of the two sees the other.
        self.shared.begun.fetch_add(1, Ordering::SeqCst);
        if self.shared.rests.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        OnProcessor(&self.shared)
    }

    #[cfg(test)]
    pub(crate) fn rests(&self) -> bool {
        self.shared.rests.load(Ordering::SeqCst)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

fn tick(shared: &Shared, engine: &wasmtime::EngineWeak, at_rest: &dyn Fn()) {
    let (mut seen, mut idle) = (0, 0);
    loop {
        std::thread::park_timeout(TICK);
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        let begun = shared.begun.load(Ordering::SeqCst);
        let is_idle = begun == seen && shared.ended.load(Ordering::Acquire) == begun;
        seen = begun;
        if is_idle {
            idle += 1;
            if idle == IDLE_TICKS {
                idle = 0;
                rest(shared, begun, at_rest);
            }
            continue;
        }
        idle = 0;
        match engine.upgrade() {
            Some(engine) => engine.increment_epoch(),
            None => return,
        }
    }
}

/// Waits for the next guest, unless one has begun.
fn rest(shared: &Shared, seen: u64, at_rest: &dyn Fn()) {
    shared.rests.store(true, Ordering::SeqCst);
    let is_wanted =
        || shared.begun.load(Ordering::SeqCst) != seen || shared.stopped.load(Ordering::SeqCst);
    // It may come back earlier, and then all that follows is done earlier.
    std::thread::park_timeout(REST);
    if !is_wanted() {
        at_rest();
    }
    while !is_wanted() {
        std::thread::park();
    }
    shared.rests.store(false, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until something is so.
    fn until(is_so: impl Fn() -> bool) {
        for _ in 0..60_000 {
            if is_so() {
                return;
            }
            std::thread::park_timeout(TICK);
        }
        panic!("not in time");
    }

    #[test]
    fn the_thread_rests_while_no_guest_runs() {
        let engine = wasmtime::Engine::new(&crate::config::base()).unwrap();
        let ticker = Ticker::start(&engine, || ()).unwrap();
        for _ in 0..2 {
            until(|| ticker.rests());
            let guest = ticker.guest();
            until(|| !ticker.rests());
            // It does not while there is one, however long that takes.
            for _ in 0..2 * IDLE_TICKS {
                std::thread::park_timeout(TICK);
                assert!(!ticker.rests());
            }
            drop(guest);
        }
    }
    #[test]
    fn each_rest_is_told_once() {
        let engine = wasmtime::Engine::new(&crate::config::base()).unwrap();
        let rests = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&rests);
        let count = move || {
            theirs.fetch_add(1, Ordering::SeqCst);
        };
        let ticker = Ticker::start(&engine, count).unwrap();
        for told in 1..3 {
            until(|| rests.load(Ordering::SeqCst) == told);
            std::thread::park_timeout(2 * REST);
            assert_eq!(rests.load(Ordering::SeqCst), told);
            drop(ticker.guest());
        }
    }
}
