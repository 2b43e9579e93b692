//! Edits of settings that bind runs under way and are in no pin: the rounds of runs that go on by
//! themselves, and the form that open runs are to have. Who is concerned is handed over, and nobody
//! else.

use std::sync::Arc;
use std::time::Duration;

use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::planner::PlanInput;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::pin::pin;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{AutonomySettings, InterruptionPolicy, Upgrade};

use super::common::{Gates, beneath, named};
use super::deployments::{Shelf, world};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer, call_of, value};

/// A world with a tool `t/f` and no agents.
fn prepared() -> (World, Arc<Shelf>, Arc<Gates>) {
    let (mut world, shelf, gates) = world();
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    (world, shelf, gates)
}

/// A form of an agent that passes the gate `x` and calls a tool in its first turn, and says
/// something in each other one.
fn form(
    world: &mut World,
    gates: &Arc<Gates>,
    (name, number): (&str, u32),
    change: impl FnOnce(&mut Agent),
) {
    let gates = Arc::clone(gates);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let gates = Arc::clone(&gates);
        async move {
            if input.run.turn > 1 {
                return answer("on");
            }
            drop(gates.pass("x").await);
            call_of(&[("c", "t/f", "{}")])
        }
    });
    world.agent_with(name, planner, |agent| {
        agent.pin = pin(name, &number.to_string());
        change(agent);
    });
}

async fn was_handed_over(host: &Native, id: &str) -> bool {
    host.kinds(id).await.contains(&"resumed")
}

#[tokio::test]
async fn an_edit_of_rounds_binds_autonomous_runs_of_its_agent_and_concerns_no_others() {
    let rounds = |rounds| Some(AutonomySettings { rounds, ..AutonomySettings::default() });
    let deferring = |max_defer| {
        let rounds = Some(3);
        Some(AutonomySettings { rounds, max_defer, ..AutonomySettings::default() })
    };
    let hour = Some(Duration::from_secs(3_600));
    for (before, now, is_autonomous, is_concerned, most) in [
        (rounds(Some(8)), rounds(Some(3)), true, true, Some(3)),
        (rounds(Some(8)), rounds(Some(3)), false, false, None),
        // Where the policy says nothing the usual bound counts.
        (rounds(None), None, true, true, Some(50)),
        (None, rounds(Some(50)), true, false, Some(50)),
        (deferring(None), deferring(hour), true, true, Some(3)),
        (deferring(None), deferring(hour), false, false, None),
    ] {
        let case = format!("{before:?}, then {now:?}, {is_autonomous}");
        let (mut world, shelf, gates) = prepared();
        form(&mut world, &gates, ("a", 1), |agent| agent.autonomous = before);
        form(&mut world, &gates, ("b", 1), |_| {});
        let host = world.start().await;
        let autonomous = is_autonomous.then(AutonomyRequest::default);
        host.spawn(&SpawnRequest { autonomous, ..named("above", "a") }).await;
        host.spawn(&beneath("above", "beneath", "b")).await;
        gates.have_come(2).await;
        form(&mut world, &gates, ("a", 1), |agent| agent.autonomous = now);
        shelf.switch(&world);
        host.controller.reload().await;
        gates.open("x");
        host.end("beneath").await;
        host.end("above").await;
        assert!(!was_handed_over(&host, "beneath").await, "{case}");
        assert_eq!(was_handed_over(&host, "above").await, is_concerned, "{case}");
        assert_eq!(host.view("above").await.rounds, most, "{case}");
    }
}

#[tokio::test]
async fn an_edit_that_has_open_runs_adopted_concerns_those_of_another_form() {
    for (number, is_concerned) in [(1, true), (2, false)] {
        let (mut world, shelf, gates) = prepared();
        form(&mut world, &gates, ("a", number), |_| {});
        shelf.keep(&world.agents_now().by_name["a"]);
        let door = world.door().await;
        door.spawn(&named("1", "a")).await;
        drop(door);
        form(&mut world, &gates, ("a", 2), |_| {});
        let host = world.start().await;
        gates.have_come(1).await;
        form(&mut world, &gates, ("a", 2), |agent| agent.upgrade = Upgrade::Adopt);
        shelf.switch(&world);
        host.controller.reload().await;
        gates.open("x");
        assert_eq!(host.end("1").await.pin(), "a@2", "of form {number}");
        assert_eq!(was_handed_over(&host, "1").await, is_concerned, "of form {number}");
    }
}
