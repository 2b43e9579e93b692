//! The policy as it changes under runs: agents of then, of now, gone and unknown.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::agents::{Agent, AgentNow};
use taskrun::ports::deployments::{Deployments, PolicyChange, PolicyLook, Settling};
use taskrun::scope::RunsQuestion;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::Event;
use taskrun_journal::media::MediaBytes;
use taskrun_journal::pin::pin;
use taskrun_journal::runs::RunsFilter;
use taskrun_journal::status::Status;
use taskrun_journal::store::Hosts;
use taskrun_policy::AgentRules;

use super::common::Gates;
use crate::native::{ClosurePlanner, Native, World, answer, grants, in_time, request};

/// A policy that the test changes, and the agents of earlier ones.
#[derive(Default)]
pub(super) struct Shelf {
    change: Mutex<Option<PolicyChange>>,
    earlier: Mutex<BTreeMap<String, Agent>>,
    asked: Mutex<Vec<String>>,
    /// True while somebody writes to the policy.
    is_written: AtomicBool,
}

#[async_trait]
impl Deployments for Shelf {
    async fn look(&self, _: Settling) -> PolicyLook {
        if self.is_written.load(Ordering::SeqCst) {
            return PolicyLook::Unsettled;
        }
        match self.change.lock().expect("nobody panics with it").take() {
            Some(change) => PolicyLook::Changed(change),
            None => PolicyLook::Same,
        }
    }

    async fn pinned(&self, pin: &str) -> Result<Agent, String> {
        self.asked.lock().expect("nobody panics with it").push(pin.to_owned());
        let earlier = self.earlier.lock().expect("nobody panics with it");
        earlier.get(pin).cloned().ok_or_else(|| "it is not kept".to_owned())
    }
}

impl Shelf {
    pub(super) fn keep(&self, agent: &Agent) {
        let kept = Agent::clone(agent);
        self.earlier.lock().expect("nobody panics with it").insert(agent.pin.clone(), kept);
    }

    /// Puts these agents into force with the next look.
    pub(super) fn switch(&self, world: &World) {
        let change = PolicyChange { agents: world.agents_now(), models: Vec::new() };
        *self.change.lock().expect("nobody panics with it") = Some(change);
    }

    /// From now on somebody writes to the policy.
    pub(super) fn begin_writing(&self) {
        self.is_written.store(true, Ordering::SeqCst);
    }

    /// True until the change was looked at.
    pub(super) fn is_pending(&self) -> bool {
        self.change.lock().expect("nobody panics with it").is_some()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("nobody panics with it").clone()
    }
}

/// Passes the gate of its task and answers so.
fn says(gates: &Arc<Gates>, text: &'static str) -> ClosurePlanner {
    let gates = Arc::clone(gates);
    ClosurePlanner::new(move |input, _| {
        let gates = Arc::clone(&gates);
        async move {
            drop(gates.pass(&input.messages[0].joined_text()).await);
            answer(text)
        }
    })
}

fn version(world: &mut World, name: &str, number: u32, planner: ClosurePlanner) {
    world.agent_with(name, planner, |agent| agent.pin = pin(name, &number.to_string()));
}

pub(super) fn world() -> (World, Arc<Shelf>, Arc<Gates>) {
    let (mut world, shelf) = (World::new(), Arc::new(Shelf::default()));
    world.deployments = Some(shelf.clone());
    (world, shelf, Gates::new())
}

/// Runs that wait for a host: the one that they were accepted by executes nothing.
async fn accepted(world: &mut World, agents: &[&str]) -> Vec<String> {
    let door = world.door().await;
    let mut ids = Vec::new();
    for agent in agents {
        ids.push(door.spawn(&request(agent, "x")).await);
    }
    ids
}

pub(super) async fn result(host: &Native, id: &str) -> String {
    host.end(id).await;
    host.view(id).await.result.unwrap_or_default()
}

#[tokio::test]
async fn a_run_of_an_earlier_policy_is_executed_with_its_agent_of_then() {
    let (mut world, shelf, gates) = world();
    gates.open("x");
    version(&mut world, "a", 1, says(&gates, "then"));
    let ids = accepted(&mut world, &["a"]).await;
    shelf.keep(&world.agents_now().by_name["a"]);
    version(&mut world, "a", 2, says(&gates, "now"));
    let host = world.start().await;
    assert_eq!(result(&host, &ids[0]).await, "then");
    let later = host.spawn(&request("a", "x")).await;
    assert_eq!(result(&host, &later).await, "now");
    assert_eq!(shelf.asked(), ["a@1"], "asked for once, and not for what is in force");
}

