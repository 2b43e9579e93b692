//! Deferred runs that continue others: they are woken for what ends beneath those (C-056), and what
//! they were told is told to nobody else.

use std::sync::Arc;

use serde_json::json;
use taskrun::ports::planner::PlanInput;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::ReportState;
use taskrun_journal::ids::RunId;
use taskrun_journal::status::Status;

use super::common::{Gates, named};
use super::continued_runs::{go_on, rounds, told};
use super::delivery::{children, start, states};
use super::host_tools::leader_that;
use super::rounds::{planned, report};
use crate::native::{ClosurePlanner, Native, World, answer, call_of};

/// A world whose agent starts a worker in its first round, and defers itself for a day in its second
/// one. The worker, and the second round, end when their gates are open.
fn world() -> (World, Arc<Gates>) {
    let (mut world, gates) = (World::new(), Gates::new());
    let inside = Arc::clone(&gates);
    let worker = ClosurePlanner::new(move |_, _| {
        let gates = Arc::clone(&inside);
        async move {
            let _inside = gates.pass("worker").await;
            answer("dug")
        }
    });
    world.agent("worker", worker);
    let inside = Arc::clone(&gates);
    let leader = ClosurePlanner::new(move |input: PlanInput, _| {
        let gates = Arc::clone(&inside);
        async move {
            match input.run.turn {
                1 => start("w", "worker", "dig"),
                2 => answer("it digs"),
                3 => {
                    let arguments = json!({ "wake_in_sec": 86_400 }).to_string();
                    call_of(&[("s", "host/schedule_next_turn", &arguments)])
                }
                4 => {
                    let _inside = gates.pass("defers").await;
                    answer("later")
                }
                5 => planned(&report("it")),
                _ => answer("bye"),
            }
        }
    });
    leader_that(&mut world, ("a", &["worker"]), leader, |_| {});
    (world, gates)
}

/// Ends the first run after its first round, and gives the worker that it leaves open.
async fn first_run(host: &Native) -> String {
    host.spawn(&SpawnRequest { autonomous: rounds(1), ..named("1", "a") }).await;
    host.end("1").await;
    children(host, "1").await.remove(0)
}

async fn is_deferred(host: &Native, id: &RunId) {
    host.until(id.as_str(), "is deferred", |run| run.state.rounds.due.is_some()).await;
}

#[tokio::test]
async fn c_056_a_deferred_run_is_woken_for_what_ends_beneath_the_one_that_it_continues() {
    let (mut world, gates) = world();
    let host = world.start().await;
    let worker = first_run(&host).await;
    let next = go_on(&host, "1", None).await;
    gates.open("defers");
    is_deferred(&host, next.id()).await;
    gates.open("worker");
    let run = host.end(next.id().as_str()).await;
    assert_eq!((run.status(), told(&host, run.id()).await), (Status::Completed, vec![worker]));
}

#[tokio::test]
async fn c_056_one_that_defers_itself_is_woken_for_what_ended_there_meanwhile() {
    let (mut world, gates) = world();
    let host = world.start().await;
    let worker = first_run(&host).await;
    let next = go_on(&host, "1", None).await;
    gates.have_come(2).await;
    gates.open("worker");
    host.end(&worker).await;
    host.settle().await;
    gates.open("defers");
    let run = host.end(next.id().as_str()).await;
    assert_eq!((run.status(), told(&host, run.id()).await), (Status::Completed, vec![worker]));
}

#[tokio::test]
async fn what_a_run_was_told_by_the_end_of_a_round_is_not_told_to_the_one_that_continues_it() {
    let (mut world, gates) = world();
    let host = world.start().await;
    let worker = first_run(&host).await;
    gates.open("worker");
    gates.open("defers");
    host.end(&worker).await;
    let next = go_on(&host, "1", None).await;
    is_deferred(&host, next.id()).await;
    assert_eq!(told(&host, next.id()).await, [worker]);
    host.client().cancel(next.id().as_str(), None).await.expect("canceled");
    host.end(next.id().as_str()).await;
    assert_eq!(states(&host).await, [ReportState::Delivered]);
    let last = go_on(&host, next.id().as_str(), None).await;
    assert_eq!(host.end(last.id().as_str()).await.status(), Status::Completed);
    assert!(told(&host, last.id()).await.is_empty());
}
