//! The calls of a run that are under way, and how they are stopped.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use taskrun_journal::pin::Pins;
use taskrun_journal::stop::StopCause;
use tokio_util::sync::CancellationToken;

use super::run_rights::RunRights;
use crate::agents::{Agent, Agents};
use crate::scope::{Interrupt, StopSignal};

/// The calls of one run that are under way.
pub(crate) struct Live {
    interrupt: Interrupt,
    asked: CancellationToken,
    given_back: CancellationToken,
    handing_over: CancellationToken,
    pins: Pins,
    asked_at: OnceLock<Duration>,
    rights: OnceLock<RunRights>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    cause: Option<StopCause>,
    /// True while the calls stand still with their host.
    held: bool,
    next: u64,
    calls: Vec<Call>,
    /// The finalizer under way; a cancellation of the run is none of it.
    finalizer: Option<StopSignal>,
}

struct Call {
    key: u64,
    signal: StopSignal,
    hears: bool,
}

/// A call under way; ends with this value.
pub(crate) struct CallGuard<'a> {
    live: &'a Live,
    key: u64,
}

impl Live {
    /// Nothing is under way yet of a run with these pins, which is handed over with its host when
    /// `handing_over` says so.
    pub(crate) fn new(interrupt: Interrupt, pins: Pins, handing_over: CancellationToken) -> Self {
        Self {
            handing_over,
            pins,
            interrupt,
            asked: CancellationToken::new(),
            given_back: CancellationToken::new(),
            asked_at: OnceLock::new(),
            rights: OnceLock::new(),
            inner: Mutex::default(),
        }
    }

    /// The pins of the run.
    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Has the rules of the run follow the policy from now on, which is that of `agents`.
    pub(crate) fn follow_policy(&self, rights: RunRights, agents: impl Fn() -> Arc<Agents>) {
        // It is bound once, as it is executed once.
        let rights = self.rights.get_or_init(|| rights);
        // The policy may have been replaced since they were made, and may be while they are.
        loop {
            let now = agents();
            rights.take_up(&now);
            if Arc::ptr_eq(&now, &agents()) {
                return;
            }
        }
    }

    /// True if the run goes on by itself, and as long as that is not known.
    pub(crate) fn is_autonomous(&self) -> bool {
        self.rights.get().is_none_or(RunRights::is_autonomous)
    }

    /// The agent as this run has it, once it is executed.
    pub(crate) fn agent(&self) -> Option<Arc<Agent>> {
        self.rights.get().map(RunRights::agent)
    }

    /// Takes up the rules of another policy for every decision from now on.
    pub(crate) fn take_up(&self, agents: &Agents) {
        if let Some(rights) = self.rights.get() {
            rights.take_up(agents);
        }
    }

    /// Has the run given back at the next point at which nothing has to be done again.
    pub(crate) fn hand_over(&self) {
        self.handing_over.cancel();
    }

