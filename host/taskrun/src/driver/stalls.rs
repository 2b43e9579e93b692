//! The times at which a run stands still, as its host or its store does, and a clock that stands
//! still with it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::time::{Clock, Timestamp};
use tokio::sync::watch;

/// The times at which a run stands still.
pub(crate) struct Stalls {
    clock: Arc<dyn Clock>,
    state: watch::Sender<StallTimes>,
}

#[derive(Clone, Copy, Default)]
struct StallTimes {
    /// Reasons to stand still at this moment.
    reasons: u32,
    /// Since when there are any.
    since: Duration,
    /// All the time before that in which there were some.
    before: Duration,
}

/// A reason to stand still; ends with this value.
pub(crate) struct Stall(Arc<Stalls>);

impl Stalls {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: watch::Sender::default() })
    }

    /// Sleeps by a clock that does not stand still.
    pub(super) async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Stall {
        let now = self.clock.monotonic();
        self.state.send_modify(|stood| {
            if stood.reasons == 0 {
                stood.since = now;
            }
            stood.reasons += 1;
        });
        Stall(Arc::clone(self))
    }

    /// The time for which the run has stood still in all.
    fn total(&self) -> Duration {
        let stood = *self.state.borrow();
        match stood.reasons {
            0 => stood.before,
            _ => stood.before + self.clock.monotonic().saturating_sub(stood.since),
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        let now = self.0.clock.monotonic();
        self.0.state.send_modify(|stood| {
            stood.reasons -= 1;
            if stood.reasons == 0 {
                stood.before += now.saturating_sub(stood.since);
            }
        });
    }
}

/// A clock whose time since its beginning passes only while the run does not stand still. The time
/// of day is everybody's.
pub(crate) struct RunClock(pub(crate) Arc<Stalls>);

#[async_trait]
impl Clock for RunClock {
    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.clock.monotonic().saturating_sub(self.0.total())
    }

    async fn sleep_until(&self, at: Duration) {
        while self.monotonic() < at {
            // While it stands still this is too early, and the rest is waited for afterwards.
            self.0.clock.sleep_until(at.saturating_add(self.0.total())).await;
            let mut state = self.0.state.subscribe();
            // The sender is there as long as the clock is.
            state.wait_for(|stood| stood.reasons == 0).await.ok();
        }
    }
}
