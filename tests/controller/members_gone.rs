//! Runs whose agent has lost its members by an edit of the policy, and the runs that they had started.

use std::sync::Arc;

use taskrun::agents::{Agent, AgentNow};
use taskrun::ports::planner::{Decision, PlanInput};
use taskrun::scope::CallScope;
use taskrun_journal::delivery::ReportState;
use taskrun_journal::pin::pin;
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::status::StopReason;

use super::budgets::{Metered, ask};
use super::delivery::{children, heard, leader, start, states};
use super::deployments::world;
use super::nudges::change;
use super::revocation::take_up;
use crate::native::{ClosurePlanner, World, answer, clarification, decided, request};

/// Starts a run, asks a person, and answers with what it was shown by then.
fn lead() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, _| async move {
        let is_answered = input.messages.iter().any(|one| one.joined_text().contains("yes"));
        match (input.resume.is_none(), is_answered) {
            (true, _) => start("1", "worker", "quick"),
            (false, false) => decided(Decision::Await(vec![clarification("q").into()])),
            (false, true) => answer(&heard(&input)),
        }
    })
}

/// A run with a budget of tokens that goes on once its agent has no members any more and the run that
/// it had started has spent 30 tokens and ended; with the id of that one. It keeps its form, or is
/// adopted.
async fn goes_on(tokens: Option<u64>, is_adopted: bool) -> (Run, String, Vec<ReportState>) {
    let (mut world, shelf, gates) = world();
    let inside = Arc::clone(&gates);
    let worker = ClosurePlanner::new(move |_, scope: Arc<CallScope>| {
        let gates = Arc::clone(&inside);
        async move {
            drop(gates.pass("worker").await);
            answer(&ask(&scope).await)
        }
    });
    world.agent_asking("worker", worker, Some(Arc::new(Metered::default())), |_| {});
    leader(&mut world, "lead", lead());
    change(&mut world, "lead", |agent| {
        agent.pin = pin("lead", "1");
        agent.budget.tokens = tokens;
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "go")).await;
    host.until(&id, "asks", |run| run.state.awaits.iter().any(|one| !one.answered)).await;
    let child = children(&host, &id).await[0].clone();
    let then = Agent::clone(&world.agents_now().by_name["lead"]);
    change(&mut world, "lead", |agent| {
        agent.pin = pin("lead", "2");
        agent.members.clear();
    });
    let now = Arc::clone(&world.agents_now().by_name["lead"]);
    let now = AgentNow { pin: now.pin.clone(), rules: Arc::clone(&now.rules) };
    // Of the members of then those are in force that are members now.
    shelf.keep(&Agent { now: Some(now), members: Vec::new(), ..then });
    take_up(&world, &shelf, &host).await;
    if is_adopted {
        host.client().named("ann").adopt(&id).await.expect("it waits");
    }
    gates.open("worker");
    host.end(&child).await;
    host.client().answer(&id, None, Answer::Text("yes".into())).await.expect("taken");
    let run = host.end(&id).await;
    assert_eq!(run.pin(), if is_adopted { "lead@2" } else { "lead@1" });
    (run, child, states(&host).await)
}

#[tokio::test]
async fn a_run_is_told_of_what_it_started_though_its_agent_may_start_nothing_any_more() {
    for is_adopted in [false, true] {
        let (run, child, states) = goes_on(None, is_adopted).await;
        let said = run.state.reply.result().expect("an answer");
        assert_eq!(said.matches(&format!("worker {child}: completed")).count(), 1, "{said}");
        assert_eq!(states, [ReportState::Delivered], "adopted: {is_adopted}");
    }
}

#[tokio::test]
async fn m_50_what_a_run_started_counts_though_its_agent_may_start_nothing_any_more() {
    for (tokens, reason) in [(31, StopReason::FinalResponse), (30, StopReason::MaxTokens)] {
        for is_adopted in [false, true] {
            let (run, ..) = goes_on(Some(tokens), is_adopted).await;
            let ended = run.ending().map(|ending| ending.stop_reason);
            assert_eq!(ended, Some(reason), "adopted: {is_adopted}");
        }
    }
}

#[tokio::test]
async fn m_50_a_run_that_never_had_members_reads_no_tree() {
    let mut world = World::new();
    let alone = ClosurePlanner::new(|_, _| async { answer("done") });
    world.agent_with("a", alone, |agent| {
        agent.members.clear();
        agent.budget.tokens = Some(1_000);
    });
    let host = world.start().await;
    host.end(&host.spawn(&request("a", "x")).await).await;
    assert_eq!(world.store.tree_reads(), 0);
}
