//! The words to a run that was woken late.

use std::time::Duration;

use taskrun_journal::event::Event;

use super::parts::Parts;
use super::recorder::Recorder;
use super::stop::Halt;
use crate::host_tools::schedule;

/// The time by which a wake-up may be late without a word: what a host takes to begin.
const LATE: Duration = Duration::from_secs(60);

/// Tells a run that was taken up for a wake-up long after its time how late it is: whatever was to
/// happen in between did not, and it is woken once, however many times of its pattern have passed.
pub(super) async fn tell_if_late(parts: &Parts, recorder: &mut Recorder) -> Result<(), Halt> {
    let Some(wanted) = &recorder.run().state.rounds.woken else { return Ok(()) };
    let now = parts.env.clock.now();
    let late = now.since(wanted.at);
    if late < LATE {
        return Ok(());
    }
    let by = schedule::words(late);
    let mut text =
        format!("You are woken {by} late: it was to be at {}, and it is {now}.", wanted.at);
    let cron = wanted.cron.as_ref();
    if let Some(passed) = cron.and_then(|cron| schedule::passed(cron, wanted.at, now)) {
        text.push_str(&format!(
            " {passed} of your pattern passed meanwhile; this is the only wake-up for all of them."
        ));
    }
    recorder.record(vec![Event::Injected { text, by: "host".to_owned() }]).await
}
