//! Rounds that begin at a time of the run's own choice (C-043, C-053 to C-055, M-55).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use taskrun::autonomy::AutonomyRequest;
use taskrun::controller::{PauseRequest, ResumeRequest};
use taskrun::error::ControllerError;
use taskrun::ports::planner::{Decision, PlanInput};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::answers::Answers;
use taskrun_journal::event::Event;
use taskrun_journal::hold::Hold;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::time::Clock;
use taskrun_policy::AutonomySettings;

use super::common::{Gates, Handle, check_journal};
use super::dying::{Point, at_every_write, survive};
use super::host_tools::leader_that;
use super::rounds::{
    Shown, Turn, autonomous, played, prompts, report, told_at_its_gate, world, world_with,
};
use crate::native::{ClosurePlanner, Native, World, answer, call_of, clarification, decided};
use Turn::{Call, Say};

const SECOND: Duration = Duration::from_secs(1);

/// A call of the tool by which a run says when its next round begins.
fn schedule(arguments: serde_json::Value) -> Turn {
    Call(vec![("s", "host/schedule_next_turn", arguments)])
}

/// Defers itself once, is told `rescan`, and is done.
fn deferring(arguments: serde_json::Value) -> Vec<Turn> {
    vec![schedule(arguments), Say("waiting"), report("rescanned"), Say("all clear")]
}

async fn deferred(host: &Native) -> RunView {
    let run = host.until("1", "is deferred", |run| run.state.rounds.due.is_some()).await;
    assert_eq!(run.status(), Status::Blocked);
    let view = RunView::from(&run);
    assert_eq!(view.blocked_on, Some(BlockedOn::Schedule));
    view
}

/// The results of calls, as words.
async fn acks(host: &Native) -> Vec<String> {
    let journal = host.journal("1").await;
    let results = journal.iter().filter_map(|recorded| {
        let Event::ToolResult { output, .. } = &recorded.event else { return None };
        Some(super::common::words_of(&output.outcome))
    });
    results.collect()
}

#[tokio::test]
async fn cs_14_a_round_begins_when_the_run_said_with_the_prompt_that_it_said() {
    let asks = json!({ "wake_in_sec": 1, "next_prompt": "rescan", "detail": "the mirror" });
    let (mut world, shown) = world(deferring(asks));
    world.settings.slots = 1;
    let host = world.start().await;
    let at = world.clock.now().plus(SECOND);
    host.spawn(&autonomous("1")).await;
    let view = deferred(&host).await;
    assert_eq!((view.next_wake_at, view.blocked_until), (Some(at), Some(at)));
    // It holds nothing: another run has the slot.
    let run = host.get("1").await;
    assert!(matches!(run.state.hold, Hold::Wanted { not_before, .. } if not_before == at));
    assert_eq!(acks(&host).await, [format!("\"deferred until {at}\"")]);
    // The answer, the end of the round and the wait are one write.
    let kinds = host.kinds("1").await;
    assert_eq!(kinds[kinds.len() - 3..], ["assistant_message", "round_ended", "blocked"]);
    world.clock.advance(SECOND);
    let run = host.end("1").await;
    check_journal(&host.journal("1").await);
    let view = RunView::from(&run);
    assert_eq!((view.stop_reason, view.rounds), (Some(StopReason::Done), Some(2)));
    assert_eq!(view.next_wake_at, None);
    assert_eq!(prompts(&shown)[2], "rescan");
}

#[tokio::test]
async fn cs_14_of_the_word_that_it_is_done_and_a_wake_up_the_first_counts() {
    let both = Call(vec![
        ("s", "host/schedule_next_turn", json!({ "wake_in_sec": 60 })),
        ("d", "host/report_done", json!({ "detail": "done" })),
    ]);
    let (mut world, _) = world(vec![both, Say("bye")]);
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    let view = RunView::from(&host.end("1").await);
    assert_eq!((view.stop_reason, view.rounds), (Some(StopReason::Done), Some(1)));
    assert!(host.kinds("1").await.iter().all(|kind| *kind != "blocked"));
}

