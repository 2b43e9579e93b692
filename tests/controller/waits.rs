//! Waiting for sets of runs, from within a run.

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::status::Status;
use tokio::sync::Barrier;

use super::common::{Call, Gates, beneath, following, named, task_tools};
use crate::native::{ClosurePlanner, Native, World, answer, call_of};

/// The words of a run that waited for others.
async fn said(host: &Native, id: &str) -> String {
    host.end(id).await.state.reply.result().expect("it answers")
}

/// An agent that waits at a barrier before it calls one tool, and answers with what that said.
fn together(barrier: &Arc<Barrier>, call: Call) -> ClosurePlanner {
    let barrier = Arc::clone(barrier);
    ClosurePlanner::new(move |input, _| {
        let barrier = Arc::clone(&barrier);
        async move {
            if input.resume.is_none() {
                barrier.wait().await;
                return call_of(&[call]);
            }
            answer(&super::common::words_so_far(&input))
        }
    })
}

#[tokio::test]
async fn a_run_that_would_wait_for_itself_is_refused_before_it_blocks() {
    let mut world = World::new();
    task_tools(&mut world);
    world.agent("a", following(vec![vec![("c", "await/f", "\"all - 1\"")]]));
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let said = said(&host, "1").await;
    assert!(said.starts_with("cycle: "), "{said}");
    assert!(!host.kinds("1").await.contains(&"blocked"));
}

/// Runs that wait in a circle, begun at the same moment on these hosts: one of them is refused
/// and all end.
async fn circle(hosts: usize, size: usize) {
    const CALLS: [Call; 3] = [
        ("c", "await/f", "\"all - r0\""),
        ("c", "await/f", "\"all - r1\""),
        ("c", "await/f", "\"all - r2\""),
    ];
    let mut world = World::new();
    world.settings.slots = size.div_ceil(hosts);
    task_tools(&mut world);
    let barrier = Arc::new(Barrier::new(size));
    for number in 0..size {
        world.agent(&format!("a{number}"), together(&barrier, CALLS[(number + 1) % size]));
    }
    let door = world.door().await;
    for number in 0..size {
        door.spawn(&named(&format!("r{number}"), &format!("a{number}"))).await;
    }
    let mut all = Vec::new();
    for _ in 0..hosts {
        all.push(world.start().await);
    }
    let mut refused = 0;
    for number in 0..size {
        let id = format!("r{number}");
        let said = said(&door, &id).await;
        if said.starts_with("cycle: ") {
            refused += 1;
            assert!(!door.kinds(&id).await.contains(&"blocked"));
        } else {
            assert!(said.contains("\"status\":\"completed\""), "{said}");
        }
    }
    assert_eq!(refused, 1);
}

#[tokio::test]
async fn of_two_runs_that_would_wait_for_each_other_one_is_refused() {
    circle(1, 2).await;
}

#[tokio::test]
async fn of_three_runs_in_a_circle_one_is_refused() {
    circle(1, 3).await;
}

#[tokio::test]
async fn a_circle_is_found_also_where_two_hosts_race_for_it() {
    for _ in 0..20 {
        circle(2, 2).await;
        circle(3, 3).await;
    }
}

/// A parent that waits for `c1` and `c2` in these words.
async fn parent(wait: &'static str) -> (World, Native, Arc<Gates>) {
    let mut world = World::new();
    task_tools(&mut world);
    let gates = Gates::new();
    world.agent("block", gates.planner());
    // It waits only when its children are there.
    let inside = Arc::clone(&gates);
    let planner = ClosurePlanner::new(move |input, _| {
        let gates = Arc::clone(&inside);
        async move {
            if input.resume.is_none() {
                let _inside = gates.pass("parent").await;
                return call_of(&[("c", "await/f", wait)]);
            }
            answer(&super::common::words_so_far(&input))
        }
    });
    world.agent("parent", planner);
    let host = world.start().await;
    host.spawn(&named("p", "parent")).await;
    host.spawn(&beneath("p", "c1", "block")).await;
    host.spawn(&beneath("p", "c2", "block")).await;
    gates.have_come(3).await;
    (world, host, gates)
}

#[tokio::test]
async fn a_canceled_child_counts_as_settled() {
    let (_world, host, gates) = parent("\"all - c1 c2\"").await;
    gates.open("parent");
    host.reach("p", Status::Blocked).await;
    host.client().cancel("c2", None).await.expect("can be canceled");
    host.end("c2").await;
    assert_eq!(host.get("p").await.status(), Status::Blocked);
    gates.open("c1");
    let said = said(&host, "p").await;
    assert!(said.ends_with("{\"run_id\":\"c2\",\"status\":\"canceled\"}]"), "{said}");
}

#[tokio::test]
async fn one_of_several_is_enough_where_any_is_waited_for() {
    let (_world, host, gates) = parent("\"any - c1 c2\"").await;
    gates.open("parent");
    host.reach("p", Status::Blocked).await;
    gates.open("c2");
    let said = said(&host, "p").await;
    assert_eq!(
        said,
        "[{\"run_id\":\"c1\",\"status\":\"running\"},\
         {\"result\":\"done c2\",\"run_id\":\"c2\",\"status\":\"completed\"}]"
    );
}

#[tokio::test]
async fn a_wait_whose_time_is_over_says_how_they_stand() {
    let (world, host, gates) = parent("\"all 30 c1 c2\"").await;
    gates.open("parent");
    host.reach("p", Status::Blocked).await;
    gates.open("c1");
    host.end("c1").await;
    world.clock.advance(Duration::from_secs(29));
    assert_eq!(host.get("p").await.status(), Status::Blocked);
    world.clock.advance(Duration::from_secs(1));
    let said = said(&host, "p").await;
    assert_eq!(
        said,
        "[{\"result\":\"done c1\",\"run_id\":\"c1\",\"status\":\"completed\"},\
         {\"run_id\":\"c2\",\"status\":\"running\"}]"
    );
    assert_eq!(host.get("c2").await.status(), Status::Running);
}

#[tokio::test]
async fn runs_that_have_ended_are_not_waited_for() {
    let (_world, host, gates) = parent("\"all - c1 c2\"").await;
    gates.open("c1");
    gates.open("c2");
    host.end("c1").await;
    host.end("c2").await;
    gates.open("parent");
    assert!(said(&host, "p").await.contains("done c2"));
    assert!(!host.kinds("p").await.contains(&"blocked"));
}
