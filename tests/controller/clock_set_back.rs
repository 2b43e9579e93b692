//! A time of day that goes backwards while runs are under way (case 67).

use std::sync::Arc;
use std::time::Duration;

use taskrun::spawn::SpawnRequest;
use taskrun_journal::question::Answer;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{Gates, check_journal, count, following, named, task_tools};
use crate::native::{ClosureTool, World, value};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// A world in which it is late, so that there is a day to go back.
fn late() -> World {
    let world = World::new();
    world.clock.advance(2 * DAY);
    world
}

fn set_back(world: &World) {
    let now = world.clock.now().0;
    let day = u64::try_from(DAY.as_millis()).expect("not so long");
    world.clock.set_time_of_day(Timestamp(now - day));
}

#[tokio::test]
async fn case_67_runs_under_way_go_on_and_new_ones_are_executed_in_the_order_they_came() {
    let (mut world, gates) = (late(), Gates::new());
    world.settings.slots = 1;
    world.agent("a", gates.planner());
    let host = world.start().await;
    for id in ["1", "2"] {
        host.spawn(&named(id, "a")).await;
    }
    gates.have_come(1).await;
    set_back(&world);
    host.spawn(&named("3", "a")).await;
    for (nth, id) in ["1", "2", "3"].into_iter().enumerate() {
        gates.have_come(nth + 1).await;
        gates.open(id);
        assert_eq!(host.end(id).await.status(), Status::Completed);
        check_journal(&host.journal(id).await);
    }
    assert_eq!(gates.came(), ["1", "2", "3"]);
}

#[tokio::test]
async fn case_67_a_run_has_the_time_that_it_had() {
    let (mut world, gates) = (late(), Gates::new());
    world.agent("a", gates.planner());
    let host = world.start().await;
    host.spawn(&SpawnRequest { timeout: Some(10 * SECOND), ..named("1", "a") }).await;
    gates.have_come(1).await;
    world.clock.advance(4 * SECOND);
    set_back(&world);
    assert_eq!(world.next(DAY).await, 6 * SECOND);
    let run = host.end("1").await;
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(host.view("1").await.stop_reason, Some(StopReason::RunTimeout));
}

#[tokio::test]
async fn case_67_running_time_is_counted_and_no_host_takes_another_for_dead() {
    let (mut world, gates) = (late(), Gates::new());
    let handle = task_tools(&mut world);
    let inside = Arc::clone(&gates);
    let slow = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        let gates = Arc::clone(&inside);
        async move {
            let _inside = gates.pass("tool").await;
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Fail, slow);
    let turns = vec![vec![("c1", "t/f", "{}")], vec![("c2", "ask/f", "\"which?\"")]];
    world.agent("a", following(turns));
    let host = world.start().await;
    handle.set(&host);
    host.spawn(&SpawnRequest { timeout: Some(DAY), ..named("1", "a") }).await;
    gates.have_come(1).await;
    world.clock.advance(4 * SECOND);
    set_back(&world);
    world.clock.advance(2 * SECOND);
    gates.open("tool");
    assert_eq!(host.reach("1", Status::Blocked).await.state.ran_ms, 6_000);
    let other = world.start().await;
    set_back(&world);
    for one in [&host, &other] {
        one.controller.sweep().await.expect("the store can be swept");
    }
    let answer = Answer::Text("this one".into());
    host.client().named("me").answer("1", None, answer).await.expect("taken");
    let run = host.end("1").await;
    assert_eq!(run.status(), Status::Completed, "{:?}", run.ending());
    let journal = host.journal("1").await;
    check_journal(&journal);
    assert_eq!(count(&journal, "lost"), 0);
    assert_eq!(count(&journal, "tool_call_scheduled"), 2);
}
