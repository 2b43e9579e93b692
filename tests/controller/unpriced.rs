//! Models whose price the policy does not know any more, asked by runs whose cost is bounded: an
//! edit of the policy binds runs that were accepted before it (M-50).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::money::Price;
use taskrun_journal::pin::pin;
use taskrun_journal::run::RunView;
use taskrun_journal::status::StopReason;

use super::budgets::{Metered, ask, priced};
use super::common::{Gates, beneath, named};
use super::deployments::{result, world};
use crate::native::{ClosurePlanner, World, answer};

/// Dollars for a million tokens: 1 read, 1 written.
const PRICE: Price = Price::new(1_000_000, 1_000_000);
const REFUSED: &str = "the run has a budget in dollars, and of model own no `prices` are known";

/// Asks its model once, and answers with what became of it.
fn asker() -> ClosurePlanner {
    ClosurePlanner::new(|_: PlanInput, scope: Arc<CallScope>| async move {
        let said = ask(&scope).await;
        answer(&said)
    })
}

/// Puts an agent of this version into force that asks this model, at this price.
fn asking(
    world: &mut World,
    model: &Arc<Metered>,
    (name, version): (&str, u32),
    price: Option<Price>,
    change: impl FnOnce(&mut Agent),
) {
    world.agent_asking(name, asker(), Some(model.clone()), |agent| {
        agent.pin = pin(name, &version.to_string());
        priced(agent, price);
        change(agent);
    });
}

fn with_dollar(agent: &mut Agent) {
    agent.budget.cost_microusd = Some(1_000_000);
}

fn times(model: &Metered) -> u32 {
    model.asked.load(Ordering::SeqCst)
}

#[tokio::test]
async fn m_50_a_price_that_is_removed_keeps_an_open_run_with_a_budget_from_its_model() {
    for (price, said, asked) in [(Some(PRICE), "asked", 1), (None, REFUSED, 0)] {
        let (mut world, model) = (World::new(), Arc::new(Metered::default()));
        asking(&mut world, &model, ("a", 1), Some(PRICE), with_dollar);
        world.door().await.spawn(&named("1", "a")).await;
        // Prices are those of now, and no part of a version.
        asking(&mut world, &model, ("a", 1), price, with_dollar);
        let host = world.start().await;
        assert_eq!(result(&host, "1").await, said);
        assert_eq!(times(&model), asked, "nothing is sent that nobody can count");
    }
}

#[tokio::test]
async fn m_50_a_budget_that_is_added_keeps_an_open_run_from_a_model_without_a_price() {
    for (is_bounded, said, asked) in [(false, "asked", 1), (true, REFUSED, 0)] {
        let (mut world, shelf, _) = world();
        let model = Arc::new(Metered::default());
        asking(&mut world, &model, ("a", 1), None, |_| {});
        world.door().await.spawn(&named("1", "a")).await;
        // The form of then, within the budget of now.
        let mut then = Agent::clone(&world.agents_now().by_name["a"]);
        if is_bounded {
            with_dollar(&mut then);
        }
        shelf.keep(&then);
        asking(&mut world, &model, ("a", 2), None, |agent| agent.budget = then.budget.clone());
        let host = world.start().await;
        assert_eq!(result(&host, "1").await, said);
        assert_eq!(times(&model), asked);
    }
}

#[tokio::test]
async fn m_50_a_budget_above_counts_and_one_that_nobody_stated_does_not() {
    for (is_stated, said, asked) in [(true, REFUSED, 0), (false, "asked", 1)] {
        let (mut world, model) = (World::new(), Arc::new(Metered::default()));
        world.agent_asking("lead", Gates::new().planner(), Some(model.clone()), |agent| {
            priced(agent, Some(PRICE));
            if is_stated {
                with_dollar(agent);
            }
        });
        asking(&mut world, &model, ("sub", 1), Some(PRICE), |_| {});
        let door = world.door().await;
        let goes_on = Some(AutonomyRequest::default());
        door.spawn(&SpawnRequest { autonomous: goes_on, ..named("lead", "lead") }).await;
        door.spawn(&beneath("lead", "sub", "sub")).await;
        asking(&mut world, &model, ("sub", 1), None, |_| {});
        let host = world.start().await;
        assert_eq!(result(&host, "sub").await, said);
        assert_eq!(times(&model), asked);
        let stop_reason = RunView::from(&host.get("sub").await).stop_reason;
        assert_eq!(stop_reason, Some(StopReason::FinalResponse));
    }
}
