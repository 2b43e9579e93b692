//! The parts that the tests of heartbeats share.

use std::time::Duration;

use taskrun::batch::LABEL;
use taskrun::ports::planner::Planner;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::spec::RunClass;
use taskrun_journal::status::Status;
use taskrun_policy::{BeatTimes, Heartbeat};

use super::common::named;
use crate::native::{Native, World};

/// From one tick to the next; the simulated clock starts at a multiple of it.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Adds an agent whose heart beats once in a minute.
pub(crate) fn beating(world: &mut World, name: &str, planner: impl Planner + 'static) {
    world.agent_with(name, planner, |agent| {
        agent.heartbeat = Some(Heartbeat { times: BeatTimes::Every(MINUTE), prompt: None });
    });
}

/// A request for an entry with an id.
pub(crate) fn entry(id: &str, agent: &str) -> SpawnRequest {
    SpawnRequest { class: RunClass::Heartbeat, ..named(id, agent) }
}

/// Makes entries with these ids.
pub(crate) async fn leave(host: &Native, agent: &str, ids: &[&str]) {
    for id in ids {
        host.spawn(&entry(id, agent)).await;
    }
}

/// A beat that makes one batch.
pub(crate) async fn beat(host: &Native, agent: &str) -> Run {
    let mut made = host.controller.beat(agent).await.expect("it has a heart");
    assert_eq!(made.len(), 1, "{made:?}");
    made.remove(0)
}

/// A beat that makes none.
pub(crate) async fn beat_in_vain(host: &Native, agent: &str) {
    assert_eq!(host.controller.beat(agent).await.expect("it has a heart"), []);
}

/// The entries of a batch.
pub(crate) fn taken(batch: &Run) -> Vec<&str> {
    batch.spec.entries.iter().map(|id| id.as_str()).collect()
}

/// All batches, the oldest first.
pub(crate) async fn batches(host: &Native) -> Vec<Run> {
    let (name, value) = LABEL;
    let labels = [(name.to_owned(), value.to_owned())].into();
    let filter = ListFilter { labels, ..ListFilter::default() };
    let page = host.client().list(&filter, None, PAGE_MAX).await.expect("lists");
    let mut runs = page.runs;
    runs.sort_by_key(|run| (run.spec.created_at, run.id().clone()));
    runs
}

pub(crate) async fn statuses(host: &Native, ids: &[&str]) -> Vec<Status> {
    let mut all = Vec::new();
    for id in ids {
        all.push(host.get(id).await.status());
    }
    all
}

/// The end of a run: status and result, or error.
pub(crate) async fn end(host: &Native, id: &str) -> (Status, String) {
    let view = RunView::from(&host.end(id).await);
    let said = view.result.or(view.error).unwrap_or_default();
    (view.status, said)
}
