//! Agents whose code is loaded when a run wants it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use taskrun::agents::{Agent, AgentCode, CodeSource, LoadCode, LoadFault};
use taskrun::error::ControllerError;
use taskrun::ports::planner::Decision;
use taskrun::scope::RunsQuestion;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::runs::{ChildRequest, RunsAnswer, RunsError, RunsFilter, RunsRequest};
use taskrun_journal::status::Status;
use taskrun_journal::tool::{ToolHints, ToolSpec};

use super::agent_tools::{PLAY, caller, calling};
use super::common::{Gates, child, named, spawning};
use super::delivery::{children, coordinator, line, say};
use super::host_tools::{leader, leader_that, words};
use crate::native::{
    ClosurePlanner, ClosureTool, World, answer, clarification, decided, request, value,
};

/// Loads when the gates `1`, `2` and so on open, and fails while it is told to.
struct Slow {
    code: AgentCode,
    gates: Arc<Gates>,
    fails: Mutex<u32>,
    fault: fn(String) -> LoadFault,
}

#[async_trait]
impl LoadCode for Slow {
    async fn load(&self) -> Result<AgentCode, LoadFault> {
        let load = (self.gates.came().len() + 1).to_string();
        drop(self.gates.pass(&load).await);
        let mut fails = self.fails.lock().expect("nobody panics with it");
        match fails.checked_sub(1) {
            None => Ok(self.code.clone()),
            Some(left) => {
                *fails = left;
                Err((self.fault)("it is too dear".to_owned()))
            }
        }
    }

    fn functions(&self) -> Option<Arc<Vec<ToolSpec>>> {
        None
    }
}

/// Makes the code of an agent one that is loaded on demand, and fails so often.
fn on_demand(gates: &Arc<Gates>, fails: u32) -> impl FnOnce(&mut Agent) + use<> {
    on_demand_failing(gates, fails, LoadFault::of_component)
}

