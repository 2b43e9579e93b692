//! Dispatches: the news that a run was accepted, or has ended, for each subscriber outside of the runs,
//! kept until the subscriber has it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{HostId, RunId};
use crate::time::Timestamp;

/// The pauses after failed attempts, before jitter. The first bridges a restart of the receiver, the
/// last an outage that somebody is called for; what takes longer is for people to look at.
pub const PAUSES: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(60), Duration::from_secs(600)];

/// The time for which a host that takes a dispatch has it to itself: more than any attempt takes.
pub const TAKEN_FOR: Duration = Duration::from_secs(90);

/// The time by which a dispatch may be due later than its pause says: hosts read the clock one
/// after the other, and what one of them wants may wait for the store. One that is due later than
/// that was put off before the clock was set back.
pub const CLOCK_LEEWAY: Duration = Duration::from_secs(30);

/// Most dispatches of a subscriber that are looked at for that, those that are due last. After a
/// clock that was set back they are the ones of before.
pub const LATEST_LOOK: usize = 64;

/// Most subscribers of a run: each costs a row at its beginning and at its end.
pub const SUBSCRIPTIONS_MAX: usize = 16;

/// Most bytes of the error of an attempt that are kept.
pub const ERROR_BYTES_MAX: usize = 512;

/// A moment of a run of which subscribers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaskEvent {
    /// It was accepted.
    #[serde(rename = "on_task_delegated")]
    Delegated,
    /// It has ended, however that was.
    #[serde(rename = "on_task_completed")]
    Completed,
}

impl TaskEvent {
    /// Every one, in the order in which they happen.
    pub const ALL: [Self; 2] = [Self::Delegated, Self::Completed];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delegated => "on_task_delegated",
            Self::Completed => "on_task_completed",
        }
    }
}

impl fmt::Display for TaskEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A subscriber of a run, as it was settled when the run was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// Its kind and its name, as in `webhook/ci`.
    pub subscriber: String,
    /// The events that it is told of, each once.
    pub events: Vec<TaskEvent>,
    /// True if the policy under which the run was accepted does not let it be told the task, the
    /// result or the error, whatever the host's says that tells it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_text: bool,
}

/// The key of a dispatch, by which a receiver knows one that comes again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DispatchKey {
    /// The run.
    pub run: RunId,
    /// The event.
    pub event: TaskEvent,
    /// The subscriber.
    pub subscriber: String,
}

impl fmt::Display for DispatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.run, self.event, self.subscriber)
    }
}

/// The stage of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchState {
    /// It waits for its time.
    Pending,
    /// A host is handing it over. If that dies, or says nothing for [`TAKEN_FOR`], another host takes
    /// it.
    Taken,
    /// The subscriber has it.
    Delivered,
    /// Every attempt failed, or the session was deleted: nobody tries any more.
    Dead,
}

impl DispatchState {
    /// Every one, in the order of a dispatch's life.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Taken, Self::Delivered, Self::Dead];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Taken => "taken",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }

    /// True while a host is still to hand it over.
    #[must_use]
    pub fn is_open(self) -> bool {
        match self {
            Self::Pending | Self::Taken => true,
            Self::Delivered | Self::Dead => false,
        }
    }
}

/// A dispatch: a row of the store, made in the transaction of the event that it tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Its number, in the order in which they were made.
    pub number: u64,
    /// Its key.
    pub key: DispatchKey,
    /// Its stage.
    pub state: DispatchState,
    /// The time from which on it may be taken; of one that is taken, by another host.
    pub due: Timestamp,
    /// Attempts that failed.
    pub attempts: u32,
    /// The host that has it, while it is taken.
    pub taken_by: Option<HostId>,
    /// The words of the last failed attempt.
    pub error: Option<String>,
}

/// The end of an attempt to hand a dispatch over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The subscriber has it.
    Delivered,
    /// It failed, and is tried again at a time, or never.
    Failed {
        /// The words of it, at most [`ERROR_BYTES_MAX`].
        error: String,
        /// The time of the next attempt; without one it is a dead letter.
        next: Option<Timestamp>,
    },
    /// The host gave it up without a result, as it ends: anybody may take it at once.
    Released,
}

