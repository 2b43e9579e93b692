//! A time of day that is set back, or forward, while runs are under way (case 67).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use taskrun::ports::transport::{Callback, Subscriber, TransportError};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::dispatch::{DispatchState, PAUSES, TaskEvent};
use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::question::Answer;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::beats::{batches, beating, leave};
use super::common::{Gates, check_journal, count, following, named, task_tools};
use super::dispatches::{all_delivered, registered, rows, told};
use super::push_back::{self, Busy, reach_the_wait};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer, value};

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

#[tokio::test]
async fn case_67_a_run_is_told_of_earlier_ones_in_the_order_in_which_they_ended() {
    let mut world = late();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    for id in ["first", "second", "third"] {
        host.spawn(&SpawnRequest { converses: true, ..named(id, "a") }).await;
        assert_eq!(host.end(id).await.status(), Status::Completed);
        if id == "first" {
            set_back(&world);
        }
    }
    let journal = host.journal("third").await;
    let told = journal.iter().find_map(|recorded| {
        let Event::HistoryCarried { runs, .. } = &recorded.event else { return None };
        Some(runs)
    });
    let told = told.expect("it is told of both").iter().map(RunId::as_str);
    assert_eq!(told.collect::<Vec<_>>(), ["first", "second"]);
}

#[tokio::test]
async fn case_67_a_pause_of_a_provider_is_as_long_as_it_asked_for() {
    let model = Busy::new(&[Some(20 * SECOND)]);
    let (mut world, _) = push_back::world(&model, |agent| agent.retry.attempts = 1);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(host.end("1").await.status(), Status::Failed);
    set_back(&world);
    host.spawn(&named("2", "a")).await;
    assert_eq!(world.next(20 * SECOND).await, 20 * SECOND);
    assert_eq!(host.end("2").await.status(), Status::Completed);
    assert_eq!(model.asked(), ["one", "one", "two"]);
}

#[tokio::test]
async fn case_67_a_run_is_put_off_for_what_is_left_of_a_pause() {
    let model = Busy::new(&[Some(90 * SECOND)]);
    let (mut world, _) = push_back::world(&model, |_| {});
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    reach_the_wait(&host, "1").await;
    set_back(&world);
    host.spawn(&named("2", "a")).await;
    let second = reach_the_wait(&host, "2").await;
    assert_eq!(second.state.pushed_back_ms, 90_000);
    // It may come half a minute late.
    world.clock.advance(120 * SECOND);
    assert_eq!(host.end("2").await.status(), Status::Completed);
}

/// A host with a run whose subscriber could not be told at first, and how often that was tried.
async fn told_in_vain(world: &mut World) -> (Native, Arc<AtomicUsize>) {
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let tries = Arc::new(AtomicUsize::new(0));
    let tried = Arc::clone(&tries);
    let mut subscriber = Subscriber::new(Callback::new(move |_| {
        let is_well = tried.fetch_add(1, Ordering::SeqCst) > 0;
        async move { is_well.then_some(()).ok_or_else(|| TransportError("down".to_owned())) }
    }));
    subscriber.events = vec![TaskEvent::Completed];
    world.subscribers = registered([("ci", subscriber)]);
    let host = world.start().await;
    host.spawn(&told(named("r", "a"), &["transport/ci"])).await;
    host.end("r").await;
    rows(&host, "r", |rows| {
        rows.iter().any(|row| (row.state, row.attempts) == (DispatchState::Pending, 1))
    })
    .await;
    (host, tries)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_67_a_subscriber_that_could_not_be_told_is_told_after_a_pause_as_long_as_it_was() {
    let mut world = late();
    let (host, tries) = told_in_vain(&mut world).await;
    set_back(&world);
    world.clock.advance(PAUSES[0]);
    rows(&host, "r", all_delivered(1)).await;
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_67_a_subscriber_is_told_again_though_no_timer_counted_the_pause() {
    let mut world = World::new();
    let (host, tries) = told_in_vain(&mut world).await;
    // It waits for the end of the pause.
    host.settle().await;
    let now = world.clock.now();
    world.clock.set_time_of_day(now.plus(PAUSES[0]));
    rows(&host, "r", all_delivered(1)).await;
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn case_67_a_heart_beats_though_no_timer_counted_the_time_until_then() {
    let mut world = World::new();
    beating(&mut world, "coder", ClosurePlanner::new(|_, _| async { answer("all done") }));
    let host = world.start().await;
    // It waits for the next minute.
    world.clock.wait_for_sleepers(1).await;
    leave(&host, "coder", &["1"]).await;
    let now = world.clock.now();
    world.clock.set_time_of_day(now.plus(DAY));
    assert_eq!(host.end("1").await.status(), Status::Completed);
    assert_eq!(batches(&host).await.len(), 1);
}
