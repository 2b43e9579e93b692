//! A run's time-out counts only while the run is running (M-16, WS-25, WS-26).

use std::sync::Arc;
use std::time::Duration;

use taskrun::ports::planner::{Decision, PlanInput};
use taskrun::ports::tool::{ToolReply, ToolWait};
use taskrun::scope::CallScope;
use taskrun_journal::question::Answer;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{Gates, named};
use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, World, answer, call_of, clarification, decided,
    request, value,
};

const SECOND: Duration = Duration::from_secs(1);

/// An agent whose steps take six seconds each: it asks a person, and answers.
fn asks_between(world: &mut World) {
    let ask = ClosureTool::new("ask", ToolHints::default(), |_, _| async {
        Ok(Ok(ToolReply::Park(ToolWait::Person { question: "which?".into(), timeout: None })))
    });
    world.tool("t", InterruptionPolicy::Fail, ask);
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
    host.client().named("me").answer(id, None, answer).await.expect("taken");
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
    world.tool("t", InterruptionPolicy::Fail, quick);
    let stuck = |_, _| std::future::pending();
    world.tool(
        "s",
        InterruptionPolicy::Fail,
        ClosureTool::new("stuck", ToolHints::default(), stuck),
    );
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

#[tokio::test]
async fn ws_25_at_its_time_out_a_run_fails_is_really_stopped_and_the_next_one_begins() {
    let mut world = World::new();
    world.settings.slots = 1;
    let gates = Gates::new();
    world.agent("block", gates.planner());
    let host = world.start().await;
    let mut wanted = named("1", "block");
    wanted.timeout = Some(SECOND);
    host.spawn(&wanted).await;
    gates.have_come(1).await;
    host.spawn(&named("2", "block")).await;
    world.clock.wait_for_sleepers(1).await;
    world.clock.advance(Duration::from_millis(999));
    assert_eq!(host.get("1").await.status(), Status::Running);
    world.clock.advance(Duration::from_millis(1));
    let run = host.end("1").await;
    let view = RunView::from(&run);
    assert_eq!((view.status, view.stop_reason), (Status::Failed, Some(StopReason::RunTimeout)));
    let error = view.error.expect("why");
    assert!(error.contains("deadline exceeded") && error.contains("task timed out"), "{error}");
    assert_eq!(view.duration_ms, Some(1_000));
    // Its guest is gone before the next one begins, though its gate never opened.
    assert_eq!(gates.have_come(2).await, ["1", "2"]);
    assert_eq!((gates.gone(), gates.inside()), (vec!["1".to_owned()], 1));
}

/// Works so long, asks, waits two seconds for the answer, works so long, under a time-out of a
/// second. Gives the end.
async fn works_asks_works(before: Duration, after: Duration) -> RunView {
    let mut world = World::new();
    world.agent(
        "a",
        ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| async move {
            if input.resume.is_some() {
                scope.sleep(after).await;
                return answer("done");
            }
            scope.sleep(before).await;
            decided(Decision::Await(vec![clarification("q").into()]))
        }),
    );
    let host = world.start().await;
    let mut wanted = named("1", "a");
    wanted.timeout = Some(SECOND);
    host.spawn(&wanted).await;
    if !before.is_zero() {
        world.next(before).await;
    }
    host.reach("1", Status::Blocked).await;
    world.clock.advance(2 * SECOND);
    let text = Answer::Text("this".into());
    host.client().named("me").answer("1", None, text).await.expect("taken");
    // The end of the work or that of the time, whichever is nearer.
    let left = SECOND.checked_sub(before).expect("less than a second").min(after);
    assert_eq!(world.next(left).await, left);
    RunView::from(&host.end("1").await)
}

#[tokio::test]
async fn ws_26_time_spent_blocked_does_not_count() {
    let view = works_asks_works(Duration::ZERO, Duration::from_millis(200)).await;
    assert_eq!(view.status, Status::Completed, "{:?}", view.error);
}

#[tokio::test]
async fn time_spent_running_before_and_after_a_wait_counts_together() {
    let view = works_asks_works(Duration::from_millis(900), Duration::from_millis(200)).await;
    assert_eq!(view.stop_reason, Some(StopReason::RunTimeout));
}
