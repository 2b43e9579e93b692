//! Steps that were stopped, or that ended at a limit, as a replay finds them in a journal: it says
//! of each why it is not compared that is not, and tells of none that was not under way.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::driver::replay::{
    Form, Forms, Images, ReplayWorld, ReplayedStep, RunRecord, StepComparison, replay,
};
use taskrun::ports::planner::PlanInput;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::message::ToolError;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::tool::{ToolFailure, ToolHints};
use taskrun_policy::{InterruptionPolicy, Reserve};
use taskrun_store::MemoryStore;

use super::nothing_left::{add, asking};
use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, World, answer, call_of, failed, request,
};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than all that a test waits for.
const LONG: Duration = Duration::from_secs(60);

/// The reason for which steps are not compared that could be.
const NO_FORM: &str = "agents that are closures are not on record";
const OUT_OF_TIME: &str = "the time of the run was up while it was under way";
const ASKED_TO_STOP: &str = "it was asked to stop while it was under way";
const WITHOUT_IT: &str = "the run came to its end without it";
const HOST_FAILED: &str = "its host failed";

struct NoForms;

#[async_trait]
impl Forms for NoForms {
    async fn form(&self, _run: &Run, _pins_now: &[String]) -> Result<Form, String> {
        Err(NO_FORM.to_owned())
    }
}

/// The steps on record: the number of the turn of each, and why it is not compared.
async fn steps(host: &Native, id: &str) -> Vec<(u32, String)> {
    steps_of(host.journal(id).await).await
}

async fn steps_of(journal: Vec<EventRecord>) -> Vec<(u32, String)> {
    let own: Arc<[EventRecord]> = journal.into();
    let store = Arc::new(MemoryStore::new());
    let world = ReplayWorld {
        store: store.clone(),
        hosts: store.clone(),
        memory: store,
        interrupt: Arc::new(|| {}),
        images: Images::new(),
    };
    let mut steps = Vec::new();
    let see = |step: ReplayedStep| match step.outcome {
        StepComparison::Skipped(reason) => steps.push((step.turn, reason)),
        StepComparison::Same | StepComparison::Differs(_) => panic!("{step:?}"),
    };
    replay(RunRecord { own, before: &[] }, &NoForms, world, None, see).await.expect("a record");
    steps
}

fn are(found: &[(u32, String)], expected: &[(u32, &str)]) {
    let found: Vec<_> = found.iter().map(|(turn, reason)| (*turn, reason.as_str())).collect();
    assert_eq!(found, expected);
}

/// Takes for ever, and has its last word at hand.
fn stuck() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, _| async move {
        match input.resume.and_then(|resume| resume.finalize) {
            Some(_) => answer("in short"),
            None => pending().await,
        }
    })
}

/// A world with an agent that takes for ever, and one whose call does.
fn world() -> World {
    let mut world = World::new();
    let tool = ClosureTool::new("stuck", ToolHints::default(), |_, _| pending());
    world.tool("t", InterruptionPolicy::Fail, tool);
    let calling = || {
        ClosurePlanner::new(|input: PlanInput, _| async move {
            match input.resume {
                None => call_of(&[("c", "t/stuck", "{}")]),
                Some(_) => answer("in short"),
            }
        })
    };
    world.agent("stuck", stuck());
    world.agent_with("stuck-for-a-second", stuck(), |agent| agent.budget.wall = Some(SECOND));
    world.agent_with("mortal", stuck(), |agent| agent.durable = false);
    world.agent("calling", calling());
    world.agent_with("calling-for-a-second", calling(), |agent| agent.budget.wall = Some(SECOND));
    world
}

/// Waits until a step or a call of the run is under way.
async fn is_busy(host: &Native, id: &str) {
    let run = host.reach(id, Status::Running).await;
    if run.spec.agent_name.starts_with("calling") {
        host.until(id, "calls", |run| run.state.tool_calls == 1).await;
    }
}

#[tokio::test]
async fn c_077_a_step_that_the_end_of_the_time_stopped_is_told_of_and_none_beside_a_call() {
    let mut world = world();
    let host = world.start().await;
    for (agent, timeout, expected) in [
        ("stuck", Some(SECOND), &[(1, OUT_OF_TIME)][..]),
        ("calling", Some(SECOND), &[(1, NO_FORM)][..]),
        ("stuck-for-a-second", None, &[(1, OUT_OF_TIME), (1, NO_FORM)][..]),
        ("calling-for-a-second", None, &[(1, NO_FORM), (2, NO_FORM)][..]),
    ] {
        let mut asked = request(agent, "x");
        asked.timeout = timeout;
        let id = host.spawn(&asked).await;
        is_busy(&host, &id).await;
        world.run_until(LONG, host.end(&id)).await;
        are(&steps(&host, &id).await, expected);
    }
}