#[tokio::test]
async fn cs_14_too_long_a_deferral_is_cut_by_the_request_and_refused_by_the_policy() {
    let (mut world, _) = world(deferring(json!({ "wake_in_sec": 3_600 })));
    let host = world.start().await;
    let at = world.clock.now().plus(300 * SECOND);
    let asked = AutonomyRequest { max_defer: Some(300 * SECOND), ..AutonomyRequest::default() };
    host.spawn(&SpawnRequest { autonomous: Some(asked), ..autonomous("1") }).await;
    assert_eq!(deferred(&host).await.next_wake_at, Some(at));
    world.clock.advance(300 * SECOND);
    assert_eq!(host.end("1").await.status(), Status::Completed);

    let settings = AutonomySettings { max_defer: Some(60 * SECOND), ..AutonomySettings::default() };
    let (mut world, _) = world_with(deferring(json!({ "wake_in_sec": 3_600 })), |agent| {
        agent.autonomous = Some(settings);
    });
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    let view = RunView::from(&host.end("1").await);
    assert_eq!((view.stop_reason, view.rounds), (Some(StopReason::Done), Some(2)), "it goes on");
    let acks = acks(&host).await;
    assert!(acks[0].starts_with("\"rejected: ") && acks[0].contains("1 min"), "{acks:?}");
}

#[tokio::test]
async fn m_55_at_its_last_round_a_run_is_not_deferred() {
    let (mut world, _) = world(vec![schedule(json!({ "wake_in_sec": 60 })), Say("waiting")]);
    let host = world.start().await;
    let asked = AutonomyRequest { rounds: Some(1), ..AutonomyRequest::default() };
    host.spawn(&SpawnRequest { autonomous: Some(asked), ..autonomous("1") }).await;
    assert_eq!(RunView::from(&host.end("1").await).stop_reason, Some(StopReason::MaxTurns));
}

#[tokio::test]
async fn cs_22_a_deferred_run_goes_on_when_its_time_comes_whatever_host_is_there() {
    // Longer than the pause after the death of a host.
    let (mut world, shown) = world(deferring(json!({ "wake_in_sec": 600 })));
    let first = world.start().await;
    first.spawn(&autonomous("1")).await;
    let at = deferred(&first).await.next_wake_at.expect("it is deferred");
    world.kill(first).await;
    let second = world.take_over().await;
    let left = at.since(world.clock.now());
    world.clock.advance(left - SECOND);
    second.settle().await;
    assert_eq!(second.get("1").await.status(), Status::Blocked, "nobody comes too early");
    world.clock.advance(SECOND);
    let view = RunView::from(&second.end("1").await);
    assert_eq!(
        (view.stop_reason, view.detail.as_deref()),
        (Some(StopReason::Done), Some("rescanned"))
    );
    assert_eq!(prompts(&shown)[2], "continue");
}

#[tokio::test]
async fn m_55_a_machine_that_was_off_over_three_wake_ups_wakes_once_and_says_so() {
    let (mut world, shown) = world(deferring(json!({ "cron": "0 * * * *" })));
    let first = world.start().await;
    first.spawn(&autonomous("1")).await;
    let at = deferred(&first).await.next_wake_at.expect("it is deferred");
    world.kill(first).await;
    let away = at.since(world.clock.now()) + 2 * 3_600 * SECOND + 300 * SECOND;
    world.clock.advance(away);
    let second = world.start().await;
    let run = second.end("1").await;
    assert_eq!(run.status(), Status::Completed);
    let told = &prompts(&shown)[2];
    assert!(told.contains("You are woken 2 h 5 min late"), "{told}");
    assert!(told.contains("2 further times of your pattern passed"), "{told}");
    let kinds = second.kinds("1").await;
    assert_eq!(kinds.iter().filter(|kind| **kind == "resumed").count(), 1, "woken once");
    assert_eq!(run.state.ran_ms, 0, "none of it is running time");
    check_journal(&second.journal("1").await);
}

