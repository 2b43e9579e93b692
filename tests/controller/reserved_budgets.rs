//! Budgets that reserve before a call (M-50, M-45): an answer has no more than is left, and a
//! question for which there is too little is not asked.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use taskrun::agents::Agent;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::{Model, ModelStream};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::message::{Message, Part, Role, Thinking, Usage};
use taskrun_journal::money::Price;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{InterruptionPolicy, Reserve};

use super::budgets::{Metered, priced, question};
use super::common::named;
use super::nothing_left::end_of;
use super::rounds::autonomous;
use crate::native::{ClosurePlanner, ClosureTool, Planned, World, answer, call_of, failed, value};

/// Dollars for a million tokens: 2 read, 5 written.
const PRICE: Price = Price::new(2_000_000, 5_000_000);
/// Tokens of an answer that nobody bounds.
const ENDLESS: u32 = 100_000;
/// Tokens of the question, as the host estimates them and the model counts them.
const QUESTION: u64 = 100;

/// A model that writes as much as the budget leaves, however much that is. One of a provider
/// without `max_tokens` is told so only where little is left, and can write beyond it otherwise:
/// `tokens_left` among the tests of `host/models`.
#[derive(Default)]
struct Talker {
    /// The bounds of its answers.
    bounds: Mutex<Vec<Option<u32>>>,
}

impl Talker {
    fn bounds(&self) -> Vec<Option<u32>> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Model for Talker {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let bound = request.tokens_left;
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner).push(bound);
        let completion_tokens = u64::from(bound.unwrap_or(ENDLESS));
        let reason = match bound {
            Some(_) => CompletionStop::MaxTokens,
            None => CompletionStop::EndTurn,
        };
        let usage = Usage {
            prompt_tokens: QUESTION,
            completion_tokens,
            total_tokens: QUESTION + completion_tokens,
            ..Usage::default()
        };
        let stop = Chunk::Stop { reason, model: "m-1".to_owned() };
        let chunks = [Chunk::Text("word".to_owned()), Chunk::Usage(usage), stop];
        Ok(stream::iter(chunks.map(Ok)).boxed())
    }
}

/// Asks for an answer to a question of [`QUESTION`] tokens; gives the reason for which it ended.
async fn ask(scope: &CallScope) -> Result<CompletionStop, ModelError> {
    // Reasoning of before may never be sent, so it takes nothing of a budget.
    let before = Thinking { text: "so ".repeat(10_000), signature: Some("s".repeat(10_000)) };
    let before = Message { role: Role::Assistant, parts: vec![Part::Thinking(before)].into() };
    // Four bytes are a token.
    let messages = vec![before, Message::text(Role::User, "why?".repeat(100))];
    scope.ask(CompletionRequest { messages, ..question() }).await.map(|answer| answer.stop)
}

/// Ends a run of an agent that asks its model in each step and then does what `next` says; gives
/// the run and the bounds of the answers.
async fn spent(
    request: &SpawnRequest,
    next: fn(Result<CompletionStop, ModelError>) -> Planned,
    change: impl FnOnce(&mut Agent),
) -> (Run, Vec<Option<u32>>) {
    let (mut world, model) = (World::new(), Arc::new(Talker::default()));
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| async move {
        let said = ask(&scope).await;
        match input.resume.and_then(|resume| resume.finalize) {
            Some(_) => answer(&format!("last word: {}", said.is_ok())),
            None => next(said),
        }
    });
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("a", planner, Some(own), |agent| {
        priced(agent, Some(PRICE));
        change(agent);
    });
    let host = world.start().await;
    host.spawn(request).await;
    (host.end("1").await, model.bounds())
}

/// Calls a tool, however its model answered.
fn calls(_: Result<CompletionStop, ModelError>) -> Planned {
    call_of(&[("c", "t/f", "{}")])
}

/// Answers, and passes on why it has none.
fn passes_on(said: Result<CompletionStop, ModelError>) -> Planned {
    match said {
        Ok(_) => answer("done"),
        Err(error) => failed(Some("budget"), &error.to_string()),
    }
}

#[tokio::test]
async fn m_50_an_answer_has_no_more_than_the_least_of_what_is_left() {
    type Bound = fn(&mut Agent);
    let bounds: [(Bound, Option<u32>); 5] = [
        (|_| {}, None),
        (|agent| agent.budget.completion_tokens = Some(50), Some(50)),
        (|agent| agent.budget.tokens = Some(1_000), Some(900)),
        // 200 millionths of a dollar for the question, and 5 for each token of the answer.
        (|agent| agent.budget.cost_microusd = Some(1_000), Some(160)),
        (
            |agent| {
                agent.budget.tokens = Some(1_000);
                agent.budget.cost_microusd = Some(700);
            },
            Some(100),
        ),
    ];
    for (bound, most) in bounds {
        let (run, asked) = spent(&named("1", "a"), passes_on, bound).await;
        assert_eq!(asked, [most]);
        let used = run.state.progress.usage();
        assert_eq!(used.completion_tokens, u64::from(most.unwrap_or(ENDLESS)));
        let written_cost = 5 * used.completion_tokens;
        assert_eq!(used.cost_microusd, 2 * QUESTION + written_cost);
        assert_eq!(end_of(&run), (Status::Completed, Some(StopReason::FinalResponse)));
    }
}

