//! Budgets of tokens and money, of a run and of its tree (M-50, M-61), and what is kept for the
//! last word (M-45).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use taskrun::agents::{Agent, Callee};
use taskrun::error::ControllerError;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::model::{Model, ModelStream};
use taskrun::scope::{CallScope, Models};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::media::MediaBytes;
use taskrun_journal::message::Usage;
use taskrun_journal::money::Price;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::plan::TerminationReason;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::{ToolHints, ToolOutcome};
use taskrun_policy::{AgentRules, CallTimeouts, InterruptionPolicy, Reserve};

use super::common::{named, words_so_far};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, World, answer, call_of, change_code, grants, value,
};

/// A model each of whose answers consumes 20 tokens read and 10 written.
#[derive(Default)]
pub(crate) struct Metered {
    pub(crate) asked: AtomicU32,
    estimated: bool,
}

#[async_trait]
impl Model for Metered {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let usage = Usage {
            prompt_tokens: 20,
            completion_tokens: 10,
            total_tokens: 30,
            estimated: self.estimated,
            ..Usage::default()
        };
        let chunks = [
            Chunk::Text("word".to_owned()),
            Chunk::Usage(usage),
            Chunk::Stop { reason: CompletionStop::EndTurn, model: "m-1".to_owned() },
        ];
        Ok(stream::iter(chunks.map(Ok)).boxed())
    }
}

/// A question that asks for nothing in particular.
pub(crate) fn question() -> CompletionRequest {
    CompletionRequest {
        model: None,
        messages: Vec::new(),
        tools: Vec::new(),
        max_tokens: None,
        temperature: None,
        tool_choice: taskrun_journal::completion::ToolChoice::Auto,
        stop_sequences: Vec::new(),
        response_schema: None,
        media: MediaBytes::default(),
        tokens_left: None,
    }
}

/// Asks its model once, and says so.
pub(crate) async fn ask(scope: &CallScope) -> String {
    match scope.ask(question()).await {
        Ok(_) => "asked".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Dollars for a million tokens: 2 read, 5 written, so that an answer costs 90 millionths.
const PRICE: Price = Price::new(2_000_000, 5_000_000);

pub(crate) fn priced(agent: &mut Agent, price: Option<Price>) {
    let of = &agent.models;
    agent.models = Arc::new(Models {
        by_name: of.by_name.clone(),
        settings: BTreeMap::new(),
        prices: price.map(|price| ("own".to_owned(), price)).into_iter().collect(),
        default: of.default.clone(),
    });
}

/// An agent that asks its model in every step, calls a tool, and says at its last word whether it
/// could ask.
fn spender() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        let said = ask(&scope).await;
        match input.resume.and_then(|resume| resume.finalize) {
            Some(finalize) => answer(&format!("{:?}: {said}", finalize.reason)),
            None => call_of(&[("c", "t/f", "{}")]),
        }
    })
}

/// A world with `spender`, changed, its model, and how often its tool was called.
fn world(change: impl FnOnce(&mut Agent)) -> (World, Arc<Metered>, Arc<AtomicU32>) {
    let (mut world, model) = (World::new(), Arc::new(Metered::default()));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { value("1") }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("a", spender(), Some(own), |agent| {
        priced(agent, Some(PRICE));
        change(agent);
    });
    (world, model, calls)
}

async fn ended(world: &mut World) -> (Native, Run) {
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let run = host.end("1").await;
    (host, run)
}

fn said(run: &Run) -> String {
    run.state.reply.result().expect("an answer")
}

#[tokio::test]
async fn m_61_an_answer_costs_what_its_models_price_says_and_the_record_shows_it() {
    let (mut world, ..) = world(|agent| {
        agent.budget.turns = Some(3);
        agent.budget.reserve.turns = 1;
    });
    let (host, run) = ended(&mut world).await;
    // Two steps and the last word.
    assert_eq!(host.view("1").await.cost_microusd, Some(270));
    let usages = host.journal("1").await.into_iter().filter_map(|recorded| {
        let Event::AssistantMessage { usage, .. } = recorded.event else { return None };
        usage.map(|usage| (usage.total_tokens, usage.cost_microusd))
    });
    assert_eq!(usages.collect::<Vec<_>>(), [(30, 90); 3]);
    let tree = host.client().tree("1").await.expect("there");
    assert_eq!(tree.usage.cost_microusd, 270);
    assert_eq!(run.status(), Status::Completed);
}

