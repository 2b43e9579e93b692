//! The order in which runs are executed: slots of a host and of a tree, bounds.

use std::sync::Arc;

use taskrun::error::ControllerError;
use taskrun::spawn::{SpawnRequest, WhenFull};
use taskrun_journal::question::Answer;
use taskrun_journal::schedule::RESUMES_IN_A_ROW;
use taskrun_journal::status::Status;

use super::common::{Gates, beneath, follow, named, soon, task_tools};
use crate::native::{ClosurePlanner, Native, Op, World};

fn gated(slots: usize) -> (World, Arc<Gates>) {
    let mut world = World::new();
    world.settings.slots = slots;
    let gates = Gates::new();
    world.agent("block", gates.planner());
    (world, gates)
}

/// The same with an agent `asking`, whose runs wait for an answer, and then at a gate of their name
/// and `again`.
fn asking(slots: usize) -> (World, Arc<Gates>) {
    let (mut world, gates) = gated(slots);
    task_tools(&mut world);
    let turns = vec![vec![("c", "ask/f", "\"which?\"")]];
    let inside = Arc::clone(&gates);
    let asking = ClosurePlanner::new(move |input, _| {
        let (planned, gates) = (follow(&turns, &input), Arc::clone(&inside));
        async move {
            if input.resume.is_some() {
                let _inside = gates.pass(&format!("{} again", input.run.run_id)).await;
            }
            planned
        }
    });
    world.agent("asking", asking);
    (world, gates)
}

async fn limit(host: &Native, request: &SpawnRequest) -> (&'static str, u64) {
    match host.client().spawn(request).await {
        Err(ControllerError::Limit { kind, cap }) => (kind, cap),
        other => panic!("no limit met: {other:?}"),
    }
}

#[tokio::test]
async fn all_free_slots_are_filled_at_once() {
    let (mut world, gates) = gated(3);
    let host = world.start().await;
    for id in ["1", "2", "3", "4", "5", "6", "7"] {
        host.spawn(&named(id, "block")).await;
    }
    gates.have_come(3).await;
    ["1", "2", "3"].iter().for_each(|id| gates.open(id));
    let came = gates.have_come(6).await;
    let mut second = came[3..].to_vec();
    second.sort();
    assert_eq!(second, ["4", "5", "6"]);
    host.end("1").await;
    host.end("2").await;
    host.end("3").await;
    assert_eq!(host.get("7").await.status(), Status::Queued);
}

#[tokio::test]
async fn a_higher_priority_goes_first_and_equals_in_the_order_of_their_coming() {
    let (mut world, gates) = gated(1);
    ["low-1", "low-2", "high-1", "high-2", "mid"].iter().for_each(|id| gates.open(id));
    let door = world.door().await;
    for (id, priority) in [("low-1", -1), ("low-2", -1), ("high-1", 5), ("mid", 0), ("high-2", 5)] {
        door.spawn(&SpawnRequest { priority, ..named(id, "block") }).await;
    }
    let _host = world.start().await;
    assert_eq!(gates.have_come(5).await, ["high-1", "high-2", "mid", "low-1", "low-2"]);
}

#[tokio::test]
async fn a_tree_has_no_more_slots_over_two_hosts_than_over_one() {
    let (mut world, gates) = gated(8);
    world.settings.tree_slots = 2;
    let (one, two) = (world.start().await, world.start().await);
    one.spawn(&named("root", "block")).await;
    gates.have_come(1).await;
    for id in ["c1", "c2", "c3", "c4"] {
        one.spawn(&beneath("root", id, "block")).await;
    }
    assert_eq!(gates.have_come(2).await, ["root", "c1"]);
    // Another tree is not held up by it.
    two.spawn(&named("other", "block")).await;
    assert_eq!(gates.have_come(3).await[2], "other");
    for (ends, begins) in [("c1", "c2"), ("root", "c3"), ("c2", "c4")] {
        let before = gates.came().len();
        gates.open(ends);
        assert_eq!(gates.have_come(before + 1).await[before], begins);
        assert!(gates.inside() <= 3, "two of the tree and the other one: {:?}", gates.came());
    }
    assert_eq!(gates.inside(), 3);
}

