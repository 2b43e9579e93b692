//! Pausing and resuming runs, and telling them something (M-36, L-068, L-069).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::controller::{PauseOutcome, PauseRequest, ResumeRequest};
use taskrun::error::ControllerError;
use taskrun::ports::planner::{Decision, PlanInput};
use taskrun_journal::event::Event;
use taskrun_journal::message::Message;
use taskrun_journal::question::Answer;
use taskrun_journal::status::{BlockedOn, Status};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use crate::common::{beneath, check_journal, following, named};
use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, Op, PAUSE_OVER, World, answer, call_of,
    clarification, decided, failed, in_time, request, value,
};

const SECOND: Duration = Duration::from_secs(1);

pub(super) async fn pause(host: &Native, id: &str) -> Result<PauseOutcome, ControllerError> {
    host.client().named("human").pause(id, &PauseRequest::default()).await
}

async fn pause_for(host: &Native, id: &str, time: Duration) -> PauseOutcome {
    let request = PauseRequest { timeout: Some(time), ..PauseRequest::default() };
    host.client().named("human").pause(id, &request).await.expect("it can be paused")
}

async fn resume(host: &Native, id: &str) -> Result<PauseOutcome, ControllerError> {
    host.client().named("human").resume(id, &ResumeRequest::default()).await
}

pub(super) async fn inject(host: &Native, id: &str, text: &str) {
    host.client().named("human").inject(id, text).await.expect("it listens");
}

/// Pauses and their ends in a journal, in order: `pause:WHO` and `resume:WHY`.
async fn sequence(host: &Native, id: &str) -> Vec<String> {
    let mut told = Vec::new();
    for recorded in host.journal(id).await {
        if let Event::PauseRequested { by, .. } = &recorded.event {
            told.push(format!("pause:{by}"));
        } else if let Event::PauseEnded { why, .. } = &recorded.event {
            told.push(format!("resume:{}", why.as_str()));
        }
    }
    told
}

pub(super) fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::joined_text).collect()
}

/// An agent that comes to the gate in its first step, calls a tool in it, and answers in the
/// second with the texts it was shown.
pub(super) fn stepping(gate: &Gate, steps: &Arc<AtomicU32>) -> ClosurePlanner {
    let (gate, steps) = (gate.clone(), Arc::clone(steps));
    ClosurePlanner::new(move |input: PlanInput, _| {
        let gate = gate.clone();
        steps.fetch_add(1, Ordering::SeqCst);
        async move {
            match input.resume {
                None => {
                    gate.pass().await;
                    call_of(&[("c1", "t/f", "{}")])
                }
                Some(_) => answer(&texts(&input.messages).join("|")),
            }
        }
    })
}

/// A world whose tool counts its calls.
pub(super) fn with_tool() -> (World, Arc<AtomicU32>) {
    let mut world = World::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { value("1") }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    (world, calls)
}

#[tokio::test]
async fn m_36_a_step_that_is_under_way_comes_to_its_end_and_nothing_more_begins() {
    let (mut world, calls) = with_tool();
    let (gate, steps) = (Gate::new(), Arc::new(AtomicU32::new(0)));
    world.agent("a", stepping(&gate, &steps));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let paused = pause(&host, &id).await.expect("it can be paused");
    assert!(paused.changed);
    assert_eq!(paused.run.status(), Status::Running, "its step is under way");
    gate.open();
    let run = host.reach(&id, Status::Blocked).await;
    let view = host.view(&id).await;
    assert_eq!(view.blocked_on, Some(BlockedOn::Pause));
    assert_eq!(view.paused.map(|pause| pause.by).as_deref(), Some("human"));
    assert_eq!((run.state.turns, calls.load(Ordering::SeqCst)), (1, 0), "decided, not called");
    assert!(!pause(&host, &id).await.expect("it is paused").changed, "paused once");

    assert!(resume(&host, &id).await.expect("it is paused").changed);
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed);
    assert_eq!((steps.load(Ordering::SeqCst), calls.load(Ordering::SeqCst)), (2, 1));
    assert_eq!(sequence(&host, &id).await, ["pause:human", "resume:resumed"]);
    check_journal(&host.journal(&id).await);
}

