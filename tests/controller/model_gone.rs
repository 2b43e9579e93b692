//! Models that the policy loses while a step which asked them is cut off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::scope::Models;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::Event;
use taskrun_journal::status::Status;

use super::common::{Gates, count};
use super::deployments::question;
use crate::native::{ClosurePlanner, World, answer, request};

/// Answers with a word, and, if it `hangs`, never comes to the end of its answer.
#[derive(Default)]
pub(super) struct Word {
    asked: AtomicU32,
    hangs: bool,
}

#[async_trait]
impl Model for Word {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "m-1".to_owned() };
        let word = futures::stream::iter([Ok(Chunk::Text("word".to_owned()))]);
        Ok(match self.hangs {
            true => word.chain(futures::stream::pending()).boxed(),
            false => word.chain(futures::stream::iter([Ok(stop)])).boxed(),
        })
    }
}

/// Asks the agent's own model and then another one, and passes a gate.
fn asks_both(gates: &Arc<Gates>) -> ClosurePlanner {
    let gates = Arc::clone(gates);
    ClosurePlanner::new(move |_, scope| {
        let gates = Arc::clone(&gates);
        async move {
            let mut said = Vec::new();
            for model in [None, Some("other".to_owned())] {
                said.push(match scope.ask(CompletionRequest { model, ..question() }).await {
                    Ok(completion) => completion.message.joined_text(),
                    Err(ModelError::UnknownModel(_)) => "gone".to_owned(),
                    Err(other) => other.to_string(),
                });
            }
            let said = said.join(" ");
            scope.record(Event::AssistantChunk { text: said.clone() });
            drop(gates.pass("asked").await);
            answer(&said)
        }
    })
}

/// Puts an agent with this planner into force, with its model or as one whose model the policy does
/// not have any more.
fn agent(world: &mut World, planner: ClosurePlanner, model: &Arc<Word>, is_gone: bool) {
    let model: Arc<dyn Model> = model.clone();
    world.agent_asking("a", planner, Some(model), |agent| {
        if is_gone {
            agent.models = Arc::new(Models {
                by_name: BTreeMap::new(),
                prices: BTreeMap::new(),
                settings: BTreeMap::new(),
                default: Some("own".to_owned()),
            });
        }
    });
}

/// Asks twice: the second time when it has passed its gate.
fn asks_twice(gates: &Arc<Gates>) -> ClosurePlanner {
    let gates = Arc::clone(gates);
    ClosurePlanner::new(move |_, scope| {
        let gates = Arc::clone(&gates);
        async move {
            let mut said = Vec::new();
            for gate in ["first", "second"] {
                said.push(match scope.ask(question()).await {
                    Ok(completion) => completion.message.joined_text(),
                    Err(ModelError::UnknownModel(_)) => "gone".to_owned(),
                    Err(other) => other.to_string(),
                });
                scope.record(Event::AssistantChunk { text: gate.to_owned() });
                drop(gates.pass(gate).await);
            }
            answer(&said.join(" "))
        }
    })
}

#[tokio::test]
async fn an_answer_that_was_recorded_stands_when_its_model_is_gone() {
    for answers in [1, 2] {
        let (mut world, gates, model) = (World::new(), Gates::new(), Arc::new(Word::default()));
        agent(&mut world, asks_twice(&gates), &model, false);
        let host = world.start().await;
        let id = host.spawn(&request("a", "x")).await;
        if answers == 2 {
            gates.open("first");
        }
        gates.have_come(answers).await;
        let asked = u32::try_from(answers).expect("a small number");
        assert_eq!(model.asked.load(Ordering::SeqCst), asked);
        // What was said after the answer is on record, too.
        while count(&host.journal(&id).await, "assistant_chunk") < answers {
            host.settle().await;
        }
        world.kill(host).await;
        agent(&mut world, asks_twice(&gates), &model, true);
        let host = world.take_over().await;
        gates.open("first");
        gates.open("second");
        let run = host.end(&id).await;
        let journal = host.journal(&id).await;
        assert_eq!(run.status(), Status::Completed, "{journal:#?}");
        let expected = if answers == 1 { "word gone" } else { "word word" };
        let result = host.view(&id).await.result.unwrap_or_default();
        assert_eq!(result, expected, "{journal:#?}");
        assert_eq!(model.asked.load(Ordering::SeqCst), asked, "nothing is paid twice");
    }
}

#[tokio::test]
async fn a_step_that_was_cut_off_in_an_answer_of_a_model_that_is_gone_is_told_so() {
    let mut world = World::new();
    let model = Arc::new(Word { hangs: true, ..Word::default() });
    let planner = || {
        ClosurePlanner::new(move |_, scope| async move {
            let mut stream = match scope.stream(question()).await {
                Ok(stream) => stream,
                Err(ModelError::UnknownModel(_)) => return answer("gone"),
                Err(other) => return answer(&other.to_string()),
            };
            loop {
                let chunks = scope.next_chunks(&mut stream, 1).await;
                for chunk in chunks.unwrap_or_default() {
                    if let Chunk::Text(text) = chunk {
                        scope.record(Event::AssistantChunk { text });
                    }
                }
            }
        })
    };
    agent(&mut world, planner(), &model, false);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    while count(&host.journal(&id).await, "assistant_chunk") == 0 {
        host.settle().await;
    }
    world.kill(host).await;
    agent(&mut world, planner(), &model, true);
    let host = world.take_over().await;
    let run = host.end(&id).await;
    let journal = host.journal(&id).await;
    assert_eq!(run.status(), Status::Completed, "{journal:#?}");
    assert_eq!(host.view(&id).await.result.as_deref(), Some("gone"));
    assert_eq!(count(&journal, "step_restarted"), 1, "{journal:#?}");
}

#[tokio::test]
async fn a_model_that_comes_back_does_not_make_a_step_that_was_cut_off_another_one() {
    let (mut world, gates) = (World::new(), Gates::new());
    let (own, other) = (Arc::new(Word::default()), Arc::new(Word::default()));
    let in_force = |world: &mut World, is_there: bool| {
        let by_name = [("own", is_there.then_some(&own)), ("other", Some(&other))];
        let by_name = by_name.into_iter().filter_map(|(name, model)| {
            let model: Arc<dyn Model> = model?.clone();
            Some((name.to_owned(), model))
        });
        let models = Models {
            by_name: by_name.collect(),
            prices: BTreeMap::new(),
            settings: BTreeMap::new(),
            default: Some("own".to_owned()),
        };
        world.agent_asking("a", asks_both(&gates), None, |agent| agent.models = Arc::new(models));
    };
    in_force(&mut world, false);
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gates.have_come(1).await;
    while count(&host.journal(&id).await, "assistant_chunk") == 0 {
        host.settle().await;
    }
    world.kill(host).await;
    in_force(&mut world, true);
    let host = world.take_over().await;
    gates.open("asked");
    let run = host.end(&id).await;
    let journal = host.journal(&id).await;
    assert_eq!(run.status(), Status::Completed, "{journal:#?}");
    assert_eq!(host.view(&id).await.result.as_deref(), Some("gone word"), "{journal:#?}");
    let asked = [&own, &other].map(|model| model.asked.load(Ordering::SeqCst));
    assert_eq!(asked, [0, 1], "what it was told stands, and nothing is paid twice");
}
