//! Which silent hosts count as dead.
//!
//! A host whose process is there and whose heart is not heard hangs, or could not write: because
//! the store was locked or full, for everybody, or because the machine stood still. So nobody is
//! taken for dead for silence by a process that could not write itself. The whole lease passes
//! again after its first write, in which it writes all the time and the other one still does not.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use taskrun_journal::ids::HostId;

/// A failure detector: tells hosts that died from hosts that are only slow, by this process's own
/// writes and the beats of others. All times are of
/// [`super::heartbeat::machine_ms`].
#[derive(Default)]
pub(crate) struct FailureDetector(Mutex<DetectorState>);

#[derive(Default)]
struct DetectorState {
    /// When this process wrote last.
    wrote_ms: Option<i64>,
    /// When it wrote for the first time after it could not for too long.
    steady_ms: i64,
    /// Half of the shortest lease: to write more seldom is too seldom.
    gap_ms: Option<i64>,
    hosts: HashMap<HostId, ObservedBeat>,
}

/// A beat that was seen.
struct ObservedBeat {
    beat_ms: i64,
    /// When it was seen for the first time.
    first_ms: i64,
    /// The same by a process that could write.
    since_ms: Option<i64>,
}

/// The verdict on a host whose process is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// It lives, or has still time to say so.
    Lives,
    /// It is silent, and this process did not write lately either, and has looked for so long that
    /// it is no command that will be over soon.
    Doubtful,
    Dead,
}

impl FailureDetector {
    fn lock(&self) -> MutexGuard<'_, DetectorState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process has written.
    pub(crate) fn wrote(&self, now_ms: i64) {
        let mut known = self.lock();
        let gap_ms = known.gap_ms.unwrap_or(i64::MAX);
        if known.wrote_ms.is_none_or(|before| now_ms.saturating_sub(before) > gap_ms) {
            known.steady_ms = now_ms;
        }
        known.wrote_ms = Some(now_ms);
    }

    /// Judges a host by its last beat.
    pub(crate) fn of(&self, host: &HostId, beat_ms: i64, lease_ms: i64, now_ms: i64) -> Liveness {
        let mut known = self.lock();
        let gap_ms = lease_ms / 2;
        known.gap_ms = Some(known.gap_ms.map_or(gap_ms, |before| before.min(gap_ms)));
        let unwritten_ms = known.wrote_ms.map(|wrote| now_ms.saturating_sub(wrote));
        let writes = unwritten_ms.is_some_and(|unwritten| unwritten <= gap_ms);
        let steady_ms = known.steady_ms;
        let kept = known.hosts.get(host).filter(|seen| seen.beat_ms == beat_ms);
        let first_ms = kept.map_or(now_ms, |seen| seen.first_ms);
        let since_ms = kept.and_then(|seen| seen.since_ms).filter(|since| *since >= steady_ms);
        let since_ms = writes.then(|| since_ms.unwrap_or(now_ms));
        known.hosts.insert(host.clone(), ObservedBeat { beat_ms, first_ms, since_ms });
        let silent_ms = now_ms.saturating_sub(beat_ms);
        let is_over = since_ms.is_some_and(|since| now_ms.saturating_sub(since) >= lease_ms);
        if silent_ms >= lease_ms && is_over {
            Liveness::Dead
        } else if silent_ms.min(now_ms.saturating_sub(first_ms)) >= gap_ms
            && unwritten_ms.is_none_or(|ms| ms > lease_ms / 6)
        {
            Liveness::Doubtful
        } else {
            Liveness::Lives
        }
    }

    /// Forgets the hosts that are not there any more.
    pub(crate) fn retain(&self, is_there: impl Fn(&HostId) -> bool) {
        self.lock().hosts.retain(|host, _| is_there(host));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: i64 = 600;

    fn host() -> HostId {
        HostId::new("h")
    }

    /// Looks every 50 ms until `until`, writing as often while `writes` says so; gives the time of
    /// the first sentence of death.
    fn dead_at(
        detector: &FailureDetector,
        beat_ms: i64,
        until: i64,
        writes: impl Fn(i64) -> bool,
    ) -> Option<i64> {
        for now in (0..=until).step_by(50) {
            if writes(now) {
                detector.wrote(now);
            }
            if detector.of(&host(), beat_ms, LEASE, now) == Liveness::Dead {
                return Some(now);
            }
        }
        None
    }

    #[test]
    fn a_silent_host_is_dead_a_lease_after_it_was_first_seen_so() {
        assert_eq!(dead_at(&FailureDetector::default(), 0, 5_000, |_| true), Some(LEASE));
        // Its silence before that does not count, as nobody knows who could write then.
        assert_eq!(dead_at(&FailureDetector::default(), -5_000, 5_000, |_| true), Some(LEASE));
    }

    #[test]
    fn who_cannot_write_takes_nobody_for_dead() {
        assert_eq!(dead_at(&FailureDetector::default(), 0, 50_000, |_| false), None);
    }

    #[test]
    fn a_whole_lease_passes_after_the_first_write() {
        let locked = |now: i64| !(100..=1_450).contains(&now);
        assert_eq!(dead_at(&FailureDetector::default(), 0, 5_000, locked), Some(1_500 + LEASE));
        // Too short a gap to keep others from beating.
        let locked = |now: i64| !(100..=300).contains(&now);
        assert_eq!(dead_at(&FailureDetector::default(), 0, 5_000, locked), Some(LEASE));
    }

    #[test]
    fn a_gap_that_nobody_looked_into_counts() {
        let detector = FailureDetector::default();
        detector.wrote(0);
        assert_eq!(detector.of(&host(), 0, LEASE, 0), Liveness::Lives);
        // The process stood still, and writes before it looks again.
        detector.wrote(10_000);
        assert_eq!(detector.of(&host(), 0, LEASE, 10_000), Liveness::Lives);
        detector.wrote(10_300);
        detector.wrote(10_600);
        assert_eq!(detector.of(&host(), 0, LEASE, 10_599), Liveness::Lives);
        assert_eq!(detector.of(&host(), 0, LEASE, 10_600), Liveness::Dead);
    }

    #[test]
    fn a_command_that_only_looks_need_not_find_out_whether_it_could_write() {
        let detector = FailureDetector::default();
        let looked = [0, LEASE / 2 - 1].map(|now| detector.of(&host(), -LEASE, LEASE, now));
        assert_eq!(looked, [Liveness::Lives; 2]);
        assert_eq!(detector.of(&host(), -LEASE, LEASE, LEASE / 2), Liveness::Doubtful);
    }

    #[test]
    fn a_beat_begins_it_anew() {
        let detector = FailureDetector::default();
        for (now, beat) in [(0, 0), (300, 0), (500, 400), (800, 400), (1_000, 400)] {
            detector.wrote(now);
            assert_eq!(detector.of(&host(), beat, LEASE, now), Liveness::Lives, "{now}");
        }
        detector.wrote(1_100);
        assert_eq!(detector.of(&host(), 400, LEASE, 1_100), Liveness::Dead);
    }
}
