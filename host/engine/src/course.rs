//! The course of a call: what it uses of a processor, and where it goes on by that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::share::{Clocks, Share};
use crate::threads::Lane;

/// Percent of a processor from which on it has time for a call, and the time over which they are
/// measured: soon, as who waits until then waits behind a guest that may spin.
const SHARE_OF_FREE: (u64, Duration) = (50, Duration::from_millis(20));
/// Percent of a processor that a call is to have at least, and the time over which they are
/// measured: longer than others need in one go.
const SHARE_MIN: (u64, Duration) = (10, Duration::from_millis(200));

/// Nanoseconds of a clock.
fn ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let (sec, nsec) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    sec.saturating_mul(1_000_000_000).saturating_add(nsec)
}

/// CPU time that this thread has used. Never 0, and a call of the system, which takes longer than
/// many a host function.
fn cpu_ns() -> u64 {
    ns(ClockId::ThreadCPUTime).max(1)
}

fn clocks() -> Clocks {
    Clocks { real_ns: ns(ClockId::Monotonic), cpu_ns: cpu_ns() }
}

/// The use of a slice by a call. Shared by the caller that polls it and its epoch callback, which
/// run on one thread at a time, and by its owner, who may end it from another.
///
/// A call that is over before its slice could be needs no look at what it used. So the slice is
/// counted from the first look that comes a slice of real time after the beginning.
#[derive(Debug, Clone)]
pub(crate) struct Course(Arc<CourseInner>);

#[derive(Debug)]
struct CourseInner {
    slice_ns: u64,
    /// Number of its [`Lane`].
    lane: AtomicU8,
    /// Its share of a processor, on threads that others come before.
    share: Share,
    /// Real time before this poll, and when that began.
    passed_ns: AtomicU64,
    began_ns: AtomicU64,
    /// CPU time that was counted before this poll, and of the thread when its counting began; 0 if
    /// it did not yet.
    used_ns: AtomicU64,
    counted_from_ns: AtomicU64,
    /// True if it gave up the rest of its slice.
    gave_up: AtomicBool,
    /// Its limit on CPU time, if it has one.
    budget: Option<CpuBudget>,
    /// True once the owner does not want it any more.
    over: AtomicBool,
}

/// The CPU time that a call may use, on whatever threads.
#[derive(Debug)]
struct CpuBudget {
    limit: Duration,
    /// Used in the polls that are over, and of the thread when this one began.
    used_ns: AtomicU64,
    began_ns: AtomicU64,
    /// True if it let others go first in this poll.
    has_yielded: AtomicBool,
    /// True if something else than a processor is missing for it to go on.
    is_waiting: AtomicBool,
}

impl Course {
    /// Of a call that has this slice.
    pub(crate) fn new(slice: Duration) -> Self {
        Self::with(slice, None)
    }

    /// The same, of a call that may use so much CPU time.
    pub(crate) fn bounded(slice: Duration, limit: Duration) -> Self {
        let budget = CpuBudget {
            limit,
            used_ns: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            has_yielded: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
        };
        Self::with(slice, Some(budget))
    }

