//! Subscribers under a policy that changes while they are told: an attempt comes to its end in the
//! way in which it began, and few are under way at once whatever is edited.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use taskrun::ports::transport::{Callback, Subscriber};
use taskrun_journal::dispatch::{DispatchState, TaskEvent};
use taskrun_journal::pin::pin;
use taskrun_journal::time::Clock;

use super::common::{Gates, named};
use super::deployments::{Shelf, world};
use super::dispatches::{all_delivered, registered, rows, told};
use crate::native::{ClosurePlanner, Native, World, answer};

/// The time that the slow subscriber takes.
const TAKES: Duration = Duration::from_secs(5);
/// The time for attempts that are under way when the host ends.
const LAST_TIME: Duration = Duration::from_secs(2);
/// Attempts of one subscriber at once.
const AT_ONCE: usize = 4;

fn says() -> ClosurePlanner {
    ClosurePlanner::new(|_, _| async { answer("done") })
}

/// Has the host take up an edit of an agent that has nothing to do with who is told.
async fn edit(world: &mut World, shelf: &Shelf, host: &Native, number: u32) {
    world.agent_with("other", says(), |agent| agent.pin = pin("other", &number.to_string()));
    shelf.switch(world);
    host.controller.reload().await;
    host.settle().await;
}

/// A subscriber of ends that takes its time, and the numbers of attempts that began and that came to
/// their end.
fn slow(clock: Arc<dyn Clock>) -> (Subscriber, Arc<[AtomicUsize; 2]>) {
    let counts = Arc::<[AtomicUsize; 2]>::default();
    let ours = Arc::clone(&counts);
    let subscriber = Subscriber::new(Callback::new(move |_| {
        let (counts, clock) = (Arc::clone(&ours), Arc::clone(&clock));
        async move {
            let over = clock.sleep(TAKES);
            counts[0].fetch_add(1, Ordering::SeqCst);
            over.await;
            counts[1].fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }));
    (Subscriber { events: vec![TaskEvent::Completed], ..subscriber }, counts)
}

fn counted(counts: &[AtomicUsize; 2]) -> [usize; 2] {
    counts.each_ref().map(|count| count.load(Ordering::SeqCst))
}

/// A host with an attempt that has been under way for a second when the policy changed.
async fn under_way(world: &mut World, shelf: &Shelf) -> (Native, Arc<[AtomicUsize; 2]>) {
    world.agent("a", says());
    let (subscriber, counts) = slow(world.machine.clone());
    world.subscribers = registered([("slow", subscriber)]);
    edit_before(world);
    let host = world.start().await;
    host.spawn(&told(named("r", "a"), &["transport/slow"])).await;
    host.end("r").await;
    rows(&host, "r", |rows| {
        let is_taken = rows.len() == 1 && rows[0].state == DispatchState::Taken;
        is_taken && counted(&counts)[0] == 1
    })
    .await;
    world.clock.advance(Duration::from_secs(1));
    edit(world, shelf, &host, 2).await;
    (host, counts)
}

/// The agent that is edited, as it is at first.
fn edit_before(world: &mut World) {
    world.agent_with("other", says(), |agent| agent.pin = pin("other", "1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_under_way_comes_to_its_end_though_the_policy_changes() {
    let (mut world, shelf, _) = world();
    let (host, counts) = under_way(&mut world, &shelf).await;
    let delivered = rows(&host, "r", all_delivered(1));
    let (delivered, _) = world.run_until(Duration::from_secs(60), delivered).await;
    assert_eq!((delivered[0].attempts, counted(&counts)), (0, [1, 1]), "it was told once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_of_before_an_edit_is_given_up_soon_after_the_host_is_to_end() {
    let (mut world, shelf, _) = world();
    let (host, counts) = under_way(&mut world, &shelf).await;
    let mut closing = std::pin::pin!(host.controller.hand_over(2 * TAKES));
    // Its last time is being counted before any passes.
    tokio::select! {
        biased;
        outcome = &mut closing => panic!("it waits for no attempt: {outcome:?}"),
        () = host.settle() => {}
    }
    // The attempt would take longer than that.
    world.run_until(LAST_TIME + Duration::from_secs(1), closing).await;
    assert_eq!(counted(&counts), [1, 0]);
    let door = world.door().await;
    rows(&door, "r", |rows| rows[0].state == DispatchState::Pending && rows[0].attempts == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_attempts_are_under_way_at_once_for_an_edit_of_the_policy() {
    let (mut world, shelf, gates) = world();
    world.agent("a", says());
    let theirs = Arc::clone(&gates);
    let waits = Subscriber::new(Callback::new(move |news| {
        let gates: Arc<Gates> = Arc::clone(&theirs);
        async move {
            drop(gates.pass(news.key.run.as_str()).await);
            Ok(())
        }
    }));
    let waits = Subscriber { events: vec![TaskEvent::Completed], ..waits };
    world.subscribers = registered([("slow", waits)]);
    edit_before(&mut world);
    let host = world.start().await;
    let ids: Vec<String> = (0..=AT_ONCE).map(|number| format!("r{number}")).collect();
    for id in &ids {
        host.spawn(&told(named(id, "a"), &["transport/slow"])).await;
        host.end(id).await;
    }
    let came = gates.have_come(AT_ONCE).await;
    for number in 2..5 {
        edit(&mut world, &shelf, &host, number).await;
        assert_eq!(gates.came(), came, "after an edit");
    }
    // The loop of the policy in force hears of the end of an attempt that another one began.
    gates.open(&came[0]);
    gates.have_come(AT_ONCE + 1).await;
    ids.iter().for_each(|id| gates.open(id));
    for id in &ids {
        rows(&host, id, all_delivered(1)).await;
    }
    assert_eq!(gates.came().len(), ids.len(), "each was told once");
}