#[tokio::test]
async fn m_45_what_is_kept_for_the_last_word_is_there_after_an_answer_without_end() {
    let tokens = |agent: &mut Agent| {
        agent.budget.tokens = Some(1_000);
        agent.budget.reserve = Reserve { tokens: 400, ..Reserve::default() };
    };
    let (run, asked) = spent(&named("1", "a"), calls, tokens).await;
    assert_eq!(asked, [Some(500), Some(300)]);
    assert_eq!(end_of(&run), (Status::Completed, Some(StopReason::MaxTokens)));
    assert_eq!(run.state.reply.result().as_deref(), Some("last word: true"));
    assert_eq!(run.state.progress.total_tokens, 1_000);
    let money = |agent: &mut Agent| {
        agent.budget.cost_microusd = Some(2_000);
        agent.budget.reserve = Reserve { cost_microusd: 700, ..Reserve::default() };
    };
    let (run, asked) = spent(&named("1", "a"), calls, money).await;
    assert_eq!(asked, [Some(220), Some(100)]);
    assert_eq!(end_of(&run), (Status::Completed, Some(StopReason::MaxCost)));
    assert_eq!(run.state.progress.usage().cost_microusd, 2_000);
}

#[tokio::test]
async fn m_45_a_step_that_made_nothing_of_a_cut_answer_is_followed_by_the_last_word() {
    let (run, asked) = spent(
        &named("1", "a"),
        |said| failed(Some("empty-answer"), &format!("{said:?}")),
        |agent| {
            // What the tokens do not pay for stays: the limit is met all the same.
            agent.budget.cost_microusd = Some(2_003);
            agent.budget.reserve = Reserve { cost_microusd: 700, ..Reserve::default() };
        },
    )
    .await;
    assert_eq!(asked.len(), 2);
    assert_eq!(end_of(&run), (Status::Completed, Some(StopReason::MaxCost)));
    assert_eq!(run.state.reply.result().as_deref(), Some("last word: true"));
}

#[tokio::test]
async fn m_50_a_question_for_which_too_little_is_left_is_not_asked_and_ends_the_run() {
    type Bound = fn(&mut Agent);
    let bounds: [(Bound, StopReason, &str); 2] = [
        (|agent| agent.budget.tokens = Some(QUESTION), StopReason::MaxTokens, "no tokens are left"),
        (|agent| agent.budget.cost_microusd = Some(204), StopReason::MaxCost, "no money is left"),
    ];
    for (bound, reason, words) in bounds {
        let (run, asked) = spent(&named("1", "a"), passes_on, bound).await;
        assert_eq!((asked.len(), end_of(&run)), (0, (Status::Failed, Some(reason))));
        // One that goes on all the same, with a call or with another round, is at its end too.
        let (run, asked) = spent(&named("1", "a"), calls, bound).await;
        assert_eq!((asked.len(), end_of(&run)), (0, (Status::Failed, Some(reason))));
        let says = |said: Result<CompletionStop, ModelError>| match said {
            Ok(_) => answer("asked"),
            Err(error) => answer(&error.to_string()),
        };
        let (run, asked) = spent(&autonomous("1"), says, bound).await;
        assert_eq!((asked.len(), end_of(&run)), (0, (Status::Completed, Some(reason))));
        let said = run.state.reply.result().expect("an answer");
        let whole = format!("{words} for an answer to a question of about {QUESTION} tokens");
        assert_eq!(said, whole);
    }
}

#[tokio::test]
async fn m_50_the_bound_of_which_a_question_leaves_nothing_is_named_though_another_is_smaller() {
    let change = |agent: &mut Agent| {
        agent.budget.tokens = Some(QUESTION);
        agent.budget.completion_tokens = Some(50);
    };
    let (run, asked) = spent(&named("1", "a"), passes_on, change).await;
    assert_eq!(asked.len(), 0);
    let error = run.ending().and_then(|ending| ending.error.as_deref());
    let own = "token budget exceeded: `tokens` is 100, for it and all that is beneath it";
    assert_eq!(error, Some(own));
}

#[tokio::test]
async fn m_50_a_step_that_another_question_brings_to_a_plan_goes_on_after_a_refusal() {
    /// Bytes of a question that leaves most of the budget, and of one that leaves nothing.
    const SIZES: [usize; 2] = [4, 8_000];
    for is_turned in [true, false] {
        let mut world = World::new();
        let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
        world.tool("t", InterruptionPolicy::Fail, tool);
        let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
            let mut sizes = SIZES;
            if is_turned {
                sizes.reverse();
            }
            async move {
                if input.resume.is_some() {
                    return answer("done");
                }
                for bytes in sizes {
                    let messages = vec![Message::text(Role::User, "x".repeat(bytes))];
                    let said = scope.ask(CompletionRequest { messages, ..question() }).await;
                    if said.is_ok() != (bytes == SIZES[0]) {
                        return failed(Some("test"), "only the larger question is refused");
                    }
                }
                call_of(&[("c", "t/f", "{}")])
            }
        });
        let own: Arc<dyn Model> = Arc::new(Metered::default());
        world.agent_asking("a", planner, Some(own), |agent| agent.budget.tokens = Some(1_000));
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        let run = host.end("1").await;
        let done = (Status::Completed, Some(StopReason::FinalResponse));
        assert_eq!(end_of(&run), done, "{is_turned}");
    }
}
