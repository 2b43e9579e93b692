//! Turns that are skipped when all attempts at their plan step failed (M-47).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskrun::agents::Agent;
use taskrun::ports::planner::PlanInput;
use taskrun_journal::event::Event;
use taskrun_journal::message::Message;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{InterruptionPolicy, RetryExhaustion};

use crate::native::{
    ClosurePlanner, ClosureTool, Native, Op, PAUSE_OVER, Planned, Side, World, answer, call_of,
    failed, request, value,
};

const SECOND: Duration = Duration::from_secs(1);

/// The input of each step: its turn and attempt, and the texts of the conversation.
type Seen = Arc<Mutex<Vec<(u32, u32, Vec<String>)>>>;

/// A world with an agent that notes what it is given and does what `plan` says for the turn.
fn world(
    change: impl FnOnce(&mut Agent),
    plan: impl Fn(u32) -> Planned + Send + Sync + 'static,
) -> (World, Seen) {
    let mut world = World::new();
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("\"worked\"") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let texts = input.messages.iter().map(Message::joined_text).collect();
        let (turn, attempt) = (input.run.turn, input.run.attempt);
        noted.lock().unwrap_or_else(PoisonError::into_inner).push((turn, attempt, texts));
        let planned = plan(turn);
        async move { planned }
    });
    world.agent_with("a", planner, change);
    (world, seen)
}

/// Skips up to so many turns in a row, after two attempts at each.
fn skipping(in_a_row: u32) -> impl FnOnce(&mut Agent) {
    move |agent| {
        agent.retry.attempts = 2;
        agent.retry.then = RetryExhaustion::Skip { in_a_row };
    }
}

fn unavailable() -> Planned {
    failed(Some("unavailable"), "no model")
}

fn steps(seen: &Seen) -> Vec<(u32, u32)> {
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.iter().map(|(turn, attempt, _)| (*turn, *attempt)).collect()
}

fn last_texts(seen: &Seen) -> Vec<String> {
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.last().expect("a step").2.clone()
}

/// The skipped turns on record: turn, attempts, text.
async fn skipped(host: &Native, id: &str) -> Vec<(u32, u32, String)> {
    let mut skipped = Vec::new();
    for recorded in host.journal(id).await {
        if let Event::TurnSkipped { turn, attempts, error, .. } = recorded.event {
            skipped.push((turn, attempts, error));
        }
    }
    skipped
}

#[tokio::test]
async fn m_47_a_turn_is_skipped_and_the_planner_is_told_to_go_on() {
    let (mut world, seen) = world(skipping(3), |turn| match turn {
        1 => call_of(&[("c", "t/f", "{}")]),
        2 | 3 => unavailable(),
        _ => answer("done"),
    });
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    world.next(SECOND).await;
    world.next(SECOND).await;
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed);
    assert_eq!((run.state.turns, run.state.skipped), (4, 0), "skipped turns are turns");
    assert_eq!(steps(&seen), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1)]);
    let texts = last_texts(&seen);
    assert_eq!(texts.first().map(String::as_str), Some("x"));
    assert_eq!(texts[texts.len() - 2..], ["continue", "continue"]);
    assert_eq!(texts.len(), 5, "task, call, result, and twice to go on: {texts:?}");
    let text = || "no model".to_owned();
    assert_eq!(skipped(&host, &id).await, [(2, 2, text()), (3, 2, text())]);
}

#[tokio::test]
async fn m_47_after_so_many_skipped_turns_in_a_row_the_run_is_aborted() {
    let (mut world, seen) = world(skipping(3), |turn| match turn {
        // Two, then one that decides, then for ever.
        3 => call_of(&[("c", "t/f", "{}")]),
        _ => unavailable(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    for _ in 0..6 {
        world.next(SECOND).await;
    }
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Failed);
    let view = host.view(&id).await;
    assert_eq!(view.stop_reason, Some(StopReason::RetryAborted));
    let error = "gave up after 3 skipped turns and 2 attempts: no model";
    assert_eq!(view.error.as_deref(), Some(error));
    let turns: Vec<_> = skipped(&host, &id).await.into_iter().map(|(turn, ..)| turn).collect();
    assert_eq!(turns, [1, 2, 4, 5, 6]);
    assert_eq!(steps(&seen).last(), Some(&(7, 2)));
}

#[tokio::test]
async fn m_47_skipped_turns_are_bounded_by_the_budget_of_turns() {
    let (mut world, seen) = world(
        |agent| {
            skipping(10)(agent);
            agent.retry.attempts = 1;
            agent.budget.turns = Some(3);
            agent.budget.reserve.turns = 1;
        },
        |_| unavailable(),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Failed);
    let view = host.view(&id).await;
    assert_eq!(view.stop_reason, Some(StopReason::MaxTurns), "{view:?}");
    assert_eq!((view.turns, skipped(&host, &id).await.len()), (2, 2));
    assert_eq!(steps(&seen), [(1, 1), (2, 1), (3, 1)], "the last word is not skipped");
}

#[tokio::test]
async fn m_47_what_would_not_pass_is_not_skipped() {
    for code in [None, Some("bad-request")] {
        let (mut world, seen) = world(skipping(3), move |_| failed(code, "child failed"));
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        assert_eq!(host.end(&id).await.status(), Status::Failed);
        assert_eq!(host.view(&id).await.stop_reason, Some(StopReason::AgentError), "{code:?}");
        assert_eq!((steps(&seen).len(), skipped(&host, &id).await.len()), (1, 0));
    }
}

#[tokio::test]
async fn m_47_a_cancellation_ends_the_skipping() {
    let (mut world, seen) = world(skipping(3), |_| unavailable());
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    world.next(SECOND).await;
    host.until(&id, "skips and fails again", |run| {
        run.state.skipped == 1 && run.state.failed_attempts == 1
    })
    .await;
    host.client().cancel(&id, None).await.expect("there");
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Canceled);
    assert_eq!(run.state.turns, 1);
    assert_eq!(steps(&seen).len(), 3);
}

#[tokio::test]
async fn m_47_skipped_turns_are_counted_over_crashes_on_either_side_of_their_record() {
    for side in [Side::Before, Side::After] {
        let (mut world, seen) = world(
            |agent| {
                skipping(2)(agent);
                agent.retry.attempts = 1;
            },
            |turn| if turn < 3 { unavailable() } else { answer("done") },
        );
        let door = world.door().await;
        // The first append is the record of the first skipped turn.
        world.store.cut(Op::Append, 1, side);
        let first = world.start().await;
        let id = door.spawn(&request("a", "x")).await;
        world.store.is_cut().await;
        assert_eq!(door.get(&id).await.state.skipped, u32::from(side == Side::After));
        world.kill(first).await;
        world.part_stores();
        door.controller.sweep().await.expect("swept");
        world.clock.advance(PAUSE_OVER);
        let second = world.start().await;
        let run = second.end(&id).await;
        assert_eq!(run.status(), Status::Completed, "{side:?}");
        assert_eq!((run.state.turns, skipped(&second, &id).await.len()), (3, 2), "{side:?}");
        assert_eq!(last_texts(&seen), ["x", "continue", "continue"], "{side:?}");
    }
}
