//! Pauses after workers that gave no answer: one that is always killed is not started for ever.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::process::Answer;
use crate::error::LoadError;
use crate::worker::Task;

/// The pause after the second one in a row; after the first one there is none, as a controller makes
/// one of its own.
const PAUSE: Duration = Duration::from_secs(20);
/// Longest pause: the machine may have more memory then.
const PAUSE_MAX: Duration = Duration::from_secs(5 * 60);
/// Most components that are remembered; those that may be tried again are forgotten first.
const COMPONENTS_MAX: usize = 1_000;

/// A component, and the work with it.
type Work = (blake3::Hash, Task);

/// The work on which a worker gave no answer.
#[derive(Debug, Default)]
pub(super) struct Pauses(Mutex<HashMap<Work, Pause>>);

#[derive(Debug)]
struct Pause {
    /// Workers in a row.
    times: u32,
    /// The time at which the next one may start.
    until: Duration,
    /// The end of the last one, in words.
    detail: String,
}

impl Pauses {
    /// # Errors
    /// [`LoadError::NoAnswer`] with the words of the last worker, if the next one has to wait.
    pub(super) fn check(&self, work: Work, now: Duration) -> Result<(), LoadError> {
        match self.lock().get(&work) {
            Some(Pause { until, detail, .. }) if now < *until => {
                let seconds = (*until - now).as_secs() + 1;
                let detail = format!("{detail}; it is tried again in {seconds} s");
                Err(LoadError::NoAnswer { detail })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Takes note of what a worker said about a component.
    pub(super) fn note(&self, work: Work, answer: &Result<Answer, LoadError>, now: Duration) {
        let mut pauses = self.lock();
        let Err(LoadError::NoAnswer { detail }) = answer else {
            pauses.remove(&work);
            return;
        };
        let times = pauses.get(&work).map_or(0, |pause| pause.times).saturating_add(1);
        let pause = match times {
            1 => Duration::ZERO,
            _ => PAUSE.saturating_mul(1 << (times - 2).min(16)).min(PAUSE_MAX),
        };
        if pauses.len() >= COMPONENTS_MAX {
            pauses.retain(|_, pause| now < pause.until);
        }
        let until = now.saturating_add(pause);
        pauses.insert(work, Pause { times, until, detail: detail.clone() });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Work, Pause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_always_killed_is_started_less_and_less_often() {
        let (pauses, work) = (Pauses::default(), (blake3::hash(b"component"), Task::Compile));
        let killed = || Err(LoadError::NoAnswer { detail: "SIGKILL".to_owned() });
        let mut now = Duration::ZERO;
        for seconds in [0, 20, 40, 80, 160, 300, 300] {
            assert!(pauses.check(work, now).is_ok());
            pauses.note(work, &killed(), now);
            let until = now + Duration::from_secs(seconds);
            if seconds > 0 {
                let refused = pauses.check(work, until - Duration::from_secs(1));
                let text = refused.expect_err("it is not tried yet").to_string();
                assert!(text.contains("SIGKILL; it is tried again in"), "{text}");
            }
            now = until;
        }
        assert!(pauses.check((work.0, Task::Outline), Duration::ZERO).is_ok());
        // An answer, whatever it says, begins anew.
        pauses.note(work, &Ok(Answer::OverLimit), now);
        pauses.note(work, &killed(), now);
        assert!(pauses.check(work, now).is_ok());
    }
}
