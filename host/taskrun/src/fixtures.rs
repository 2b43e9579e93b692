//! The runs of this crate's tests.

use taskrun_fixtures as fixtures;
pub(crate) use taskrun_fixtures::{answered, asked, cancel_requested, completed, lost, started};
use taskrun_journal::event::Event;
use taskrun_journal::hold::Wait;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::BlockedOn;

pub(crate) fn spec() -> RunSpec {
    RunSpec { timeout_ms: Some(7), ..fixtures::spec("run-1") }
}

pub(crate) fn blocked(wait: Wait) -> Event {
    fixtures::blocked(BlockedOn::Input, wait)
}

pub(crate) fn run(events: impl IntoIterator<Item = Event>) -> Run {
    fixtures::run_of(spec(), events)
}