    fn with(slice: Duration, budget: Option<CpuBudget>) -> Self {
        Self(Arc::new(CourseInner {
            slice_ns: u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX),
            lane: AtomicU8::new(Lane::Owner as u8),
            share: Share::default(),
            passed_ns: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            used_ns: AtomicU64::new(0),
            counted_from_ns: AtomicU64::new(0),
            gave_up: AtomicBool::new(false),
            budget,
            over: AtomicBool::new(false),
        }))
    }

    /// The limit on its CPU time, once it has used that up.
    pub(crate) fn cpu_limit_met(&self) -> Option<Duration> {
        let budget = self.0.budget.as_ref()?;
        (budget.used() >= budget.limit).then_some(budget.limit)
    }

    /// The CPU time of a bounded call that lacks a processor and nothing else.
    pub(crate) fn cpu_time_if_ready(&self) -> Option<Duration> {
        let budget = self.0.budget.as_ref()?;
        (!budget.is_waiting.load(Ordering::Relaxed)).then(|| budget.used())
    }

    /// It is polled there from now on.
    pub(crate) fn goes_on(&self, lane: Lane) {
        self.0.lane.store(lane as u8, Ordering::Relaxed);
    }

    /// The lane on which it is polled.
    pub(crate) fn lane(&self) -> Lane {
        Lane::of(self.0.lane.load(Ordering::Relaxed))
    }

    /// A poll begins.
    pub(crate) fn begin(&self) {
        let inner = &*self.0;
        if let Some(budget) = &inner.budget {
            budget.began_ns.store(cpu_ns(), Ordering::Relaxed);
            budget.has_yielded.store(false, Ordering::Relaxed);
            budget.is_waiting.store(false, Ordering::Relaxed);
        }
        match self.lane() {
            Lane::Owner => return,
            Lane::First => {}
            Lane::Share | Lane::Behind => {
                let now = clocks();
                inner.counted_from_ns.store(now.cpu_ns, Ordering::Relaxed);
                return inner.share.begin(now);
            }
        }
        inner.began_ns.store(ns(ClockId::Monotonic), Ordering::Relaxed);
        let is_short = inner.passed_ns.load(Ordering::Relaxed) < inner.slice_ns;
        inner.counted_from_ns.store(if is_short { 0 } else { cpu_ns() }, Ordering::Relaxed);
    }

    /// A poll came to its end and not the call; gives where it is to go on, if that is elsewhere.
    pub(crate) fn pause(&self) -> Option<Lane> {
        let inner = &*self.0;
        if let Some(budget) = &inner.budget {
            let used = cpu_ns().saturating_sub(budget.began_ns.load(Ordering::Relaxed));
            budget.used_ns.fetch_add(used, Ordering::Relaxed);
            let has_yielded = budget.has_yielded.load(Ordering::Relaxed);
            budget.is_waiting.store(!has_yielded, Ordering::Relaxed);
        }
        let lane = self.lane();
        if lane == Lane::First {
            inner.passed_ns.store(self.passed_ns(), Ordering::Relaxed);
        }
        self.finish();
        match lane {
            Lane::Owner => None,
            Lane::First => {
                let is_over = inner.gave_up.load(Ordering::Relaxed)
                    || inner.used_ns.load(Ordering::Relaxed) >= inner.slice_ns;
                is_over.then_some(Lane::Share)
            }
            Lane::Share => {
                let (free, window) = SHARE_OF_FREE;
                let percent = inner.share.pause(clocks(), window)?;
                (percent >= free).then_some(Lane::Behind)
            }
            Lane::Behind => {
                let (least, window) = SHARE_MIN;
                let percent = inner.share.pause(clocks(), window)?;
                (percent < least).then_some(Lane::Share)
            }
        }
    }

    /// A poll is over: what it used counts.
    pub(crate) fn finish(&self) {
        let inner = &*self.0;
        let counted = self.counted_ns();
        inner.counted_from_ns.store(0, Ordering::Relaxed);
        inner.used_ns.fetch_add(counted, Ordering::Relaxed);
    }

    /// True of a call that is over and used two slices of a processor, the first of which is not counted
    /// where it began before others.
    pub(crate) fn was_long(&self, began: Lane) -> bool {
        let slices = if began == Lane::First { 1 } else { 2 };
        let used = self.0.used_ns.load(Ordering::Relaxed);
        used >= self.0.slice_ns.saturating_mul(slices)
    }

    /// Counts the host's work for the call as time on the processor.
    pub(crate) fn charge(&self, work: Duration) {
        let work = u64::try_from(work.as_nanos()).unwrap_or(0);
        self.0.used_ns.fetch_add(work, Ordering::Relaxed);
    }

    /// Works for the call on a thread that does nothing else meanwhile, and counts that.
    pub(crate) fn charge_for<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = cpu_ns();
        let done = work();
        self.charge(Duration::from_nanos(cpu_ns().saturating_sub(began)));
        done
    }

    /// Gives up the rest of the slice: with its next pause the call goes behind others.
    pub(crate) fn give_up(&self) {
        self.yields();
        self.0.gave_up.store(true, Ordering::Relaxed);
    }

    /// The guest's next move at a tick of the epoch.
    pub(crate) fn at_tick(&self) -> TickAction {
        let action = self.action();
        if action == TickAction::Yield {
            self.yields();
        }
        action
    }

    fn yields(&self) {
        if let Some(budget) = &self.0.budget {
            budget.has_yielded.store(true, Ordering::Relaxed);
        }
    }

    fn action(&self) -> TickAction {
        let inner = &*self.0;
        if self.lane() != Lane::First {
            return TickAction::Yield;
        }
        if inner.counted_from_ns.load(Ordering::Relaxed) == 0 && self.passed_ns() >= inner.slice_ns
        {
            inner.counted_from_ns.store(cpu_ns(), Ordering::Relaxed);
        }
        let is_over = || inner.gave_up.load(Ordering::Relaxed);
        match self.used_ns() < inner.slice_ns && !is_over() {
            true => TickAction::GoOn,
            false => TickAction::Yield,
        }
    }

    fn passed_ns(&self) -> u64 {
        let began = self.0.began_ns.load(Ordering::Relaxed);
        let now = ns(ClockId::Monotonic).saturating_sub(began);
        self.0.passed_ns.load(Ordering::Relaxed).saturating_add(now)
    }

    /// Nanoseconds of its slice that it has used.
    pub(crate) fn used_ns(&self) -> u64 {
        self.0.used_ns.load(Ordering::Relaxed).saturating_add(self.counted_ns())
    }

    /// Nanoseconds of this poll that are counted.
    fn counted_ns(&self) -> u64 {
        match self.0.counted_from_ns.load(Ordering::Relaxed) {
            0 => 0,
            from => cpu_ns().saturating_sub(from),
        }
    }

    /// Says that the call is not waited for any more: no host function begins from now on.
    pub(crate) fn end(&self) {
        self.0.over.store(true, Ordering::Release);
    }

    /// True once the call is not waited for any more.
    pub(crate) fn is_over(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }
}

