//! Shutting a controller down: giving runs back, and closing (M-05).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::clock::SystemClock;
use taskrun::ports::planner::{ConversationView, FinalizeInput, PlanInput, Planner};
use taskrun::scope::CallScope;
use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Labels;
use taskrun_journal::run::Crashes;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::Hosts;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use crate::native::{
    ClosurePlanner, ClosureTool, Finalized, Gate, Native, Planned, World, answer, call_of, in_time,
    request, value,
};

const DRAIN: Duration = Duration::from_secs(10);

/// An agent that calls `t/first`, then `t/second`, and answers. The first call is counted; at the
/// gates stand the second plan step and the second call.
struct TwoCalls {
    world: World,
    step: Gate,
    call: Gate,
    first_calls: Arc<AtomicU32>,
}

fn two_calls() -> TwoCalls {
    let mut world = World::new();
    let (step, call, first_calls) = (Gate::new(), Gate::new(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&first_calls);
    let first = ClosureTool::new("first", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { value("1") }
    });
    world.tool("one", InterruptionPolicy::Fail, first);
    let at = call.clone();
    let second = ClosureTool::new("second", ToolHints::default(), move |_, _| {
        let at = at.clone();
        async move {
            at.pass().await;
            value("2")
        }
    });
    world.tool("two", InterruptionPolicy::Fail, second);
    let at = step.clone();
    world.agent(
        "a",
        ClosurePlanner::new(move |input, _| {
            let at = at.clone();
            async move {
                let Some(resume) = input.resume else {
                    return call_of(&[("c1", "one/first", "{}")]);
                };
                match resume.tool_outputs.len() {
                    1 => {
                        at.pass().await;
                        call_of(&[("c2", "two/second", "{}")])
                    }
                    _ => answer(&format!("{:?}", resume.tool_outputs[1].outcome)),
                }
            }
        }),
    );
    TwoCalls { world, step, call, first_calls }
}

/// Starts another host, with which the run ends.
async fn ends_elsewhere(parts: &mut TwoCalls, first: &Native, id: &str) {
    let given_back = first.journal(id).await.pop().expect("not empty").event;
    assert!(matches!(given_back, Event::Lost { crashed: false, .. }), "{given_back:?}");
    assert_eq!(first.get(id).await.status(), Status::Running, "to others it goes on");
    let second = parts.world.start().await;
    let run = second.end(id).await;
    assert_eq!(run.status(), Status::Completed, "{:?}", second.kinds(id).await);
    assert_eq!(run.state.reply.result().as_deref(), Some("Value(\"2\")"));
    assert_eq!(run.state.crashes, Crashes::default(), "nobody died");
    assert_eq!(parts.first_calls.load(Ordering::SeqCst), 1, "what is done is not done again");
}

#[tokio::test]
async fn m_05_a_run_in_a_plan_step_is_given_back_and_goes_on_elsewhere() {
    let mut parts = two_calls();
    let first = parts.world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    parts.step.reached_by(1).await;
    let closed = first.controller.hand_over(Duration::ZERO).await;
    assert_eq!(closed.stragglers, []);
    parts.step.open();
    parts.call.open();
    ends_elsewhere(&mut parts, &first, &id).await;
}

#[tokio::test]
async fn m_05_a_host_whose_runs_see_a_clock_that_stands_still_ends_in_the_time_of_the_machine() {
    let mut parts = two_calls();
    parts.world.machine = Arc::new(SystemClock::new());
    let first = parts.world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    parts.step.reached_by(1).await;
    let closed = in_time(first.controller.hand_over(Duration::from_millis(1))).await;
    assert_eq!(closed.stragglers, []);
    parts.step.open();
    parts.call.open();
    ends_elsewhere(&mut parts, &first, &id).await;
}

#[tokio::test]
async fn m_05_a_call_that_ends_while_the_host_drains_is_not_repeated() {
    let mut parts = two_calls();
    parts.step.open();
    let first = parts.world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    parts.call.reached_by(1).await;
    let hand_over = first.controller.hand_over(DRAIN);
    tokio::pin!(hand_over);
    assert!(futures::poll!(&mut hand_over).is_pending(), "it waits for the call");
    parts.call.open();
    assert_eq!(in_time(hand_over).await.stragglers, []);
    let kinds = first.kinds(&id).await;
    assert_eq!(kinds[kinds.len() - 2..], ["tool_result", "lost"]);
    ends_elsewhere(&mut parts, &first, &id).await;
    assert_eq!(parts.call.visitors(), 1);
}