#[tokio::test]
async fn c_056_a_deferred_run_is_woken_early_by_a_word_and_by_what_it_is_told() {
    for injects in [false, true] {
        let (mut world, shown) = world(deferring(json!({ "wake_in_sec": 86_400 })));
        let host = world.start().await;
        host.spawn(&autonomous("1")).await;
        deferred(&host).await;
        let client = host.client().named("mia");
        let woken = match injects {
            false => client.wake("1", "the mirror is back").await,
            true => client.inject("1", "the mirror is back").await,
        };
        assert_eq!(RunView::from(&woken.expect("woken")).next_wake_at, None);
        let run = host.end("1").await;
        assert_eq!(run.status(), Status::Completed);
        let told = &prompts(&shown)[2];
        assert!(told.contains("the mirror is back"), "{told}");
        assert_eq!(told.contains("woken early, by mia"), !injects, "{told}");
        check_journal(&host.journal("1").await);
        let late = host.client().wake("1", "").await;
        assert!(matches!(late, Err(ControllerError::RunEnded { .. })), "{late:?}");
    }
}

#[tokio::test]
async fn c_056_what_is_injected_in_the_last_step_before_a_deferral_wakes_it_too() {
    let (mut world, gates) = (World::new(), Gates::new());
    let inside = Arc::clone(&gates);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let gates = Arc::clone(&inside);
        async move {
            match input.run.turn {
                1 => {
                    let arguments = json!({ "wake_in_sec": 86_400 }).to_string();
                    call_of(&[("s", "host/schedule_next_turn", &arguments)])
                }
                2 => {
                    let _inside = gates.pass("1").await;
                    answer("later")
                }
                3 => call_of(&[("d", "host/report_done", r#"{"detail":"it"}"#)]),
                _ => answer("end"),
            }
        }
    });
    world.agent("a", planner);
    told_at_its_gate(&mut world, &gates, "stop").await;
}

#[tokio::test]
async fn c_056_a_run_that_is_not_deferred_is_not_woken() {
    let (mut world, _) = world(deferring(json!({ "wake_in_sec": 60 })));
    world.settings.slots = 0;
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    let refused = host.client().wake("1", "").await;
    assert!(matches!(refused, Err(ControllerError::Invalid { field: "id", .. })), "{refused:?}");
}

#[tokio::test]
async fn m_36_a_pause_outlasts_a_wake_up_and_a_week_of_it_is_no_running_time() {
    for wakes in [false, true] {
        // Only the word wakes it within that week.
        let time = if wakes { 30 * 24 * 3_600 } else { 60 };
        let (mut world, _) = world(deferring(json!({ "wake_in_sec": time })));
        let host = world.start().await;
        host.spawn(&autonomous("1")).await;
        deferred(&host).await;
        let client = host.client();
        client.pause("1", &PauseRequest::default()).await.expect("paused");
        if wakes {
            client.wake("1", "now").await.expect("taken");
        }
        world.clock.advance(7 * 24 * 3_600 * SECOND);
        host.settle().await;
        assert_eq!(host.get("1").await.status(), Status::Blocked, "it is paused");
        client.resume("1", &ResumeRequest::default()).await.expect("resumed");
        let run = host.end("1").await;
        assert_eq!((run.status(), run.state.ran_ms), (Status::Completed, 0));
        check_journal(&host.journal("1").await);
    }
}

#[tokio::test]
async fn a_deferred_run_is_canceled_where_it_stands() {
    let (mut world, _) = world(deferring(json!({ "wake_in_sec": 60 })));
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    deferred(&host).await;
    host.client().cancel("1", None).await.expect("canceled");
    assert_eq!(host.end("1").await.status(), Status::Canceled);
    let refused = host.client().wake("1", "").await;
    assert!(matches!(refused, Err(ControllerError::RunEnded { .. })), "{refused:?}");
}

/// A run that starts a worker, is deferred for a day, and is done when it is told of something.
fn waiting_for(world: &mut World, worker: ClosurePlanner) -> Shown {
    let shown = Shown::default();
    world.agent("worker", worker);
    let seen = Arc::clone(&shown);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let told: Vec<_> = input.messages.iter().map(|one| one.joined_text()).collect();
        seen.lock().expect("unharmed").push(told.join("\n"));
        let turns = [
            Call(vec![("t", "host/spawn_task", json!({ "agent": "worker", "message": "look" }))]),
            schedule(json!({ "wake_in_sec": 86_400 })),
            Say("waiting"),
            report("it came"),
            Say("bye"),
        ];
        let planned = played(&turns, &input);
        async move { planned }
    });
    leader_that(world, ("a", &["worker"]), planner, |_| {});
    shown
}

