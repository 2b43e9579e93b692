//! A run beneath an autonomous one that ends while it is looked which of them are left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use taskrun::ports::planner::PlanInput;
use taskrun_journal::delivery::Report;
use taskrun_journal::event::Event;
use taskrun_journal::layer::Layer;
use taskrun_journal::list::{ListFilter, Scope, TreePage, TreeQuery};
use taskrun_journal::store::{ReportQuery, Store, StoreError};
use taskrun_store::MemoryStore;

use super::common::{Gates, soon};
use super::delivery::start;
use super::host_tools::leader_that;
use super::rounds::{autonomous, planned, report};
use crate::native::{ClosurePlanner, World, answer};

/// A store in which the worker ends between two reads of the tree and its reports, whichever is the
/// first.
struct Between {
    inner: Arc<MemoryStore>,
    gates: Arc<Gates>,
    is_armed: Arc<AtomicBool>,
}

impl Between {
    /// Lets the worker end, once, and returns when it has.
    async fn end_worker(&self) {
        if !self.is_armed.swap(false, Ordering::SeqCst) {
            return;
        }
        self.gates.open("worker");
        let scope = Scope::tenant("default");
        let has_ended = async {
            loop {
                let page = self.inner.list(&scope, &ListFilter::default(), None, 9).await;
                let open = page.expect("lists").runs.into_iter();
                if open.filter(|run| !run.status().is_terminal()).count() == 1 {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        soon("the worker ends", has_ended).await;
    }
}

#[async_trait]
impl Layer for Between {
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
        if query.counted_only {
            self.end_worker().await;
        }
        page
    }

    async fn reports(
        &self,
        query: &ReportQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Report>, StoreError> {
        let reports = self.inner.reports(query, after, limit).await;
        if matches!(query, ReportQuery::Tree(_)) {
            self.end_worker().await;
        }
        reports
    }
}

#[tokio::test]
async fn a_run_that_ends_meanwhile_is_not_left_behind_before_its_outcome_is_told() {
    let (memory, gates) = (Arc::new(MemoryStore::new()), Gates::new());
    let is_armed = Arc::<AtomicBool>::default();
    let store = Between {
        inner: Arc::clone(&memory),
        gates: Arc::clone(&gates),
        is_armed: Arc::clone(&is_armed),
    };
    let mut world = World::over(Arc::new(store), memory.clone(), memory);
    world.agent(
        "worker",
        ClosurePlanner::new(move |_, _| {
            let gates = Arc::clone(&gates);
            async move {
                let _inside = gates.pass("worker").await;
                answer("dug")
            }
        }),
    );
    let leader = ClosurePlanner::new(move |input: PlanInput, _| {
        let planned = match input.run.turn {
            1 => start("c", "worker", "dig"),
            2 => {
                is_armed.store(true, Ordering::SeqCst);
                answer("it digs")
            }
            3 => planned(&report("it")),
            _ => answer("bye"),
        };
        async move { planned }
    });
    leader_that(&mut world, ("a", &["worker"]), leader, |_| {});
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    host.end("1").await;
    let journal = host.journal("1").await;
    let left = journal.iter().find_map(|recorded| {
        let Event::RoundEnded { checkpoint, .. } = &recorded.event else { return None };
        Some(checkpoint.settled.runs.len())
    });
    assert_eq!(left, Some(0), "its outcome is not told yet");
    let told = journal.iter().filter(|recorded| recorded.event.kind() == "reported").count();
    assert_eq!(told, 1);
}
