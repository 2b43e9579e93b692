//! Time and random numbers as a guest sees them. A plan step that runs again is told the same
//! times.

use std::time::Duration;

use taskrun_journal::event::{ClockReading, Event};
use taskrun_journal::time::Timestamp;

use super::CallScope;
use super::tape::Tape;

/// Most random bytes a guest is given at once.
pub const RANDOM_BYTES_MAX: u32 = 65_536;

/// The times that a call was told.
#[derive(Default)]
pub(super) struct Times {
    /// Those that are not recorded, each with its count in a row.
    readings: Vec<ClockReading>,
    /// Different times among all that were not on the tape.
    different: u32,
    /// Times that were told in all.
    told: u32,
    began: Option<Timestamp>,
    elapsed: Duration,
}

impl Times {
    /// Times that were told in all.
    pub(super) fn told(&self) -> u32 {
        self.told
    }

    /// The times that were told and are not recorded, as an event.
    pub(super) fn take(&mut self) -> Option<Event> {
        let readings = std::mem::take(&mut self.readings);
        (!readings.is_empty()).then_some(Event::ClockRead { readings })
    }

    /// The time that the call is told next: that of the tape, or that of the clock. One that
    /// differs by less than the resolution from the one before is that one.
    fn tell(&mut self, tape: Option<&mut Tape>, clock: impl FnOnce() -> Timestamp) -> Timestamp {
        self.told = self.told.saturating_add(1);
        if let Some(time) = tape.and_then(Tape::time) {
            return time;
        }
        let now = clock();
        let resolution = resolution_ms(self.different);
        match self.readings.last_mut() {
            Some(last) if last.at.0.abs_diff(now.0) < resolution => {
                last.times = last.times.saturating_add(1);
                return last.at;
            }
            Some(_) | None => self.readings.push(ClockReading { at: now, times: 1 }),
        }
        self.different = self.different.saturating_add(1);
        now
    }

    /// The time since the first call of this function, which never goes back.
    fn elapsed(&mut self, now: Timestamp) -> Duration {
        let began = *self.began.get_or_insert(now);
        self.elapsed = self.elapsed.max(now.since(began));
        self.elapsed
    }
}

impl CallScope {
    /// The time of day.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        if !self.is_journalled() {
            return self.parts.clock.now();
        }
        let mut guard = self.open();
        let open = &mut *guard;
        if open.tape.as_ref().is_some_and(Tape::has_no_time) {
            let left = open.tape.as_ref().map_or_else(String::new, Tape::next_left);
            drop(guard);
            self.diverged(&left, "a look at the clock, which is not recorded");
            return Timestamp(0);
        }
        open.times.tell(open.tape.as_mut(), || self.parts.clock.now())
    }

    /// The time that the call has been under way, for the guest: made of the times that
    /// [`Self::now`] tells, so that a step that runs again measures the same.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        if !self.is_journalled() {
            return self.parts.clock.monotonic().saturating_sub(self.started);
        }
        let now = self.now();
        self.open().times.elapsed(now)
    }

    /// Random bytes, at most [`RANDOM_BYTES_MAX`] of them.
    #[must_use]
    pub fn random(&self, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len.min(RANDOM_BYTES_MAX) as usize];
        self.parts.random.fill(&mut bytes);
        bytes
    }

    /// Waits; gives `false` if somebody asks to stop meanwhile. A wait that begins after that is
    /// one like any other: it belongs to the guest's own orderly end, and the grace bounds it.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    pub async fn sleep(&self, duration: Duration) -> bool {
        if self.parts.stop.is_asked() {
            self.parts.clock.sleep(duration).await;
            return true;
        }
        // A step that did more after its sleep has slept, and so has a whole one.
        let has_slept = |tape: &Tape| tape.is_whole() || !tape.is_over();
        if self.open().tape.as_ref().is_some_and(has_slept) {
            return true;
        }
        tokio::select! {
            biased;
            () = self.parts.stop.asked() => false,
            () = self.parts.clock.sleep(duration) => true,
        }
    }
}

/// Milliseconds that lie between two times that a step is told, after so many different ones: one
/// at first, and twice as many after each thousand. So a guest that waits by looking at the clock
/// all the time writes a few thousand times into the journal and not one for each millisecond.
fn resolution_ms(recorded: u32) -> u64 {
    1 << (recorded / 1_000).min(16)
}
