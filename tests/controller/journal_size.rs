//! The largest journal of a run, whoever fills it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::agents::Agent;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::EventRecord;
use taskrun_journal::media::MediaBytes;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{check_journal, count, named};
use crate::native::{ClosurePlanner, ClosureTool, Gate, Native, World, answer, call_of, value};

const LIMIT: u64 = 40_000;
/// Bytes of an answer, a result and the arguments of a call.
const PART: usize = 4_000;

/// A model that says much, and how often it was asked.
#[derive(Default)]
struct Wordy(AtomicU32);

#[async_trait]
impl Model for Wordy {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "m".to_owned() };
        Ok(futures::stream::iter([Ok(Chunk::Text("x".repeat(PART))), Ok(stop)]).boxed())
    }
}

fn question() -> CompletionRequest {
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

fn limited(agent: &mut Agent) {
    agent.limits.journal_bytes = LIMIT;
}

fn bytes(journal: &[EventRecord]) -> u64 {
    journal.iter().map(|recorded| recorded.event.journal_bytes()).sum()
}

/// Holds a run to the limit; `more` is what may come after the part that met it.
async fn check(host: &Native, run: &Run, more: usize) -> Vec<EventRecord> {
    let journal = host.journal("1").await;
    check_journal(&journal);
    let ending = run.ending().expect("it ended");
    assert_eq!((run.status(), ending.stop_reason), (Status::Failed, StopReason::AgentTrap));
    let error = ending.error.clone().unwrap_or_default();
    assert!(error.ends_with("stopped: limit on bytes of the run's journal (40000)"), "{error}");
    let all = bytes(&journal);
    assert!((LIMIT..LIMIT + (more * PART) as u64).contains(&all), "{all} bytes");
    journal
}

#[tokio::test]
async fn answers_of_models_count_towards_the_bytes_of_a_journal() {
    let (mut world, model) = (World::new(), Arc::new(Wordy::default()));
    let planner = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        while scope.ask(question()).await.is_ok() {}
        answer("no more")
    });
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("a", planner, Some(own), limited);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let run = host.end("1").await;
    let journal = check(&host, &run, 2).await;
    let asked = model.0.load(Ordering::SeqCst) as usize;
    assert_eq!(count(&journal, "host_answered"), asked, "what was paid for is on record");
}

#[tokio::test]
async fn what_a_dead_host_wrote_counts_towards_the_bytes_of_a_journal() {
    let (mut world, model, gate) = (World::new(), Arc::new(Wordy::default()), Gate::new());
    let door = gate.clone();
    let planner = ClosurePlanner::new(move |_, scope: Arc<CallScope>| {
        let gate = door.clone();
        async move {
            for _ in 0..5 {
                scope.ask(question()).await.expect("there is room");
            }
            // Nobody lets the first one through.
            if gate.visitors() == 0 {
                gate.pass().await;
            }
            while scope.ask(question()).await.is_ok() {}
            answer("no more")
        }
    });
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("a", planner, Some(own), limited);
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gate.reached_by(1).await;
    world.kill(first).await;
    let second = world.take_over().await;
    let run = second.end("1").await;
    let journal = check(&second, &run, 2).await;
    let asked = model.0.load(Ordering::SeqCst) as usize;
    assert_eq!(count(&journal, "host_answered"), asked, "no answer is asked for again");
}

#[tokio::test]
async fn results_of_tools_count_towards_the_bytes_of_a_journal() {
    let mut world = World::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { value(&format!("\"{}\"", "x".repeat(PART))) }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let ids: Vec<String> = (0..200).map(|number| format!("c{number}")).collect();
    let planner = ClosurePlanner::new(move |_, _| {
        let calls: Vec<_> = ids.iter().map(|id| (id.as_str(), "t/f", "{}")).collect();
        let planned = call_of(&calls);
        async move { planned }
    });
    world.agent_with("a", planner, |agent| {
        limited(agent);
        agent.limits.tool_calls = Some(1_000);
    });
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let run = host.end("1").await;
    // The refusals of those that did not begin have their room, too.
    let journal = host.journal("1").await;
    assert_eq!(run.ending().map(|ending| ending.stop_reason), Some(StopReason::AgentTrap));
    assert_eq!(count(&journal, "tool_result"), 200, "each call has its result");
    let begun = calls.load(Ordering::SeqCst);
    assert!(begun <= 32, "{begun} calls were made");
}

#[tokio::test]
async fn arguments_of_refused_calls_count_towards_the_bytes_of_a_journal() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|_: PlanInput, _| async {
        call_of(&[("c", "gone/f", &format!("\"{}\"", "x".repeat(PART)))])
    });
    world.agent_with("a", planner, |agent| {
        limited(agent);
        agent.limits.tool_failures = 10_000;
    });
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let run = host.end("1").await;
    check(&host, &run, 4).await;
}
