//! Runs for the tests of this crate's insides.

pub(crate) use taskrun_fixtures::new_run;
use taskrun_journal::event::Event;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::pin::Ready;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Append, Claim};
use taskrun_journal::time::Timestamp;

/// A durable run of no other one.
pub(crate) fn spec(id: &RunId) -> RunSpec {
    taskrun_fixtures::spec(id.as_str())
}

/// The run after these events, to be appended by a host of this epoch.
pub(crate) fn append(run: &Run, events: Vec<Event>, epoch: u64, at: Timestamp) -> Append {
    Append { epoch, ..taskrun_fixtures::append(run, run.state.head + 1, at, events) }
}

/// The wish of a host for runs, without finalizers.
pub(crate) fn wish(host: HostId, limit: usize, tree_slots: u32, now: Timestamp) -> Claim {
    let (ready, resumes) = (Ready::All, 0);
    Claim { host, limit, finalizers: 0, tree_slots, ready, resumes, now }
}