#[tokio::test]
async fn a_blocked_run_frees_its_slot_at_once_and_comes_back_before_work_of_any_priority() {
    let (mut world, gates) = asking(1);
    let host = world.start().await;
    for id in ["a1", "a2", "a3"] {
        host.spawn(&SpawnRequest { priority: -1, ..named(id, "asking") }).await;
    }
    // Three of them wait: the slot went from one to the next.
    for id in ["a1", "a2", "a3"] {
        host.reach(id, Status::Blocked).await;
    }
    host.spawn(&named("b", "block")).await;
    gates.have_come(1).await;
    host.spawn(&SpawnRequest { priority: 9, ..named("urgent", "block") }).await;
    for id in ["a2", "a1", "a3"] {
        let text = Answer::Text("yes".into());
        host.client().named("me").answer(id, None, text).await.expect("taken");
    }
    ["a1 again", "a2 again", "a3 again", "urgent"].iter().for_each(|id| gates.open(id));
    assert_eq!(gates.came(), ["b"]);
    gates.open("b");
    let came = gates.have_come(5).await;
    assert_eq!(came[4], "urgent", "{came:?}");
    host.end("urgent").await;
}

/// A host whose one slot `b` has. Runs that were answered wait for it, two more than go on in a row,
/// and `new`, which never began.
async fn answered_beside_new(world: &mut World, gates: &Gates) -> (Native, Vec<String>) {
    let host = world.start().await;
    let ids: Vec<String> = (0..RESUMES_IN_A_ROW + 2).map(|number| format!("a{number}")).collect();
    for id in &ids {
        host.spawn(&named(id, "asking")).await;
        host.reach(id, Status::Blocked).await;
    }
    host.spawn(&named("b", "block")).await;
    gates.have_come(1).await;
    host.spawn(&SpawnRequest { priority: -1, ..named("new", "block") }).await;
    for id in &ids {
        let text = Answer::Text("yes".into());
        host.client().named("me").answer(id, None, text).await.expect("taken");
    }
    (host, ids)
}

#[tokio::test]
async fn new_work_has_its_turn_beside_runs_that_come_back_again_and_again() {
    let (mut world, gates) = asking(1);
    let (host, ids) = answered_beside_new(&mut world, &gates).await;
    ids.iter().for_each(|id| gates.open(&format!("{id} again")));
    gates.open("new");
    gates.open("b");
    let came = gates.have_come(ids.len() + 2).await;
    let place = came.iter().position(|one| one == "new").expect("it came");
    assert!(place <= RESUMES_IN_A_ROW + 1, "{came:?}");
    host.end("new").await;
}

#[tokio::test]
async fn new_work_keeps_its_turn_while_no_slot_is_free() {
    let (mut world, gates) = asking(1);
    let (host, _) = answered_beside_new(&mut world, &gates).await;
    gates.open("b");
    for number in 1..RESUMES_IN_A_ROW {
        let came = gates.have_come(number + 1).await;
        gates.open(&came[number]);
    }
    let came = gates.have_come(RESUMES_IN_A_ROW + 1).await;
    // The last of them has its slot for so long that the host looks for finalizers meanwhile.
    world.store.hold(Op::Claim);
    soon("it claims without a slot", world.store.somebody_waits()).await;
    world.store.release();
    gates.open("new");
    gates.open(&came[RESUMES_IN_A_ROW]);
    let came = gates.have_come(RESUMES_IN_A_ROW + 2).await;
    assert_eq!(came[RESUMES_IN_A_ROW + 1], "new", "{came:?}");
    host.end("new").await;
}

