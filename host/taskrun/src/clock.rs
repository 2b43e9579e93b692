//! Clocks and sources of randomness: those of the machine, and those of tests and replay.

mod process_time;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rand::Rng;
use taskrun_journal::time::{Clock, Random, Timestamp, millis};
use tokio::sync::{oneshot, watch};

pub(crate) use self::process_time::ProcessTimeUse;
pub use self::process_time::process_time;

/// The machine's own clock. Its monotonic time is that of this process, [`process_time()`].
#[derive(Debug)]
pub struct SystemClock {
    started: Duration,
}

impl SystemClock {
    /// Starts the monotonic count at zero.
    #[must_use]
    pub fn new() -> Self {
        Self { started: process_time() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the time of day")]
    fn now(&self) -> Timestamp {
        let since_epoch = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        Timestamp(millis(since_epoch))
    }

    fn monotonic(&self) -> Duration {
        process_time().saturating_sub(self.started)
    }

    async fn sleep_until(&self, at: Duration) {
        loop {
            let left = at.saturating_sub(self.monotonic());
            tokio::time::sleep(left).await;
            // After a standstill of the process this is too early.
            if self.monotonic() >= at {
                return;
            }
        }
    }
}

/// The pause between two looks at a time of day that is waited for. Real time: it only trades
/// latency against a look that costs next to nothing.
const LOOK: Duration = Duration::from_secs(1);

/// Returns when the time of day is `at`, or when as much time has passed as there was until then.
/// No timer counts the time in which the machine slept, nor that by which its clock was set
/// forward, so the clock is looked at once a second.
///
/// # Cancel safety
/// Dropping the future gives up the wait and nothing else.
pub(crate) async fn time_comes(clock: &dyn Clock, at: Timestamp) {
    let passed = clock.sleep(at.since(clock.now()));
    let shown = async {
        while clock.now() < at {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        biased;
        () = passed => {}
        () = shown => {}
    }
}

/// Random numbers that nobody can foretell: of a generator of each thread whose seeds, the first and
/// one after every 64 KiB, are the operating system's. A run takes a handful, and each would be a call
/// of the system.
#[derive(Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        rand::rng().fill_bytes(bytes);
    }
}

/// Random numbers that repeat for the same seed (SplitMix64). For tests and replay; no good for
/// keys.
#[derive(Debug)]
pub struct SeededRandom(Mutex<u64>);

impl SeededRandom {
    /// Begins the sequence that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl Random for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in bytes.chunks_mut(8) {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = *state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            chunk.copy_from_slice(&z.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A clock that stands still until it is told to move, so that tests of hours take no time.
#[derive(Debug)]
pub struct SimulatedClock {
    state: Mutex<SimulatedTime>,
    sleepers: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct SimulatedTime {
    base: u64,
    elapsed: u64,
    next: u64,
    waiting: BTreeMap<(u64, u64), oneshot::Sender<()>>,
}

impl SimulatedClock {
    /// Stands at `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        let state = Mutex::new(SimulatedTime { base: start.0, ..SimulatedTime::default() });
        Self { state, sleepers: watch::Sender::new(0) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SimulatedTime> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves on by `duration` and wakes everybody whose time has come, in order.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.lock();
        state.elapsed = state.elapsed.saturating_add(millis(duration));
        let now = state.elapsed;
        while let Some(entry) = state.waiting.first_entry() {
            if entry.key().0 > now {
                break;
            }
            // A sleeper that gave up has dropped its receiver; there is nobody to tell.
            entry.remove().send(()).ok();
        }
        let left = state.waiting.len();
        drop(state);
        self.sleepers.send_replace(left);
    }

    /// Waits until at least so many sleep.
    pub async fn wait_for_sleepers(&self, count: usize) {
        let mut changed = self.sleepers.subscribe();
        // The sender lives as long as `self`.
        changed.wait_for(|sleepers| *sleepers >= count).await.ok();
    }

    /// Waits until somebody sleeps at most `within` from now, moves to the moment at which the
    /// first of them wakes, and returns how far that was.
    pub async fn advance_to_next(&self, within: Duration) -> Duration {
        let mut changed = self.sleepers.subscribe();
        loop {
            let step = {
                let mut state = self.lock();
                state.waiting.retain(|_, sleeper| !sleeper.is_closed());
                let due = state.waiting.keys().next().map(|(at, _)| at - state.elapsed);
                due.map(Duration::from_millis).filter(|due| *due <= within)
            };
            if let Some(step) = step {
                self.advance(step);
                return step;
            }
            // The sender lives as long as `self`.
            changed.changed().await.ok();
        }
    }

