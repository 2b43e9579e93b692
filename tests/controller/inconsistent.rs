//! Requests about a run whose journal contradicts what they would record.

use taskrun::controller::{PauseRequest, ResumeRequest};
use taskrun::error::ControllerError;
use taskrun_journal::question::Answer;
use taskrun_journal::status::Status;

use crate::native::{ClosurePlanner, Native, World, clarification, decided, request};
use taskrun::ports::planner::Decision;

/// The sentence that an operator reads.
#[track_caller]
fn refusal<T: std::fmt::Debug>(done: Result<T, ControllerError>, id: &str) {
    let error = done.expect_err("the journal contradicts it");
    let sentence = format!(
        "the journal of run {id} is inconsistent: its journal has other events under the ids of \
         these"
    );
    assert_eq!(error.to_string(), sentence, "{error:?}");
    assert_eq!(error.code(), "journal-inconsistent");
}

/// A run that waits for an answer.
async fn asking() -> (World, Native, String) {
    let mut world = World::new();
    let asks = |_, _| async { decided(Decision::Await(vec![clarification("q").into()])) };
    world.agent("a", ClosurePlanner::new(asks));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.reach(&id, Status::Blocked).await;
    (world, host, id)
}

#[tokio::test]
async fn an_error_names_the_run_and_no_file_and_the_run_stays_as_it_was() {
    let (world, host, id) = asking().await;
    let (controller, scope) = (&host.controller, &host.scope);
    let before = host.get(&id).await;

    world.store.contradict(1);
    refusal(controller.at(scope).cancel(&id, None).await, &id);
    world.store.contradict(1);
    refusal(controller.at(scope).named("ann").pause(&id, &PauseRequest::default()).await, &id);
    world.store.contradict(1);
    refusal(controller.at(scope).named("ann").inject(&id, "hello").await, &id);
    world.store.contradict(1);
    let answer = Answer::Text("yes".to_owned());
    refusal(controller.at(scope).named("ann").answer(&id, None, answer).await, &id);
    assert_eq!(host.get(&id).await, before);

    let paused = controller.at(scope).named("ann").pause(&id, &PauseRequest::default()).await;
    assert!(paused.expect("paused").changed);
    world.store.contradict(1);
    refusal(controller.at(scope).named("ann").resume(&id, &ResumeRequest::default()).await, &id);
}
