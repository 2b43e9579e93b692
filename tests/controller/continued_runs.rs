//! Runs that go on beneath one that has ended and that another one continues: they count against the
//! budget of that one (C-040), which is told of them.

use std::sync::Arc;

use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::Model;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::ReportState;
use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::status::StopReason;

use super::budgets::{Metered, ask};
use super::common::{Gates, named};
use super::delivery::{children, start, states, task};
use super::host_tools::leader_that;
use super::rounds::{planned, report};
use crate::native::{ClosurePlanner, Native, World, answer, call_of};

/// A world whose agent starts a worker in its first round, and in its third one another, for which it
/// waits. The first worker and the first two rounds end when their gates are open; each worker uses
/// thirty tokens.
fn world(tokens: u64) -> (World, Arc<Gates>) {
    let (mut world, gates) = (World::new(), Gates::new());
    let inside = Arc::clone(&gates);
    let worker = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let gates = Arc::clone(&inside);
        async move {
            if task(&input) == "late" {
                let _inside = gates.pass("late").await;
            }
            ask(&scope).await;
            answer("dug")
        }
    });
    let own: Arc<dyn Model> = Arc::new(Metered::default());
    world.agent_asking("worker", worker, Some(own), |_| {});
    let inside = Arc::clone(&gates);
    let leader = ClosurePlanner::new(move |input: PlanInput, _| {
        let gates = Arc::clone(&inside);
        async move {
            match input.run.turn {
                1 => start("late", "worker", "late"),
                2 => {
                    let _inside = gates.pass("one").await;
                    answer("one")
                }
                3 => {
                    let _inside = gates.pass("two").await;
                    answer("two")
                }
                4 => {
                    let arguments = r#"{"agent_name":"worker","task":"now","mode":"sync"}"#;
                    call_of(&[("now", "host/start_task_run", arguments)])
                }
                5 => planned(&report("it")),
                _ => answer("bye"),
            }
        }
    });
    leader_that(&mut world, ("a", &["worker"]), leader, |agent| agent.budget.tokens = Some(tokens));
    (world, gates)
}

pub(super) fn rounds(most: u32) -> Option<AutonomyRequest> {
    Some(AutonomyRequest { rounds: Some(most), ..AutonomyRequest::default() })
}

/// Lets the first worker end.
async fn end_worker(host: &Native, gates: &Gates, worker: &str) {
    gates.open("late");
    host.end(worker).await;
}

/// Ends a run after its first round, and gives the worker that it started: which ends before it if it is
/// early, and is left open otherwise.
async fn first_run(host: &Native, gates: &Gates, is_early: bool) -> String {
    host.spawn(&SpawnRequest { autonomous: rounds(1), ..named("1", "a") }).await;
    // The worker, and the second turn.
    gates.have_come(2).await;
    let worker = children(host, "1").await.remove(0);
    if is_early {
        end_worker(host, gates, &worker).await;
    }
    gates.open("one");
    let run = host.end("1").await;
    assert_eq!(run.ending().map(|ending| ending.stop_reason), Some(StopReason::MaxTurns));
    worker
}

/// The run that continues one.
pub(super) async fn go_on(host: &Native, id: &str, autonomous: Option<AutonomyRequest>) -> Run {
    let request = host.client().continuation(id).await.expect("it may be continued");
    let autonomous = autonomous.or(request.autonomous.clone());
    let request = SpawnRequest { autonomous, ..request };
    host.client().submit(&request).await.expect("accepted").run
}

/// The tokens with which a run began that continues another one.
fn carried(run: &Run) -> Option<u64> {
    run.spec.continues.as_ref().map(|continued| continued.usage.total_tokens)
}

/// The reason for which a run ended, and the tokens that count against its budget.
async fn spent(host: &Native, id: &str) -> (Option<StopReason>, u64) {
    let run = host.end(id).await;
    let used = host.client().charged_with_descendants(&run).await.expect("read");
    (run.ending().map(|ending| ending.stop_reason), used.total_tokens)
}

#[tokio::test]
async fn c_040_what_goes_on_beneath_a_run_counts_for_the_one_that_continues_it() {
    let (mut world, gates) = world(30);
    let host = world.start().await;
    let worker = first_run(&host, &gates, false).await;
    let next = go_on(&host, "1", None).await;
    assert_eq!(carried(&next), Some(0), "nothing was used by then");
    let id = next.id().as_str();
    // Its first turn is under way.
    gates.have_come(3).await;
    end_worker(&host, &gates, &worker).await;
    gates.open("two");
    assert_eq!(spent(&host, id).await, (Some(StopReason::MaxTokens), 30));
    assert_eq!(host.get(id).await.state.turns, 3, "no further round begins");
}

#[tokio::test]
async fn what_ended_beneath_a_run_is_kept_with_the_next_round_of_the_one_that_continues_it() {
    let (mut world, gates) = world(50);
    let host = world.start().await;
    let worker = first_run(&host, &gates, false).await;
    let next = go_on(&host, "1", None).await;
    let id = next.id().as_str();
    gates.have_come(3).await;
    end_worker(&host, &gates, &worker).await;
    gates.open("two");
    assert_eq!(spent(&host, id).await, (Some(StopReason::MaxTokens), 60), "each counts once");
    let kept = host.get(id).await.state.rounds.continued.map(|used| used.total_tokens);
    assert_eq!(kept, Some(30));
}

#[tokio::test]
async fn what_went_on_beneath_a_run_is_carried_by_all_that_continue_it_in_turn() {
    let (mut world, gates) = world(50);
    let host = world.start().await;
    let worker = first_run(&host, &gates, false).await;
    let second = go_on(&host, "1", rounds(2)).await;
    gates.have_come(3).await;
    end_worker(&host, &gates, &worker).await;
    gates.open("two");
    let second = second.id().as_str();
    assert_eq!(spent(&host, second).await, (Some(StopReason::MaxTurns), 30));
    let third = go_on(&host, second, None).await;
    assert_eq!((carried(&third), third.state.progress.total_tokens), (Some(30), 30));
    assert_eq!(spent(&host, third.id().as_str()).await, (Some(StopReason::MaxTokens), 60));
}

/// The runs of which a run was told.
pub(super) async fn told(host: &Native, id: &RunId) -> Vec<String> {
    let journal = host.journal(id.as_str()).await;
    let told = journal.into_iter().filter_map(|recorded| {
        let Event::Reported { runs, .. } = recorded.event else { return None };
        Some(runs)
    });
    told.flatten().map(|run| run.to_string()).collect()
}

#[tokio::test]
async fn an_outcome_without_a_conversation_is_told_once_to_the_run_that_continues_the_one_above() {
    for is_early in [true, false] {
        let (mut world, gates) = world(1_000);
        let host = world.start().await;
        let worker = first_run(&host, &gates, is_early).await;
        end_worker(&host, &gates, &worker).await;
        assert_eq!(states(&host).await, [ReportState::Pending], "early: {is_early}");
        let (one, other) = tokio::join!(go_on(&host, "1", None), go_on(&host, "1", None));
        assert_eq!(one.id(), other.id(), "early: {is_early}");
        gates.open("two");
        assert_eq!(spent(&host, one.id().as_str()).await, (Some(StopReason::Done), 60));
        assert_eq!(told(&host, one.id()).await, [worker], "early: {is_early}");
        assert_eq!(states(&host).await, [ReportState::Delivered; 2], "early: {is_early}");
    }
}
