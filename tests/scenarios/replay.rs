//! A real component is cut off within a plan step, and runs again under another host.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_examples::DICE;
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::Event;
use taskrun_journal::message::Usage;
use taskrun_journal::status::Status;
use taskrun_policy::Policy;
use taskrun_tests::engine;
use taskrun_tests::native::{World, request};
use tokio::sync::Notify;

const POLICY: &str = r#"[model.oracle]
provider = "echo"
[agent.dice]
component = "dice.wasm"
model = "oracle"
"#;

/// Answers each question in words of its own, in several chunks, and falls silent once.
#[derive(Default)]
struct Oracle {
    asked: Mutex<Vec<String>>,
    /// The question, from 1, in which it falls silent, and after how many chunks.
    silent: Mutex<Option<(u32, usize)>>,
    calls: AtomicU32,
    is_silent: Notify,
    was_silent: AtomicBool,
}

#[async_trait]
impl Model for Oracle {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let last = request.messages.last().map(|m| m.joined_text()).unwrap_or_default();
        self.asked.lock().expect("no panic").push(last.clone());
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let mut chunks: Vec<Chunk> =
            last.split_inclusive(' ').map(|word| Chunk::Text(format!("<{word}>"))).collect();
        chunks.push(Chunk::Usage(Usage {
            prompt_tokens: 2,
            completion_tokens: 1,
            total_tokens: 3,
            ..Usage::default()
        }));
        chunks.push(Chunk::Stop { reason: CompletionStop::EndTurn, model: "oracle-1".into() });
        let silent = *self.silent.lock().expect("no panic");
        if let Some((at, after)) = silent
            && at == call
            && !self.was_silent.swap(true, Ordering::SeqCst)
        {
            chunks.truncate(after);
            self.is_silent.notify_one();
            let said = futures::stream::iter(chunks.into_iter().map(Ok));
            return Ok(said.chain(futures::stream::pending()).boxed());
        }
        Ok(futures::stream::iter(chunks.into_iter().map(Ok)).boxed())
    }
}

/// Cuts a run off in the question `call` after so many chunks, and lets another host end it.
async fn cut_off_in(call: u32, after: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("dice.wasm"), DICE.bytes).expect("written");
    std::fs::write(folder.path().join("taskrun.toml"), POLICY).expect("written");
    let path = folder.path().join("taskrun.toml");
    let policy = Policy::parse(POLICY, &path).expect("a valid policy");
    let oracle = Arc::new(Oracle::default());
    *oracle.silent.lock().expect("no panic") = Some((call, after));
    let models: BTreeMap<String, Arc<dyn Model>> =
        BTreeMap::from([("oracle".to_owned(), oracle.clone() as Arc<dyn Model>)]);
    let agents = engine().load_agents(&policy, &models).await.expect("it loads");
    let mut world = World::new();
    world.loaded(&agents.by_name["dice"]);

    let first = world.start().await;
    let id = first.spawn(&request("dice", "throw")).await;
    oracle.is_silent.notified().await;
    world.kill(first).await;
    let second = world.start().await;
    world.clock.advance(std::time::Duration::from_secs(1));
    let run = second.end(&id).await;
    let journal = second.journal(&id).await;
    assert_eq!(run.status(), Status::Completed, "{journal:#?}");

    // Only the question that was not answered is asked again; nobody knows of it, and so it may
    // tell another time.
    let mut asked = oracle.asked.lock().expect("no panic").clone();
    assert_eq!(asked.len(), 4, "{asked:#?}");
    let void = asked.remove(call as usize - 1);
    let thrown =
        |question: &str| question.replace("@1800000000000", "").replace("@1800000001000", "");
    let sorted = |question: &str| {
        let question = thrown(question);
        let mut words: Vec<String> = question.split(' ').map(str::to_owned).collect();
        words.sort();
        words
    };
    assert_eq!(sorted(&void), sorted(&asked[call as usize - 1]), "chance is the same");
    // What was answered is part of the result.
    let result = run.state.reply.result().expect("an answer");
    for question in &asked {
        assert!(result.contains(question.as_str()), "{question} is not in {result}");
    }
    let of_kind = |kind: &str| journal.iter().filter(|r| r.event.kind() == kind).count();
    assert_eq!(of_kind("host_answered"), 3);
    assert_eq!(of_kind("replay_diverged"), 0);
    let lines = journal.iter().filter(|r| matches!(r.event, Event::Log { .. })).count();
    assert_eq!(lines, 3, "each line once: {journal:#?}");
    assert_eq!(run.state.progress.total_tokens, 9, "each answer is counted once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_is_cut_off_runs_again_on_the_same_answers() {
    for call in 1..=3 {
        for after in [0, 1] {
            cut_off_in(call, after).await;
        }
    }
}