impl Dispatch {
    /// True if a host may end the attempt so: it has the dispatch, or handed it over before another
    /// one did.
    #[must_use]
    pub fn takes(&self, host: &HostId, outcome: &AttemptOutcome) -> bool {
        match outcome {
            AttemptOutcome::Delivered => self.state.is_open(),
            AttemptOutcome::Failed { .. } | AttemptOutcome::Released => {
                self.taken_by.as_ref() == Some(host)
            }
        }
    }

    /// Ends the attempt.
    pub fn end_attempt(&mut self, outcome: AttemptOutcome) {
        self.taken_by = None;
        match outcome {
            AttemptOutcome::Delivered => self.state = DispatchState::Delivered,
            AttemptOutcome::Failed { error, next } => {
                self.attempts += 1;
                self.error = Some(error);
                self.state = match next {
                    Some(next) => {
                        self.due = next;
                        DispatchState::Pending
                    }
                    None => DispatchState::Dead,
                };
            }
            AttemptOutcome::Released => {
                (self.state, self.due) = (DispatchState::Pending, Timestamp(0));
            }
        }
    }
}

/// The pause after a number of failed attempts, of which a share between 0 and 255 of a quarter is
/// taken off so that receivers are not met by all at once; `None` after the last attempt.
#[must_use]
pub fn pause_after(attempts: u32, share: u8) -> Option<Duration> {
    let number = usize::try_from(attempts.checked_sub(1)?).ok()?;
    let pause = *PAUSES.get(number)?;
    Some(pause - pause / 4 * u32::from(share) / 255)
}

/// True if a dispatch at this stage, after so many failed attempts, is due in so long a time that
/// the clock was set back since it was put off. What is pending is due at once then, and a host
/// that has one has it for [`TAKEN_FOR`] more.
#[must_use]
pub fn is_overlong(state: DispatchState, attempts: u32, wait: Duration) -> bool {
    let longest = match state {
        DispatchState::Pending => pause_after(attempts, 0).unwrap_or_default(),
        DispatchState::Taken => TAKEN_FOR,
        DispatchState::Delivered | DispatchState::Dead => return false,
    };
    wait > longest + CLOCK_LEEWAY
}

/// True for a dispatch for which a host stays: one that is due soon, so all but those in their last
/// pause.
#[must_use]
pub fn keeps_host(attempts: u32) -> bool {
    (attempts as usize) < PAUSES.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let pauses: Vec<_> = (0..5).map(|attempts| pause_after(attempts, 0)).collect();
        let [first, second, third] = PAUSES.map(Some);
        assert_eq!(pauses, [None, first, second, third, None]);
        for attempts in 1..=3 {
            let (longest, shortest) = (pause_after(attempts, 0), pause_after(attempts, 255));
            assert!(shortest < longest && shortest >= longest.map(|pause| pause * 3 / 4));
        }
        assert!((0..3).all(keeps_host) && !keeps_host(3));
    }

    #[test]
    fn a_wait_is_overlong_beyond_the_pause_that_it_was() {
        let waits = [
            (DispatchState::Pending, 0, Duration::ZERO),
            (DispatchState::Pending, 1, PAUSES[0]),
            (DispatchState::Pending, 3, PAUSES[2]),
            (DispatchState::Taken, 1, TAKEN_FOR),
        ];
        for (state, attempts, longest) in waits {
            let may_be = longest + CLOCK_LEEWAY;
            assert!(!is_overlong(state, attempts, may_be), "{state:?} {attempts}");
            let longer = may_be + Duration::from_millis(1);
            assert!(is_overlong(state, attempts, longer), "{state:?} {attempts}");
        }
        assert!(!is_overlong(DispatchState::Dead, 4, Duration::MAX), "nobody waits for it");
    }
}
