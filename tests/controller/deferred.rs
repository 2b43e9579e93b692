//! Runs that wait for a time, and the hosts that need not stay for them (M-55).

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::plan::PlannerError;
use taskrun_journal::status::Status;
use taskrun_store::{Durability, SqliteOptions, SqliteStore};

use crate::native::{ClosurePlanner, Looks, Planned, World, answer, in_time, request};

const HOUR: Duration = Duration::from_secs(3_600);

/// A step that wants to be tried again in an hour, which a run waits for without a slot.
fn later() -> Planned {
    Ok(Err(PlannerError {
        code: Some("unavailable".to_owned()),
        message: "in an hour".to_owned(),
        causes: Vec::new(),
        retry_after_ms: Some(3_600_000),
    }))
}

#[tokio::test]
async fn m_55_a_host_with_a_thousand_deferred_runs_writes_nothing_but_heartbeats() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let options = SqliteOptions { durability: Durability::Process, ..SqliteOptions::default() };
    let sqlite = Arc::new(SqliteStore::open(folder.path(), options).expect("opens"));
    let looks = Looks::of(sqlite.clone());
    let mut world = World::over(looks.clone(), sqlite.clone(), sqlite.clone());
    let planner = ClosurePlanner::new(|_, scope| {
        let first = scope.context().attempt == 1;
        async move { if first { later() } else { answer("done") } }
    });
    world.agent("a", planner);
    world.settings.slots = 64;
    let host = world.start().await;
    let mut ids = Vec::new();
    for number in 0..1_000 {
        ids.push(host.spawn(&request("a", &format!("x{number}"))).await);
    }
    for id in &ids {
        host.until(id, "waits", |run| run.status() == Status::Blocked).await;
    }
    // What was told last is looked at once more.
    in_time(looks.more(2)).await;
    let before = sqlite.stats();
    world.clock.advance(HOUR - Duration::from_secs(1));
    in_time(looks.more(3)).await;
    assert!(host.controller.is_needed(HOUR).await.expect("answers"), "they are due soon");
    let after = sqlite.stats();
    assert_eq!(after.transactions, before.transactions, "it wrote something");
    assert_eq!(after.commits, before.commits);
    world.clock.advance(Duration::from_secs(1));
    for id in &ids {
        assert_eq!(host.end(id).await.status(), Status::Completed);
    }
}

#[tokio::test]
async fn m_55_a_host_leaves_while_nothing_is_due_soon_and_the_next_one_goes_on_when_it_is() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|_, scope| {
        let first = scope.context().attempt == 1;
        async move { if first { later() } else { answer("done") } }
    });
    world.agent("a", planner);
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    first.until(&id, "waits", |run| run.status() == Status::Blocked).await;
    assert!(first.controller.is_needed(HOUR).await.expect("answers"));
    assert!(!first.controller.retire(HOUR).await.expect("answers"));
    let minute = Duration::from_secs(60);
    // The driver may still be on its way out.
    while !first.controller.retire(minute).await.expect("answers") {
        first.settle().await;
    }
    world.clock.advance(HOUR * 24 * 7);
    let second = world.start().await;
    let run = second.end(&id).await;
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(run.state.ran_ms, 0, "a week is no running time");
}
