//! Admission, order, moves and keys, each against tables and a register made of plain values.

mod admission;
mod continuations;
mod keys;
mod moves;
mod reports;

use std::sync::Arc;

use crate::ending::Ending;
use crate::event::Event;
use crate::ids::RunId;
use crate::machine::tests::{completed, finalizing, finished, run, spec, started};
use crate::run::Run;
use crate::spec::RunSpec;
use crate::status::StopReason;

fn id(text: &str) -> RunId {
    RunId::new(text).expect("a valid id")
}

/// A run of this request after these events.
fn run_of(spec: RunSpec, events: impl IntoIterator<Item = Event>) -> Run {
    Run { spec: Arc::new(spec), ..run(events) }
}

/// A completed run; it ended at 40.
fn completed_run() -> Run {
    run([started(), completed(), finished()])
}

/// A canceled run; it ended at 40.
fn canceled_run() -> Run {
    let ending = Ending::canceled(StopReason::CanceledByOwner);
    run([started(), finalizing(ending), finished()])
}

/// The request of a run that `parent` started.
fn child_of(parent: &str) -> RunSpec {
    RunSpec {
        id: id("child"),
        parent_run_id: Some(id(parent)),
        root_run_id: id(parent),
        attached: true,
        depth: 1,
        ..spec()
    }
}
