//! Runs that end where they would be deferred, and those that continue them (C-043, C-055).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::autonomy::AutonomyRequest;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::time::Clock;

use super::common::{Handle, check_journal, named};
use super::dying::{Point, at_every_write, survive};
use super::pause::inject;
use super::rounds::{Turn, prompts, report, world};
use crate::native::Native;
use Turn::{Call, Say};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn exits(id: &str) -> SpawnRequest {
    let asked = AutonomyRequest { exit_on_defer: true, ..AutonomyRequest::default() };
    SpawnRequest { autonomous: Some(asked), ..named(id, "a") }
}

fn later(arguments: Value) -> Turn {
    Call(vec![("s", "host/schedule_next_turn", arguments)])
}

/// Defers itself for an hour, is told `rescan`, and is done.
fn turns() -> Vec<Turn> {
    let asks = json!({ "wake_in_sec": 3_600, "next_prompt": "rescan" });
    vec![later(asks), Say("waiting"), report("rescanned"), Say("all clear")]
}

/// The id of the run that continues it.
pub(super) async fn go_on(host: &Native, id: &str) -> String {
    let request = host.client().continuation(id).await.expect("it may be continued");
    let outcome = host.client().submit(&request).await.expect("accepted");
    outcome.run.id().to_string()
}

/// The run once it waits for its time.
async fn waiting(host: &Native, id: &str) -> RunView {
    let run = host.until(id, "is deferred", |run| run.state.rounds.due.is_some()).await;
    assert_eq!(run.status(), Status::Blocked);
    RunView::from(&run)
}

fn ended(run: &RunView) -> (Status, Option<StopReason>, bool, Option<u32>, Option<&str>) {
    (run.status, run.stop_reason, run.partial, run.rounds, run.result.as_deref())
}

#[tokio::test]
async fn c_055_a_run_that_exits_where_it_would_be_deferred_is_continued_at_its_time() {
    let (mut world, shown) = world(turns());
    let host = world.start().await;
    let at = world.clock.now().plus(HOUR);
    host.spawn(&exits("1")).await;
    let first = RunView::from(&host.end("1").await);
    let deferred = (Status::Completed, Some(StopReason::Deferred), true, Some(1), Some("waiting"));
    assert_eq!((ended(&first), first.next_wake_at), (deferred, Some(at)));
    check_journal(&host.journal("1").await);
    // Continued too early, it waits as one does that is deferred, whatever hosts are there.
    let id = go_on(&host, "1").await;
    let view = waiting(&host, &id).await;
    assert_eq!((view.next_wake_at, view.blocked_until), (Some(at), Some(at)));
    world.kill(host).await;
    let host = world.take_over().await;
    world.clock.advance(at.since(world.clock.now()) - SECOND);
    host.settle().await;
    assert_eq!((host.get(&id).await.status(), prompts(&shown).len()), (Status::Blocked, 2));
    world.clock.advance(SECOND);
    let run = RunView::from(&host.end(&id).await);
    let done = (Status::Completed, Some(StopReason::Done), false, Some(2), Some("all clear"));
    assert_eq!((ended(&run), run.next_wake_at), (done, None));
    assert_eq!(prompts(&shown)[2], "rescan");
    check_journal(&host.journal(&id).await);
}

#[tokio::test]
async fn c_043_one_that_is_continued_late_is_told_so_and_begins_at_once() {
    let (mut world, shown) = world(turns());
    let host = world.start().await;
    host.spawn(&exits("1")).await;
    host.end("1").await;
    world.clock.advance(3 * HOUR);
    let id = go_on(&host, "1").await;
    let run = RunView::from(&host.end(&id).await);
    assert_eq!((run.stop_reason, run.rounds), (Some(StopReason::Done), Some(2)));
    let told = &prompts(&shown)[2];
    assert!(told.contains("You are woken 2 h 0 min late"), "{told}");
}

