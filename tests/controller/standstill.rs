//! Runs whose host stands still in the middle of something, and goes on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::controller::Client;
use taskrun::driver::FINALIZER_TIMEOUT;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun_journal::event::Event;
use taskrun_journal::layer::Layer;
use taskrun_journal::list::Scope;
use taskrun_journal::message::{Labels, LogLevel};
use taskrun_journal::status::Status;
use taskrun_journal::store::{Append, AppendOutcome, Store, StoreError};
use taskrun_store::MemoryStore;

use super::common::{Gates, count, named, soon};
use super::lease::{LEASE, NEARLY_OVER, idle, stands};
use crate::native::{ClosurePlanner, World, answer};

/// A store that says only through the gate `told` that a finalizer has begun.
struct GatedStore {
    inner: Arc<MemoryStore>,
    gates: Arc<Gates>,
}

#[async_trait]
impl Layer for GatedStore {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        let begins = |event: &Event| matches!(event, Event::FinalizerStarted);
        let is_told_late = append.events.iter().any(|recorded| begins(&recorded.event));
        let outcome = self.inner.append(append).await;
        if is_told_late {
            let _inside = self.gates.pass("told").await;
        }
        outcome
    }
}

/// A world whose agent has a finalizer that goes through an open gate, over such a store.
fn told_late(lease: Duration) -> (World, Arc<Gates>) {
    let (memory, gates) = (Arc::new(MemoryStore::new()), Gates::new());
    let store = GatedStore { inner: Arc::clone(&memory), gates: Arc::clone(&gates) };
    let mut world = World::over(Arc::new(store), memory.clone(), memory.clone());
    world.memory = Some(memory);
    world.settings.lease = lease;
    let inside = Arc::clone(&gates);
    let planner = ClosurePlanner::new(|_, _| async { answer("done") }).finalizer(move |_, _| {
        let gates = Arc::clone(&inside);
        async move {
            let _inside = gates.pass("finalizer").await;
            Ok(Ok(Labels::new()))
        }
    });
    world.agent("a", planner);
    gates.open("finalizer");
    (world, gates)
}

#[tokio::test]
async fn a_finalizer_whose_beginning_is_on_record_waits_while_its_host_is_not_heard() {
    // So long that the host looks at it only when something is to begin: nothing stands still yet.
    let lease = Duration::from_secs(3_600);
    let (mut world, gates) = told_late(lease);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.hearts.silence_of(host.controller.host(), lease * 4 / 5);
    gates.open("told");
    gates.are_gone(1).await;
    host.settle().await;
    assert!(!host.controller.stands_still(), "nobody but the finalizer has looked");
    assert_eq!(gates.came(), ["told"], "another host may take the run");
    world.hearts.silence_of(host.controller.host(), Duration::ZERO);
    assert_eq!(host.end("1").await.status(), Status::Completed);
    assert_eq!(gates.came(), ["told", "finalizer"]);
}

#[tokio::test]
async fn a_finalizer_whose_beginning_is_told_when_another_host_has_the_run_is_not_asked() {
    let (mut world, gates) = told_late(LEASE);
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.hearts.silence_of(first.controller.host(), LEASE);
    stands(&first, true).await;
    world.declare_dead(&first);
    let second = world.take_over().await;
    assert_eq!(second.end("1").await.status(), Status::Completed);
    let journal = second.journal("1").await;
    // The first is heard, learns that the run is not its own any more, and is silent again.
    world.hearts.silence_of(first.controller.host(), Duration::ZERO);
    stands(&first, false).await;
    world.hearts.silence_of(first.controller.host(), LEASE);
    assert_eq!(gates.inside(), 1, "its beginning is not told yet");
    gates.open("told");
    idle(&first).await;
    assert_eq!(gates.came(), ["told"]);
    assert_eq!(second.journal("1").await, journal);
}

#[tokio::test]
async fn the_time_of_a_finalizer_stands_still_with_its_host() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.settings.lease = LEASE;
    let inside = Arc::clone(&gates);
    let planner = ClosurePlanner::new(|_, _| async { answer("done") }).finalizer(move |_, _| {
        let gates = Arc::clone(&inside);
        async move {
            let _inside = gates.pass("finalizer").await;
            Ok(Ok([("kept".to_owned(), "yes".to_owned())].into()))
        }
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    world.hearts.silence_of(host.controller.host(), NEARLY_OVER);
    stands(&host, true).await;
    host.settle().await;
    world.clock.advance(2 * FINALIZER_TIMEOUT);
    host.settle().await;
    assert_eq!(host.get("1").await.status(), Status::Finalizing);
    gates.open("finalizer");
    host.settle().await;
    assert_eq!(gates.inside(), 1, "it does not go on while its host stands still");
    world.hearts.silence_of(host.controller.host(), Duration::ZERO);
    host.end("1").await;
    let run = host.view("1").await;
    assert_eq!(run.metadata.get("kept").map(String::as_str), Some("yes"), "{run:?}");
}

/// Returns when so many lines of the run `1` are on record. Each look takes simulated time.
async fn logged(client: &Client, lines: usize) {
    let are_there = async {
        loop {
            let journal = client.events("1", 0, 1_000).await.expect("it can be read");
            if count(&journal, "log") >= lines {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("the lines are on record", are_there).await;
}

// All timers of the runtime are simulated, also those that are real for the runs of other tests.
#[tokio::test(start_paused = true)]
async fn what_is_reported_just_before_the_host_stands_still_is_written_when_it_goes_on() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.settings.lease = LEASE;
    let inside = Arc::clone(&gates);
    let planner = ClosurePlanner::new(move |_: PlanInput, scope: Arc<CallScope>| {
        let gates = Arc::clone(&inside);
        async move {
            for (line, gate) in [("one", "again"), ("two", "end")] {
                scope.log(LogLevel::Info, "a", line, Labels::new());
                gates.pass(gate).await;
            }
            answer("done")
        }
    });
    world.agent("a", planner);
    let controller = world.controller_over(world.store.clone(), world.hearts.clone());
    controller.start().await.expect("it starts");
    let client = controller.at(&Scope::tenant("default"));
    client.spawn(&named("1", "a")).await.expect("accepted");
    // The call does not listen for others yet, and what it reports next is gathered for a while.
    logged(&client, 1).await;
    gates.open("again");
    gates.have_come(2).await;
    world.hearts.silence_of(controller.host(), NEARLY_OVER);
    let begins_to_stand = async {
        while !controller.stands_still() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("it stands still", begins_to_stand).await;
    // Meanwhile the call begins to listen for others.
    tokio::time::sleep(LEASE).await;
    let journal = client.events("1", 0, 1_000).await.expect("it can be read");
    assert_eq!(count(&journal, "log"), 1, "nothing is written while it stands still");
    world.hearts.silence_of(controller.host(), Duration::ZERO);
    logged(&client, 2).await;
}
