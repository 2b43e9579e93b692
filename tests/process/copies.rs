//! Copies of a run under other ids: a store of many runs at the price of one.

use std::sync::Arc;

use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::machine;
use taskrun_journal::store::{Admission, CreateOutcome, NewRun, Store};
use taskrun_store::{Durability, SqliteOptions, SqliteStore};

use crate::project::Project;

/// Puts so many copies of a run that no host works on beside it, and gives their ids. It ends the
/// hosts of the project.
pub(crate) fn copies(project: &Project, of: &str, count: usize) -> Vec<String> {
    project.end_hosts();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ids = runtime.block_on(async {
        let options = SqliteOptions { durability: Durability::Process, ..SqliteOptions::default() };
        let store = SqliteStore::open(project.path().join(".taskrun"), options).expect("opens");
        let id = RunId::new(of).expect("an id");
        let mut events = store.read(&id, 0, 1_000).await.expect("reads");
        let mut ids = Vec::new();
        while ids.len() < count {
            let id = format!("copy-{}", ids.len() + 1);
            if let Event::Queued { spec } = &mut events[0].event {
                let spec = Arc::make_mut(spec);
                spec.id = RunId::new(&id).expect("an id");
                spec.root_run_id = spec.id.clone();
            }
            let run = machine::fold(&events).expect("a run");
            let (events, admission) = (events.clone(), Admission::UNBOUNDED);
            let artifacts = Vec::new();
            let new = NewRun { run, events, idempotency: None, task: None, artifacts, admission };
            assert!(matches!(store.create(new).await, Ok(CreateOutcome::New)));
            ids.push(id);
        }
        store.close();
        ids
    });
    runtime.shutdown_background();
    ids
}
