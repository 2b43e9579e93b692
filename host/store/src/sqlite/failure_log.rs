//! The log of a failure that repeats itself.

use std::time::Duration;

use taskrun_journal::time::millis;

use super::schema::int;

/// While something fails again and again the log is told so seldom: a full disk may last for days.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// The last line of the log about a failure of something, since that last succeeded. All times are of
/// [`machine_ms`](super::heartbeat::machine_ms).
#[derive(Default)]
pub(crate) struct FailureLog {
    told_ms: Option<i64>,
}

impl FailureLog {
    /// Notes a failure, and is true if the log is to be told of it.
    pub(crate) fn failed(&mut self, now_ms: i64) -> bool {
        let again_ms = int(millis(TOLD_AGAIN));
        let is_told = self.told_ms.is_some_and(|told_ms| now_ms.saturating_sub(told_ms) < again_ms);
        if !is_told {
            self.told_ms = Some(now_ms);
        }
        !is_told
    }

    /// Notes a success, and is true if the log was told of failures before it.
    pub(crate) fn succeeded(&mut self) -> bool {
        self.told_ms.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::FailureLog;

    #[test]
    fn failures_are_told_of_once_a_minute_and_once_when_there_is_none() {
        let mut log = FailureLog::default();
        assert!(!log.succeeded(), "nothing was told");
        let told = |log: &mut FailureLog, from_ms: i64, to_ms: i64| {
            (from_ms..to_ms).step_by(250).filter(|now_ms| log.failed(*now_ms)).count()
        };
        assert_eq!(told(&mut log, 1_000, 61_000), 1);
        assert_eq!(told(&mut log, 61_000, 181_000), 2);
        assert!(log.succeeded());
        assert!(!log.succeeded());
        assert_eq!(told(&mut log, 181_000, 182_000), 1, "it is another failure");
    }
}