#[tokio::test]
async fn c_077_a_step_that_a_cancellation_stopped_is_told_of_and_none_beside_a_call() {
    let mut world = world();
    let host = world.start().await;
    for (agent, expected) in [("stuck", ASKED_TO_STOP), ("calling", NO_FORM)] {
        let id = host.spawn(&request(agent, "x")).await;
        is_busy(&host, &id).await;
        host.client().cancel(&id, None).await.expect("canceled");
        world.run_until(LONG, host.end(&id)).await;
        are(&steps(&host, &id).await, &[(1, expected)]);
    }
}

#[tokio::test]
async fn c_077_between_two_attempts_no_step_is_stopped() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|_, _| async { failed(Some("transient"), "not just now") });
    world.agent("a", planner);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.until(&id, "fails", |run| run.state.failed_attempts == 1).await;
    host.client().cancel(&id, None).await.expect("canceled");
    world.run_until(LONG, host.end(&id)).await;
    are(&steps(&host, &id).await, &[(1, NO_FORM)]);
}

#[tokio::test]
async fn c_077_a_step_that_goes_on_after_its_host_died_is_one_and_one_that_does_not_is_told_of() {
    let (mut world, gate) = (world(), Gate::new());
    world.agent("gated", gate.answering("done"));
    let first = world.start().await;
    let goes_on = first.spawn(&request("gated", "x")).await;
    gate.reached_by(1).await;
    let ends = first.spawn(&request("mortal", "x")).await;
    is_busy(&first, &ends).await;
    world.kill(first).await;
    let second = world.take_over().await;
    gate.open();
    for (id, why) in [(goes_on, NO_FORM), (ends, "it lost its host while it was under way")] {
        world.run_until(LONG, second.end(&id)).await;
        are(&steps(&second, &id).await, &[(1, why)]);
    }
}

#[tokio::test]
async fn c_077_after_a_call_that_failed_with_a_word_of_the_host_a_stopped_step_is_told_of() {
    let (mut world, gate) = (World::new(), Gate::new());
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async {
        let error = ToolError::coded("stopped", "the machine was stopped");
        Ok(Err(ToolFailure { error, retry_hint: None }))
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let closed = gate.clone();
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let gate = closed.clone();
        async move {
            if input.resume.is_some() {
                gate.pass().await;
            }
            call_of(&[("c", "t/f", "{}")])
        }
    });
    world.agent("a", planner);
    let host = world.start().await;
    let mut asked = request("a", "x");
    asked.timeout = Some(SECOND);
    let id = host.spawn(&asked).await;
    gate.reached_by(1).await;
    world.run_until(LONG, host.end(&id)).await;
    are(&steps(&host, &id).await, &[(1, NO_FORM), (2, OUT_OF_TIME)]);
}

#[tokio::test]
async fn c_077_a_step_that_failed_as_no_tokens_were_left_is_executed_again() {
    let kept = Reserve { tokens: 30, ..Reserve::default() };
    for (tokens, reserve, expected) in [
        (30, Reserve::default(), &[(1, NO_FORM)][..]),
        // The last word is another one.
        (60, kept, &[(1, NO_FORM), (1, NO_FORM)][..]),
    ] {
        let mut world = World::new();
        add(&mut world, "a", asking(2), |agent| {
            agent.budget.tokens = Some(tokens);
            agent.budget.reserve = reserve;
        });
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        host.end(&id).await;
        are(&steps(&host, &id).await, expected);
    }
}

#[tokio::test]
async fn c_077_a_last_word_that_failed_is_told_of() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|input: PlanInput, _| async move {
        match input.resume.and_then(|resume| resume.finalize) {
            Some(_) => failed(Some("broken"), "it broke"),
            None => call_of(&[("c", "t/none", "{}")]),
        }
    });
    world.agent_with("a", planner, |agent| {
        agent.budget.turns = Some(2);
        agent.budget.reserve = Reserve { turns: 1, ..Reserve::default() };
    });
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.end(&id).await;
    are(&steps(&host, &id).await, &[(1, NO_FORM), (2, WITHOUT_IT)]);
}

#[tokio::test]
async fn c_077_a_step_that_found_no_memory_is_told_of_as_often_as_it_was_tried() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|_, _| async { Err(CallAbort::Unavailable) });
    world.agent("a", planner);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    world.run_until(LONG, host.end(&id)).await;
    let view = host.view(&id).await;
    assert_eq!(view.stop_reason, Some(StopReason::RetryAborted));
    assert_eq!(view.failure, Some(CallAbort::Unavailable), "its typed reason");
    let expected = [(1, HOST_FAILED); 3];
    are(&steps(&host, &id).await, &expected);
    // Older programs have the reason of the last one in words alone.
    let mut journal = host.journal(&id).await;
    for record in &mut journal {
        if let Event::Finalizing { ending } = &mut record.event {
            ending.failure = None;
        }
    }
    are(&steps_of(journal).await, &expected);
}
