//! Metrics of plan steps, when a host dies and when a step is tried again (L-014).

use std::sync::Arc;

use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun_journal::event::Event;
use taskrun_journal::message::Labels;
use taskrun_journal::metrics::{Measure, Metrics, SERIES_MAX};

use crate::native::{ClosurePlanner, Gate, Native, World, answer, request};

fn count(scope: &CallScope, name: &str) {
    let one = Some(Measure::Counter { sum: 1 });
    scope.record_metric("agent", name, Labels::new(), one);
}

async fn metrics(host: &Native, id: &str) -> Metrics {
    host.get(id).await.state.metrics
}

#[tokio::test]
async fn l_014_a_step_that_runs_again_counts_once() {
    let (mut world, gate) = (World::new(), Gate::new());
    let passed = gate.clone();
    let counting = ClosurePlanner::new(move |_: PlanInput, scope: Arc<CallScope>| {
        let gate = passed.clone();
        async move {
            count(&scope, "steps");
            gate.pass().await;
            answer("done")
        }
    });
    world.agent("a", counting);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    assert_eq!(metrics(&host, &id).await, Metrics::default(), "it has not ended");
    world.kill(host).await;
    gate.open();
    let next = world.take_over().await;
    next.end(&id).await;
    assert_eq!(gate.visitors(), 2);
    let found = metrics(&next, &id).await;
    assert_eq!(found.series.len(), 1);
    assert_eq!(found.series[0].measure, Measure::Counter { sum: 1 });
}

#[tokio::test]
async fn l_014_a_run_has_so_many_series_and_counts_what_is_beyond() {
    let mut world = World::new();
    let many = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        for number in 0..SERIES_MAX - 4 {
            count(&scope, &format!("turn{}.n{number}", input.run.turn));
        }
        match input.run.turn {
            1 => Ok(Err(taskrun_journal::plan::PlannerError {
                code: Some("transient".to_owned()),
                message: "again".to_owned(),
                causes: Vec::new(),
                retry_after_ms: None,
            })),
            _ => answer("done"),
        }
    });
    world.agent_with("a", many, |agent| {
        agent.retry.attempts = 1;
        agent.retry.then = taskrun_policy::RetryExhaustion::Skip { in_a_row: 1 };
    });
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.end(&id).await;
    let found = metrics(&host, &id).await;
    assert_eq!((found.series.len(), found.dropped), (SERIES_MAX, (SERIES_MAX - 8) as u64));
    let events = host.journal(&id).await;
    let recorded = events.iter().filter(|one| matches!(one.event, Event::MetricsRecorded { .. }));
    assert_eq!(recorded.count(), 2, "one for each step");
}