#[tokio::test]
async fn m_50_the_answer_that_crosses_a_budget_in_dollars_is_paid_and_nothing_after_it() {
    let (mut world, model, calls) = world(|agent| agent.budget.cost_microusd = Some(180));
    let (host, run) = ended(&mut world).await;
    let ending = run.ending().expect("it ended");
    assert_eq!((ending.stop_reason, ending.partial), (StopReason::MaxCost, true));
    assert_eq!(said(&run), "word", "nothing is kept for a last word");
    assert_eq!(model.asked.load(Ordering::SeqCst), 2);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "what the crossing answer decided is not done");
    let refused = host.journal("1").await.into_iter().filter_map(|recorded| {
        let Event::ToolResult { refused, .. } = recorded.event else { return None };
        Some(refused)
    });
    assert_eq!(refused.collect::<Vec<_>>(), [None, Some(Refusal::Finalized)]);
}

#[tokio::test]
async fn m_50_tokens_are_checked_before_calls_too() {
    let (mut world, _, calls) = world(|agent| agent.budget.tokens = Some(30));
    let (_, run) = ended(&mut world).await;
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::MaxTokens));
    assert_eq!((said(&run).as_str(), calls.load(Ordering::SeqCst)), ("word", 0));
}

#[tokio::test]
async fn m_45_what_is_kept_for_the_last_word_is_spent_by_it_alone() {
    let (mut world, model, _) = world(|agent| {
        agent.budget.cost_microusd = Some(270);
        agent.budget.reserve = Reserve { cost_microusd: 90, ..Reserve::default() };
    });
    let (host, run) = ended(&mut world).await;
    assert_eq!((said(&run).as_str(), model.asked.load(Ordering::SeqCst)), ("CostCap: asked", 3));
    let asked = host.journal("1").await.into_iter().find_map(|recorded| {
        let Event::FinalizeRequested { reason, .. } = recorded.event else { return None };
        Some(reason)
    });
    assert_eq!(asked, Some(TerminationReason::CostCap));
    assert_eq!(run.state.progress.cost_microusd, 270);
}

#[tokio::test]
async fn m_50_a_call_that_ends_the_run_is_made_with_the_last_of_its_budget() {
    let (mut world, model) = (World::new(), Arc::new(Metered::default()));
    let hints = ToolHints { terminal: true, ..ToolHints::default() };
    let done = ClosureTool::new("done", hints, |_, _| async { value("\"done\"") });
    world.tool("t", InterruptionPolicy::Fail, done);
    let planner = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        ask(&scope).await;
        call_of(&[("c", "t/done", "{}")])
    });
    world.agent_asking("a", planner, Some(model), |agent| agent.budget.tokens = Some(30));
    let (_, run) = ended(&mut world).await;
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::TerminalTool));
}

#[tokio::test]
async fn m_50_a_budget_in_dollars_is_refused_where_a_price_is_not_known() {
    let refused = async |change: fn(&mut Agent), request: SpawnRequest| {
        let (mut world, ..) = world(change);
        let host = world.start().await;
        let refused = host.client().spawn(&request).await;
        assert!(
            matches!(refused, Err(ControllerError::Invalid { field: "budget", .. })),
            "{refused:?}"
        );
    };
    let bounded = |agent: &mut Agent| {
        priced(agent, None);
        agent.budget.cost_microusd = Some(1);
    };
    refused(bounded, named("1", "a")).await;
    let narrow = Narrowing { cost_microusd: Some(5), ..Narrowing::default() };
    refused(|agent| priced(agent, None), SpawnRequest { narrow, ..named("1", "a") }).await;
    // A model that no rule allows needs none.
    let (mut world, ..) = world(|agent| {
        priced(agent, None);
        let of = Models {
            by_name: agent.models.by_name.clone(),
            prices: BTreeMap::new(),
            settings: BTreeMap::new(),
            default: None,
        };
        agent.models = Arc::new(of);
        agent.rules = no_models(agent);
        agent.budget.cost_microusd = Some(1);
    });
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
}

/// The rules of the agent without any about models.
fn no_models(agent: &Agent) -> Arc<AgentRules> {
    Arc::new(AgentRules { grants: grants(""), ..AgentRules::clone(&agent.rules) })
}

