//! The dispatches to which the acceptance and the end of a run give rise.

use crate::dispatch::TaskEvent;
use crate::spec::RunSpec;

/// The subscribers of a run that are told of an event of it, each once.
pub fn subscribers(spec: &RunSpec, event: TaskEvent) -> impl Iterator<Item = &str> {
    let told = spec.subscriptions.iter().filter(move |one| one.events.contains(&event));
    told.map(|one| one.subscriber.as_str())
}
