//! Questions to models for which nothing of a budget is left (M-50): a step that passes that on ends its
//! run with the limit, also where it is the first one, of the run or of one that continues another.

use std::sync::Arc;

use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::Model;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::Event;
use taskrun_journal::money::Price;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_policy::Reserve;

use super::budgets::{Metered, ask, priced};
use super::common::{Gates, beneath, named};
use super::exit_on_defer::go_on;
use crate::native::{ClosurePlanner, Native, World, answer, failed};

/// Dollars for a million tokens: an answer costs 90 millionths.
const PRICE: Price = Price::new(2_000_000, 5_000_000);

/// An agent that asks its model so often in a step, once for its last word, and passes on why it may
/// not.
pub(super) fn asking(questions: u32) -> ClosurePlanner {
    ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| async move {
        let is_last = input.resume.is_some_and(|resume| resume.finalize.is_some());
        let questions = if is_last { 1 } else { questions };
        for _ in 0..questions {
            let said = ask(&scope).await;
            if said != "asked" {
                return failed(Some("budget"), &said);
            }
        }
        answer("done")
    })
}

pub(super) fn add(
    world: &mut World,
    name: &str,
    planner: ClosurePlanner,
    change: impl FnOnce(&mut Agent),
) {
    let own: Arc<dyn Model> = Arc::new(Metered::default());
    world.agent_asking(name, planner, Some(own), |agent| {
        priced(agent, Some(PRICE));
        change(agent);
    });
}

pub(super) fn end_of(run: &Run) -> (Status, Option<StopReason>) {
    (run.status(), run.ending().map(|ending| ending.stop_reason))
}

/// The ends of two runs that ask and of one that needs no model, one after the other beneath a run with
/// this budget; and the host.
async fn beneath_a_budget(change: impl FnOnce(&mut Agent)) -> (Native, Vec<Run>) {
    let (mut world, gates) = (World::new(), Gates::new());
    add(&mut world, "asks", asking(1), |_| {});
    world.agent("works", ClosurePlanner::new(|_, _| async { answer("done") }));
    world.agent_with("a", gates.planner(), change);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    let mut ends = Vec::new();
    for (id, agent) in [("2", "asks"), ("3", "asks"), ("4", "works")] {
        host.spawn(&beneath("1", id, agent)).await;
        ends.push(host.end(id).await);
    }
    gates.open("1");
    host.end("1").await;
    (host, ends)
}

/// The lines that the host wrote about a run.
pub(super) async fn said_by_host(host: &Native, id: &str) -> Vec<String> {
    let journal = host.journal(id).await;
    let said = journal.into_iter().filter_map(|recorded| {
        let Event::Log { message, source, .. } = recorded.event else { return None };
        (source == "host").then_some(message)
    });
    said.collect()
}

#[tokio::test]
async fn m_50_a_run_that_finds_nothing_left_for_its_first_question_ends_with_that_limit() {
    type Change = fn(&mut Agent);
    let cases: [(Change, StopReason, &str, &str); 2] = [
        (
            |agent| agent.budget.tokens = Some(30),
            StopReason::MaxTokens,
            "no tokens are left",
            "token budget exceeded: `tokens` of run 1 above it is 30, for that and all beneath it",
        ),
        (
            |agent| agent.budget.cost_microusd = Some(90),
            StopReason::MaxCost,
            "no money is left",
            "cost budget exceeded: `usd` of run 1 above it is 0.00009, for that and all beneath it",
        ),
    ];
    for (change, reason, why, error) in cases {
        let (host, ends) = beneath_a_budget(change).await;
        let found: Vec<_> = ends.iter().map(end_of).collect();
        let done = (Status::Completed, Some(StopReason::FinalResponse));
        // One that needs no model has its step all the same.
        assert_eq!(found, [done, (Status::Failed, Some(reason)), done], "{why}");
        assert_eq!(said_by_host(&host, "3").await, [format!("the step failed: {why}")]);
        let ending = ends[1].ending().expect("it ended");
        assert_eq!(ending.error.as_deref(), Some(error), "the budget is not its own");
    }
}

#[tokio::test]
async fn m_50_a_first_step_that_crosses_the_budget_and_asks_again_ends_with_that_limit() {
    let mut world = World::new();
    add(&mut world, "a", asking(2), |agent| agent.budget.tokens = Some(30));
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let run = host.end("1").await;
    assert_eq!(end_of(&run), (Status::Failed, Some(StopReason::MaxTokens)));
    assert_eq!(run.state.progress.total_tokens, 30);
    let error = run.ending().and_then(|ending| ending.error.as_deref());
    let own = "token budget exceeded: `tokens` is 30, for it and all that is beneath it";
    assert_eq!(error, Some(own));
}

#[tokio::test]
async fn m_45_what_is_kept_for_a_last_word_is_there_after_such_a_step_too() {
    let mut world = World::new();
    add(&mut world, "a", asking(2), |agent| {
        agent.budget.tokens = Some(60);
        agent.budget.reserve = Reserve { tokens: 30, ..Reserve::default() };
    });
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let run = host.end("1").await;
    assert_eq!(end_of(&run), (Status::Completed, Some(StopReason::MaxTokens)));
    assert_eq!(run.state.reply.result().as_deref(), Some("done"));
    assert_eq!(run.state.progress.total_tokens, 60);
}

/// A request for one round of the agent `a`.
pub(super) fn one_round() -> SpawnRequest {
    let asked = AutonomyRequest { rounds: Some(1), ..AutonomyRequest::default() };
    SpawnRequest { autonomous: Some(asked), ..named("1", "a") }
}

#[tokio::test]
async fn m_45_what_is_kept_for_a_last_word_is_there_after_the_first_step_of_a_continuation_too() {
    // The first run spends all but 30 of what is not kept, its own last word included. The one that
    // continues it fails at its second question, or answers at the limit.
    for (questions, budget) in [(2, 150), (1, 120)] {
        let mut world = World::new();
        add(&mut world, "a", asking(questions), |agent| {
            agent.budget.tokens = Some(budget);
            agent.budget.reserve = Reserve { tokens: 30, ..Reserve::default() };
        });
        let host = world.start().await;
        host.spawn(&one_round()).await;
        assert_eq!(host.end("1").await.state.progress.total_tokens, budget - 60);
        let next = go_on(&host, "1").await;
        let run = host.end(&next).await;
        assert_eq!(end_of(&run), (Status::Completed, Some(StopReason::MaxTokens)));
        assert_eq!(run.state.progress.total_tokens, budget, "{questions}: its last word asked");
        assert!(host.kinds(&next).await.contains(&"finalize_requested"), "{questions}");
        let said = said_by_host(&host, &next).await;
        let is_used_up = said.iter().any(|line| line.starts_with("nothing is left"));
        assert!(!is_used_up, "{questions}: it had something to begin with: {said:?}");
    }
}

#[tokio::test]
async fn a_step_that_spends_all_there_is_and_fails_by_itself_has_failed_by_itself() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        ask(&scope).await;
        failed(Some("broken"), "it broke")
    });
    add(&mut world, "a", planner, |agent| agent.budget.tokens = Some(30));
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let run = host.end("1").await;
    assert_eq!(end_of(&run), (Status::Failed, Some(StopReason::AgentError)));
}
