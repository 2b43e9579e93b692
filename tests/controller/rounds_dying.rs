//! Runs that go on by themselves, whatever host dies at whatever write: each round ends once, each
//! prompt is given once, and the end is that of an undisturbed run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use taskrun::ports::planner::PlanInput;
use taskrun_journal::event::Event;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{Handle, check_journal};
use super::dying::{Point, die_at_each, survive};
use super::rounds::Turn::{self, Call, Say};
use super::rounds::{autonomous, played};
use crate::native::{ClosurePlanner, ClosureTool, Native, Op, Side, World, value};

/// Works in the first round, says in which state it is in the second, and is done in the third, with
/// a call before and one after the word.
fn world() -> (World, Arc<AtomicU32>) {
    let (mut world, calls) = (World::new(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&calls);
    let hints = ToolHints { idempotent: true, ..ToolHints::default() };
    let tool = ClosureTool::new("f", hints, move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { value("1") }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let last = Call(vec![
        ("b", "t/f", json!({})),
        ("d", "host/report_done", json!({ "detail": "it" })),
        ("a", "t/f", json!({})),
    ]);
    let status = json!({ "state": "waiting" });
    let turns: Vec<Turn> = vec![
        Call(vec![("w", "t/f", json!({}))]),
        Say("findings"),
        Call(vec![("s", "host/set_status", status)]),
        Say("idle"),
        last,
        Say("bye"),
    ];
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let said: Vec<String> = input.messages.iter().map(|m| m.joined_text()).collect();
        let prompts = said.iter().filter(|text| *text == "continue").count();
        let expected = [0, 0, 1, 1, 2, 2][input.run.turn as usize - 1];
        assert_eq!(prompts, expected, "turn {}: {said:?}", input.run.turn);
        let planned = played(&turns, &input);
        async move { planned }
    });
    world.agent("a", planner);
    (world, calls)
}

async fn outside(door: &Native) -> RunView {
    door.spawn(&autonomous("1")).await;
    RunView::from(&door.end("1").await)
}

async fn play(point: Point) -> u32 {
    let (mut world, calls) = world();
    let door = world.door().await;
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside(&door)).await;
    let ended = (run.status, run.stop_reason, run.rounds, run.turns);
    let expected = (Status::Completed, Some(StopReason::Done), Some(3), 6);
    assert_eq!(ended, expected, "{point:?}: {:?}", run.error);
    assert_eq!(run.result.as_deref(), Some("bye"), "the last round worked, {point:?}");
    assert_eq!(run.detail.as_deref(), Some("it"), "{point:?}");
    assert_eq!(run.reported.expect("on record").state, "waiting", "{point:?}");
    let journal = door.journal("1").await;
    check_journal(&journal);
    let rounds: Vec<_> = journal
        .iter()
        .filter_map(|recorded| {
            let Event::RoundEnded { round, worked, .. } = &recorded.event else { return None };
            Some((*round, *worked))
        })
        .collect();
    assert_eq!(rounds, [(1, true), (2, false)], "{point:?}");
    let words = journal.iter().filter(|recorded| recorded.event.kind() == "marked").count();
    assert_eq!(words, 2, "{point:?}");
    let calls = calls.load(Ordering::SeqCst);
    assert!((2..=2 + deaths).contains(&calls), "{point:?}: {calls}");
    deaths
}

#[tokio::test]
async fn a_host_that_dies_before_it_records_anything_of_a_round() {
    die_at_each(Op::Append, Side::Before, 2, play).await;
}

#[tokio::test]
async fn a_host_that_dies_after_it_recorded_anything_of_a_round() {
    die_at_each(Op::Append, Side::After, 2, play).await;
}
