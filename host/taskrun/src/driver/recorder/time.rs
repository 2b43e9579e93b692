//! The running time of a run, and the moments at which its bounds end.

use std::time::Duration;

use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::time::millis;

use super::Recorder;

impl Recorder {
    /// The time that the run has been running, here and before.
    fn ran(&self) -> Duration {
        self.ran_before + self.env.clock.monotonic().saturating_sub(self.began)
    }

    pub(in crate::driver) fn ran_ms(&self) -> u64 {
        millis(self.ran())
    }

    /// The moment on the monotonic clock by which the run has been running for so long in all.
    fn when_ran(&self, total: Duration) -> Duration {
        self.began.saturating_add(total.saturating_sub(self.ran_before))
    }

    /// The moment at which the run's own time-out is over.
    pub(super) fn times_out_at(&self) -> Option<Duration> {
        let timeout = Duration::from_millis(self.run().spec.timeout_ms?);
        Some(self.when_ran(timeout))
    }

    /// True if the run's own time-out is over.
    pub(super) fn is_timed_out(&self) -> bool {
        self.times_out_at().is_some_and(|at| at <= self.env.clock.monotonic())
    }

    /// The moment from which on the run may begin nothing more.
    pub(in crate::driver) fn work_ends_at(&self) -> Option<Duration> {
        self.wall.map(|wall| self.when_ran(wall))
    }

    /// The moment at which the time of the present round is over.
    pub(in crate::driver) fn round_ends_at(&self) -> Option<Duration> {
        let began = Duration::from_millis(self.run().state.rounds.began_ms);
        self.round.map(|round| self.when_ran(began.saturating_add(round)))
    }

    /// The outcome of a step that the time of its round does not reach for, once that is over.
    pub(in crate::driver) fn round_over(&self) -> Option<Outcome> {
        let is_over = self.round_ends_at()? <= self.env.clock.monotonic();
        let limit_ms = self.round.map_or(0, millis);
        is_over.then_some(Outcome::RoundOver { limit_ms })
    }

    /// True if the run has been running for as long as a budget of time lets it.
    pub(in crate::driver) fn has_worked_for(&self, wall: Option<Duration>) -> bool {
        wall.is_some_and(|wall| self.ran() >= wall)
    }

    /// The rest of the time in which the run may begin something.
    pub(in crate::driver) fn time_for_work(&self) -> Option<Duration> {
        self.wall.map(|wall| wall.saturating_sub(self.ran()))
    }

    /// True if none is left.
    pub(in crate::driver) fn is_out_of_time(&self) -> bool {
        self.time_for_work() == Some(Duration::ZERO)
    }
}
