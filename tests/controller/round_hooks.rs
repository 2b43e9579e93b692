//! Hooks that are asked before each round of a run that goes on by itself (C-008, M-36).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::hook::{HOOK_TIMEOUT, Hook, HookEntry, HookError, Hooks, Moment, Verdict};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::ending::EndedBy;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};

use super::common::{Handle, check_journal, named};
use super::dying::{Point, at_every_write, survive};
use super::hooks::{Asked, Hangs, hook, veto};
use super::rounds::Turn::{self, Call, Say};
use super::rounds::{autonomous, end, outcome, prompts, report, work, world};
use crate::native::{Native, World};

const HOUR: Duration = Duration::from_secs(3_600);

/// Three rounds: it works in the first, says something in the second, and is done in the third.
fn turns() -> Vec<Turn> {
    vec![work(), Say("findings"), Say("idle"), report("it"), Say("bye")]
}

fn register(world: &mut World, entry: HookEntry) {
    world.hooks = Hooks::new(vec![entry]);
}

/// Against this round, for everything else.
fn against(number: u32) -> Arc<Asked> {
    hook(move |moment| match moment {
        Moment::Round { round, .. } if *round == number => veto("not today"),
        Moment::Round { .. } | Moment::Spawn { .. } | Moment::ToolCall { .. } => Ok(Verdict::Go),
    })
}

/// The rounds that it was asked about.
fn rounds(asked: &Asked) -> Vec<String> {
    asked.about().into_iter().filter(|about| about.starts_with("round")).collect()
}

fn refused(run: &RunView) -> (Status, Option<StopReason>, Option<&str>, Option<&str>) {
    (run.status, run.stop_reason, run.error.as_deref(), run.error_code.as_deref())
}

const REFUSED: (Status, Option<StopReason>, Option<&str>, Option<&str>) = (
    Status::Failed,
    Some(StopReason::RetryAborted),
    Some("refused by hook guard: not today"),
    Some("round_refused"),
);

#[tokio::test]
async fn c_008_a_hook_is_asked_once_before_each_round() {
    let asked = against(0);
    let (mut world, shown) = world(turns());
    register(&mut world, HookEntry::critical("guard", asked.clone()));
    let (_, run) = end(&mut world, &autonomous("1")).await;
    assert_eq!(
        outcome(&run),
        (Status::Completed, Some(StopReason::Done), Some(3), Some("findings"))
    );
    let expected = [
        "spawn 1",
        "round 1 1",
        "call 1 1 t/f",
        "round 1 2",
        "round 1 3",
        "call 1 4 host/report_done",
    ];
    assert_eq!(asked.about(), expected);
    assert_eq!(prompts(&shown).len(), 5);
}

#[tokio::test]
async fn c_008_a_veto_ends_the_run_before_its_round_begins() {
    let asked = against(2);
    let (mut world, shown) = world(turns());
    register(&mut world, HookEntry::critical("guard", asked.clone()));
    let (host, run) = end(&mut world, &autonomous("1")).await;
    assert_eq!((refused(&run), run.by), (REFUSED, Some(EndedBy::Orchestration)));
    assert_eq!((run.rounds, run.turns), (Some(1), 2), "the second did not begin");
    assert_eq!(prompts(&shown).len(), 2, "no step of it was asked for");
    assert!(!host.kinds("1").await.contains(&"finalize_requested"), "nor a last word");
    assert_eq!(rounds(&asked), ["round 1 1", "round 1 2"]);
}

#[tokio::test]
async fn c_008_a_run_that_a_hook_ended_is_continued_and_its_next_round_is_asked_about() {
    let allows = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&allows);
    let asked = hook(move |moment| match moment {
        Moment::Round { round: 2, .. } if !now.load(Ordering::SeqCst) => veto("not today"),
        Moment::Round { .. } | Moment::Spawn { .. } | Moment::ToolCall { .. } => Ok(Verdict::Go),
    });
    let (mut world, _) = world(turns());
    register(&mut world, HookEntry::critical("guard", asked.clone()));
    let (host, first) = end(&mut world, &autonomous("1")).await;
    assert_eq!(refused(&first), REFUSED);
    allows.store(true, Ordering::SeqCst);
    let request = host.client().continuation("1").await.expect("it may be continued");
    let next = host.client().submit(&request).await.expect("accepted").run.id().to_string();
    let run = RunView::from(&host.end(&next).await);
    assert_eq!(
        outcome(&run),
        (Status::Completed, Some(StopReason::Done), Some(3), Some("findings"))
    );
    let asked_of_next = [format!("round {next} 2"), format!("round {next} 3")];
    assert_eq!(rounds(&asked)[2..], asked_of_next);
}

