//! Guests that trap when a function of the host has done what lasts (case 65).

use std::sync::Arc;

use taskrun::scope::CallScope;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{Handle, check_journal, count, following, named, spawning};
use super::dying::{Point, at_every_write, survive};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer};

/// Starts a run, and is gone before it has decided or answered anything.
async fn starts_and_traps<T>(scope: Arc<CallScope>) -> Result<T, CallAbort> {
    scope.ask(spawning("child", "play")).await.expect("it is started");
    Err(CallAbort::Trap { code: "unreachable".to_owned() })
}

fn world() -> World {
    let mut world = World::new();
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("played") }));
    world.agent("step", ClosurePlanner::new(|_, scope| starts_and_traps(scope)));
    world.tool(
        "t",
        InterruptionPolicy::Fail,
        ClosureTool::new("f", ToolHints::default(), |_, scope| starts_and_traps(scope)),
    );
    world.agent("caller", following(vec![vec![("c", "t/f", "{}")]]));
    world
}

async fn beneath(door: &Native, id: &str) -> Vec<Run> {
    door.client().tree(id).await.expect("there").descendants
}

async fn trapped(point: Point) -> u32 {
    let mut world = world();
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("1", "step")).await;
        door.end("1").await
    };
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let view = RunView::from(&run);
    assert_eq!((view.status, view.stop_reason), (Status::Failed, Some(StopReason::AgentTrap)));
    let journal = door.journal("1").await;
    check_journal(&journal);
    assert_eq!(count(&journal, "host_answered"), 1, "{point:?}");
    assert_eq!(beneath(&door, "1").await.len(), 1, "{point:?}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_65_a_run_that_a_step_started_before_it_trapped_is_there_once_whoever_dies() {
    at_every_write(trapped).await;
}

#[tokio::test]
async fn case_65_a_run_that_a_call_started_before_it_trapped_is_there_and_the_caller_goes_on() {
    let mut world = world();
    let host = world.start().await;
    host.spawn(&named("1", "caller")).await;
    let run = host.end("1").await;
    assert_eq!(run.status(), Status::Completed, "{:?}", run.ending());
    let told = run.state.reply.result().expect("an answer");
    assert!(told.starts_with("trap: "), "{told}");
    let runs = beneath(&host, "1").await;
    let [child] = &runs[..] else { panic!("{runs:?}") };
    assert_eq!(host.end(child.id().as_str()).await.status(), Status::Completed);
    check_journal(&host.journal("1").await);
}