#[tokio::test]
async fn m_50_a_request_bounds_the_cost_of_its_run() {
    let (mut world, model, _) = world(|agent| agent.budget.cost_microusd = Some(1_000));
    let host = world.start().await;
    let narrow = Narrowing { cost_microusd: Some(90), ..Narrowing::default() };
    host.spawn(&SpawnRequest { narrow, ..named("1", "a") }).await;
    assert_eq!(host.end("1").await.ending().map(|e| e.stop_reason), Some(StopReason::MaxCost));
    assert_eq!(model.asked.load(Ordering::SeqCst), 1);
    let narrow = Narrowing { cost_microusd: Some(1_001), ..Narrowing::default() };
    let more = SpawnRequest { narrow, ..named("2", "a") };
    let refused = host.client().spawn(&more).await;
    let field = "narrow.cost_microusd";
    assert!(matches!(&refused, Err(ControllerError::Invalid { field: of, .. }) if *of == field));
}

#[tokio::test]
async fn m_61_tokens_that_the_provider_did_not_count_are_marked() {
    let (mut world, counted) = (World::new(), Metered { estimated: true, ..Metered::default() });
    let planner = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        let said = ask(&scope).await;
        answer(&said)
    });
    world.agent_asking("a", planner, Some(Arc::new(counted)), |_| {});
    let (host, _) = ended(&mut world).await;
    let progress = host.view("1").await.progress.expect("it said something");
    assert!(progress.usage_estimated);
}

/// A parent that calls these agents one after the other, and then says what they gave.
fn parent_of(children: &'static [&'static str]) -> ClosurePlanner {
    ClosurePlanner::new(move |input: PlanInput, _| async move {
        let finalize = input.resume.as_ref().and_then(|resume| resume.finalize.clone());
        let turn = usize::try_from(input.run.turn).expect("a small number");
        match (finalize, children.get(turn - 1)) {
            (None, Some(child)) => call_of(&[(child, "agent/child", r#"{"task":"spend"}"#)]),
            (finalize, _) => {
                let reason = finalize.map(|finalize| finalize.reason);
                answer(&format!("{reason:?}: {}", words_so_far(&input)))
            }
        }
    })
}

pub(crate) fn family(
    children: &'static [&'static str],
    change: impl FnOnce(&mut Agent),
) -> (World, Arc<Metered>) {
    let (mut world, model) = (World::new(), Arc::new(Metered::default()));
    let own: Arc<dyn Model> = model.clone();
    let child = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        let said = ask(&scope).await;
        answer(&said)
    });
    world.agent_asking("child", child, Some(own), |agent| priced(agent, Some(PRICE)));
    world.agent_with("a", parent_of(children), |agent| {
        let callee = Callee { name: "child".to_owned(), description: None };
        let limits = agent.limits.clone();
        change_code(agent, |code| {
            code.tools = code
                .tools
                .with_agents(&[callee], (&limits, &CallTimeouts::default()))
                .expect("tools that fit");
        });
        change(agent);
    });
    (world, model)
}

#[tokio::test]
async fn m_50_runs_beneath_draw_from_what_is_left_above_them() {
    let (mut world, model) = family(&["1", "2", "3"], |agent| {
        agent.budget.tokens = Some(60);
        agent.budget.reserve.turns = 1;
    });
    let (host, run) = ended(&mut world).await;
    assert_eq!(model.asked.load(Ordering::SeqCst), 2, "the third has nothing to draw from");
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::MaxTokens));
    assert_eq!(said(&run), "Some(TokenCap): \"asked\"; \"asked\"");
    let results = host.journal("1").await.into_iter().filter_map(|recorded| {
        let Event::ToolResult { output, .. } = recorded.event else { return None };
        let used = output.telemetry.and_then(|told| told.usage).expect("what it consumed");
        Some((output.outcome, used.cost_microusd))
    });
    let asked = || (ToolOutcome::Value("\"asked\"".to_owned()), 90);
    assert_eq!(results.collect::<Vec<_>>(), [asked(), asked()]);
    let used = host.client().charged_with_descendants(&run).await.expect("read");
    let tokens = (used.prompt_tokens, used.completion_tokens, used.total_tokens);
    assert_eq!((tokens, used.cost_microusd), ((40, 20, 60), 180), "it asked no model itself");
}

#[tokio::test]
async fn m_50_what_others_used_is_read_once_before_a_step_and_once_before_its_calls() {
    let (mut world, _) = family(&["1", "2"], |agent| agent.budget.tokens = Some(1_000));
    let (_, run) = ended(&mut world).await;
    assert_eq!(said(&run), "None: \"asked\"; \"asked\"");
    let (steps, calls, steps_beneath, ends_beneath) = (3, 2, 2, 2);
    let reads = world.store.tree_reads();
    assert_eq!(reads, steps + calls + steps_beneath + ends_beneath);
}