#[tokio::test]
async fn a_run_whose_agent_is_not_kept_waits_and_holds_no_host() {
    let (mut world, shelf, gates) = world();
    gates.open("x");
    version(&mut world, "a", 1, says(&gates, "then"));
    let ids = accepted(&mut world, &["a"]).await;
    let then = Agent::clone(&world.agents_now().by_name["a"]);
    version(&mut world, "a", 2, says(&gates, "now"));
    let host = world.start().await;
    // Others are executed meanwhile, and it stays as it was.
    let other = host.spawn(&request("a", "x")).await;
    assert_eq!(result(&host, &other).await, "now");
    host.settle().await;
    let run = host.get(&ids[0]).await;
    assert_eq!((run.status(), run.state.head), (Status::Queued, 1), "it was never taken");
    assert_eq!(shelf.asked(), ["a@1"]);
    // Tried again after a while, as it may be there.
    shelf.keep(&then);
    world.clock.advance(Duration::from_secs(10));
    let another = host.spawn(&request("a", "x")).await;
    assert_eq!(result(&host, &another).await, "now");
    assert_eq!(result(&host, &ids[0]).await, "then");
}

#[tokio::test]
async fn a_host_retires_beside_a_run_that_it_cannot_execute() {
    let (mut world, _shelf, gates) = world();
    gates.open("x");
    version(&mut world, "a", 1, says(&gates, "then"));
    let ids = accepted(&mut world, &["a"]).await;
    version(&mut world, "a", 2, says(&gates, "now"));
    let host = world.start().await;
    let other = host.spawn(&request("a", "x")).await;
    host.end(&other).await;
    host.settle().await;
    while !host.controller.retire(Duration::MAX).await.expect("answers") {
        host.settle().await;
    }
    assert_eq!(host.get(&ids[0]).await.status(), Status::Queued);
}

#[tokio::test]
async fn no_agent_of_an_earlier_policy_is_starved_however_many_there_are() {
    let (mut world, shelf, gates) = world();
    gates.open("x");
    let mut ids = Vec::new();
    for number in 0..70 {
        version(&mut world, "a", number, says(&gates, "then"));
        ids.extend(accepted(&mut world, &["a", "a"]).await);
        shelf.keep(&world.agents_now().by_name["a"]);
    }
    version(&mut world, "a", 1_000, says(&gates, "now"));
    let host = world.start().await;
    for id in &ids {
        assert_eq!(result(&host, id).await, "then");
    }
}

#[tokio::test]
async fn a_change_hands_over_the_runs_that_it_concerns_and_no_others() {
    let (mut world, shelf, gates) = world();
    for name in ["a", "b"] {
        version(&mut world, name, 1, says(&gates, "then"));
        shelf.keep(&world.agents_now().by_name[name]);
    }
    let host = world.start().await;
    let concerned = host.spawn(&request("a", "one")).await;
    let other = host.spawn(&request("b", "two")).await;
    gates.have_come(2).await;
    version(&mut world, "a", 2, says(&gates, "now"));
    shelf.switch(&world);
    while shelf.is_pending() {
        host.settle().await;
    }
    gates.open("x");
    let later = host.spawn(&request("a", "x")).await;
    assert_eq!(result(&host, &later).await, "now");
    gates.open("one");
    gates.open("two");
    for id in [&concerned, &other] {
        assert_eq!(result(&host, id).await, "then");
    }
    let resumed = async |id: &str| host.kinds(id).await.contains(&"resumed");
    assert!(!resumed(&other).await, "nothing of it has changed");
}

#[tokio::test]
async fn a_host_is_listed_with_a_policy_as_soon_as_that_can_be_written() {
    let (mut world, shelf, gates) = world();
    version(&mut world, "a", 1, says(&gates, "then"));
    world.settings.lease = Duration::from_millis(60);
    let host = world.start().await;
    world.hearts.refuse(2);
    version(&mut world, "b", 1, says(&gates, "now"));
    shelf.switch(&world);
    host.controller.reload().await;
    gates.open("x");
    let run = host.spawn(&request("b", "x")).await;
    assert_eq!(result(&host, &run).await, "now");
    in_time(listed_with(&world, "b")).await;
}

/// Returns when the host is listed with an agent.
async fn listed_with(world: &World, agent: &str) {
    while !world.hearts.hosts().await.expect("lists")[0].agents.iter().any(|one| one == agent) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_change_is_taken_up_to_its_end_whoever_is_gone_that_waited_for_it() {
    let (mut world, shelf, gates) = world();
    version(&mut world, "a", 1, says(&gates, "then"));
    let host = world.start().await;
    world.hearts.hold_registrations(true);
    version(&mut world, "b", 1, says(&gates, "now"));
    shelf.switch(&world);
    {
        let mut reload = std::pin::pin!(host.controller.reload());
        while shelf.is_pending() {
            assert!(futures::poll!(&mut reload).is_pending());
            tokio::task::yield_now().await;
        }
    }
    world.hearts.hold_registrations(false);
    in_time(listed_with(&world, "b")).await;
}

#[tokio::test]
async fn a_run_of_an_agent_that_is_gone_begins_nothing_until_it_is_back() {
    let (mut world, shelf, gates) = world();
    gates.open("x");
    version(&mut world, "a", 1, says(&gates, "then"));
    version(&mut world, "b", 1, says(&gates, "other"));
    let ids = accepted(&mut world, &["a"]).await;
    let before = world.agents_now();
    world.forget_agent("a");
    let host = world.start().await;
    let other = host.spawn(&request("b", "x")).await;
    assert_eq!(result(&host, &other).await, "other");
    host.settle().await;
    assert_eq!(host.get(&ids[0]).await.state.head, 1, "it was never taken");
    assert_eq!(shelf.asked(), Vec::<String>::new(), "nobody asks for what may not run");
    for agent in before.by_name.values() {
        world.loaded(agent);
    }
    shelf.switch(&world);
    let other = host.spawn(&request("b", "x")).await;
    host.end(&other).await;
    assert_eq!(result(&host, &ids[0]).await, "then");
}

#[tokio::test]
async fn a_policy_that_is_written_without_end_keeps_no_run_waiting() {
    let (mut world, shelf, gates) = world();
    gates.open("x");
    version(&mut world, "a", 1, says(&gates, "then"));
    shelf.begin_writing();
    let host = world.start().await;
    for _ in 0..20 {
        let id = host.spawn(&request("a", "x")).await;
        assert_eq!(result(&host, &id).await, "then");
    }
}

/// A model that counts what it is asked.
#[derive(Default)]
pub(super) struct Counted(AtomicU32);

#[async_trait]
impl Model for Counted {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "m-1".to_owned() };
        Ok(futures::stream::iter([Chunk::Text("word".to_owned()), stop].map(Ok)).boxed())
    }
}

