//! Warnings that come again and again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The pause after a line of such a warning: a fault that lasts for days leaves a log that can be
/// read.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// A warning that may come again and again. The first is told at once, others at most once a minute.
#[derive(Debug, Default)]
pub(super) struct RepeatedWarning(Mutex<Option<Line>>);

/// The last line that was told.
#[derive(Debug)]
struct Line {
    /// Its time on the monotonic clock.
    at: Duration,
    /// Warnings since then.
    left_out: u64,
}

impl RepeatedWarning {
    /// The number of warnings that were left out before this one, if it is to be told; otherwise it
    /// is counted as left out. The time is that of the monotonic clock.
    pub(super) fn told(&self, now: Duration) -> Option<u64> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = &mut *last
            && now < line.at.saturating_add(TOLD_EVERY)
        {
            line.left_out += 1;
            return None;
        }
        let before = last.replace(Line { at: now, left_out: 0 });
        Some(before.map_or(0, |line| line.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_told_at_once_and_then_once_a_minute_with_the_number_of_those_between() {
        let warning = RepeatedWarning::default();
        let at = |seconds| warning.told(Duration::from_secs(seconds));
        assert_eq!(at(5), Some(0));
        assert_eq!((6..65).filter_map(at).count(), 0);
        assert_eq!(at(65), Some(59));
        assert_eq!(at(66), None);
        assert_eq!(at(3_600), Some(1), "after a long time without one");
        assert_eq!(at(3_660), Some(0));
    }
}
