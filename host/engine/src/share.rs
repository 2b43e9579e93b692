//! The share of a processor that a call has while it is polled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A call that is polled does nothing but compute: what passes in a poll and is no CPU time of its
/// thread is time in which something else had the processor.
#[derive(Debug, Default)]
pub(crate) struct Share {
    began: Moment,
    /// Of the polls in this window that are over.
    passed: Moment,
}

#[derive(Debug, Default)]
struct Moment {
    real_ns: AtomicU64,
    cpu_ns: AtomicU64,
}

/// Real time, and CPU time of the thread that polls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    pub(crate) real_ns: u64,
    pub(crate) cpu_ns: u64,
}

impl Share {
    /// A poll begins.
    pub(crate) fn begin(&self, now: Clocks) {
        self.began.set(now);
    }

    /// A poll is over; gives the share in percent once it is measured over a window of polls, and
    /// then begins the next one.
    pub(crate) fn pause(&self, now: Clocks, window: Duration) -> Option<u64> {
        let (began, passed) = (self.began.get(), self.passed.get());
        let real_ns = passed.real_ns.saturating_add(now.real_ns.saturating_sub(began.real_ns));
        let cpu_ns = passed.cpu_ns.saturating_add(now.cpu_ns.saturating_sub(began.cpu_ns));
        if u128::from(real_ns) < window.as_nanos() {
            self.passed.set(Clocks { real_ns, cpu_ns });
            return None;
        }
        self.passed.set(Clocks { real_ns: 0, cpu_ns: 0 });
        Some(cpu_ns.saturating_mul(100) / real_ns.max(1))
    }
}

impl Moment {
    fn set(&self, clocks: Clocks) {
        self.real_ns.store(clocks.real_ns, Ordering::Relaxed);
        self.cpu_ns.store(clocks.cpu_ns, Ordering::Relaxed);
    }

    fn get(&self) -> Clocks {
        Clocks {
            real_ns: self.real_ns.load(Ordering::Relaxed),
            cpu_ns: self.cpu_ns.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const WINDOW: Duration = Duration::from_millis(200);

    /// Shares of polls that take so many milliseconds each, with so many of CPU time.
    fn shares(polls: impl IntoIterator<Item = (u64, u64)>) -> Vec<Option<u64>> {
        let (share, mut now) = (Share::default(), Clocks { real_ns: 7, cpu_ns: 9 });
        let poll = |(real, cpu)| {
            share.begin(now);
            now = Clocks { real_ns: now.real_ns + real * MS, cpu_ns: now.cpu_ns + cpu * MS };
            let percent = share.pause(now, WINDOW);
            // Between two polls it does not want the processor.
            now.real_ns += 1_000 * MS;
            percent
        };
        polls.into_iter().map(poll).collect()
    }

    #[test]
    fn a_share_is_that_of_a_window_of_polls() {
        assert_eq!(shares([(199, 1)]), [None]);
        assert_eq!(shares([(200, 19)]), [Some(9)]);
        let polls = [(100, 100), (100, 90), (150, 0), (150, 30), (100, 100)];
        assert_eq!(shares(polls), [None, Some(95), None, Some(10), None]);
    }
}
