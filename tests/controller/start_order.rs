//! The order in which the runs of one turn are accepted is that of its calls (M-14), and rooms that
//! take turns go by it (RS-17).

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};
use taskrun::ports::planner::PlanInput;
use taskrun_journal::layer::Layer;
use taskrun_journal::store::{CreateOutcome, NewRun, Store, StoreError};
use taskrun_policy::DelegationSettings;
use taskrun_store::MemoryStore;

use super::host_tools::{leader_with, words};
use crate::native::{ClosurePlanner, World, answer, request};

/// The calls of a turn.
const CALLS: u32 = 6;

/// A store that takes the longer for a run, the earlier its task stands among the calls.
struct Reversing {
    inner: Arc<MemoryStore>,
    accepted: Mutex<Vec<String>>,
}

#[async_trait]
impl Layer for Reversing {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError> {
        let task = run.run.spec.task.clone();
        let nth = task.strip_prefix("task ").and_then(|nth| nth.parse::<u32>().ok());
        for _ in 0..nth.map_or(0, |nth| 10 * (CALLS - nth)) {
            tokio::task::yield_now().await;
        }
        if nth.is_some() {
            self.accepted.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        }
        self.inner.create(run).await
    }
}

/// Starts all of them at once, by the tool that the task names.
fn starts(tool: &str, said: &[Value]) -> Vec<(&'static str, Value)> {
    let call = |nth: u32| {
        let task = format!("task {nth}");
        match tool {
            "delegate_task" => ("delegate_task", json!({ "agent": "worker", "task": task })),
            "spawn_task" => ("spawn_task", json!({ "agent": "worker", "message": task })),
            "spawn_agent" => ("spawn_agent", json!({ "agent": "worker", "goal": task })),
            _ => ("start_task_run", json!({ "agent_name": "worker", "task": task })),
        }
    };
    if said.is_empty() { (1..=CALLS).map(call).collect() } else { Vec::new() }
}

#[tokio::test]
async fn rs_17_the_runs_of_one_turn_are_accepted_and_take_turns_in_the_order_of_its_calls() {
    let expected: Vec<String> = (1..=CALLS).map(|nth| format!("task {nth}")).collect();
    for tool in ["delegate_task", "spawn_task", "spawn_agent", "start_task_run"] {
        let inner = Arc::new(MemoryStore::new());
        let store = Arc::new(Reversing { inner: Arc::clone(&inner), accepted: Mutex::default() });
        let mut world = World::over(store.clone(), inner.clone(), inner);
        let worked = Arc::new(Mutex::new(Vec::new()));
        let works = Arc::clone(&worked);
        let worker = ClosurePlanner::new(move |input: PlanInput, _| {
            let task = input.messages.last().map(|message| message.joined_text());
            works.lock().unwrap_or_else(PoisonError::into_inner).extend(task);
            async { answer("done") }
        });
        world.agent("worker", worker);
        leader_with(&mut world, ("lead", &["worker"]), starts, |agent| {
            agent.delegation = DelegationSettings { serial: true, ..DelegationSettings::default() };
        });
        let host = world.start().await;
        let lead = host.spawn(&request("lead", tool)).await;
        let said = words(&host, &lead).await;
        assert_eq!(said.len(), CALLS as usize, "{tool}: {said:?}");
        let accepted = store.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert_eq!(accepted, expected, "{tool}");
        for run in host.client().tree(&lead).await.expect("there").descendants {
            host.end(run.id().as_str()).await;
        }
        // Of those in no room several are worked on at once.
        if tool == "delegate_task" {
            let worked = worked.lock().unwrap_or_else(PoisonError::into_inner).clone();
            assert_eq!(worked, expected);
        }
    }
}
