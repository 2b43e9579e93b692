//! Members, slots and times of tasks that models start, by the tools of the host.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun_journal::list::ListFilter;
use taskrun_journal::question::Answer;
use taskrun_journal::status::Status;

use super::common::{Gates, named};
use super::host_tools::{leader, leader_that, step, words};
use crate::native::{ClosurePlanner, Native, World, answer, request};

const SECOND: Duration = Duration::from_secs(1);

/// Runs of the store.
async fn runs(host: &Native) -> usize {
    let all = host.client().list(&ListFilter::default(), None, 9).await;
    all.expect("a list").runs.len()
}

/// The answer to a task for the writer, and the number of runs then.
async fn delegates(members: &[&str]) -> (Value, usize) {
    let mut world = World::new();
    for agent in ["researcher", "coder", "writer"] {
        world.agent(agent, ClosurePlanner::new(|_, _| async { answer("done") }));
    }
    leader(&mut world, "lead", members, |_, said| match said.is_empty() {
        true => vec![("spawn_task", json!({ "agent": "writer", "message": "write" }))],
        false => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let said = words(&host, &id).await;
    (said[0].clone(), runs(&host).await)
}

#[tokio::test]
async fn ws_08_a_task_for_an_agent_outside_of_the_members_is_refused_by_name() {
    let (said, runs) = delegates(&["researcher", "coder"]).await;
    let text = said["text"].as_str().expect("a refusal");
    assert!(text.contains("writer"), "{said}");
    assert_eq!(runs, 1, "nothing was created");
    let (said, runs) = delegates(&["researcher", "writer"]).await;
    assert_eq!((&said["status"], runs), (&json!("queued"), 2));
}

#[tokio::test]
async fn ws_10_without_members_a_model_starts_no_task() {
    let (said, runs) = delegates(&[]).await;
    assert!(said["code"].is_string(), "{said}");
    assert_eq!(runs, 1, "nothing was created");
}

#[tokio::test]
async fn ws_23_who_asked_the_user_waits_for_the_slot_and_goes_before_new_work() {
    let mut world = World::new();
    world.settings.slots = 1;
    let gates = Gates::new();
    world.agent("block", gates.planner());
    let inside = Arc::clone(&gates);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let (gates, again) = (Arc::clone(&inside), input.resume.is_some());
        let planned = step(&input, |_, said| match said.is_empty() {
            true => vec![("ask_user", json!({ "question": "May I?" }))],
            false => Vec::new(),
        });
        async move {
            if again {
                let _inside = gates.pass("a again").await;
            }
            planned
        }
    });
    leader_that(&mut world, ("asking", &[]), planner, |_| {});
    let host = world.start().await;
    host.spawn(&named("a", "asking")).await;
    host.reach("a", Status::Blocked).await;
    host.spawn(&named("b", "block")).await;
    gates.have_come(1).await;
    host.spawn(&named("c", "block")).await;
    let yes = Answer::Text("yes".into());
    host.client().named("me").answer("a", None, yes).await.expect("taken");
    assert_eq!(host.get("b").await.status(), Status::Running);
    assert_eq!(gates.came(), ["b"], "never two at a time");
    gates.open("b");
    assert_eq!(gates.have_come(2).await, ["b", "a again"]);
    assert_eq!(host.get("c").await.status(), Status::Queued);
    gates.open("a again");
    gates.open("c");
    assert_eq!(words(&host, "a").await, [json!("yes")]);
    assert_eq!(host.end("c").await.status(), Status::Completed);
}

#[tokio::test]
async fn ws_26_the_time_in_which_a_user_is_waited_for_does_not_count() {
    let mut world = World::new();
    let after = Duration::from_millis(200);
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let again = input.resume.is_some();
        let planned = step(&input, |_, said| match said.is_empty() {
            true => vec![("ask_user", json!({ "question": "Which?" }))],
            false => Vec::new(),
        });
        async move {
            if again {
                scope.sleep(after).await;
            }
            planned
        }
    });
    leader_that(&mut world, ("asking", &[]), planner, |_| {});
    let host = world.start().await;
    let mut wanted = named("a", "asking");
    wanted.timeout = Some(SECOND);
    host.spawn(&wanted).await;
    host.reach("a", Status::Blocked).await;
    world.clock.advance(2 * SECOND);
    let this = Answer::Text("this".into());
    host.client().named("me").answer("a", None, this).await.expect("taken");
    assert_eq!(world.next(after).await, after);
    assert_eq!(words(&host, "a").await, [json!("this")]);
}
