//! A wait for a run that a host of the process has begins without a look at the store.

use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures::poll;
use taskrun::error::ControllerError;
use taskrun_journal::ids::RunId;
use taskrun_journal::layer::Layer;
use taskrun_journal::list::Scope;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::{RunWatch, Store, StoreError};
use taskrun_store::{SqliteOptions, SqliteStore};
use tempfile::TempDir;
use tokio::sync::watch;

use super::common::named;
use crate::native::{Gate, Native, World, in_time};

/// A store that counts how often runs are read.
#[derive(Clone)]
struct Counting {
    inner: Arc<SqliteStore>,
    reads: Arc<watch::Sender<usize>>,
}

#[async_trait]
impl Layer for Counting {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        self.reads.send_modify(|reads| *reads += 1);
        self.inner.get(id).await
    }
}

/// A host with a run `r` that waits at a gate.
struct Working {
    store: Counting,
    host: Native,
    gate: Gate,
    /// Keeps the thread at work that looks after other processes; it has begun.
    _awake: Mutex<Box<dyn RunWatch>>,
    _dir: TempDir,
}

impl Working {
    async fn begin() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let inner = SqliteStore::open(dir.path(), SqliteOptions::default()).expect("a store");
        let inner = Arc::new(inner);
        let mut awake = inner.watch(&RunId::new("nobody").expect("an id"));
        in_time(awake.moved(0)).await;
        let store = Counting { inner: Arc::clone(&inner), reads: Arc::new(watch::Sender::new(0)) };
        let mut world = World::over(Arc::new(store.clone()), inner.clone(), inner);
        let gate = Gate::new();
        world.agent("a", gate.answering("done"));
        let host = world.start().await;
        host.spawn(&named("r", "a")).await;
        gate.reached_by(1).await;
        Self { store, host, gate, _awake: Mutex::new(awake), _dir: dir }
    }

    fn reads(&self) -> usize {
        *self.store.reads.borrow()
    }
}

#[tokio::test]
async fn a_wait_for_a_run_that_works_here_begins_without_a_look() {
    let working = Working::begin().await;
    let before = working.reads();
    let client = working.host.client();
    let mut wait = Box::pin(client.wait("r", Some(Duration::MAX)));
    assert!(poll!(&mut wait).is_pending());
    assert_eq!(working.reads(), before);
    working.gate.open();
    let waited = in_time(wait).await.expect("it is there");
    assert_eq!((waited.run.status(), waited.timed_out), (Status::Completed, false));
    assert_eq!(waited.run, working.host.get("r").await);
}

#[tokio::test]
async fn a_wait_that_began_without_a_look_looks_after_a_while() {
    let working = Working::begin().await;
    let before = working.reads();
    let client = working.host.client();
    let mut reads = working.store.reads.subscribe();
    in_time(async {
        tokio::select! {
            waited = client.wait("r", Some(Duration::MAX)) => panic!("it is open: {waited:?}"),
            looked = reads.wait_for(|reads| *reads > before) => drop(looked.expect("it is there")),
        }
    })
    .await;
}

#[tokio::test]
async fn whoever_may_not_see_a_run_that_works_here_is_not_told_that_it_is_there() {
    let working = Working::begin().await;
    let other = working.host.controller.at(&Scope::tenant("other"));
    let before = working.reads();
    let mut wait = Box::pin(other.wait("r", Some(Duration::MAX)));
    // It looks at once, whatever is known here: it is not handed an end that comes meanwhile.
    let polled = poll!(&mut wait);
    assert_eq!(working.reads(), before + 1);
    let hidden = match polled {
        Poll::Ready(hidden) => hidden,
        Poll::Pending => in_time(wait).await,
    };
    assert!(matches!(hidden, Err(ControllerError::NotFound { .. })), "{hidden:?}");
}
