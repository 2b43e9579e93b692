//! The moments at which events of a call under way are written: soon after they were reported,
//! together with those of other runs, and not too often.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

/// The time from one moment at which runs of this process write to the next. They are the same for
/// all, so that one commit, and one waking of each thread on the way, serve many runs.
const BEAT: Duration = Duration::from_millis(15);
/// The time from a write to the next one of the same run, at least: pieces of a fast answer are
/// few events. A run that was silent for so long writes at the next moment.
const APART: Duration = Duration::from_millis(45);
/// The time after which a call of which nothing was written yet begins to listen for others: a
/// shorter one is over before anybody could ask another process to cancel it.
const LISTEN_FIRST: Duration = Duration::from_millis(20);
/// The same after a write, which finds what others wrote by itself.
const LISTEN_AGAIN: Duration = Duration::from_millis(100);

/// The times at which events of one run were written. In real time and not the clock's: it only trades latency
/// against writes, and means nothing to the run.
#[derive(Clone, Copy, Default)]
pub(super) struct Gathering {
    written: Option<Instant>,
}

impl Gathering {
    /// Says that what was gathered until a moment is written. It is that moment which counts and
    /// not the end of the write, or a run would miss every other one.
    pub(super) fn written(&mut self, at: Instant) {
        self.written = Some(at);
    }

    /// The moment at which events that are reported now are written.
    pub(super) fn due(&self) -> Instant {
        let now = Instant::now();
        let earliest = self.written.map_or(now, |written| now.max(written + APART));
        next_beat(earliest)
    }

    /// The time after which a call that has begun, or of which something was just written, listens
    /// for others.
    pub(super) fn silence(&self) -> Duration {
        if self.written.is_some() { LISTEN_AGAIN } else { LISTEN_FIRST }
    }
}

fn next_beat(earliest: Instant) -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let first = *FIRST.get_or_init(Instant::now);
    let since = earliest.saturating_duration_since(first).as_nanos();
    let beats = since.div_ceil(BEAT.as_nanos());
    first + BEAT.saturating_mul(u32::try_from(beats).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_a_beat(moment: Instant) -> bool {
        next_beat(moment) == moment
    }

    #[test]
    fn runs_write_at_the_same_moments() {
        let reported = next_beat(Instant::now()) + Duration::from_millis(1);
        let moments = [reported, reported + Duration::from_millis(13)].map(next_beat);
        assert_eq!(moments[0], moments[1]);
        assert!(is_a_beat(moments[0]));
        assert_eq!(moments[0], reported + BEAT - Duration::from_millis(1));
    }

    #[test]
    fn a_run_that_was_silent_writes_at_the_next_moment() {
        let before = Instant::now();
        for gathering in [Gathering::default(), Gathering { written: before.checked_sub(APART) }] {
            let due = gathering.due();
            assert!(is_a_beat(due));
            assert!(due >= before && due <= Instant::now() + BEAT);
        }
    }

    #[test]
    fn a_run_that_reports_all_the_time_writes_every_third_moment() {
        let first = next_beat(Instant::now());
        let mut gathering = Gathering::default();
        gathering.written(first);
        let second = gathering.due();
        assert_eq!(second, first + APART);
        gathering.written(second);
        assert_eq!(gathering.due(), second + APART);
    }
}
