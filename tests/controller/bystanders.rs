//! Hosts that die, and runs that had no part in it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::run::{Crashes, HeldWait, RunView};
use taskrun_journal::status::{Status, StopReason};

use super::budgets::question;
use super::common::named;
use crate::native::{ClosurePlanner, PAUSE_OVER, World, answer, failed};

/// Deaths of hosts, and runs that wait beside.
const DEATHS: usize = 20;
const BYSTANDERS: usize = 20;

/// A model that never answers.
struct Silent;

#[async_trait]
impl Model for Silent {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        std::future::pending().await
    }
}

/// A world with an agent that waits for its model, one that waits for the time to try again, and
/// one with whose step under way hosts die.
fn world() -> World {
    let mut world = World::new();
    world.settings.slots = BYSTANDERS + 8;
    let waits = ClosurePlanner::new(|_, scope| async move {
        match scope.ask(question()).await {
            Ok(_) => answer("answered"),
            Err(error) => failed(Some("canceled"), &error.to_string()),
        }
    });
    world.agent_asking("waits", waits, Some(Arc::new(Silent)), |_| {});
    let later = ClosurePlanner::new(|_, _| async { failed(Some("transient"), "not yet") });
    world.agent_with("later", later, |agent| {
        agent.retry.attempts = 10;
        agent.retry.pause = Duration::from_secs(100_000);
    });
    world.agent("deadly", ClosurePlanner::new(|_, _| std::future::pending()));
    world
}

#[tokio::test]
async fn hosts_that_die_with_the_runs_of_one_agent_end_no_run_that_only_waits() {
    let mut world = world();
    let bystanders: Vec<String> = (0..BYSTANDERS).map(|n| format!("waits-{n}")).collect();
    let mut host = world.start().await;
    for id in &bystanders {
        host.spawn(&named(id, "waits")).await;
    }
    host.spawn(&named("later", "later")).await;
    host.until("later", "tries again later", |run| run.state.failed_attempts == 1).await;
    let mut killers: Vec<String> = Vec::new();
    for death in 0..DEATHS {
        for id in &bystanders {
            host.until(id, "waits", |run| run.state.held_wait == HeldWait::Model).await;
        }
        let ended = match killers.last() {
            Some(id) => host.get(id).await.status().is_terminal(),
            None => true,
        };
        if ended {
            let id = format!("deadly-{death}");
            host.spawn(&named(&id, "deadly")).await;
            killers.push(id);
        }
        let killer = killers.last().expect("one of them");
        host.until(killer, "runs", |run| {
            run.status() == Status::Running && run.state.hold.host().is_some()
        })
        .await;
        world.kill(host).await;
        host = world.start().await;
        world.clock.advance(PAUSE_OVER);
    }
    for id in &bystanders {
        let run = host.until(id, "waits", |run| run.state.held_wait == HeldWait::Model).await;
        assert_eq!(
            (run.status(), run.state.crashes),
            (Status::Running, Crashes::default()),
            "{id}"
        );
    }
    assert_eq!(host.get("later").await.state.crashes, Crashes::default());
    // Those that had a step under way are charged, and three in a row are too many.
    assert_eq!(killers.len(), DEATHS.div_ceil(3));
    for id in &killers[..killers.len() - 1] {
        let view = RunView::from(&host.get(id).await);
        assert_eq!(view.stop_reason, Some(StopReason::InterruptedByRestart), "{id}");
    }
}
