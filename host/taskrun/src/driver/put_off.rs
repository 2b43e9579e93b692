//! Waits for a time: short ones that a run sits out, and long ones in which it holds nothing.

use std::time::Duration;

use taskrun_journal::event::Event;
use taskrun_journal::hold::Wait;
use taskrun_journal::run::Run;
use taskrun_journal::status::{BlockedOn, Status};
use taskrun_journal::time::{Random, Timestamp, millis, random_u64};

use super::parts::Parts;
use super::recorder::Recorder;
use super::stop::{Halt, Next, Stop};
use crate::scope::{CallScope, PushBack};

/// The longest time by which a run comes late to a model, so that all that wait for it do not come
/// at once.
const LATE_MAX: Duration = Duration::from_secs(30);

/// Puts a step off to the time at which its model may be asked. What it did is on its tape, and its
/// instance is gone; the run gives up its slot. Gives why it does not go on here.
pub(super) async fn put_off(
    (parts, recorder): (&Parts, &mut Recorder),
    turn: u32,
    scope: &CallScope,
    back: PushBack,
) -> Result<Halt, Halt> {
    let PushBack { model, wait, reason, said } = back;
    let until = parts.env.clock.now().plus(wait);
    let at = until.plus(late(wait, &*parts.env.random));
    let run = recorder.run().id();
    tracing::info!(%run, model, %until, reason, said, "the run waits for a model");
    let mut events = scope.take_events().events;
    let usage = scope.given_up();
    events.push(Event::PushedBack { turn, model, until, reason, said, usage });
    wait_until(recorder, events, |_| at).await
}

/// Records events of the work and gives up the slot until a time, in one step, unless somebody
/// stopped the run meanwhile. The time is that for the run as it stands by then. A pause that lies
/// over the run outlasts the wait, or the other way round. Gives why the run does not go on here.
pub(super) async fn wait_until(
    recorder: &mut Recorder,
    events: Vec<Event>,
    time: impl Fn(&Run) -> Timestamp + Send + Sync,
) -> Result<Halt, Halt> {
    let ran_ms = recorder.ran_ms();
    let decide = |run: &Run| match run.status() == Status::Running {
        true => {
            let wait = Wait::Time { at: time(run) };
            let blocked = Event::Blocked { on: BlockedOn::Schedule, wait, ran_ms };
            events.iter().cloned().chain([blocked]).collect()
        }
        false => Vec::new(),
    };
    if recorder.commit(decide).await? {
        return Ok(Halt::Blocked);
    }
    recorder.catch_up().await?;
    Ok(recorder.stop(Next::Anything).unwrap_or(Stop::HandOver).into())
}

/// The time to which a round is deferred: a message that is there by then wakes the run, as a later
/// one would.
pub(super) fn unless_told(at: Timestamp, now: Timestamp) -> impl Fn(&Run) -> Timestamp {
    move |run| match run.state.inbox.is_empty() {
        true => at,
        false => at.min(now),
    }
}

/// A pause with up to a quarter taken off by chance.
pub(super) fn jittered(pause: Duration, random: &dyn Random) -> Duration {
    let quarter = millis(pause) / 4;
    if quarter == 0 {
        return pause;
    }
    pause - Duration::from_millis(random_u64(random) % (quarter + 1))
}

/// A time by which a run comes late after a wait: up to a tenth of it, by chance.
fn late(wait: Duration, random: &dyn Random) -> Duration {
    let most = millis(wait / 10).min(millis(LATE_MAX));
    Duration::from_millis(random_u64(random) % (most + 1))
}

#[cfg(test)]
mod tests {
    use crate::clock::SeededRandom;

    use super::*;

    #[test]
    fn runs_come_late_by_a_tenth_and_at_most_half_a_minute() {
        let random = SeededRandom::new(7);
        let late = |seconds: u64| millis(late(Duration::from_secs(seconds), &random));
        assert_eq!(late(0), 0);
        let short: Vec<_> = (0..100).map(|_| late(60)).collect();
        assert!(short.iter().all(|ms| *ms <= 6_000) && short.iter().any(|ms| *ms > 4_000));
        let long: Vec<_> = (0..100).map(|_| late(3_600)).collect();
        assert!(long.iter().all(|ms| *ms <= 30_000) && long.iter().any(|ms| *ms > 20_000));
    }
}
