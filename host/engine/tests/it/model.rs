//! Answers of models on their way to a guest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::clock::{SeededRandom, SystemClock};
use taskrun::ports::planner::{Decision, PlanInput, PlanResult};
use taskrun::scope::model::{Model, ModelStream};
use taskrun::scope::{
    CallScope, CallScopeParts, CurrentRules, Models, QuestionDigests, Remaining, RunContext,
    ScopeLimits, Services, StepConversation, StopSignal,
};
use taskrun_examples as examples;
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::Event;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::plan::PlannerError;
use taskrun_policy::CallRules;

use crate::support::*;

/// Answers with these chunks, and lets others run before each `None`.
struct ChunkModel(Vec<Option<Result<Chunk, ModelError>>>);

#[async_trait]
impl Model for ChunkModel {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        let chunks = futures::stream::iter(self.0.clone()).filter_map(|chunk| async move {
            if chunk.is_none() {
                tokio::task::yield_now().await;
            }
            chunk
        });
        Ok(Box::pin(chunks))
    }
}

/// Answers like another one, later: before it begins, and before its end.
struct Late(ChunkModel, Duration);

#[async_trait]
impl Model for Late {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let late = self.1;
        tokio::time::sleep(late).await;
        let chunks = self.0.stream(request).await?.then(move |chunk| async move {
            tokio::time::sleep(if chunk == stop().expect("one") { late } else { Duration::ZERO })
                .await;
            chunk
        });
        Ok(Box::pin(chunks))
    }
}

/// The result of the agent `chat` for such an answer, and the events for its observers.
async fn chat(
    chunks: Vec<Option<Result<Chunk, ModelError>>>,
) -> (Result<PlanResult, PlannerError>, Vec<Event>) {
    chat_with(Arc::new(ChunkModel(chunks)), Duration::from_secs(60)).await
}

/// The same with another model, and with so much time.
async fn chat_with(
    model: Arc<dyn Model>,
    deadline: Duration,
) -> (Result<PlanResult, PlannerError>, Vec<Event>) {
    chat_under(None, model, deadline).await
}

/// The same under other rules than those with which it was loaded.
async fn chat_under(
    rules_now: Option<CallRules>,
    model: Arc<dyn Model>,
    deadline: Duration,
) -> (Result<PlanResult, PlannerError>, Vec<Event>) {
    let with = grants("allow = [\"model: fake\"]\n[model.fake]\nprovider = \"echo\"");
    let models = Models {
        by_name: BTreeMap::from([("fake".to_owned(), model)]),
        prices: BTreeMap::new(),
        settings: BTreeMap::new(),
        default: Some("fake".to_owned()),
    };
    let messages = Arc::new(vec![Message::text(Role::User, "hello")]);
    let conversation = StepConversation::new(Arc::clone(&messages), QuestionDigests::default());
    let scope = Arc::new(CallScope::new(CallScopeParts {
        context: RunContext::default(),
        stop: StopSignal::never(),
        deadline,
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(7)),
        models: Some(Arc::new(models)),
        rules: CurrentRules::fixed(rules_now.unwrap_or_else(|| rules(&with))),
        pins: Vec::new(),
        runs: None,
        tools: Arc::default(),
        state: BTreeMap::new(),
        services: Services { conversation: Some(conversation), ..Services::default() },
        remaining: Remaining::default(),
        limits: ScopeLimits { events: 1_000, bytes: 1 << 20 },
        wake: Arc::default(),
        journal: None,
        tape: None,
    }));
    let engine = engine();
    let loaded = engine.load(examples::CHAT.bytes.to_vec()).await.unwrap();
    let agent = engine.agent(&loaded, with).unwrap();
    let result = agent.plan(PlanInput { messages, ..plan_input() }, Arc::clone(&scope)).await;
    (result.unwrap(), scope.finish().events)
}

fn text(text: &str) -> Option<Result<Chunk, ModelError>> {
    Some(Ok(Chunk::Text(text.to_owned())))
}

fn stop() -> Option<Result<Chunk, ModelError>> {
    let reason = CompletionStop::EndTurn;
    Some(Ok(Chunk::Stop { reason, model: "fake-1".to_owned() }))
}

#[tokio::test]
async fn what_is_ready_is_handed_over_together_and_all_of_it_arrives() {
    let (result, events) = chat(vec![text("a"), text("b"), None, text("c"), stop()]).await;
    let Decision::FinalResponse(message) = result.unwrap().decision else { panic!("no answer") };
    assert_eq!(message.joined_text(), "abc");
    let chunk = |text: &str| Event::AssistantChunk { text: text.to_owned() };
    assert_eq!(events, [chunk("ab"), chunk("c")]);
}

#[tokio::test]
async fn a_question_about_the_conversation_is_refused_by_the_rules_of_now() {
    let model = Arc::new(ChunkModel(vec![text("a"), stop()]));
    let nothing = Some(CallRules::nothing());
    let (result, events) = chat_under(nothing, model, Duration::from_secs(60)).await;
    assert_eq!(result.unwrap_err().code.as_deref(), Some("denied"));
    assert!(matches!(&events[..], [Event::PolicyDecision { .. }, ..]), "{events:?}");
}

#[tokio::test]
async fn the_wait_for_a_model_is_no_time_of_the_guest() {
    // Both waits are longer than the guest's own time, which is much more than it needs.
    let (own, late) = (Duration::from_secs(1), Duration::from_millis(1_100));
    let model = Arc::new(Late(ChunkModel(vec![text("a"), text("b"), stop()]), late));
    let (result, _) = chat_with(model, own).await;
    let Decision::FinalResponse(message) = result.unwrap().decision else { panic!("no answer") };
    assert_eq!(message.joined_text(), "ab");
}

#[tokio::test]
async fn an_answer_without_an_end_is_an_error() {
    let (result, _) = chat(vec![text("a"), None]).await;
    assert_eq!(result.unwrap_err().code.as_deref(), Some("unavailable"));
    let (result, _) = chat(vec![text("a"), None, Some(Err(ModelError::Timeout))]).await;
    assert_eq!(result.unwrap_err().code.as_deref(), Some("timeout"));
}
