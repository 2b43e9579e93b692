//! The money of runs beneath one that goes on by itself, where their policy names none (C-066).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::error::ControllerError;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::money::Price;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::run::RunView;
use taskrun_journal::status::StopReason;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::budgets::{Metered, ask, priced};
use super::common::{Gates, beneath, named};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer, call_of, value};

/// The turns of a run that no budget of money stops.
const TURNS: u32 = 9;
/// The price of tokens that are written with which an answer of ten of them costs so many millionths
/// of a dollar.
const fn costing(microusd: u64) -> Price {
    Price::new(0, microusd * 100_000)
}
/// A quarter of a dollar for an answer.
const QUARTER: Price = costing(250_000);

/// A world with the agents `lead`, which waits, and `sub`, which asks its model in each turn.
fn world(price: Option<Price>, change: impl FnOnce(&mut Agent)) -> (World, Arc<Metered>) {
    let (mut world, model) = (World::new(), Arc::new(Metered::default()));
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    world.agent("lead", Gates::new().planner());
    world.agent("mid", Gates::new().planner());
    let spends = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        ask(&scope).await;
        match input.run.turn {
            TURNS => answer("done"),
            _ => call_of(&[("c", "t/f", "{}")]),
        }
    });
    world.agent_asking("sub", spends, Some(model.clone()), |agent| {
        priced(agent, price);
        change(agent);
    });
    (world, model)
}

fn lead(goes_on: bool) -> SpawnRequest {
    SpawnRequest { autonomous: goes_on.then(AutonomyRequest::default), ..named("lead", "lead") }
}

fn with_money(cost_microusd: u64) -> SpawnRequest {
    let narrow = Narrowing { cost_microusd: Some(cost_microusd), ..Narrowing::default() };
    SpawnRequest { narrow, ..beneath("lead", "sub", "sub") }
}

/// The end of a run beneath `lead`, and how often it asked its model.
async fn ended(
    (mut world, model): (World, Arc<Metered>),
    lead: &SpawnRequest,
    sub: &SpawnRequest,
) -> (RunView, u32) {
    let host = world.start().await;
    host.spawn(lead).await;
    host.spawn(sub).await;
    let run = RunView::from(&host.end("sub").await);
    (run, model.asked.load(Ordering::SeqCst))
}

async fn refusal(host: &Native, request: &SpawnRequest) -> (&'static str, String) {
    match host.client().spawn(request).await {
        Err(ControllerError::Invalid { field, reason }) => (field, reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn c_066_a_subagent_whose_prices_are_known_spends_a_dollar_to_the_millionth() {
    let rows = [
        // Four answers are a dollar.
        (250_000, 4),
        // The rest, four millionths, pays for no token.
        (249_999, 4),
        // The rest pays for one token.
        (240_000, 5),
    ];
    for (microusd, asked) in rows {
        let world = world(Some(costing(microusd)), |_| {});
        let (run, times) = ended(world, &lead(true), &beneath("lead", "sub", "sub")).await;
        assert_eq!((run.stop_reason, times), (Some(StopReason::MaxCost), asked), "{microusd}");
        assert_eq!(run.cost_microusd, Some(u64::from(asked) * microusd));
    }
}

#[tokio::test]
async fn c_066_without_a_price_and_beneath_an_attended_run_only_turns_and_time_bound_a_subagent() {
    for (price, goes_on) in [(None, true), (Some(QUARTER), false)] {
        let sub = beneath("lead", "sub", "sub");
        let (run, times) = ended(world(price, |_| {}), &lead(goes_on), &sub).await;
        assert_eq!((run.stop_reason, times), (Some(StopReason::FinalResponse), TURNS));
    }
    let (mut world, _) = world(Some(QUARTER), |_| {});
    let host = world.start().await;
    let one = AutonomyRequest { rounds: Some(1), ..AutonomyRequest::default() };
    host.spawn(&SpawnRequest { autonomous: Some(one), ..named("1", "sub") }).await;
    let run = RunView::from(&host.end("1").await);
    assert_eq!(run.stop_reason, Some(StopReason::MaxTurns), "nobody started it: {:?}", run.error);
}

#[tokio::test]
async fn c_066_the_policy_states_another_sum_and_a_request_takes_away_from_either() {
    let stated = |agent: &mut Agent| agent.budget.cost_microusd = Some(2_000_000);
    let table: [(bool, SpawnRequest, u32); 4] = [
        (true, beneath("lead", "sub", "sub"), 8),
        (true, with_money(1_500_000), 6),
        (false, with_money(500_000), 2),
        (false, with_money(1_000_000), 4),
    ];
    for (is_stated, request, asked) in table {
        let world = match is_stated {
            true => world(Some(QUARTER), stated),
            false => world(Some(QUARTER), |_| {}),
        };
        let (run, times) = ended(world, &lead(true), &request).await;
        assert_eq!((run.stop_reason, times), (Some(StopReason::MaxCost), asked), "{request:?}");
    }
    let (mut world, _) = world(Some(QUARTER), |_| {});
    let host = world.start().await;
    host.spawn(&lead(true)).await;
    let (field, reason) = refusal(&host, &with_money(1_000_001)).await;
    assert_eq!(field, "narrow.cost_microusd");
    assert!(reason.contains("has at most 1000000 millionths of a dollar"), "{reason}");
}

#[tokio::test]
async fn c_066_it_holds_at_every_depth_and_keeps_nobody_from_starting_what_has_no_price() {
    let deep = |world: (World, Arc<Metered>)| async move {
        let (mut world, model) = world;
        let host = world.start().await;
        host.spawn(&lead(true)).await;
        host.spawn(&beneath("lead", "mid", "mid")).await;
        host.spawn(&beneath("mid", "sub", "sub")).await;
        let run = RunView::from(&host.end("sub").await);
        (run.stop_reason, model.asked.load(Ordering::SeqCst))
    };
    let (reason, asked) = deep(world(Some(QUARTER), |_| {})).await;
    assert_eq!((reason, asked), (Some(StopReason::MaxCost), 4));
    let (mut unpriced, model) = world(None, |_| {});
    let own = Metered::default();
    unpriced.agent_asking("mid", Gates::new().planner(), Some(Arc::new(own)), |agent| {
        priced(agent, Some(QUARTER));
    });
    let (reason, asked) = deep((unpriced, model)).await;
    assert_eq!((reason, asked), (Some(StopReason::FinalResponse), TURNS));
}

#[tokio::test]
async fn c_066_a_policy_that_was_kept_before_there_was_such_a_sum_has_none() {
    let before = |agent: &mut Agent| {
        agent.budget.subagent_cost_microusd =
            taskrun_policy::Defaults::first().subagent_cost_microusd;
    };
    let world = world(Some(QUARTER), before);
    let (run, times) = ended(world, &lead(true), &beneath("lead", "sub", "sub")).await;
    assert_eq!((run.stop_reason, times), (Some(StopReason::FinalResponse), TURNS));
}