/// A question to the model that is the agent's own.
pub(super) fn question() -> CompletionRequest {
    CompletionRequest {
        model: None,
        messages: Vec::new(),
        tools: Vec::new(),
        max_tokens: None,
        temperature: None,
        tool_choice: taskrun_journal::completion::ToolChoice::Auto,
        stop_sequences: Vec::new(),
        response_schema: None,
        media: MediaBytes::default(),
        tokens_left: None,
    }
}

/// Asks its model, then for the runs beneath it, and passes the gates `x` and, once it was refused
/// the model, `y`.
fn asks(gates: &Arc<Gates>) -> ClosurePlanner {
    let gates = Arc::clone(gates);
    ClosurePlanner::new(move |_, scope| {
        let gates = Arc::clone(&gates);
        async move {
            let said = match scope.ask(question()).await {
                Ok(said) => said.message.joined_text(),
                Err(ModelError::Denied(_)) => "denied".to_owned(),
                Err(other) => other.to_string(),
            };
            let runs = scope.ask(RunsQuestion::list(RunsFilter::default())).await;
            let runs = runs.map(|page| page.runs.len());
            drop(gates.pass(if said == "denied" { "y" } else { "x" }).await);
            answer(&format!("{said} {runs:?}"))
        }
    })
}

/// A run whose host dies in a step that has asked its model, and whose agent may not any more then:
/// the agent as it was, within the policy of now.
async fn right_taken_away(world: &mut World, gates: &Arc<Gates>) -> (String, Agent, Arc<Counted>) {
    let model = Arc::new(Counted::default());
    world.agent_asking("a", asks(gates), Some(model.clone()), |agent| agent.pin = pin("a", "1"));
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    gates.have_come(1).await;
    world.kill(first).await;
    let mut then = Agent::clone(&world.agents_now().by_name["a"]);
    let grants = grants("allow = [\"controller: *\"]");
    let rules = AgentRules { grants, ..(*then.rules).clone() };
    then.now = Some(AgentNow { pin: pin("a", "2"), rules: Arc::new(rules) });
    version(world, "a", 2, says(gates, "now"));
    (id, then, model)
}

#[tokio::test]
async fn a_step_under_way_goes_on_without_a_right_that_was_taken_away_and_with_it_again() {
    let (mut world, shelf, gates) = world();
    let (id, mut then, model) = right_taken_away(&mut world, &gates).await;
    shelf.keep(&then);
    let second = world.start().await;
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(gates.have_come(2).await[1], "y", "it was refused the model");
    world.kill(second).await;
    // The right is back: nothing is paid twice, as the answer of then stands.
    then.now = None;
    world.loaded(&Arc::new(then));
    let third = world.start().await;
    world.clock.advance(Duration::from_secs(60));
    gates.open("x");
    assert_eq!(result(&third, &id).await, "word Ok(0)");
    assert_eq!(model.0.load(Ordering::SeqCst), 1);
    let events = third.journal(&id).await;
    let rules = events.iter().filter_map(|recorded| {
        let Event::RulesChanged { pins } = &recorded.event else { return None };
        Some(pins.join(" "))
    });
    assert_eq!(rules.collect::<Vec<_>>(), ["a@2", "a@1"]);
}

#[tokio::test]
async fn a_step_under_way_ends_without_a_right_that_was_taken_away() {
    let (mut world, shelf, gates) = world();
    let (id, then, model) = right_taken_away(&mut world, &gates).await;
    shelf.keep(&then);
    let second = world.start().await;
    world.clock.advance(Duration::from_secs(60));
    gates.open("y");
    assert_eq!(result(&second, &id).await, "denied Ok(0)");
    assert_eq!(second.get(&id).await.status(), Status::Completed);
    assert_eq!(model.0.load(Ordering::SeqCst), 1);
}
