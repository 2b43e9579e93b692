//! The store is asked for nothing beneath a run that another one continues once all has ended there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use taskrun::ports::planner::PlanInput;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::Report;
use taskrun_journal::ids::RunId;
use taskrun_journal::layer::Layer;
use taskrun_journal::list::{TreePage, TreeQuery};
use taskrun_journal::run::Run;
use taskrun_journal::status::StopReason;
use taskrun_journal::store::{ReportQuery, Store, StoreError};
use taskrun_store::MemoryStore;

use super::common::named;
use super::continued_runs::{go_on, rounds};
use super::rounds::{planned, report};
use crate::native::{ClosurePlanner, World, answer};

/// A store that counts what it is asked of the run `1` and of its tree.
struct Counting {
    inner: Arc<MemoryStore>,
    asked: Arc<AtomicU64>,
}

impl Counting {
    fn count(&self, id: &RunId) {
        if id.as_str() == "1" {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl Layer for Counting {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, id: &RunId) -> Result<Option<Run>, StoreError> {
        self.count(id);
        self.inner.get(id).await
    }

    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        self.count(&query.root_run_id);
        self.inner.tree(query, after, limit).await
    }

    async fn reports(
        &self,
        query: &ReportQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Report>, StoreError> {
        if let ReportQuery::Tree(root) = query {
            self.count(root);
        }
        self.inner.reports(query, after, limit).await
    }
}

#[tokio::test]
async fn nothing_is_read_of_a_run_before_each_step_of_the_one_that_continues_it() {
    let (memory, asked) = (Arc::new(MemoryStore::new()), Arc::<AtomicU64>::default());
    let store = Counting { inner: Arc::clone(&memory), asked: Arc::clone(&asked) };
    let mut world = World::over(Arc::new(store), memory.clone(), memory);
    let counts = Arc::<Mutex<Vec<u64>>>::default();
    let seen = Arc::clone(&counts);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        seen.lock().expect("unharmed").push(asked.load(Ordering::SeqCst));
        let planned = match input.run.turn {
            1..=3 => answer("on"),
            4 => planned(&report("it")),
            _ => answer("bye"),
        };
        async move { planned }
    });
    world.agent_with("a", planner, |agent| agent.budget.tokens = Some(1_000));
    let host = world.start().await;
    host.spawn(&SpawnRequest { autonomous: rounds(1), ..named("1", "a") }).await;
    host.end("1").await;
    let next = go_on(&host, "1", None).await;
    let run = host.end(next.id().as_str()).await;
    assert_eq!(run.ending().map(|ending| ending.stop_reason), Some(StopReason::Done));
    let counts = counts.lock().expect("unharmed").clone();
    let [_, first, later @ ..] = &counts[..] else { panic!("{counts:?}") };
    assert_eq!(later, [*first; 3], "only before the first step");
}
