//! Trees that change while they are read, and while something is done to all of their runs.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use taskrun::controller::{PauseRequest, ResumeRequest};
use taskrun_journal::layer::Layer;
use taskrun_journal::list::{TreePage, TreeQuery};
use taskrun_journal::run::Run;
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Store, StoreError};
use taskrun_store::MemoryStore;
use tokio::sync::Notify;

use super::common::{beneath, named};
use super::pause::pause;
use crate::native::{Gate, World, in_time};

/// A store that has whoever reads a tree wait behind its first page, once.
struct Slow {
    inner: Arc<MemoryStore>,
    is_armed: AtomicBool,
    has_read: Notify,
    goes_on: Notify,
}

impl Slow {
    /// A world over one.
    fn world() -> (World, Arc<Self>) {
        let inner = Arc::new(MemoryStore::new());
        let slow = Arc::new(Self {
            inner: Arc::clone(&inner),
            is_armed: AtomicBool::new(false),
            has_read: Notify::new(),
            goes_on: Notify::new(),
        });
        (World::over(slow.clone(), inner.clone(), inner), slow)
    }

    /// Does something, the first page of which is read before something else is done.
    async fn around<T>(
        &self,
        reads: impl Future<Output = T>,
        meanwhile: impl Future<Output = ()>,
    ) -> T {
        self.is_armed.store(true, Ordering::SeqCst);
        let meanwhile = async {
            self.has_read.notified().await;
            meanwhile.await;
            self.goes_on.notify_one();
        };
        in_time(futures::future::join(reads, meanwhile)).await.0
    }
}

#[async_trait]
impl Layer for Slow {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        let page = self.inner.tree(query, after, limit).await;
        if !query.counted_only && self.is_armed.swap(false, Ordering::SeqCst) {
            self.has_read.notify_one();
            self.goes_on.notified().await;
        }
        page
    }
}

fn ids(runs: &[Run]) -> Vec<&str> {
    runs.iter().map(|run| run.id().as_str()).collect()
}

#[tokio::test]
async fn m_36_what_is_accepted_while_a_tree_is_paused_or_resumed_is_paused_or_resumed_too() {
    let ((mut world, store), gate) = (Slow::world(), Gate::new());
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    host.spawn(&named("top", "a")).await;
    host.spawn(&beneath("top", "middle", "a")).await;
    gate.reached_by(2).await;
    let client = host.client().named("human");

    let request = PauseRequest { tree: true, ..PauseRequest::default() };
    let meanwhile = async {
        host.spawn(&beneath("middle", "low", "a")).await;
    };
    let done = store.around(client.pause("top", &request), meanwhile).await.expect("there");
    let paused: Vec<_> = done.descendants.iter().map(|id| id.as_str()).collect();
    assert_eq!(paused, ["middle", "low"]);
    for id in ["top", "middle", "low"] {
        assert!(host.get(id).await.state.pause.is_some(), "{id} goes on");
    }

    let request = ResumeRequest { tree: true, ..ResumeRequest::default() };
    let meanwhile = async {
        host.spawn(&beneath("middle", "last", "a")).await;
        pause(&host, "last").await.expect("it can be paused");
    };
    let done = store.around(client.resume("top", &request), meanwhile).await.expect("there");
    let resumed: Vec<_> = done.descendants.iter().map(|id| id.as_str()).collect();
    assert_eq!(resumed, ["middle", "low", "last"]);
    gate.open();
    for id in ["top", "middle", "low", "last"] {
        assert_eq!(host.end(id).await.status(), Status::Completed, "{id}");
    }
}

#[tokio::test]
async fn a_large_tree_is_shown_whole_while_its_runs_change() {
    let ((mut world, store), gate) = (Slow::world(), Gate::new());
    // Nobody executes anything, so that only the test changes runs.
    world.settings.slots = 0;
    world.agent_with("a", gate.answering("done"), |agent| {
        agent.tree = TreeBounds { runs: Some(1_000), ..TreeBounds::default() };
    });
    let host = world.start().await;
    host.spawn(&named("top", "a")).await;
    let names: Vec<String> = (0..250).map(|number| format!("r-{number:03}")).collect();
    for name in &names {
        host.spawn(&beneath("top", name, "a")).await;
    }
    let client = host.client();
    // One of each page.
    let meanwhile = async {
        for id in ["r-000", "r-249"] {
            client.cancel(id, None).await.expect("there");
        }
    };
    let tree = store.around(client.tree("top"), meanwhile).await.expect("there");
    assert_eq!(ids(&tree.descendants), names, "each once");
}