#[tokio::test]
async fn m_05_a_host_that_hands_over_leaves_the_list_at_once_and_stays_present() {
    let mut parts = two_calls();
    let first = parts.world.start().await;
    first.spawn(&request("a", "x")).await;
    parts.step.reached_by(1).await;
    assert_eq!(parts.world.hearts.hosts().await.expect("lists").len(), 1);
    let hand_over = first.controller.hand_over(DRAIN);
    tokio::pin!(hand_over);
    assert!(futures::poll!(&mut hand_over).is_pending(), "it waits for the step");
    assert_eq!(parts.world.hearts.hosts().await.expect("lists"), []);
    let present = parts.world.hearts.present_hosts().await.expect("lists");
    let leaving: Vec<_> = present.iter().map(|one| one.host.is_leaving()).collect();
    assert_eq!(leaving, [true]);
    parts.step.open();
    parts.call.open();
    assert_eq!(in_time(hand_over).await.stragglers, []);
}

#[tokio::test]
async fn m_05_a_host_that_hands_over_takes_no_work() {
    let mut parts = two_calls();
    let first = parts.world.start().await;
    first.controller.hand_over(DRAIN).await;
    let error = first.client().spawn(&request("a", "x")).await;
    assert_eq!(error.map_err(|error| error.code()).err(), Some("closed"));
    assert_eq!(first.controller.start().await.map_err(|error| error.code()).err(), Some("closed"));
}

/// An agent that does not stop, whatever is done to it.
struct Deaf(Gate);

#[async_trait]
impl Planner for Deaf {
    fn digest(&self) -> &str {
        "deaf"
    }

    fn hears_cancellation(&self) -> bool {
        false
    }

    fn view(&self) -> ConversationView {
        ConversationView::Whole
    }

    fn has_finalizer(&self) -> bool {
        false
    }

    async fn finalize(&self, _: FinalizeInput, _: Arc<CallScope>) -> Finalized {
        Ok(Ok(Labels::new()))
    }

    async fn plan(&self, _: PlanInput, _: Arc<CallScope>) -> Planned {
        self.0.pass().await;
        answer("late")
    }
}

#[tokio::test]
async fn m_05_closing_cancels_and_names_what_does_not_stop() {
    let (mut world, deaf, hears) = (World::new(), Gate::new(), Gate::new());
    world.agent("deaf", Deaf(deaf.clone()));
    let own = hears.clone();
    let planner = ClosurePlanner::new(move |_, scope| {
        let gate = own.clone();
        async move {
            gate.pass().await;
            scope.stop().asked().await;
            answer("stopped in order")
        }
    });
    world.agent("hears", planner.hearing());
    let host = world.start().await;
    let straggler = host.spawn(&request("deaf", "x")).await;
    let orderly = host.spawn(&request("hears", "x")).await;
    deaf.reached_by(1).await;
    hears.open();
    hears.reached_by(1).await;
    let close = host.controller.close(DRAIN);
    tokio::pin!(close);
    assert!(futures::poll!(&mut close).is_pending());
    let run = host.end(&orderly).await;
    assert_eq!(run.status(), Status::Canceled);
    assert_eq!(host.view(&orderly).await.stop_reason, Some(StopReason::HostShutdown));
    // Its end is seen a moment before its driver is gone.
    while host.controller.executing() > 1 {
        tokio::task::yield_now().await;
    }
    // A run that was forced to stop has two more seconds to be gone.
    let longest = DRAIN + Duration::from_secs(2);
    let (closed, waited) = world.run_until(longest, close).await;
    assert_eq!(waited, longest);
    let names: Vec<_> = closed.stragglers.iter().map(RunId::as_str).collect();
    assert_eq!(names, [straggler.as_str()]);
    assert_eq!(host.get(&straggler).await.status(), Status::Running, "it stays what it is");
    deaf.open();
}