#[tokio::test]
async fn m_50_a_run_beneath_is_stopped_by_a_budget_in_dollars_above_it() {
    let (mut world, model) = family(&["1", "2"], |agent| agent.budget.cost_microusd = Some(95));
    let (_, run) = ended(&mut world).await;
    // One token is paid for the second: an answer that heeds no bound is paid all the same.
    assert_eq!(model.asked.load(Ordering::SeqCst), 2);
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::MaxCost));
}

#[tokio::test]
async fn m_50_a_run_that_finds_nothing_left_above_it_is_told_so() {
    let (mut world, model) = family(&["1"], |agent| {
        agent.budget.tokens = Some(10);
        agent.budget.reserve = Reserve { tokens: 9, ..Reserve::default() };
    });
    let own: Arc<dyn Model> = model.clone();
    let greedy = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        let (first, second) = (ask(&scope).await, ask(&scope).await);
        answer(&format!("{first}, then {second}"))
    });
    world.agent_asking("child", greedy, Some(own), |agent| priced(agent, Some(PRICE)));
    let (_, run) = ended(&mut world).await;
    assert_eq!(said(&run), "Some(TokenCap): \"asked, then no tokens are left\"");
}

#[tokio::test]
async fn m_50_an_agent_that_is_called_works_no_longer_than_its_caller_has_left() {
    let mut world = World::new();
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let clock = Arc::clone(&world.clock);
    let child = ClosurePlanner::new(move |input: PlanInput, _| {
        // Deciding takes longer than is left above it.
        clock.advance(Duration::from_secs(25));
        async move {
            match input.resume.and_then(|resume| resume.finalize) {
                None => call_of(&[("1", "t/f", "{}")]),
                Some(finalize) => answer(&format!("{:?}", finalize.reason)),
            }
        }
    });
    world.agent("child", child);
    let clock = Arc::clone(&world.clock);
    let parent = ClosurePlanner::new(move |input: PlanInput, _| {
        if input.resume.is_none() {
            clock.advance(Duration::from_secs(10));
        }
        async move {
            match &input.resume {
                None => call_of(&[("1", "agent/child", r#"{"task":"work"}"#)]),
                Some(_) => answer(&words_so_far(&input)),
            }
        }
    });
    world.agent_with("a", parent, |agent| {
        agent.budget.wall = Some(Duration::from_secs(30));
        let callee = Callee { name: "child".to_owned(), description: None };
        let limits = agent.limits.clone();
        change_code(agent, |code| {
            code.tools = code
                .tools
                .with_agents(&[callee], (&limits, &CallTimeouts::default()))
                .expect("tools that fit");
        });
    });
    let (_, run) = ended(&mut world).await;
    // What the child took is not the parent's own time.
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::FinalResponse));
    assert_eq!(said(&run), "\"[partial result: wallclock]\\nTimeBudget\"");
}

#[tokio::test]
async fn m_50_tokens_that_a_run_says_it_used_elsewhere_end_no_other_run() {
    let (mut world, _) = family(&["1", "2"], |agent| agent.budget.tokens = Some(61));
    let boaster = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        let much = Usage { total_tokens: u64::MAX, prompt_tokens: u64::MAX, ..Usage::default() };
        let said = ask(&scope).await;
        scope.add_usage(much);
        answer(&said)
    });
    let counted: Arc<dyn Model> = Arc::new(Metered::default());
    world.agent_asking("child", boaster, Some(counted), |agent| {
        priced(agent, Some(PRICE));
        agent.budget.tokens = Some(1_000);
    });
    let (host, run) = ended(&mut world).await;
    // Of the 61, what the host counted: 30 for each answer of a model.
    assert_eq!(said(&run), "None: \"asked\"; \"asked\"");
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::FinalResponse));
    let tree = host.client().tree("1").await.expect("there");
    assert_eq!(tree.usage.counted().total_tokens, 60, "what it says hides nothing");
}

#[tokio::test]
async fn m_50_tokens_that_a_run_says_it_used_count_against_its_own_budget() {
    let mut world = World::new();
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        scope.add_usage(Usage { total_tokens: 60, ..Usage::default() });
        call_of(&[("c", "t/f", "{}")])
    });
    world.agent_with("a", planner, |agent| agent.budget.tokens = Some(60));
    let (_, run) = ended(&mut world).await;
    assert_eq!(run.ending().map(|e| e.stop_reason), Some(StopReason::MaxTokens));
}
