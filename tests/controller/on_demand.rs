//! Agents whose code is loaded when a run wants it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::agents::{Agent, AgentCode, CodeSource, LoadCode};
use taskrun::error::ControllerError;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::tool::{ToolHints, ToolSpec};

use super::common::{Gates, named};
use crate::native::{ClosurePlanner, ClosureTool, World, answer, request, value};

/// Loads when the gates `1`, `2` and so on open, and fails while it is told to.
struct Slow {
    code: AgentCode,
    gates: Arc<Gates>,
    fails: Mutex<u32>,
}

#[async_trait]
impl LoadCode for Slow {
    async fn load(&self) -> Result<AgentCode, String> {
        let load = (self.gates.came().len() + 1).to_string();
        drop(self.gates.pass(&load).await);
        let mut fails = self.fails.lock().expect("nobody panics with it");
        match fails.checked_sub(1) {
            None => Ok(self.code.clone()),
            Some(left) => {
                *fails = left;
                Err("it is too dear".to_owned())
            }
        }
    }

    fn functions(&self) -> Option<Arc<Vec<ToolSpec>>> {
        None
    }
}

/// Makes the code of an agent one that is loaded on demand, and fails so often.
fn on_demand(gates: &Arc<Gates>, fails: u32) -> impl FnOnce(&mut Agent) {
    let gates = Arc::clone(gates);
    move |agent| {
        let code = AgentCode::clone(agent.code.loaded().expect("it is loaded"));
        let source = Slow { code, gates, fails: Mutex::new(fails) };
        agent.code = CodeSource::OnDemand(Arc::new(source));
    }
}

fn answers() -> ClosurePlanner {
    ClosurePlanner::new(|_, _| async { answer("done") })
}

/// A world with one slot, an agent `cold` that is loaded on demand and an agent `warm`.
fn world(fails: u32) -> (World, Arc<Gates>) {
    let (mut world, gates) = (World::new(), Gates::new());
    world.settings.slots = 1;
    let look = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("look", taskrun_policy::InterruptionPolicy::Fail, look);
    world.agent_with("cold", answers(), on_demand(&gates, fails));
    world.agent("warm", answers());
    (world, gates)
}

fn error(run: &Run) -> String {
    taskrun_journal::run::RunView::from(run).error.unwrap_or_default()
}

#[tokio::test]
async fn runs_whose_agent_is_loading_hold_no_slot_and_are_executed_when_it_is_there() {
    let (mut world, gates) = world(0);
    let host = world.start().await;
    host.settle().await;
    assert!(gates.came().is_empty(), "nobody wants it");
    let mut cold = Vec::new();
    for n in 0..3 {
        cold.push(host.spawn(&request("cold", &format!("task {n}"))).await);
    }
    gates.have_come(1).await;
    for n in 0..5 {
        let id = host.spawn(&request("warm", &format!("task {n}"))).await;
        assert_eq!(host.end(&id).await.status(), Status::Completed);
    }
    for id in &cold {
        let run = host.get(id).await;
        assert_eq!((run.status(), run.state.head), (Status::Queued, 1), "it was never taken");
    }
    assert_eq!(gates.came(), ["1"], "one load for all");
    gates.open("1");
    for id in &cold {
        assert_eq!(host.end(id).await.status(), Status::Completed);
    }
    let id = host.spawn(&request("cold", "again")).await;
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert_eq!(gates.came(), ["1"], "it stays loaded");
}

#[tokio::test]
async fn a_run_whose_agent_is_loading_is_canceled_at_once() {
    let (mut world, gates) = world(0);
    let host = world.start().await;
    let id = host.spawn(&request("cold", "x")).await;
    gates.have_come(1).await;
    host.client().cancel(&id, None).await.expect("answers");
    assert_eq!(host.end(&id).await.status(), Status::Canceled);
    // The host ends beside a load that does not.
    let closed = host.controller.close(Duration::from_secs(1)).await;
    assert!(closed.stragglers.is_empty());
}

#[tokio::test]
async fn runs_whose_agent_does_not_load_fail_with_the_reason_and_later_ones_try_again() {
    let (mut world, gates) = world(1);
    let host = world.start().await;
    let first = host.spawn(&request("cold", "x")).await;
    gates.have_come(1).await;
    gates.open("1");
    let run = host.end(&first).await;
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(error(&run), "agent cold does not load: it is too dear");
    // Known for a while, so that nobody waits for the same again.
    let second = host.spawn(&request("cold", "y")).await;
    let run = host.end(&second).await;
    assert_eq!(error(&run), "agent cold does not load: it is too dear");
    assert_eq!(gates.came(), ["1"]);
    world.clock.advance(Duration::from_secs(10));
    let third = host.spawn(&request("cold", "z")).await;
    assert_eq!(gates.have_come(2).await, ["1", "2"]);
    gates.open("2");
    assert_eq!(host.end(&third).await.status(), Status::Completed);
}

/// Panics where it should load.
struct Broken;

#[async_trait]
impl LoadCode for Broken {
    async fn load(&self) -> Result<AgentCode, String> {
        panic!("the loader is broken")
    }

    fn functions(&self) -> Option<Arc<Vec<ToolSpec>>> {
        None
    }
}

#[tokio::test]
async fn a_load_that_panics_fails_its_runs() {
    let (mut world, _) = world(0);
    world.agent_with("broken", answers(), |agent| {
        agent.code = CodeSource::OnDemand(Arc::new(Broken));
    });
    let host = world.start().await;
    let id = host.spawn(&request("broken", "x")).await;
    let text = "agent broken does not load: internal error of the host; see its log";
    assert_eq!(error(&host.end(&id).await), text);
}

#[tokio::test]
async fn what_a_request_takes_away_is_held_against_tools_that_are_loaded_for_it() {
    let (mut world, gates) = world(1);
    let host = world.start().await;
    let only = |tools: &[&str]| SpawnRequest {
        narrow: Narrowing {
            tools: Some(tools.iter().map(|tool| (*tool).to_owned()).collect()),
            ..Narrowing::default()
        },
        ..request("cold", "x")
    };
    gates.open("1");
    gates.open("2");
    let refused = host.client().spawn(&only(&["look/f"])).await;
    let Err(ControllerError::Invalid { field, reason }) = refused else { panic!("{refused:?}") };
    assert_eq!((field, &*reason), ("agent_name", "agent cold does not load: it is too dear"));
    world.clock.advance(Duration::from_secs(10));
    let refused = host.client().spawn(&only(&["look/g"])).await;
    assert!(matches!(refused, Err(ControllerError::Invalid { field: "narrow.tools", .. })));
    let id = host.spawn(&only(&["look/f"])).await;
    assert_eq!(host.end(&id).await.status(), Status::Completed);
}

#[tokio::test]
async fn code_of_another_component_than_before_is_not_executed() {
    let (mut world, gates) = world(0);
    world.agent_with("moved", answers(), |agent| {
        on_demand(&gates, 0)(agent);
        agent.digest = "blake3:before".to_owned();
    });
    let host = world.start().await;
    gates.open("1");
    let id = host.spawn(&named("r-1", "moved")).await;
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(error(&run), "agent moved does not load: its component is another one than before");
}