#[tokio::test]
async fn c_043_a_wait_is_cut_short_by_a_word_and_canceled_with_what_was_carried() {
    let (mut world, shown) = world(turns());
    let host = world.start().await;
    host.spawn(&exits("1")).await;
    host.end("1").await;
    let id = go_on(&host, "1").await;
    waiting(&host, &id).await;
    host.client().cancel(&id, None).await.expect("canceled");
    let run = RunView::from(&host.end(&id).await);
    let (turns, rounds) = (run.turns, run.rounds);
    assert_eq!((run.status, turns, rounds), (Status::Canceled, 2, Some(1)));
    // Somebody who goes on with what was canceled does not wait any more.
    let id = go_on(&host, &id).await;
    let run = RunView::from(&host.end(&id).await);
    assert_eq!((run.stop_reason, run.rounds), (Some(StopReason::Done), Some(2)));
    assert_eq!(prompts(&shown)[2], "continue");
}

#[tokio::test]
async fn c_056_one_that_waits_for_the_time_of_another_is_woken() {
    let (mut world, shown) = world(turns());
    let host = world.start().await;
    host.spawn(&exits("1")).await;
    host.end("1").await;
    let id = go_on(&host, "1").await;
    waiting(&host, &id).await;
    host.client().wake(&id, "The mirror is back.").await.expect("woken");
    let run = RunView::from(&host.end(&id).await);
    assert_eq!((run.stop_reason, run.rounds), (Some(StopReason::Done), Some(2)));
    let told = &prompts(&shown)[2];
    assert!(told.contains("The mirror is back."), "{told}");
}

#[tokio::test]
async fn c_056_one_that_was_told_something_before_it_began_does_not_wait() {
    let (mut world, shown) = world(turns());
    let host = world.start().await;
    host.spawn(&exits("1")).await;
    host.end("1").await;
    world.kill(host).await;
    let door = world.door().await;
    let id = go_on(&door, "1").await;
    inject(&door, &id, "The mirror is back.").await;
    let host = world.take_over().await;
    let run = RunView::from(&host.end(&id).await);
    assert_eq!((run.stop_reason, run.rounds), (Some(StopReason::Done), Some(2)));
    let told = &prompts(&shown)[2];
    assert!(told.contains("The mirror is back."), "{told}");
}

#[tokio::test]
async fn c_055_one_that_goes_on_exits_again_where_it_defers_itself_again_and_needs_no_words() {
    let again = || later(json!({ "wake_in_sec": 3_600 }));
    let (mut world, _) = world(vec![again(), Say(""), again(), Say(""), report("it"), Say("end")]);
    let host = world.start().await;
    host.spawn(&exits("1")).await;
    let mut id = "1".to_owned();
    for rounds in 1..=2 {
        let run = RunView::from(&host.end(&id).await);
        let deferred = (Status::Completed, Some(StopReason::Deferred), true, Some(rounds), None);
        assert_eq!(ended(&run), deferred);
        id = go_on(&host, &id).await;
        waiting(&host, &id).await;
        world.clock.advance(HOUR);
    }
    assert_eq!(RunView::from(&host.end(&id).await).stop_reason, Some(StopReason::Done));
}

/// A run that exits where it would be deferred and one that continues it, with the death of a host
/// at this point; gives how many died.
async fn play(point: Point) -> u32 {
    let (mut world, _) = world(turns());
    let door = world.door().await;
    let clock = Arc::clone(&world.clock);
    let outside = async {
        door.spawn(&exits("1")).await;
        let first = RunView::from(&door.end("1").await);
        assert_eq!(first.stop_reason, Some(StopReason::Deferred), "{point:?}");
        let id = go_on(&door, "1").await;
        let waits = |run: &Run| run.state.rounds.due.is_some();
        let waiting = door.until(&id, "is deferred", waits).await;
        let at = waiting.next_wake().expect("it is deferred").at;
        clock.advance(at.since(clock.now()));
        door.end(&id).await
    };
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let journal = door.journal(run.id().as_str()).await;
    check_journal(&journal);
    let view = RunView::from(&run);
    assert_eq!((view.stop_reason, view.rounds), (Some(StopReason::Done), Some(2)), "{point:?}");
    let count = |kind: &str| journal.iter().filter(|one| one.event.kind() == kind).count();
    assert_eq!(count("blocked"), 1, "{point:?}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_055_a_host_may_die_at_every_write_of_both_runs() {
    at_every_write(play).await;
}