#[tokio::test]
async fn m_36_calls_that_wait_for_a_place_wait_for_the_end_of_the_pause() {
    let mut world = World::new();
    let (gate, calls) = (Gate::new(), Arc::new(AtomicU32::new(0)));
    let (door, counted) = (gate.clone(), Arc::clone(&calls));
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let door = door.clone();
        async move {
            door.pass().await;
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let ids: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    world.agent(
        "a",
        ClosurePlanner::new(move |input: PlanInput, _| {
            let calls: Vec<_> = ids.iter().map(|id| (id.as_str(), "t/f", "{}")).collect();
            let planned = match input.resume {
                None => call_of(&calls),
                Some(resume) => answer(&resume.tool_outputs.len().to_string()),
            };
            async move { planned }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(16).await;
    pause(&host, &id).await.expect("it can be paused");
    gate.open();
    host.reach(&id, Status::Blocked).await;
    assert_eq!(calls.load(Ordering::SeqCst), 16, "those that had begun came to their end");
    resume(&host, &id).await.expect("it is paused");
    let run = host.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("20"));
    assert_eq!(calls.load(Ordering::SeqCst), 20, "each call once");
}

#[tokio::test]
async fn m_36_a_pause_that_comes_while_calls_are_written_down_keeps_them_from_beginning() {
    let (mut world, calls) = with_tool();
    let (gate, steps) = (Gate::new(), Arc::new(AtomicU32::new(0)));
    world.agent("a", stepping(&gate, &steps));
    let door = world.door().await;
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    world.store.hold(Op::Append);
    gate.open();
    in_time(world.store.somebody_waits()).await;
    pause(&door, &id).await.expect("it can be paused");
    world.store.release();
    host.reach(&id, Status::Blocked).await;
    assert_eq!(calls.load(Ordering::SeqCst), 0, "nothing is called that is not on record");
    resume(&door, &id).await.expect("it is paused");
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    let kinds = host.kinds(&id).await;
    let count = |kind: &str| kinds.iter().filter(|one| **one == kind).count();
    assert_eq!((count("tool_call_scheduled"), calls.load(Ordering::SeqCst)), (1, 1), "{kinds:?}");
}

#[tokio::test]
async fn m_36_a_step_that_answers_ends_the_run_and_the_pause_with_it() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    pause(&host, &id).await.expect("it can be paused");
    gate.open();
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert_eq!(sequence(&host, &id).await, ["pause:human", "resume:ended"]);
    for (what, code) in [
        ("pause", pause(&host, &id).await.err().map(|error| error.code())),
        ("resume", resume(&host, &id).await.err().map(|error| error.code())),
    ] {
        assert_eq!(code, Some("run-ended"), "{what}");
    }
    let told = host.client().named("human").inject(&id, "too late").await;
    assert_eq!(told.err().map(|error| error.code()), Some("run-ended"));
}

#[tokio::test]
async fn m_36_a_queued_run_stays_queued_and_is_not_taken_until_it_is_resumed() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let door = world.door().await;
    let id = door.spawn(&request("a", "first")).await;
    let run = pause(&door, &id).await.expect("it can be paused").run;
    assert_eq!(run.status(), Status::Queued);
    assert!(door.view(&id).await.paused.is_some());
    let host = world.start().await;
    let other = host.spawn(&request("a", "second")).await;
    host.end(&other).await;
    assert_eq!(host.get(&id).await.status(), Status::Queued, "others pass it");
    resume(&door, &id).await.expect("it is paused");
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    check_journal(&host.journal(&id).await);
}

#[tokio::test]
async fn m_36_a_waiting_run_takes_answers_while_it_is_paused_and_goes_on_afterwards() {
    let mut world = World::new();
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    world.agent(
        "a",
        ClosurePlanner::new(move |input: PlanInput, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                if input.resume.is_none() {
                    return decided(Decision::Await(vec![clarification("q").into()]));
                }
                answer(&texts(&input.messages).join("|"))
            }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.reach(&id, Status::Blocked).await;
    pause(&host, &id).await.expect("it can be paused");
    assert_eq!(host.view(&id).await.blocked_on, Some(BlockedOn::Input), "it still asks");
    let asks = host.client().asks(&id).await.expect("there");
    assert_eq!(asks.len(), 1);
    let text = Answer::Text("this".into());
    host.client().named("me").answer(&id, None, text).await.expect("taken");
    host.settle().await;
    assert_eq!(host.view(&id).await.blocked_on, Some(BlockedOn::Pause), "nothing else is left");
    assert_eq!(steps.load(Ordering::SeqCst), 1);
    resume(&host, &id).await.expect("it is paused");
    let run = host.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("x|this"));
    check_journal(&host.journal(&id).await);
}

#[tokio::test]
async fn m_36_a_parent_that_waits_for_its_child_can_be_paused_over_the_end_of_that() {
    let mut world = World::new();
    let gate = Gate::new();
    crate::common::task_tools(&mut world);
    world.agent("parent", following(vec![vec![("c1", "await/f", "\"all - child\"")]]));
    world.agent("child", gate.answering("done"));
    let host = world.start().await;
    host.spawn(&named("child", "child")).await;
    let id = host.spawn(&named("parent", "parent")).await;
    host.reach(&id, Status::Blocked).await;
    pause(&host, &id).await.expect("it can be paused");
    gate.open();
    host.end("child").await;
    host.settle().await;
    assert_eq!(host.get(&id).await.status(), Status::Blocked);
    resume(&host, &id).await.expect("it is paused");
    let run = host.end(&id).await;
    let result = run.state.reply.result().expect("an answer");
    assert!(result.contains("completed"), "{result}");
}

#[tokio::test]
async fn m_36_the_clocks_of_the_budget_stand_still_while_a_run_is_paused() {
    let (mut world, _) = with_tool();
    let (gate, steps) = (Gate::new(), Arc::new(AtomicU32::new(0)));
    world.agent("a", stepping(&gate, &steps));
    let host = world.start().await;
    let mut asked = request("a", "x");
    asked.timeout = Some(10 * SECOND);
    let id = host.spawn(&asked).await;
    gate.reached_by(1).await;
    world.clock.advance(6 * SECOND);
    pause(&host, &id).await.expect("it can be paused");
    gate.open();
    let run = host.reach(&id, Status::Blocked).await;
    assert_eq!(run.state.ran_ms, 6_000);
    world.clock.advance(3_600 * SECOND);
    resume(&host, &id).await.expect("it is paused");
    assert_eq!(host.end(&id).await.status(), Status::Completed);
}

#[tokio::test]
async fn m_36_a_pause_ends_the_wait_between_two_attempts() {
    let mut world = World::new();
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let planner = ClosurePlanner::new(move |_, _| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move { if first { failed(Some("transient"), "not now") } else { answer("done") } }
    });
    world.agent_with("a", planner, |agent| agent.retry.pause = 300 * SECOND);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.until(&id, "has failed once", |run| run.state.failed_attempts == 1).await;
    pause(&host, &id).await.expect("it can be paused");
    host.reach(&id, Status::Blocked).await;
    world.clock.advance(300 * SECOND);
    resume(&host, &id).await.expect("it is paused");
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert_eq!(steps.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn ls_10_a_pause_that_nobody_ends_ends_with_its_time() {
    let (mut world, _) = with_tool();
    let (gate, steps) = (Gate::new(), Arc::new(AtomicU32::new(0)));
    world.agent("a", stepping(&gate, &steps));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    pause_for(&host, &id, 60 * SECOND).await;
    gate.open();
    host.reach(&id, Status::Blocked).await;
    world.clock.advance(59 * SECOND);
    host.settle().await;
    assert_eq!(host.get(&id).await.status(), Status::Blocked);
    world.clock.advance(SECOND);
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert_eq!(sequence(&host, &id).await, ["pause:human", "resume:deadline_exceeded"]);
}

#[tokio::test]
async fn ls_10_so_does_that_of_a_queued_run_and_of_one_that_asks() {
    let mut world = World::new();
    world.agent(
        "a",
        ClosurePlanner::new(|input: PlanInput, _| async move {
            match input.resume {
                None => decided(Decision::Await(vec![clarification("q").into()])),
                Some(_) => answer("done"),
            }
        }),
    );
    let door = world.door().await;
    let id = door.spawn(&request("a", "x")).await;
    pause_for(&door, &id, 60 * SECOND).await;
    let host = world.start().await;
    world.clock.advance(60 * SECOND);
    host.reach(&id, Status::Blocked).await;
    pause_for(&door, &id, 60 * SECOND).await;
    world.clock.advance(60 * SECOND);
    host.until(&id, "is no longer paused", |run| {
        run.state.pause.is_none() && run.status() == Status::Blocked
    })
    .await;
    assert_eq!(host.view(&id).await.blocked_on, Some(BlockedOn::Input), "it asks as before");
    let both = ["pause:human", "resume:deadline_exceeded"];
    assert_eq!(sequence(&host, &id).await, [both, both].concat());
    let text = Answer::Text("this".into());
    host.client().named("me").answer(&id, None, text).await.expect("taken");
    assert_eq!(host.end(&id).await.status(), Status::Completed);
}

#[tokio::test]
async fn m_36_a_cancellation_ends_a_pause_and_a_pause_survives_its_host() {
    let (mut world, _) = with_tool();
    let (gate, steps) = (Gate::new(), Arc::new(AtomicU32::new(0)));
    world.agent("a", stepping(&gate, &steps));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    pause(&host, &id).await.expect("it can be paused");
    world.kill(host).await;
    let host = world.take_over().await;
    host.settle().await;
    world.clock.advance(PAUSE_OVER);
    host.settle().await;
    let run = host.get(&id).await;
    assert_eq!(run.status(), Status::Blocked, "it stays paused");
    assert_eq!(steps.load(Ordering::SeqCst), 1, "and nobody asks its agent");
    host.client().cancel(&id, None).await.expect("there");
    assert_eq!(host.get(&id).await.status(), Status::Canceled);
    assert_eq!(sequence(&host, &id).await, ["pause:human", "resume:canceled"]);
    check_journal(&host.journal(&id).await);
}

#[tokio::test]
async fn m_36_a_tree_is_paused_and_resumed_as_a_whole() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    host.spawn(&named("top", "a")).await;
    host.spawn(&beneath("top", "middle", "a")).await;
    host.spawn(&beneath("middle", "low", "a")).await;
    gate.reached_by(3).await;
    let request = PauseRequest { tree: true, ..PauseRequest::default() };
    let done = host.client().named("human").pause("top", &request).await.expect("there");
    let ids: Vec<_> = done.descendants.iter().map(|id| id.as_str()).collect();
    assert_eq!(ids, ["middle", "low"]);
    let request = ResumeRequest { tree: true, ..ResumeRequest::default() };
    let done = host.client().named("human").resume("top", &request).await.expect("there");
    assert_eq!(done.descendants.len(), 2);
    gate.open();
    for id in ["top", "middle", "low"] {
        assert_eq!(host.end(id).await.status(), Status::Completed);
        assert_eq!(sequence(&host, id).await, ["pause:human", "resume:resumed"]);
    }
}

#[tokio::test]
async fn m_36_strangers_and_blank_messages_are_refused() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let theirs = host.scope.clone().owner("user-b");
    let request = PauseRequest::default();
    let stranger = host.controller.at(&theirs).named("b").pause(&id, &request).await;
    assert_eq!(stranger.err().map(|error| error.code()), Some("not-found"));
    let blank = host.client().named("human").inject(&id, "  ").await;
    assert_eq!(blank.err().map(|error| error.code()), Some("invalid"));
    assert_eq!(host.get(&id).await.state.inbox.messages, 0);
    gate.open();
    host.end(&id).await;
}
