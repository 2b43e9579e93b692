//! A run's time-out counts only while the run is running (M-16).

use std::time::Duration;

use taskrun::ports::tool::{ToolReply, ToolWait};
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::Interrupted;

use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, World, answer, call_of, request, value,
};

const SECOND: Duration = Duration::from_secs(1);

/// An agent whose steps take six seconds each: it asks a person, and answers.
fn asks_between(world: &mut World) {
    let ask = ClosureTool::new("ask", ToolHints::default(), |_, _| async {
        Ok(Ok(ToolReply::Park(ToolWait::Person { question: "which?".into(), timeout: None })))
    });
    world.tool("t", Interrupted::Fail, ask);
    world.agent(
        "a",
        ClosurePlanner::new(|input, scope| async move {
            scope.sleep(6 * SECOND).await;
            match input.resume {
                None => call_of(&[("c1", "t/ask", "{}")]),
                Some(_) => answer("done"),
            }
        }),
    );
}

/// Spawns a run with this time-out, which asks its question after six seconds.
async fn until_blocked(world: &World, host: &Native, timeout: Duration) -> String {
    let mut asked = request("a", "x");
    asked.timeout = Some(timeout);
    let id = host.spawn(&asked).await;
    assert_eq!(world.next(6 * SECOND).await, 6 * SECOND);
    let run = host.reach(&id, Status::Blocked).await;
    assert_eq!(run.state.ran_ms, 6_000);
    id
}

async fn give_answer(host: &Native, id: &str) {
    let answer = Answer::Text("this".into());
    host.controller.answer(&host.scope, id, None, answer, "me").await.expect("taken");
}

#[tokio::test]
async fn m_16_a_run_that_takes_too_long_is_stopped_and_fails() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("never"));
    let host = world.start().await;
    let mut asked = request("a", "x");
    asked.timeout = Some(10 * SECOND);
    let id = host.spawn(&asked).await;
    gate.reached_by(1).await;
    assert_eq!(world.next(10 * SECOND).await, 10 * SECOND);
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Failed);
    let view = host.view(&id).await;
    assert_eq!(view.stop_reason, Some(StopReason::RunTimeout));
    assert_eq!(
        view.error.as_deref(),
        Some("deadline exceeded: task timed out, after running for 10000 ms")
    );
    assert_eq!(view.summary, view.error);
}

#[tokio::test]
async fn m_16_an_agent_that_hears_has_its_grace_and_its_answer_comes_too_late() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|_, scope| async move {
        scope.stop().asked().await;
        scope.sleep(SECOND).await;
        answer("too late")
    });
    world.agent("a", planner.hearing());
    let host = world.start().await;
    let mut asked = request("a", "x");
    asked.timeout = Some(10 * SECOND);
    let id = host.spawn(&asked).await;
    assert_eq!(world.next(10 * SECOND).await, 10 * SECOND);
    assert_eq!(world.next(SECOND).await, SECOND);
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Failed, "a silent end after the deadline is none");
    assert_eq!(host.view(&id).await.stop_reason, Some(StopReason::RunTimeout));
}

#[tokio::test]
async fn m_28_what_a_run_did_before_its_host_died_counts() {
    let (mut world, gate) = (World::new(), Gate::new());
    let passes = gate.clone();
    let quick = ClosureTool::new("quick", ToolHints::default(), move |_, _| {
        let gate = passes.clone();
        async move {
            gate.pass().await;
            value("1")
        }
    });
    world.tool("t", Interrupted::Fail, quick);
    let stuck = |_, _| std::future::pending();
    world.tool("s", Interrupted::Fail, ClosureTool::new("stuck", ToolHints::default(), stuck));
    let calls = [("c1", "t/quick", "{}"), ("c2", "s/stuck", "{}")];
    world.agent("a", ClosurePlanner::new(move |_, _| async move { call_of(&calls) }));
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    world.clock.advance(6 * SECOND);
    gate.open();
    let six_later = |run: &Run| run.state.progress.tool_result_count == 1;
    first.until(&id, "has a result", six_later).await;
    world.kill(first).await;
    world.clock.advance(3_600 * SECOND);
    let second = world.start().await;
    let run = second.until(&id, "is taken up", |run| run.state.ran_ms > 0).await;
    assert_eq!(run.state.ran_ms, 6_000, "and no time in which no host was there");
}

#[tokio::test]
async fn m_16_waiting_in_the_queue_does_not_count() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.settings.slots = 1;
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    let first = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let mut asked = request("a", "y");
    asked.timeout = Some(SECOND);
    let second = host.spawn(&asked).await;
    world.clock.advance(60 * SECOND);
    gate.open();
    assert_eq!(host.end(&first).await.status(), Status::Completed);
    assert_eq!(host.end(&second).await.status(), Status::Completed);
}

#[tokio::test]
async fn m_16_being_blocked_does_not_count() {
    let mut world = World::new();
    asks_between(&mut world);
    let host = world.start().await;
    let id = until_blocked(&world, &host, 15 * SECOND).await;
    world.clock.advance(3_600 * SECOND);
    give_answer(&host, &id).await;
    assert_eq!(world.next(6 * SECOND).await, 6 * SECOND);
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "it has run for twelve seconds");
    assert_eq!(host.view(&id).await.duration_ms, Some(3_612_000), "and it says how long it took");
}

#[tokio::test]
async fn m_16_what_was_used_before_the_wait_counts_after_it() {
    let mut world = World::new();
    asks_between(&mut world);
    let host = world.start().await;
    let id = until_blocked(&world, &host, 10 * SECOND).await;
    world.clock.advance(3_600 * SECOND);
    give_answer(&host, &id).await;
    let left = world.next(5 * SECOND).await;
    assert_eq!(left, 4 * SECOND);
    assert_eq!(host.end(&id).await.status(), Status::Failed);
    assert_eq!(host.view(&id).await.stop_reason, Some(StopReason::RunTimeout));
}

#[tokio::test]
async fn m_16_the_time_is_counted_over_a_change_of_hosts() {
    for (timeout, left, status) in
        [(10 * SECOND, 4 * SECOND, Status::Failed), (15 * SECOND, 6 * SECOND, Status::Completed)]
    {
        let mut world = World::new();
        asks_between(&mut world);
        let first = world.start().await;
        let id = until_blocked(&world, &first, timeout).await;
        world.kill(first).await;
        world.clock.advance(3_600 * SECOND);
        let second = world.start().await;
        give_answer(&second, &id).await;
        assert_eq!(world.next(left).await, left);
        assert_eq!(second.end(&id).await.status(), status);
    }
}
