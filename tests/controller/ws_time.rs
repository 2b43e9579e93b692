//! Scenarios of OpenWalrus tasks: time-outs and who used what.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::ports::call::CallScope;
use taskrun::ports::model::{Model, ModelStream};
use taskrun::ports::planner::{Decision, PlanInput};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::message::{Message, Role, Usage};
use taskrun_journal::question::Answer;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use tokio::sync::Barrier;

use super::common::{Gates, named};
use crate::native::{ClosurePlanner, World, answer, clarification, decided, request};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn ws_25_at_its_time_out_a_run_fails_is_really_stopped_and_the_next_one_begins() {
    let mut world = World::new();
    world.settings.slots = 1;
    let gates = Gates::new();
    world.agent("block", gates.planner());
    let host = world.start().await;
    let mut wanted = named("1", "block");
    wanted.timeout = Some(SECOND);
    host.spawn(&wanted).await;
    gates.have_come(1).await;
    host.spawn(&named("2", "block")).await;
    world.clock.wait_for_sleepers(1).await;
    world.clock.advance(Duration::from_millis(999));
    assert_eq!(host.get("1").await.status(), Status::Running);
    world.clock.advance(Duration::from_millis(1));
    let run = host.end("1").await;
    let view = RunView::from(&run);
    assert_eq!((view.status, view.stop_reason), (Status::Failed, Some(StopReason::RunTimeout)));
    let error = view.error.expect("why");
    assert!(error.contains("deadline exceeded") && error.contains("task timed out"), "{error}");
    assert_eq!(view.duration_ms, Some(1_000));
    // Its guest is gone before the next one begins, though its gate never opened.
    assert_eq!(gates.have_come(2).await, ["1", "2"]);
    assert_eq!((gates.gone(), gates.inside()), (vec!["1".to_owned()], 1));
}

/// Works so long, asks, waits two seconds for the answer, works so long, under a time-out of a
/// second. Gives the end.
async fn works_asks_works(before: Duration, after: Duration) -> RunView {
    let mut world = World::new();
    world.agent(
        "a",
        ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| async move {
            if input.resume.is_some() {
                scope.sleep(after).await;
                return answer("done");
            }
            scope.sleep(before).await;
            decided(Decision::Await(vec![clarification("q").into()]))
        }),
    );
    let host = world.start().await;
    let mut wanted = named("1", "a");
    wanted.timeout = Some(SECOND);
    host.spawn(&wanted).await;
    if !before.is_zero() {
        world.clock.advance_to_next(before).await;
    }
    host.reach("1", Status::Blocked).await;
    world.clock.advance(2 * SECOND);
    let text = Answer::Text("this".into());
    host.controller.answer(&host.scope, "1", None, text, "me").await.expect("taken");
    // The end of the work or that of the time, whichever is nearer.
    let left = SECOND.checked_sub(before).expect("less than a second").min(after);
    assert_eq!(world.clock.advance_to_next(left).await, left);
    RunView::from(&host.end("1").await)
}

#[tokio::test]
async fn ws_26_time_spent_blocked_does_not_count() {
    let view = works_asks_works(Duration::ZERO, Duration::from_millis(200)).await;
    assert_eq!(view.status, Status::Completed, "{:?}", view.error);
}

#[tokio::test]
async fn time_spent_running_before_and_after_a_wait_counts_together() {
    let view = works_asks_works(Duration::from_millis(900), Duration::from_millis(200)).await;
    assert_eq!(view.stop_reason, Some(StopReason::RunTimeout));
}

/// Uses what it is asked to use: as many tokens read as the request allows it to write.
struct Metered(Barrier);

#[async_trait]
impl Model for Metered {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let prompt = u64::from(request.max_tokens.unwrap_or_default());
        let completion = if prompt == 10 { 1 } else { 5 };
        // The first questions of the two runs are under way at the same time.
        if request.temperature == Some(0.0) {
            self.0.wait().await;
        }
        let usage = Usage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            ..Usage::default()
        };
        let chunks = [
            Chunk::Text("word".to_owned()),
            Chunk::Usage(usage),
            Chunk::Stop { reason: CompletionStop::EndTurn, model: "metered".to_owned() },
        ];
        Ok(futures::stream::iter(chunks.map(Ok)).boxed())
    }
}

#[tokio::test]
async fn ws_28_the_usage_of_two_concurrent_runs_of_one_agent_is_never_mixed() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|input, scope| async move {
        let task = input.messages.last().map(Message::joined_text).unwrap_or_default();
        let (tokens, times) = if task.contains("small") { (10, 2) } else { (100, 3) };
        for number in 0..times {
            let question = CompletionRequest {
                model: None,
                messages: vec![Message::text(Role::User, "go on")],
                tools: Vec::new(),
                max_tokens: Some(tokens),
                temperature: (number == 0).then_some(0.0),
                stop_sequences: Vec::new(),
                response_schema: None,
                extra: None,
            };
            scope.complete(question).await.expect("the model answers");
        }
        answer("done")
    });
    let model: Arc<dyn Model> = Arc::new(Metered(Barrier::new(2)));
    world.agent_asking("a", planner, Some(model), |_| {});
    let host = world.start().await;
    let small = host.spawn(&request("a", "small")).await;
    let large = host.spawn(&request("a", "large")).await;
    for (id, prompt, completion) in [(small, 20, 2), (large, 300, 15)] {
        let progress = host.end(&id).await.state.progress;
        let found = (progress.prompt_tokens, progress.completion_tokens, progress.total_tokens);
        assert_eq!(found, (prompt, completion, prompt + completion));
    }
}
