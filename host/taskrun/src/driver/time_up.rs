//! The end of a run's budget of time while a plan step or calls are under way.

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::stop::StopCause;
use taskrun_journal::time::Clock;

use crate::scope::StopSignal;

/// Stops a plan step, or the calls of a batch, when the run's time is up: those that can hear it
/// are asked and have the grace, the others are interrupted. The run itself goes on to its last
/// word.
pub(super) struct TimeUp {
    clock: Arc<dyn Clock>,
    grace: Duration,
    calls: Vec<(StopSignal, bool)>,
    next: Next,
}

/// The next thing that happens to the calls, with its time on the monotonic clock.
enum Next {
    /// The run has no such budget, or all are stopped.
    Nothing,
    /// They are asked.
    Ask(Duration),
    /// Those that have not ended are interrupted.
    Force(Duration),
}

impl TimeUp {
    /// The time is up at `at` on the monotonic clock; never, if that is `None`.
    pub(super) fn new(clock: Arc<dyn Clock>, at: Option<Duration>, grace: Duration) -> Self {
        Self { clock, grace, calls: Vec::new(), next: at.map_or(Next::Nothing, Next::Ask) }
    }

    /// A bound on what is not the run's work: it never comes.
    pub(super) fn never(clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, None, Duration::ZERO)
    }

    /// A call begins.
    pub(super) fn enter(&mut self, signal: &StopSignal, hears: bool) {
        self.calls.push((signal.clone(), hears));
    }

    /// Returns at the moment of the next [`Self::stop`]; never, if there is none.
    pub(super) fn moment(&self) -> impl Future<Output = ()> + Send + use<> {
        let at = match self.next {
            Next::Nothing => None,
            Next::Ask(at) | Next::Force(at) => Some(at),
        };
        let clock = Arc::clone(&self.clock);
        async move {
            match at {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Asks those under way to stop, or interrupts those that did not when they were asked.
    pub(super) fn stop(&mut self) {
        let force = match self.next {
            Next::Nothing => return,
            Next::Ask(_) => false,
            Next::Force(_) => true,
        };
        // Before anybody hears of it: the grace begins when they are asked.
        self.next = match force {
            true => Next::Nothing,
            false => Next::Force(self.clock.monotonic().saturating_add(self.grace)),
        };
        for (signal, hears) in &self.calls {
            match *hears && !force {
                true => signal.ask(StopCause::RunTimeout),
                false => signal.force(StopCause::RunTimeout),
            }
        }
    }
}