#[tokio::test]
async fn c_008_a_round_that_a_budget_forbids_and_a_run_of_one_answer_are_not_asked_about() {
    let asked = against(0);
    let (mut world, _) = world(vec![Say("one"), Say("two")]);
    register(&mut world, HookEntry::critical("guard", asked.clone()));
    let wants = AutonomyRequest { rounds: Some(2), ..AutonomyRequest::default() };
    let request = SpawnRequest { autonomous: Some(wants), ..named("1", "a") };
    let (host, run) = end(&mut world, &request).await;
    assert_eq!(run.stop_reason, Some(StopReason::MaxTurns));
    assert_eq!(rounds(&asked), ["round 1 1", "round 1 2"]);
    host.spawn(&named("2", "a")).await;
    assert_eq!(host.end("2").await.status(), Status::Completed);
    assert_eq!(rounds(&asked).len(), 2, "a run that ends with its answer has no rounds");
}

#[tokio::test]
async fn c_008_a_round_that_is_put_off_is_asked_about_when_its_time_has_come() {
    let asked = against(2);
    let later = Call(vec![("s", "host/schedule_next_turn", json!({ "wake_in_sec": 3_600 }))]);
    let (mut world, shown) = world(vec![later, Say("waiting")]);
    register(&mut world, HookEntry::critical("guard", asked.clone()));
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    host.until("1", "is deferred", |run| run.state.rounds.due.is_some()).await;
    assert_eq!(rounds(&asked), ["round 1 1"]);
    world.clock.advance(HOUR);
    let run = RunView::from(&host.end("1").await);
    assert_eq!(refused(&run), REFUSED);
    assert_eq!((rounds(&asked).len(), prompts(&shown).len()), (2, 2));
}

#[tokio::test]
async fn c_008_a_critical_hook_that_fails_or_is_too_slow_ends_the_run_and_others_do_not() {
    let fails = |name: &str, critical| {
        let fails = hook(|moment| match moment {
            Moment::Round { round: 2, .. } => Err("no connection".into()),
            Moment::Round { .. } | Moment::Spawn { .. } | Moment::ToolCall { .. } => {
                Ok(Verdict::Go)
            }
        });
        HookEntry { critical, ..HookEntry::critical(name, fails) }
    };
    let error = "refused by hook guard: it failed: no connection";
    for (entry, ended) in [
        (fails("guard", true), (Some(StopReason::RetryAborted), Some(error))),
        (fails("note", false), (Some(StopReason::Done), None)),
    ] {
        let (mut world, _) = world(turns());
        register(&mut world, entry);
        let (_, run) = end(&mut world, &autonomous("1")).await;
        assert_eq!((run.stop_reason, run.error.as_deref()), ended);
    }
}

/// Never decides about rounds, and is for everything else.
struct HangsAtRounds;

#[async_trait]
impl Hook for HangsAtRounds {
    async fn before(&self, moment: &Moment<'_>) -> Result<Verdict, HookError> {
        match moment {
            Moment::Round { .. } => Hangs.before(moment).await,
            Moment::Spawn { .. } | Moment::ToolCall { .. } => Ok(Verdict::Go),
        }
    }
}

#[tokio::test]
async fn c_008_a_hook_that_does_not_decide_ends_the_run_and_a_cancellation_comes_first() {
    for cancels in [false, true] {
        let (mut world, shown) = world(turns());
        register(&mut world, HookEntry::critical("slow", Arc::new(HangsAtRounds)));
        let host = world.start().await;
        let door = world.door().await;
        host.spawn(&autonomous("1")).await;
        host.until("1", "runs", |run| run.status() == Status::Running).await;
        if cancels {
            door.client().cancel("1", None).await.expect("can be canceled");
        }
        let (run, _) = world.run_until(10 * HOOK_TIMEOUT, host.end("1")).await;
        let run = RunView::from(&run);
        assert!(prompts(&shown).is_empty(), "no model was asked");
        let by = run.stop_reason.expect("it ended");
        match cancels {
            true => assert_eq!((run.status, by), (Status::Canceled, StopReason::CanceledByOwner)),
            false => {
                let error = "refused by hook slow: it did not decide within 5000 ms";
                assert_eq!((run.status, run.error.as_deref()), (Status::Failed, Some(error)));
                assert_eq!(by, StopReason::RetryAborted);
            }
        }
    }
}

async fn outside(door: &Native) -> RunView {
    door.spawn(&autonomous("1")).await;
    RunView::from(&door.end("1").await)
}

async fn play(point: Point) -> u32 {
    let asked = against(3);
    let (mut world, _) = world(turns());
    register(&mut world, HookEntry::critical("guard", asked.clone()));
    let door = world.door().await;
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside(&door)).await;
    assert_eq!(refused(&run), REFUSED, "{point:?}");
    assert_eq!((run.rounds, run.turns), (Some(2), 3), "{point:?}");
    check_journal(&door.journal("1").await);
    let rounds = rounds(&asked);
    let mut each = rounds.clone();
    each.dedup();
    assert_eq!(each, ["round 1 1", "round 1 2", "round 1 3"], "{point:?}: in order");
    assert!(rounds.len() <= 3 + deaths as usize, "{point:?}: {rounds:?}");
    deaths
}

#[tokio::test]
async fn c_008_a_veto_ends_the_run_whatever_host_dies_at_whatever_write() {
    at_every_write(play).await;
}
