//! The signal that stops a call, in two grades.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Context;
use std::time::Duration;

use futures::task::AtomicWaker;
use taskrun_journal::stop::StopCause;
use tokio_util::sync::CancellationToken;

use crate::clock::process_time;

/// Stops calls in two grades: first asks, then forces. Clones are the same signal.
#[derive(Clone)]
pub struct StopSignal(Arc<StopInner>);

struct StopInner {
    asked: CancellationToken,
    forced: CancellationToken,
    cause: OnceLock<StopCause>,
    held: AtomicBool,
    held_time: Mutex<HeldTime>,
    /// The task that would poll the call, were it not held.
    poller: AtomicWaker,
    /// Makes running guests look at their signal now instead of at the next tick.
    interrupt: Interrupt,
}

/// The times for which a call stood still, by [`process_time`].
#[derive(Default)]
struct HeldTime {
    /// Since when it does.
    since: Option<Duration>,
    /// All the time before that.
    before: Duration,
}

/// Makes every running guest of the engine look at its [`StopSignal`] now. Cheap and harmless to
/// those that are not meant.
pub type Interrupt = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopSignal")
            .field("cause", &self.cause())
            .field("forced", &self.is_forced())
            .finish()
    }
}

impl StopSignal {
    /// A signal that is not given yet.
    #[must_use]
    pub fn new(interrupt: Interrupt) -> Self {
        Self(Arc::new(StopInner {
            asked: CancellationToken::new(),
            forced: CancellationToken::new(),
            cause: OnceLock::new(),
            held: AtomicBool::new(false),
            held_time: Mutex::default(),
            poller: AtomicWaker::new(),
            interrupt,
        }))
    }

    /// A signal for callers that stop calls by dropping them.
    #[must_use]
    pub fn never() -> Self {
        Self::new(Arc::new(|| {}))
    }

    /// Asks to stop. The first cause counts.
    pub fn ask(&self, cause: StopCause) {
        // A second cause changes nothing.
        self.0.cause.set(cause).ok();
        self.0.asked.cancel();
    }

    /// Forces the stop: running guests are interrupted.
    pub fn force(&self, cause: StopCause) {
        self.ask(cause);
        self.0.forced.cancel();
        self.0.poller.wake();
        (self.0.interrupt)();
    }

    /// Lets the call stand still, or go on. One that stands still is not resumed once it has
    /// yielded, wherever it is polled; its stop can be forced all the same.
    pub(crate) fn hold(&self, held: bool) {
        let now = process_time();
        let mut time = self.0.held_time.lock().unwrap_or_else(PoisonError::into_inner);
        if held {
            time.since.get_or_insert(now);
        } else if let Some(since) = time.since.take() {
            time.before += now.saturating_sub(since);
        }
        drop(time);
        self.0.held.store(held, Ordering::SeqCst);
        match held {
            true => (self.0.interrupt)(),
            false => self.0.poller.wake(),
        }
    }

    /// The time for which the call has stood still in all, which is none of its own.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        let time = self.0.held_time.lock().unwrap_or_else(PoisonError::into_inner);
        let now = time.since.map(|since| process_time().saturating_sub(since));
        time.before + now.unwrap_or_default()
    }

    /// True if the call stands still. The task that asks in order to poll it is woken when it may
    /// go on; one call is polled by one task.
    #[must_use]
    pub fn is_held(&self, context: &Context<'_>) -> bool {
        if !self.0.held.load(Ordering::SeqCst) {
            return false;
        }
        self.0.poller.register(context.waker());
        self.0.held.load(Ordering::SeqCst)
    }

    /// The cause, once a stop was asked for.
    #[must_use]
    pub fn cause(&self) -> Option<StopCause> {
        self.0.cause.get().copied()
    }

    /// True if a stop was asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.asked.is_cancelled()
    }

    /// True if the stop is forced.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.0.forced.is_cancelled()
    }

    /// Returns when a stop is asked for.
    pub async fn asked(&self) {
        self.0.asked.cancelled().await;
    }

    /// Returns when the stop is forced.
    pub async fn forced(&self) {
        self.0.forced.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_which_a_call_stands_still_is_counted_until_it_goes_on() {
        let signal = StopSignal::never();
        assert_eq!(signal.held_for(), Duration::ZERO);
        signal.hold(true);
        while signal.held_for().is_zero() {
            std::thread::yield_now();
        }
        // Said once more it is the same standstill.
        signal.hold(true);
        signal.hold(false);
        let held = signal.held_for();
        assert!(!held.is_zero());
        let later = process_time();
        while process_time() == later {
            std::thread::yield_now();
        }
        assert_eq!(signal.held_for(), held);
    }
}
