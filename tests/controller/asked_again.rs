//! Answers that a host asked for and died before they were on record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::Event;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::Gates;
use super::deployments::question;
use crate::native::{
    ClosurePlanner, ClosureTool, Native, World, answer, call_of, in_time, request, value,
};

/// Answers with a word, but for the requests of these numbers, from 1, to which it never does.
struct SilentAt {
    asked: AtomicU32,
    silent: &'static [u32],
}

#[async_trait]
impl Model for SilentAt {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        if self.silent.contains(&(self.asked.fetch_add(1, Ordering::SeqCst) + 1)) {
            std::future::pending::<()>().await;
        }
        let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "m-1".to_owned() };
        Ok(futures::stream::iter([Ok(Chunk::Text("word".to_owned())), Ok(stop)]).boxed())
    }
}

/// A world whose agent asks its model twice and passes a gate, calls a tool that passes one, and asks
/// once more.
fn world(gates: &Arc<Gates>, model: &Arc<SilentAt>) -> World {
    let mut world = World::new();
    let at_tool = Arc::clone(gates);
    let hints = ToolHints { idempotent: true, ..ToolHints::default() };
    let tool = ClosureTool::new("f", hints, move |_, _| {
        let gates = Arc::clone(&at_tool);
        async move {
            drop(gates.pass("tool").await);
            value("1")
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let at_step = Arc::clone(gates);
    let planner = ClosurePlanner::new(move |input, scope| {
        let gates = Arc::clone(&at_step);
        async move {
            scope.ask(question()).await.ok();
            if input.resume.is_some() {
                return answer("done");
            }
            scope.ask(question()).await.ok();
            drop(gates.pass("step").await);
            call_of(&[("c1", "t/f", "{}")])
        }
    });
    world.agent_asking("a", planner, Some(model.clone()), |_| {});
    world
}

/// The turns of the steps that were begun again, each with the kind of the event before it.
async fn restarts(host: &Native, id: &str) -> Vec<(u32, &'static str)> {
    let journal = host.journal(id).await;
    let pairs = journal.windows(2).filter_map(|pair| {
        let Event::StepRestarted { turn, .. } = &pair[1].event else { return None };
        Some((*turn, pair[0].event.kind()))
    });
    pairs.collect()
}

#[tokio::test]
async fn an_answer_that_is_asked_for_again_is_shown_as_a_restart_of_its_step() {
    // The requests during which a host dies, and the turns of their steps.
    let cases: [(&[u32], &[u32]); 5] =
        [(&[1], &[1]), (&[2], &[1]), (&[3], &[2]), (&[1, 2], &[1, 1]), (&[2, 3, 5], &[1, 1, 2])];
    for (silent, turns) in cases {
        let gates = Gates::new();
        gates.open("step");
        gates.open("tool");
        let model = Arc::new(SilentAt { asked: AtomicU32::new(0), silent });
        let mut world = world(&gates, &model);
        let mut host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        for last in silent {
            let is_asked = async {
                while model.asked.load(Ordering::SeqCst) < *last {
                    host.settle().await;
                }
            };
            in_time(is_asked).await;
            world.kill(host).await;
            host = world.take_over().await;
        }
        let run = host.end(&id).await;
        assert_eq!(run.status(), Status::Completed, "{:#?}", host.journal(&id).await);
        let asked = model.asked.load(Ordering::SeqCst) as usize;
        assert_eq!(asked, 3 + silent.len(), "three, and one more for each death");
        let expected: Vec<_> = turns.iter().map(|turn| (*turn, "resumed")).collect();
        assert_eq!(restarts(&host, &id).await, expected, "requests {silent:?}");
    }
}

#[tokio::test]
async fn a_step_of_which_nothing_is_asked_again_is_not_shown_as_restarted() {
    for (dies_at, other) in [("step", "tool"), ("tool", "step")] {
        let gates = Gates::new();
        gates.open(other);
        let model = Arc::new(SilentAt { asked: AtomicU32::new(0), silent: &[] });
        let mut world = world(&gates, &model);
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        gates.have_come(if dies_at == "step" { 1 } else { 2 }).await;
        world.kill(host).await;
        let host = world.take_over().await;
        gates.open(dies_at);
        let run = host.end(&id).await;
        assert_eq!(run.status(), Status::Completed, "{:#?}", host.journal(&id).await);
        assert_eq!(model.asked.load(Ordering::SeqCst), 3, "each of them once");
        assert_eq!(restarts(&host, &id).await, [], "{dies_at}");
    }
}
