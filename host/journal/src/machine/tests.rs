//! Every place of a run's life against every event, and the decisions.

mod adoptions;
mod counts;
mod decisions;
mod endings;
mod entries;
mod events;
mod folds;
mod fuzz;
mod pauses;
mod places;

use super::{apply, begin, fold};
use crate::ending::Ending;
use crate::event::{Event, EventRecord};
use crate::fixtures::{self, run_of};
pub(crate) use crate::fixtures::{
    answered, asked, cancel_requested, completed, finalizing, finished, lost, started,
};
use crate::hold::{Wait, WaitMode};
use crate::ids::{HostId, RunId};
use crate::message::Labels;
use crate::pause::PauseEnd;
use crate::run::Run;
use crate::spec::{RunClass, RunSpec};
use crate::status::{BlockedOn, StopReason};
use crate::time::Timestamp;

pub(crate) fn spec() -> RunSpec {
    RunSpec { timeout_ms: Some(7), ..fixtures::spec("run-1") }
}

pub(crate) fn resumed(epoch: u64) -> Event {
    Event::Resumed { host: HostId::new("g"), epoch }
}

pub(crate) fn pause_requested() -> Event {
    Event::PauseRequested { by: "b".into(), reason: Some("lunch".into()), until: None }
}

pub(crate) fn pause_ended() -> Event {
    Event::PauseEnded { why: PauseEnd::Resumed, by: None, note: None, messages: Vec::new() }
}

pub(crate) fn blocked(wait: Wait) -> Event {
    fixtures::blocked(BlockedOn::Input, wait)
}

pub(crate) fn blocked_on_pause() -> Event {
    fixtures::blocked(BlockedOn::Pause, Wait::Word)
}

pub(crate) fn for_runs() -> Wait {
    let runs = vec![RunId::new("run-2").expect("a valid id")];
    Wait::Runs { runs, mode: WaitMode::All, at: None }
}

pub(crate) fn run(events: impl IntoIterator<Item = Event>) -> Run {
    run_of(spec(), events)
}

/// The run after these events, at time 999.
fn after(run: &Run, events: impl IntoIterator<Item = Event>) -> Result<Run, String> {
    let mut run = run.clone();
    for event in events {
        let recorded = EventRecord { seq: run.state.head + 1, id: 9, at: Timestamp(999), event };
        run.state = apply(run.state, &recorded).map_err(|error| error.to_string())?;
    }
    Ok(run)
}
