//! Tokens, counted for the run that used them and rolled up along parents (M-61, WS-28).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use serde_json::json;
use taskrun::scope::model::{Model, ModelStream};
use taskrun::scope::{AnswerStream, CallScope};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::media::MediaBytes;
use taskrun_journal::message::{Message, Role, Usage};
use taskrun_journal::run::Run;
use taskrun_journal::status::StopReason;
use taskrun_policy::Budget;
use tokio::sync::Barrier;

use super::budgets::{ask, family, question};
use super::common::named;
use super::host_tools::{leader, words};
use crate::native::{ClosurePlanner, Gate, World, answer, request};

fn usage(prompt: u64, completion: u64) -> Usage {
    Usage {
        prompt_tokens: prompt,
        completion_tokens: completion,
        total_tokens: prompt + completion,
        reported_tokens: prompt + completion,
        reported_prompt_tokens: prompt,
        reported_completion_tokens: completion,
        ..Usage::default()
    }
}

#[tokio::test]
async fn m_61_the_usage_of_a_tree_is_the_sum_of_its_runs() {
    let (mut world, gate) = (World::new(), Gate::new());
    let own = gate.clone();
    world.agent(
        "a",
        ClosurePlanner::new(move |input, scope| {
            let gate = own.clone();
            async move {
                let tokens: u64 = input.messages[0].joined_text().parse().expect("a number");
                gate.pass().await;
                scope.add_usage(usage(tokens, 1));
                answer("done")
            }
        }),
    );
    let host = world.start().await;
    let mut asked = request("a", "100");
    asked.id = Some("root".into());
    host.spawn(&asked).await;
    for (id, parent, tokens) in
        [("left", "root", "10"), ("right", "root", "20"), ("leaf", "left", "5")]
    {
        let mut asked = request("a", tokens);
        asked.id = Some(id.into());
        asked.parent_run_id = Some(parent.into());
        host.spawn(&asked).await;
    }
    host.spawn(&request("a", "1000")).await;
    gate.open();
    for id in ["root", "left", "right", "leaf"] {
        host.end(id).await;
    }
    let ids = |runs: &[Run]| {
        let mut ids: Vec<_> = runs.iter().map(|run| run.id().to_string()).collect();
        ids.sort();
        ids
    };
    let table: &[(&str, &[&str], Usage)] = &[
        ("root", &["leaf", "left", "right"], usage(135, 4)),
        ("left", &["leaf"], usage(15, 2)),
        ("right", &[], usage(20, 1)),
        ("leaf", &[], usage(5, 1)),
    ];
    for (id, beneath, expected) in table {
        let tree = host.client().tree(id).await.expect("there");
        assert_eq!(tree.run.id().as_str(), *id);
        assert_eq!(ids(&tree.descendants), *beneath, "beneath {id}");
        assert_eq!(tree.usage, *expected, "of {id} and what is beneath it");
        let own = &tree.run.state.progress;
        assert_eq!(own.completion_tokens, 1, "the run's own count is its own");
    }
    let tree = host.client().tree("root").await.expect("there");
    let depths: Vec<_> = tree.descendants.iter().map(|run| run.spec.depth).collect();
    assert_eq!(depths, [1, 1, 2], "parents before their children");
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

/// Asks its model twice for a small task, and three times for a large one.
fn asking() -> ClosurePlanner {
    ClosurePlanner::new(|input, scope| async move {
        let task = input.messages.last().map(Message::joined_text).unwrap_or_default();
        let (tokens, times) = if task.contains("small") { (10, 2) } else { (100, 3) };
        for number in 0..times {
            let question = CompletionRequest {
                model: None,
                messages: vec![Message::text(Role::User, "go on")],
                tools: Vec::new(),
                max_tokens: Some(tokens),
                temperature: (number == 0).then_some(0.0),
                tool_choice: taskrun_journal::completion::ToolChoice::Auto,
                stop_sequences: Vec::new(),
                response_schema: None,
                media: MediaBytes::default(),
                tokens_left: None,
            };
            scope.ask(question).await.expect("the model answers");
        }
        answer("done")
    })
}

#[tokio::test]
async fn ws_28_the_usage_of_two_concurrent_runs_of_one_agent_is_never_mixed() {
    let mut world = World::new();
    let model: Arc<dyn Model> = Arc::new(Metered(Barrier::new(2)));
    world.agent_asking("a", asking(), Some(model), |_| {});
    let host = world.start().await;
    let small = host.spawn(&request("a", "small")).await;
    let large = host.spawn(&request("a", "large")).await;
    for (id, prompt, completion) in [(small, 20, 2), (large, 300, 15)] {
        let progress = host.end(&id).await.state.progress;
        let found = (progress.prompt_tokens, progress.completion_tokens, progress.total_tokens);
        assert_eq!(found, (prompt, completion, prompt + completion));
    }
}

#[tokio::test]
async fn w_044_a_list_of_tasks_has_the_tokens_of_all_answers_of_each() {
    let mut world = World::new();
    let model: Arc<dyn Model> = Arc::new(Metered(Barrier::new(1)));
    world.agent_asking("worker", asking(), Some(model), |_| {});
    leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
        0 => vec![("spawn_task", json!({ "agent": "worker", "message": "small" }))],
        1 => vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))],
        2 => vec![("check_tasks", json!({}))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let task = &said[2][0];
    assert_eq!((&task["prompt_tokens"], &task["completion_tokens"]), (&json!(20), &json!(2)));
}

