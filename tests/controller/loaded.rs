//! The number of agents that a host keeps loaded at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use taskrun::agents::{Agent, AgentCode, CodeSource, LoadCode, LoadFault};
use taskrun::scope::RunsQuestion;
use taskrun_journal::pin::pin;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolSpec;

use super::common::spawning;
use super::deployments::{result, world};
use super::revocation::take_up;
use crate::native::{ClosurePlanner, World, answer, request};

/// Counts what is loaded.
#[derive(Default)]
struct Count {
    loaded: AtomicUsize,
    most: AtomicUsize,
    loads: AtomicUsize,
}

/// Held by the code of an agent for as long as that is loaded.
struct Held(Arc<Count>);

impl Count {
    fn hold(self: &Arc<Self>) -> Arc<Held> {
        let loaded = self.loaded.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(loaded, Ordering::SeqCst);
        self.loads.fetch_add(1, Ordering::SeqCst);
        Arc::new(Held(Arc::clone(self)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.loaded.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Loads an agent, which is counted.
struct Counting<P> {
    code: AgentCode,
    count: Arc<Count>,
    planner: P,
}

#[async_trait]
impl<P: Fn(Arc<Held>) -> ClosurePlanner + Send + Sync> LoadCode for Counting<P> {
    async fn load(&self) -> Result<AgentCode, LoadFault> {
        let planner = Arc::new((self.planner)(self.count.hold()));
        Ok(AgentCode { planner, ..self.code.clone() })
    }

    fn functions(&self) -> Option<Arc<Vec<ToolSpec>>> {
        Some(Arc::default())
    }
}

fn agent(
    world: &mut World,
    (name, version): (&str, &str),
    count: &Arc<Count>,
    planner: impl Fn(Arc<Held>) -> ClosurePlanner + Send + Sync + 'static,
) {
    let (count, of) = (Arc::clone(count), pin(name, version));
    let never = ClosurePlanner::new(|_, _| async { answer("never asked") });
    world.agent_with(name, never, move |agent: &mut Agent| {
        let code = AgentCode::clone(agent.code.loaded().expect("it is loaded"));
        agent.code = CodeSource::OnDemand(Arc::new(Counting { code, count, planner }));
        agent.pin = of;
    });
}

/// Answers with a text.
fn says(text: String) -> impl Fn(Arc<Held>) -> ClosurePlanner {
    move |held| {
        let text = text.clone();
        ClosurePlanner::new(move |_, _| {
            let (_held, text) = (Arc::clone(&held), text.clone());
            async move { answer(&text) }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_runs_of_a_hundred_closures_at_most_thirty_two_are_loaded_at_once() {
    let (mut world, shelf, _) = world();
    let count = Arc::new(Count::default());
    let mut ids = Vec::new();
    // Two terminals with two versions of the policy, the second of which is in force.
    for version in ["then", "now"] {
        let names: Vec<String> = (0..50).map(|number| format!("a{number}")).collect();
        for name in &names {
            agent(&mut world, (name, version), &count, says(format!("{name} {version}")));
            shelf.keep(&world.agents_now().by_name[name]);
        }
        let door = world.door().await;
        for _ in 0..10 {
            for name in &names {
                ids.push((door.spawn(&request(name, "x")).await, format!("{name} {version}")));
            }
        }
    }
    world.settings.slots = 64;
    let host = world.start().await;
    for (id, said) in &ids {
        assert_eq!(result(&host, id).await, *said);
    }
    assert_eq!(ids.len(), 1_000);
    let (most, loads) = (&count.most, count.loads.load(Ordering::SeqCst));
    assert_eq!(most.load(Ordering::SeqCst), 32, "{loads} loads");
}

#[tokio::test]
async fn a_run_that_waits_for_room_begins_when_another_has_ended() {
    let (mut world, _, gates) = world();
    let count = Arc::new(Count::default());
    for name in ["a", "b", "c"] {
        let gates = Arc::clone(&gates);
        agent(&mut world, (name, "1"), &count, move |held| {
            let gates = Arc::clone(&gates);
            ClosurePlanner::new(move |input, _| {
                let (_held, gates) = (Arc::clone(&held), Arc::clone(&gates));
                async move {
                    drop(gates.pass(&input.messages[0].joined_text()).await);
                    answer("done")
                }
            })
        });
    }
    world.settings.agents_loaded = 2;
    let host = world.start().await;
    let (a, b) = (host.spawn(&request("a", "a")).await, host.spawn(&request("b", "b")).await);
    gates.have_come(2).await;
    let c = host.spawn(&request("c", "c")).await;
    host.settle().await;
    assert_eq!(host.get(&c).await.status(), Status::Queued);
    gates.open("b");
    host.end(&b).await;
    gates.have_come(3).await;
    gates.open("c");
    assert_eq!(result(&host, &c).await, "done");
    gates.open("a");
    assert_eq!(result(&host, &a).await, "done");
    assert_eq!(count.most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_runs_under_way_have_loaded_counts_across_a_change_of_the_policy() {
    let (mut world, shelf, gates) = world();
    let count = Arc::new(Count::default());
    let gated = |world: &mut World, name: &str, version: &str| {
        let gates = Arc::clone(&gates);
        agent(world, (name, version), &count, move |held| {
            let gates = Arc::clone(&gates);
            ClosurePlanner::new(move |input, _| {
                let (_held, gates) = (Arc::clone(&held), Arc::clone(&gates));
                async move {
                    drop(gates.pass(&input.messages[0].joined_text()).await);
                    answer("done")
                }
            })
        });
    };
    for name in ["a", "b"] {
        gated(&mut world, name, "1");
        shelf.keep(&world.agents_now().by_name[name]);
    }
    world.settings.agents_loaded = 2;
    let host = world.start().await;
    let mut ids = Vec::new();
    for (name, task) in [("a", "a1"), ("b", "b1")] {
        ids.push(host.spawn(&request(name, task)).await);
    }
    gates.have_come(2).await;
    for name in ["a", "b"] {
        gated(&mut world, name, "2");
    }
    take_up(&world, &shelf, &host).await;
    for (name, task) in [("a", "a2"), ("b", "b2")] {
        ids.push(host.spawn(&request(name, task)).await);
    }
    host.settle().await;
    assert_eq!(host.get(&ids[2]).await.status(), Status::Queued, "there is no room");
    for task in ["a1", "b1", "a2", "b2"] {
        gates.open(task);
    }
    for id in &ids {
        assert_eq!(result(&host, id).await, "done");
    }
    assert_eq!(count.most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_run_that_waits_in_a_step_for_one_beneath_it_does_not_keep_that_from_room() {
    let (mut world, _, _) = world();
    let count = Arc::new(Count::default());
    agent(&mut world, ("child", "1"), &count, says("played".to_owned()));
    agent(&mut world, ("parent", "1"), &count, |held| {
        ClosurePlanner::new(move |_, scope| {
            let held = Arc::clone(&held);
            async move {
                let id = scope.ask(spawning("child", "play")).await.expect("it is started").id;
                let waited = scope.ask(RunsQuestion::wait(id, None)).await;
                drop(held);
                answer(&format!("{:?}", waited.expect("it is beneath").timed_out))
            }
        })
    });
    world.settings.agents_loaded = 1;
    let host = world.start().await;
    let id = host.spawn(&request("parent", "x")).await;
    assert_eq!(result(&host, &id).await, "false");
}