fn with_an_inbox() -> SpawnRequest {
    SpawnRequest { answers: Some(Answers::Inbox), ..autonomous("1") }
}

/// The run is done on the day on which it was deferred, and was told of this run.
async fn is_woken(host: &Native, shown: &Shown, told_of: &str) {
    let run = host.end("1").await;
    assert_eq!(run.status(), Status::Completed);
    let told = &prompts(shown)[3];
    assert!(told.contains(&format!("Run {told_of} of agent worker has ended.")), "{told}");
    check_journal(&host.journal("1").await);
}

#[tokio::test]
async fn c_070_a_deferred_run_is_woken_by_the_end_of_a_run_that_it_started() {
    let (mut world, gates) = (World::new(), Gates::new());
    let shown = waiting_for(&mut world, gates.planner());
    let host = world.start().await;
    host.spawn(&with_an_inbox()).await;
    deferred(&host).await;
    let child = gates.have_come(1).await.remove(0);
    gates.open(&child);
    is_woken(&host, &shown, &child).await;
    assert!(prompts(&shown)[3].contains(&format!("done {child}")));
}

/// Nobody executes it as it ends.
#[tokio::test]
async fn c_070_a_deferred_run_is_woken_where_a_run_that_waits_for_an_answer_is_canceled() {
    for is_alone in [true, false] {
        let mut world = World::new();
        let asks = ClosurePlanner::new(|_, _| async {
            decided(Decision::Await(vec![clarification("which").into()]))
        });
        let shown = waiting_for(&mut world, asks);
        let host = world.start().await;
        host.spawn(&with_an_inbox()).await;
        deferred(&host).await;
        let child = worker_of(&host).await;
        host.reach(&child, Status::Blocked).await;
        match is_alone {
            true => host.client().cancel_alone(&child, None).await.expect("canceled"),
            false => host.client().cancel(&child, None).await.expect("canceled"),
        };
        is_woken(&host, &shown, &child).await;
    }
}

async fn worker_of(host: &Native) -> String {
    let tree = host.client().tree("1").await.expect("there");
    let worker = tree.descendants.iter().find(|run| run.spec.agent_name == "worker");
    worker.expect("it is started").id().to_string()
}

/// A run that defers itself, with the death of a host at this point; gives how many died.
async fn play(point: Point) -> u32 {
    let (mut world, _) = world(deferring(json!({ "wake_in_sec": 60, "next_prompt": "rescan" })));
    let door = world.door().await;
    let clock = Arc::clone(&world.clock);
    let outside = async {
        door.spawn(&autonomous("1")).await;
        let waits = |run: &Run| run.state.rounds.due.is_some() || run.status().is_terminal();
        door.until("1", "is deferred", waits).await;
        clock.advance(60 * SECOND);
        door.end("1").await
    };
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let journal = door.journal("1").await;
    check_journal(&journal);
    let view = RunView::from(&run);
    assert_eq!((view.stop_reason, view.rounds), (Some(StopReason::Done), Some(2)), "{point:?}");
    let count = |kind: &str| journal.iter().filter(|one| one.event.kind() == kind).count();
    assert_eq!((count("round_ended"), count("blocked")), (1, 1), "{point:?}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m_55_a_host_may_die_at_every_write_of_a_run_that_defers_itself() {
    at_every_write(play).await;
}