#[tokio::test]
async fn m_50_no_budget_above_a_run_counts_what_that_merely_says_it_used() {
    // Enough for the two answers of a model that are had beneath, of 20 tokens read and 10 written.
    let bounds: [fn(&mut Budget); 3] = [
        |budget| budget.tokens = Some(61),
        |budget| budget.prompt_tokens = Some(41),
        |budget| budget.completion_tokens = Some(21),
    ];
    for bound in bounds {
        let (mut world, model) = family(&["1", "2"], |agent| bound(&mut agent.budget));
        let boaster = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
            let words = ask(&scope).await;
            let (prompt_tokens, completion_tokens, total_tokens) = (u64::MAX, u64::MAX, u64::MAX);
            let much = Usage { prompt_tokens, completion_tokens, total_tokens, ..Usage::default() };
            scope.add_usage(much);
            answer(&words)
        });
        let own: Arc<dyn Model> = model.clone();
        world.agent_asking("child", boaster, Some(own), |_| {});
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        let run = host.end("1").await;
        let reason = run.ending().map(|ending| ending.stop_reason);
        assert_eq!(reason, Some(StopReason::FinalResponse), "{:?}", run.ending());
        assert_eq!(model.asked.load(Ordering::SeqCst), 2);
        let counted = host.client().charged_with_descendants(&run).await.expect("read");
        let tokens = (counted.prompt_tokens, counted.completion_tokens, counted.total_tokens);
        assert_eq!(tokens, (40, 20, 60));
    }
}

/// Says 80 bytes, about 20 tokens, before it counts them.
#[derive(Default)]
struct LateCounting {
    asked: AtomicU32,
}

#[async_trait]
impl Model for LateCounting {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let counted = Usage { completion_tokens: 20, total_tokens: 20, ..Usage::default() };
        let chunks = [
            Chunk::Text("word".repeat(20)),
            Chunk::Usage(counted),
            Chunk::Stop { reason: CompletionStop::EndTurn, model: "m-1".to_owned() },
        ];
        Ok(futures::stream::iter(chunks.map(Ok)).boxed())
    }
}

/// Begins an answer and reads it as far as its text.
async fn read_text(scope: &CallScope) -> Result<AnswerStream, ModelError> {
    let mut begun = scope.stream(question()).await?;
    scope.next_chunks(&mut begun, 1).await?;
    Ok(begun)
}

#[tokio::test]
async fn m_50_answers_that_are_not_read_to_their_count_are_held_to_the_budget_within_a_step() {
    for keeps_them_open in [false, true] {
        let (mut world, model) = (World::new(), Arc::new(LateCounting::default()));
        let planner = ClosurePlanner::new(move |_, scope: Arc<CallScope>| async move {
            let (mut open, mut refused) = (Vec::new(), 0);
            for _ in 0..10 {
                match read_text(&scope).await {
                    Ok(begun) if keeps_them_open => open.push(begun),
                    Ok(begun) => scope.abandon(begun),
                    Err(ModelError::Budget(_)) => refused += 1,
                    Err(error) => panic!("another refusal: {error}"),
                }
            }
            open.into_iter().for_each(|begun| scope.abandon(begun));
            answer(&format!("{refused} refused"))
        });
        let own: Arc<dyn Model> = model.clone();
        world.agent_asking("a", planner, Some(own), |agent| agent.budget.tokens = Some(40));
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        let run = host.end("1").await;
        assert_eq!(run.state.reply.result().as_deref(), Some("8 refused"));
        assert_eq!(model.asked.load(Ordering::SeqCst), 2, "open: {keeps_them_open}");
        assert_eq!(run.state.progress.total_tokens, 40);
    }
}
