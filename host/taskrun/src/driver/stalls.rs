//! The times at which a run stands still, as its host or its store does, and the clocks that stand
//! still with it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::time::{Clock, Timestamp};
use tokio::sync::watch;

use crate::clock::ProcessTimeUse;

/// The times at which a run stands still.
pub(crate) struct Stalls {
    clock: Arc<RunClock>,
    machine: Arc<RunClock>,
}

/// A reason to stand still; ends with this value.
pub(crate) struct Stall(Arc<Stalls>);

impl Stalls {
    /// The standstills are measured by the clock of runs and by that of the machine: either may be
    /// faster than the other.
    pub(crate) fn new(clock: Arc<dyn Clock>, machine: Arc<dyn Clock>) -> Arc<Self> {
        let process_time = Arc::new(ProcessTimeUse::begin());
        let of = |clock| Arc::new(RunClock::new(clock, Arc::clone(&process_time)));
        Arc::new(Self { clock: of(clock), machine: of(machine) })
    }

    /// The time of the run.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// The machine's time, as far as the run did not stand still.
    pub(crate) fn machine(&self) -> Arc<dyn Clock> {
        self.machine.clone()
    }

    /// Sleeps by a clock that does not stand still.
    pub(super) async fn sleep(&self, duration: Duration) {
        self.clock.inner.sleep(duration).await;
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Stall {
        self.clock.stop();
        self.machine.stop();
        Stall(Arc::clone(self))
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.0.clock.go_on();
        self.0.machine.go_on();
    }
}

/// A clock whose time since its beginning passes only while the run does not stand still. The time
/// of day is everybody's.
struct RunClock {
    inner: Arc<dyn Clock>,
    state: watch::Sender<StallTimes>,
    /// The time in which the process stands still as a whole is none of the machine's clock.
    _process_time: Arc<ProcessTimeUse>,
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

impl RunClock {
    fn new(inner: Arc<dyn Clock>, process_time: Arc<ProcessTimeUse>) -> Self {
        Self { inner, state: watch::Sender::default(), _process_time: process_time }
    }

    /// There is one more reason to stand still.
    fn stop(&self) {
        let now = self.inner.monotonic();
        self.state.send_modify(|stood| {
            if stood.reasons == 0 {
                stood.since = now;
            }
            stood.reasons += 1;
        });
    }

    /// There is one reason less.
    fn go_on(&self) {
        let now = self.inner.monotonic();
        self.state.send_modify(|stood| {
            stood.reasons -= 1;
            if stood.reasons == 0 {
                stood.before += now.saturating_sub(stood.since);
            }
        });
    }

    /// The time for which the run has stood still in all.
    fn total(&self) -> Duration {
        let stood = *self.state.borrow();
        match stood.reasons {
            0 => stood.before,
            _ => stood.before + self.inner.monotonic().saturating_sub(stood.since),
        }
    }
}

#[async_trait]
impl Clock for RunClock {
    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn monotonic(&self) -> Duration {
        self.inner.monotonic().saturating_sub(self.total())
    }

    async fn sleep_until(&self, at: Duration) {
        while self.monotonic() < at {
            // While it stands still this is too early, and the rest is waited for afterwards.
            self.inner.sleep_until(at.saturating_add(self.total())).await;
            let mut state = self.state.subscribe();
            // The sender is there as long as the clock is.
            state.wait_for(|stood| stood.reasons == 0).await.ok();
        }
    }
}