    /// Lets time pass, from one sleeper to the next, until `done` is ready, and gives its output
    /// and how far the clock was moved for it. `done` is looked at first before each step.
    ///
    /// All steps together move the clock by at most `within`. While no sleeper is due in the rest
    /// of that, the clock stands still and `done` is waited for in real time, without a bound: work
    /// that is under way may make it ready without any time, or come to sleep. A `done` that is
    /// never ready is waited for until the caller's own deadline, which is one in real time.
    ///
    /// Tasks that a step wakes on a runtime of this thread run before the next step. Those of other
    /// threads may be later than that, so that time passes to the next sleeper while they are still
    /// at work; only `within` bounds how far.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the clock where it stands.
    pub async fn run_until<T>(
        &self,
        within: Duration,
        done: impl Future<Output = T>,
    ) -> (T, Duration) {
        let mut done = std::pin::pin!(done);
        let mut passed = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                output = &mut done => return (output, passed),
                step = self.advance_to_next(within.saturating_sub(passed)) => passed += step,
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sets the time of day, forwards or backwards, without moving the monotonic clock.
    pub fn set_time_of_day(&self, now: Timestamp) {
        let mut state = self.lock();
        state.base = now.0.saturating_sub(state.elapsed);
    }
}

#[async_trait]
impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let state = self.lock();
        Timestamp(state.base.saturating_add(state.elapsed))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.lock().elapsed)
    }

    async fn sleep_until(&self, at: Duration) {
        let at = millis(at);
        let (wake, woken) = oneshot::channel();
        let count = {
            let mut state = self.lock();
            if at <= state.elapsed {
                return;
            }
            let ticket = state.next;
            state.next += 1;
            state.waiting.insert((at, ticket), wake);
            // Whoever gave up sleeps no more.
            state.waiting.retain(|_, sleeper| !sleeper.is_closed());
            state.waiting.len()
        };
        self.sleepers.send_replace(count);
        // The sender is dropped only with the clock; then no time passes any more.
        if woken.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_journal::time::random_u64;

    #[test]
    fn seeded_numbers_repeat() {
        let draw = |seed| random_u64(&SeededRandom::new(seed));
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[tokio::test]
    async fn a_time_that_has_come_before_anybody_waits_for_it_is_not_waited_for() {
        let clock = SimulatedClock::new(Timestamp(1_000));
        let over_at = clock.monotonic() + Duration::from_secs(2);
        let moved = async {
            clock.advance(Duration::from_secs(1));
            let waits = clock.sleep_until(over_at);
            clock.advance(Duration::from_secs(1));
            waits.await;
        };
        tokio::time::timeout(Duration::from_secs(60), moved).await.expect("it has come");
    }

    #[tokio::test]
    async fn simulated_sleepers_wake_in_order_of_their_time() {
        let clock = SimulatedClock::new(Timestamp(1_000));
        let order = Mutex::new(Vec::new());
        let sleeper = |ms: u64| {
            let (clock, order) = (&clock, &order);
            async move {
                clock.sleep(Duration::from_millis(ms)).await;
                order.lock().expect("no panic").push((ms, clock.now().0));
            }
        };
        let drive = async {
            clock.advance_to_next(Duration::MAX).await;
            tokio::task::yield_now().await;
            clock.advance_to_next(Duration::MAX).await;
        };
        tokio::join!(sleeper(20), sleeper(10), drive);
        assert_eq!(*order.lock().expect("no panic"), [(10, 1_010), (20, 1_020)]);
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Waits for what must happen in a test that does not fail.
    async fn in_time<T>(happens: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(60), happens).await.expect("it happens in time")
    }

    #[tokio::test]
    async fn time_passes_from_sleeper_to_sleeper_until_what_is_waited_for_is_so() {
        let clock = SimulatedClock::new(Timestamp(1_000));
        let mut later = clock.sleep(ms(40));
        assert!(futures::poll!(&mut later).is_pending());
        let mut woken = Vec::new();
        let done = async {
            for pause in [10, 20] {
                clock.sleep(ms(pause)).await;
                woken.push(clock.now());
            }
            "done"
        };
        let ended = in_time(clock.run_until(Duration::MAX, done)).await;
        assert_eq!(ended, ("done", ms(30)));
        assert_eq!(woken, [Timestamp(1_010), Timestamp(1_030)]);
        assert_eq!(clock.now(), Timestamp(1_030), "nobody needed more");
        assert!(futures::poll!(&mut later).is_pending());
    }

    #[tokio::test]
    async fn time_passes_no_further_than_it_may_and_what_comes_without_it_is_waited_for() {
        let clock = SimulatedClock::new(Timestamp(1_000));
        // Each step alone would be within the bound.
        let mut later = clock.sleep(ms(20));
        assert!(futures::poll!(&mut later).is_pending());
        let (tell, told) = oneshot::channel();
        let tells = async {
            clock.sleep(ms(10)).await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            tell.send("told").expect("it is waited for");
        };
        let both = async { tokio::join!(clock.run_until(ms(15), told), tells) };
        let (ended, ()) = in_time(both).await;
        assert_eq!(ended, (Ok("told"), ms(10)));
        assert_eq!(clock.now(), Timestamp(1_010));
        assert!(futures::poll!(&mut later).is_pending());
    }

    #[tokio::test]
    async fn no_time_passes_for_what_is_so_already() {
        let clock = SimulatedClock::new(Timestamp(1_000));
        let mut later = clock.sleep(ms(10));
        assert!(futures::poll!(&mut later).is_pending());
        let ended = in_time(clock.run_until(Duration::MAX, async { "done" })).await;
        assert_eq!((ended, clock.now()), (("done", Duration::ZERO), Timestamp(1_000)));
        assert!(futures::poll!(&mut later).is_pending());
    }
}