#[tokio::test]
async fn runs_that_come_back_together_never_have_more_slots_than_there_are() {
    let (mut world, gates) = gated(2);
    task_tools(&mut world);
    let turns = vec![vec![("c", "ask/f", "\"which?\"")]];
    let inside = Arc::clone(&gates);
    let asking = ClosurePlanner::new(move |input, _| {
        let (planned, gates) = (follow(&turns, &input), Arc::clone(&inside));
        async move {
            if input.resume.is_some() {
                let _inside = gates.pass(&input.run.run_id).await;
            }
            planned
        }
    });
    world.agent("asking", asking);
    let host = world.start().await;
    let ids = ["a1", "a2", "a3", "a4", "a5"];
    for id in ids {
        host.spawn(&named(id, "asking")).await;
        host.reach(id, Status::Blocked).await;
    }
    for id in ids {
        let text = Answer::Text("yes".into());
        host.client().named("me").answer(id, None, text).await.expect("taken");
    }
    for number in 2..=ids.len() {
        let came = gates.have_come(number).await;
        assert!(gates.inside() <= 2, "{came:?}");
        assert!(host.controller.executing() <= 2);
        gates.open(&came[number - 2]);
    }
    gates.open(&gates.have_come(5).await[4]);
    for id in ids {
        assert_eq!(host.end(id).await.status(), Status::Completed);
    }
}

#[tokio::test]
async fn a_full_queue_refuses_and_keeps_nothing() {
    let (mut world, _gates) = gated(0);
    world.settings.queue_max = 2;
    let host = world.start().await;
    host.spawn(&named("1", "block")).await;
    host.spawn(&named("2", "block")).await;
    assert_eq!(limit(&host, &named("3", "block")).await, ("queue", 2));
    let found = host.client().get("3").await;
    assert!(matches!(found, Err(ControllerError::NotFound { .. })));
    host.client().cancel("1", None).await.expect("canceled");
    host.spawn(&named("3", "block")).await;
}

#[tokio::test]
async fn whoever_will_not_wait_is_refused_where_no_slot_is_free() {
    let (mut world, gates) = gated(1);
    let host = world.start().await;
    let at_once = |id: &str| SpawnRequest { when_full: WhenFull::Refuse, ..named(id, "block") };
    host.spawn(&at_once("1")).await;
    gates.have_come(1).await;
    assert_eq!(limit(&host, &at_once("2")).await.0, "slots");
    gates.open("1");
    host.end("1").await;
    host.spawn(&at_once("2")).await;
    gates.have_come(2).await;
}

#[tokio::test]
async fn a_tree_has_a_size_and_a_depth() {
    let (mut world, _gates) = gated(0);
    world.settings.tree_max = 3;
    world.settings.depth_max = 1;
    let host = world.start().await;
    host.spawn(&named("root", "block")).await;
    host.spawn(&beneath("root", "c1", "block")).await;
    assert_eq!(limit(&host, &beneath("c1", "g", "block")).await, ("depth", 1));
    host.spawn(&beneath("root", "c2", "block")).await;
    assert_eq!(limit(&host, &beneath("root", "c3", "block")).await, ("tree", 3));
    // Another tree has a size of its own.
    host.spawn(&named("another", "block")).await;
}

#[tokio::test]
async fn two_hosts_never_take_the_same_run() {
    let (mut world, gates) = gated(4);
    let ids: Vec<String> = (0..40).map(|number| format!("r{number}")).collect();
    ids.iter().for_each(|id| gates.open(id));
    let door = world.door().await;
    world.store.hold(Op::Claim);
    let _hosts = (world.start().await, world.start().await, world.start().await);
    for id in &ids {
        door.spawn(&named(id, "block")).await;
    }
    world.store.release();
    for id in &ids {
        door.end(id).await;
    }
    let mut came = gates.came();
    came.sort();
    let mut wanted = ids.clone();
    wanted.sort();
    assert_eq!(came, wanted);
}
