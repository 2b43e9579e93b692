//! The compilations that go on at once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::time::Clock;
use tokio::sync::Semaphore;

/// Compilations that begin or are young.
const AT_ONCE_MAX: usize = 2;
/// Those that are older, beside these.
const LONG_MAX: usize = 2;
/// Age of a compilation that makes place for another one: most have ended by then.
const YOUNG: Duration = Duration::from_secs(10);

/// The turns of compilations. One that takes long gives its turn to the next one and goes on, so that
/// few that take as long as they may do not hold up all others.
pub(super) struct CompileTurns {
    young: Semaphore,
    long: Semaphore,
    clock: Arc<dyn Clock>,
}

impl CompileTurns {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let [young, long] = [AT_ONCE_MAX, LONG_MAX].map(Semaphore::new);
        Self { young, long, clock }
    }

    /// Compiles when it is its turn.
    pub(super) async fn take<T>(&self, compile: impl Future<Output = T>) -> T {
        let mut turn = self.young.acquire().await.ok();
        let mut compile = pin!(compile);
        let old_at = self.clock.monotonic().saturating_add(YOUNG);
        tokio::select! {
            biased;
            done = &mut compile => return done,
            () = self.clock.sleep_until(old_at) => {}
        }
        // Where as many take long it keeps its turn: they are bounded all together.
        let place = self.long.try_acquire().ok();
        if place.is_some() {
            turn.take();
        }
        compile.await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::task::{Context, Waker};

    use taskrun::clock::SimulatedClock;
    use taskrun_journal::time::Timestamp;

    use super::*;

    #[test]
    fn those_that_take_long_make_place_for_others_until_they_are_too_many() {
        let clock = Arc::new(SimulatedClock::new(Timestamp(0)));
        let turns = CompileTurns::new(clock.clone());
        let mut asks = Context::from_waker(Waker::noop());
        let mut endless: Vec<_> = (0..6).map(|_| Box::pin(turns.take(pending::<()>()))).collect();
        // True if an honest one is served beside the first few that never end.
        let mut served = |count: usize| {
            for one in &mut endless[..count] {
                assert!(one.as_mut().poll(&mut asks).is_pending());
            }
            pin!(turns.take(async {})).poll(&mut asks).is_ready()
        };
        assert!(served(1));
        assert!(!served(2), "both have a turn");
        clock.advance(YOUNG);
        assert!(served(2), "both are old");
        assert!(served(3));
        assert!(!served(4), "two more have a turn");
        clock.advance(YOUNG);
        assert!(!served(4), "as many as may take long do so already");
    }
}