/// The same, where this is at fault.
fn on_demand_failing(
    gates: &Arc<Gates>,
    fails: u32,
    fault: fn(String) -> LoadFault,
) -> impl FnOnce(&mut Agent) + use<> {
    let gates = Arc::clone(gates);
    move |agent| {
        let code = AgentCode::clone(agent.code.loaded().expect("it is loaded"));
        let source = Slow { code, gates, fails: Mutex::new(fails), fault };
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
    async fn load(&self) -> Result<AgentCode, LoadFault> {
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
    let refused = host.client().spawn(&only(&["look/f"])).await.expect_err("it does not load");
    assert_eq!(refused.code(), "invalid");
    assert_eq!(refused.to_string(), "agent cold does not load: it is too dear");
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

/// Asks a person and says the answer.
fn asks() -> ClosurePlanner {
    ClosurePlanner::new(|input, _| async move {
        match input.resume {
            None => decided(Decision::Await(vec![clarification("q").into()])),
            Some(_) => answer("done"),
        }
    })
}

#[tokio::test]
async fn a_run_that_waited_is_held_while_its_agent_does_not_load_and_goes_on_when_it_does() {
    let faults: [fn(String) -> LoadFault; 2] = [LoadFault::of_component, LoadFault::Host];
    for fault in faults {
        let what = fault(String::new());
        let (mut world, gates) = world(0);
        world.agent_with("waits", asks(), |_| {});
        let host = world.start().await;
        let id = host.spawn(&request("waits", "x")).await;
        let before = host.reach(&id, Status::Blocked).await;
        world.kill(host).await;
        world.agent_with("waits", asks(), on_demand_failing(&gates, 1, fault));
        let host = world.start().await;
        let answered = host.client().answer(&id, None, Answer::Text("yes".to_owned())).await;
        answered.expect("it asks");
        gates.have_come(1).await;
        gates.open("1");
        host.settle().await;
        // Others of the agent have their ends or wait, too, as the fault is.
        let warm = host.spawn(&request("warm", "x")).await;
        assert_eq!(host.end(&warm).await.status(), Status::Completed);
        let run = host.get(&id).await;
        assert_eq!(run.status(), before.status(), "{what:?}: it is held as it was");
        assert_eq!(run.state.epoch, before.state.epoch, "{what:?}: nobody took it");
        world.clock.advance(Duration::from_secs(10));
        host.spawn(&request("warm", "y")).await;
        gates.have_come(2).await;
        gates.open("2");
        assert_eq!(host.end(&id).await.status(), Status::Completed, "{what:?}");
    }
}

#[tokio::test]
async fn a_run_that_has_not_begun_waits_where_its_component_is_not_at_fault() {
    let (mut world, gates) = world(0);
    let change = on_demand_failing(&gates, 1, LoadFault::Host);
    world.agent_with("cold", answers(), change);
    let host = world.start().await;
    let id = host.spawn(&request("cold", "x")).await;
    gates.have_come(1).await;
    gates.open("1");
    host.settle().await;
    let warm = host.spawn(&request("warm", "x")).await;
    assert_eq!(host.end(&warm).await.status(), Status::Completed);
    let run = host.get(&id).await;
    assert_eq!((run.status(), run.state.head), (Status::Queued, 1), "it was never taken");
    world.clock.advance(Duration::from_secs(10));
    host.spawn(&request("warm", "y")).await;
    gates.have_come(2).await;
    gates.open("2");
    assert_eq!(host.end(&id).await.status(), Status::Completed);
}

/// A fault with a place of the host.
fn placed(words: String) -> LoadFault {
    LoadFault::Component { words: format!("/w/taskrun.toml:3:1: {words}"), for_guest: words }
}

/// The reason as guests and models are told it.
const WHY: &str = "agent worker does not load: it is too dear";

/// A run of the worker with one function only.
fn narrowed() -> ChildRequest {
    let narrow = Narrowing { tools: Some(vec!["t/f".to_owned()]), ..Narrowing::default() };
    ChildRequest { narrow, ..child("worker", "x") }
}

#[tokio::test]
async fn people_whose_request_takes_tools_away_are_told_why_the_agent_does_not_load() {
    // The fault, the words for people, and those for components.
    type Fault = fn(String) -> LoadFault;
    let cases: [(Fault, _, _); 2] = [
        (placed, "/w/taskrun.toml:3:1: it is too dear", "it is too dear"),
        (LoadFault::Host, "it is too dear", "it cannot be loaded now"),
    ];
    for (fault, for_people, for_components) in cases {
        let (mut world, gates) = (World::new(), Gates::new());
        gates.open("1");
        world.agent_with("worker", answers(), on_demand_failing(&gates, 1, fault));
        let asks = ClosurePlanner::new(|_, scope| async move {
            match scope.ask(RunsQuestion::spawn(narrowed())).await {
                Err(RunsError::Invalid { field, reason }) => answer(&format!("{field}: {reason}")),
                other => answer(&format!("{other:?}")),
            }
        });
        world.agent("component", asks);
        let host = world.start().await;
        let request = SpawnRequest { narrow: narrowed().narrow, ..request("worker", "x") };
        let refused = host.client().spawn(&request).await.expect_err("it does not load");
        assert_eq!(refused.to_string(), format!("agent worker does not load: {for_people}"));
        // Known for a while: both are told of the same load.
        let id = host.spawn(&named("component", "component")).await;
        let told = host.end(&id).await.state.reply.result();
        let expected = format!("agent_name: agent worker does not load: {for_components}");
        assert_eq!(told, Some(expected));
    }
}

/// Starts a run, waits for its end, and says how often it was told of the reason, and all that
/// names a place.
fn prying() -> ClosurePlanner {
    ClosurePlanner::new(|_, scope| async move {
        let refused = scope.ask(RunsQuestion::spawn(narrowed())).await;
        let mut said = vec![format!("{refused:?}")];
        let started = scope.ask(spawning("worker", "x")).await.expect("it is accepted");
        let id = || started.id.clone();
        let requests = [
            RunsRequest::Wait { id: id(), timeout_ms: None },
            RunsRequest::Get { id: id() },
            RunsRequest::Subscribe { id: id(), after: 0, limit: 100, timeout_ms: Some(0) },
            RunsRequest::List(RunsFilter::default()),
        ];
        for request in requests {
            let answered: Result<RunsAnswer, RunsError> =
                scope.ask(RunsQuestion::from(request)).await;
            said.push(format!("{answered:?}"));
        }
        let told = said.iter().filter(|text| text.contains(WHY)).count();
        let placed: Vec<_> = said.iter().filter(|text| text.contains("/w/")).collect();
        answer(&format!("{told} of {}: {WHY} {placed:?}", said.len()))
    })
}

#[tokio::test]
async fn case_70_no_door_tells_of_the_places_for_which_an_agent_does_not_load() {
    let (mut world, gates) = (World::new(), Gates::new());
    gates.open("1");
    world.agent_with("worker", answers(), on_demand_failing(&gates, 1, placed));
    world.agent_with("calls", caller(&[("c1", "agent/worker", PLAY)]), calling(&["worker"]));
    world.agent("component", prying());
    leader(&mut world, "leads", &["worker"], |_, said| match said.len() {
        0 => vec![
            ("spawn_agent", json!({ "agent": "worker", "goal": "g", "wait": true })),
            ("start_task_run", json!({ "agent_name": "worker", "task": "t", "mode": "sync" })),
        ],
        2 => vec![("list_task_runs", json!({})), ("check_tasks", json!({}))],
        _ => Vec::new(),
    });
    leader_that(&mut world, ("talks", &["worker"]), coordinator(), |_| {});
    let host = world.start().await;
    let mut told = Vec::new();
    for agent in ["calls", "component", "leads"] {
        let id = host.spawn(&named(agent, agent)).await;
        let run = host.end(&id).await;
        assert_eq!(run.status(), Status::Completed, "{:?}", run.ending());
        let said = match agent {
            // It says more than its record has.
            "leads" => json!(words(&host, &id).await).to_string(),
            _ => run.state.reply.result().expect("an answer"),
        };
        told.push((agent, said));
    }
    // In the background, and told of with the next line.
    let first = host.spawn(&line("talks", "start one")).await;
    host.end(&first).await;
    let started = children(&host, &first).await;
    for id in &started {
        let people = error(&host.end(id).await);
        let expected = "agent worker does not load: /w/taskrun.toml:3:1: it is too dear";
        assert_eq!(people, expected, "people are told where to look");
    }
    assert_eq!(started.len(), 1);
    told.push(("talks", say(&world, &host, &line("talks", "and?")).await));
    assert_eq!(told[1].1, format!("5 of 5: {WHY} []"));
    for (agent, said) in told {
        assert!(said.contains(WHY), "{agent}: {said}");
        assert!(!said.contains("/w/"), "{agent}: {said}");
    }
}