impl CpuBudget {
    fn used(&self) -> Duration {
        Duration::from_nanos(self.used_ns.load(Ordering::Relaxed))
    }
}

/// The next move of a guest at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TickAction {
    /// It has some of its slice left.
    GoOn,
    /// Others come first.
    Yield,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(20);

    fn spin(time: Duration) {
        let until = cpu_ns() + time.as_nanos() as u64;
        while cpu_ns() < until {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_slice_is_time_on_the_processor_over_all_polls() {
        let course = Course::new(SLICE);
        course.goes_on(Lane::First);
        // However long it was kept from the processor meanwhile.
        for _ in 0..3 {
            course.begin();
            assert_eq!(course.at_tick(), TickAction::GoOn);
            spin(SLICE / 4);
            assert_eq!(course.pause(), None);
        }
        // What was used before the first look that finds a slice of real time gone is not counted.
        for _ in 0..4 {
            course.begin();
            course.at_tick();
            spin(SLICE / 2);
            course.pause();
        }
        course.begin();
        assert_eq!(course.at_tick(), TickAction::Yield);
        assert_eq!(course.pause(), Some(Lane::Share));
        assert!(course.was_long(Lane::First));
    }

    #[test]
    fn a_call_that_began_behind_is_long_after_two_slices() {
        let course = Course::new(SLICE);
        course.goes_on(Lane::Share);
        for is_long in [false, false, true] {
            assert_eq!(course.was_long(Lane::Share), is_long);
            course.begin();
            spin(SLICE + Duration::from_millis(1));
            course.finish();
        }
    }

    #[test]
    fn a_slice_that_is_given_up_is_over_at_the_next_pause() {
        let course = Course::new(SLICE);
        course.goes_on(Lane::First);
        course.begin();
        course.give_up();
        assert_eq!(course.at_tick(), TickAction::Yield);
        assert_eq!(course.pause(), Some(Lane::Share));
        assert!(!course.was_long(Lane::First), "it hardly used a processor");
    }

    #[test]
    fn the_hosts_work_for_a_call_counts() {
        let course = Course::new(SLICE);
        course.goes_on(Lane::First);
        for expected in [None, None, Some(Lane::Share)] {
            course.begin();
            course.charge(SLICE / 3 + Duration::from_nanos(1));
            assert_eq!(course.pause(), expected);
        }
    }

    #[test]
    fn elsewhere_every_tick_lets_others_go_first() {
        for lane in [Lane::Owner, Lane::Behind, Lane::Share] {
            let course = Course::new(SLICE);
            course.goes_on(lane);
            course.begin();
            assert_eq!(course.at_tick(), TickAction::Yield);
            assert_eq!(course.pause(), None);
        }
    }

    #[test]
    fn a_call_is_behind_while_the_processors_have_time_for_it() {
        let course = Course::new(SLICE);
        course.goes_on(Lane::Behind);
        course.begin();
        // Its thread has no processor meanwhile.
        std::thread::park_timeout(Duration::from_millis(300));
        assert_eq!(course.pause(), Some(Lane::Share));
        course.goes_on(Lane::Share);
        course.begin();
        std::thread::park_timeout(Duration::from_millis(30));
        assert_eq!(course.pause(), None);
        let lanes = std::iter::repeat_with(|| {
            course.begin();
            spin(Duration::from_millis(5));
            course.pause()
        });
        // Others leave it half of a processor sooner or later.
        assert_eq!(lanes.flatten().next(), Some(Lane::Behind));
    }
}