    /// Says when that is so.
    pub(crate) fn handing_over(&self) -> &CancellationToken {
        &self.handing_over
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The signal of what begins now: it stands still if the calls under way do.
    fn signal(&self, inner: &Inner) -> StopSignal {
        let signal = StopSignal::new(self.interrupt.clone());
        if inner.held {
            signal.hold(true);
        }
        signal
    }

    /// Begins a call. If the run is being stopped already, so is the call.
    pub(crate) fn enter(&self, hears: bool) -> (StopSignal, CallGuard<'_>) {
        let mut inner = self.lock();
        let signal = self.signal(&inner);
        let key = inner.next;
        inner.next += 1;
        inner.calls.push(Call { key, signal: signal.clone(), hears });
        let cause = inner.cause;
        drop(inner);
        if let Some(cause) = cause {
            stop(&signal, hears, cause);
        }
        (signal, CallGuard { live: self, key })
    }

    /// Begins the finalizer. If the host is being closed, it is stopped at once.
    pub(crate) fn enter_finalizer(&self) -> (StopSignal, FinalizerGuard<'_>) {
        let mut inner = self.lock();
        let signal = self.signal(&inner);
        inner.finalizer = Some(signal.clone());
        let cause = inner.cause;
        drop(inner);
        if let Some(cause) = cause.filter(|cause| is_the_hosts(*cause)) {
            signal.force(cause);
        }
        (signal, FinalizerGuard(self))
    }

    /// Stops the run: calls that can hear it are asked, the others are forced at once, as there
    /// is nothing to wait for. The first cause counts.
    pub(crate) fn stop(&self, cause: StopCause) {
        let mut inner = self.lock();
        let finalizer = inner.finalizer.clone().filter(|_| is_the_hosts(cause));
        let first = *inner.cause.get_or_insert(cause);
        let calls: Vec<_> = inner.calls.iter().map(|c| (c.signal.clone(), c.hears)).collect();
        drop(inner);
        if let Some(finalizer) = finalizer {
            finalizer.force(cause);
        }
        if is_the_hosts(cause) {
            self.given_back.cancel();
            self.hold(false);
        }
        let cause = first;
        for (signal, hears) in calls {
            stop(&signal, hears, cause);
        }
        self.asked.cancel();
    }

    /// Lets the calls stand still, or go on. Those of a run that the host gives up do not stand
    /// still: they are to come to their end.
    pub(crate) fn hold(&self, held: bool) {
        let mut inner = self.lock();
        inner.held = held && !self.is_given_back();
        // Under the lock, so that the last word counts for each of them.
        for signal in inner.calls.iter().map(|call| &call.signal).chain(&inner.finalizer) {
            signal.hold(inner.held);
        }
    }

    /// Forces every call that was asked.
    pub(crate) fn force(&self) {
        let inner = self.lock();
        let Some(cause) = inner.cause else { return };
        let calls: Vec<_> = inner.calls.iter().map(|c| c.signal.clone()).collect();
        drop(inner);
        for signal in calls {
            signal.force(cause);
        }
    }

    /// Why the run is being stopped, if it is.
    pub(crate) fn cause(&self) -> Option<StopCause> {
        self.lock().cause
    }

    /// True if the host itself stops the run: it goes on elsewhere, or nowhere.
    pub(crate) fn is_given_back(&self) -> bool {
        self.given_back.is_cancelled()
    }

    /// Returns when that is so.
    pub(crate) async fn given_back(&self) {
        self.given_back.cancelled().await;
    }

    /// When somebody first looked after the run was asked to stop; `now` if nobody had.
    pub(crate) fn asked_at(&self, now: Duration) -> Duration {
        *self.asked_at.get_or_init(|| now)
    }

    /// Returns when the run is being stopped.
    pub(crate) async fn asked(&self) {
        self.asked.cancelled().await;
    }
}

/// True if a stop comes from the host itself and not from the run's owner.
fn is_the_hosts(cause: StopCause) -> bool {
    match cause {
        StopCause::Shutdown | StopCause::HandOver | StopCause::LeaseLost => true,
        StopCause::Canceled
        | StopCause::RunTimeout
        | StopCause::Diverged
        | StopCause::Denied
        | StopCause::PushedBack
        | StopCause::JournalFull => false,
    }
}

/// The finalizer under way; ends with this value.
pub(crate) struct FinalizerGuard<'a>(&'a Live);

impl Drop for FinalizerGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().finalizer = None;
    }
}

fn stop(signal: &StopSignal, hears: bool, cause: StopCause) {
    if hears {
        signal.ask(cause);
    } else {
        signal.force(cause);
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.live.lock().calls.retain(|call| call.key != self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    fn is_held(signal: &StopSignal) -> bool {
        signal.is_held(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn what_begins_while_the_host_stands_still_is_held_until_it_goes_on() {
        let pins = Pins::from_text(String::new());
        let live = Live::new(Arc::new(|| {}), pins, CancellationToken::new());
        live.hold(true);
        let (call, _in_call) = live.enter(false);
        let (finalizer, _in_finalizer) = live.enter_finalizer();
        assert_eq!((is_held(&call), is_held(&finalizer)), (true, true));
        live.hold(false);
        assert_eq!((is_held(&call), is_held(&finalizer)), (false, false));
    }
}
