//! Handles of resources that a guest loses, keeps, uses again or makes up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::scope::model::{Model, ModelStream};
use taskrun::scope::{CurrentRules, JournalRoom, Models, StopSignal};
use taskrun_journal::completion::{Chunk, CompletionRequest, ModelError};
use taskrun_journal::event::{Event, HostAnswer, ModelAnswer};
use taskrun_journal::stop::{CallAbort, StopCause};
use wit_component::StringEncoding;

use crate::support::*;

const MODEL: &str = r#"
    (import "taskrun:plugin/model@0.1.0" "stream" (func $stream (param i32 i32)))
    (import "taskrun:plugin/model@0.1.0" "[method]completion-stream.next" (func $next (param i32 i32 i32)))
    (import "taskrun:plugin/model@0.1.0" "[resource-drop]completion-stream" (func $drop (param i32)))
"#;
/// Asks, and leaves the handle of the answer at 5128; without one the guest ends here.
const ASK: &str = r#"
    (call $stream (i32.const 7000) (i32.const 5120))
    (if (i32.load8_u (i32.const 5120)) (then unreachable))
"#;
const HANDLE: &str = "(i32.load (i32.const 5128))";

/// Begins an answer each time and never says anything; counts those that are open.
#[derive(Default)]
struct Silent(Arc<AtomicU32>);

/// An answer that is open.
struct Open(Arc<AtomicU32>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Model for Silent {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let open = Open(Arc::clone(&self.0));
        let never = futures::stream::once(async move {
            let _open = open;
            std::future::pending().await
        });
        Ok(never.boxed())
    }
}

/// Says a word each time, and then nothing.
struct Word;

#[async_trait]
impl Model for Word {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        let word = futures::stream::iter([Ok(Chunk::Text("word".to_owned()))]);
        Ok(word.chain(futures::stream::pending()).boxed())
    }
}

/// The same, where the host stops the step as the word comes.
struct LastWord(StopSignal);

#[async_trait]
impl Model for LastWord {
    async fn stream(&self, question: CompletionRequest) -> Result<ModelStream, ModelError> {
        let stop = self.0.clone();
        let word = Word.stream(question).await?;
        Ok(word.inspect(move |_| stop.force(StopCause::HandOver)).boxed())
    }
}

/// The answers of models that are on record of a step with this code, in their order, and true if the
/// step came to a decision.
async fn recorded(code: &str) -> (Vec<(u32, HostAnswer)>, bool) {
    let (answers, planned) = recorded_of(code, |_| Arc::new(Word)).await;
    (answers, planned.is_ok())
}

/// The same of a model that may stop the step, with the reason that there is no decision.
async fn recorded_of(
    code: &str,
    model: impl FnOnce(StopSignal) -> Arc<dyn Model>,
) -> (Vec<(u32, HostAnswer)>, Result<(), CallAbort>) {
    let engine = engine();
    let stop = StopSignal::new(engine.interrupt());
    let models = Models {
        by_name: BTreeMap::from([("fake".to_owned(), model(stop.clone()))]),
        prices: BTreeMap::new(),
        settings: BTreeMap::new(),
        default: Some("fake".to_owned()),
    };
    let with = grants("allow = [\"model: fake\"]\n[model.fake]\nprovider = \"echo\"");
    let scope = scope_with(|parts| {
        parts.models = Some(Arc::new(models));
        parts.rules = CurrentRules::fixed(rules(&with));
        parts.journal = Some(JournalRoom::default());
        parts.stop = stop;
    });
    let loaded = engine.load(agent_bytes(MODEL, code)).await.expect("a component");
    let agent = engine.agent(&loaded, with).expect("an agent");
    let planned = agent.plan(plan_input(), Arc::clone(&scope)).await;
    let events = scope.finish().events.into_iter();
    let answers = events.filter_map(|event| {
        let Event::HostAnswered { call, answer, .. } = event else { return None };
        Some((call, *answer))
    });
    (answers.collect(), planned.map(|decided| drop(decided.expect("a decision"))))
}

#[tokio::test]
async fn answers_that_a_step_leaves_open_are_on_record_as_far_as_they_were_read() {
    let read = HostAnswer::Model(ModelAnswer::Parts(vec![vec![Chunk::Text("word".to_owned())]]));
    let unread = HostAnswer::Model(ModelAnswer::Parts(Vec::new()));
    let expected = vec![(0, read), (1, unread)];
    let leaves = format!("{ASK} (call $next {HANDLE} (i32.const 1) (i32.const 5200)) {ASK}");
    assert_eq!(recorded(&leaves).await, (expected.clone(), true));
    assert_eq!(recorded(&format!("{leaves} unreachable")).await, (expected, false));
}

#[tokio::test]
async fn an_answer_that_a_step_is_stopped_in_is_not_on_record_as_one_that_was_left() {
    let reads =
        format!("{ASK} (call $next {HANDLE} (i32.const 1) (i32.const 5200)) (loop $l (br $l))");
    let stopped = CallAbort::Stopped { cause: StopCause::HandOver };
    let of = recorded_of(&reads, |stop| Arc::new(LastWord(stop))).await;
    assert_eq!(of, (Vec::new(), Err(stopped)));
}

/// A step of an agent with this code; after it no answer is open.
async fn step(code: &str) -> Result<(), CallAbort> {
    let open = Arc::new(AtomicU32::new(0));
    let model: Arc<dyn Model> = Arc::new(Silent(Arc::clone(&open)));
    let models = Models {
        by_name: BTreeMap::from([("fake".to_owned(), model)]),
        prices: BTreeMap::new(),
        settings: BTreeMap::new(),
        default: Some("fake".to_owned()),
    };
    let with = grants("allow = [\"model: fake\"]\n[model.fake]\nprovider = \"echo\"");
    let scope = scope_with(|parts| {
        parts.models = Some(Arc::new(models));
        parts.rules = CurrentRules::fixed(rules(&with));
    });
    let engine = engine();
    let loaded = engine.load(agent_bytes(MODEL, code)).await.unwrap();
    let planned = engine.agent(&loaded, with).unwrap().plan(plan_input(), scope).await;
    assert_eq!(open.load(Ordering::SeqCst), 0, "the answers go with the call");
    planned.map(|decided| drop(decided.unwrap()))
}

#[tokio::test]
async fn case_22_handles_that_a_guest_leaves_behind_go_with_its_call() {
    // One more than may be open at once is refused as a value.
    let open = format!(
        "(local $n i32)
        (loop $more
            {ASK}
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $more (i32.lt_u (local.get $n) (i32.const 16))))
        (call $stream (i32.const 7000) (i32.const 5120))
        (if (i32.eqz (i32.load8_u (i32.const 5120))) (then unreachable))"
    );
    assert_eq!(step(&open).await, Ok(()));
    let trapped = step(&format!("{ASK} unreachable")).await;
    assert_eq!(trapped, Err(CallAbort::Trap { code: "unreachable".to_owned() }));
}

#[tokio::test]
async fn case_22_handles_that_are_gone_or_were_never_given_end_the_call() {
    let uses = [
        (
            "dropped and used",
            format!(
                "{ASK} (call $drop {HANDLE}) (call $next {HANDLE} (i32.const 1) (i32.const 5200))"
            ),
        ),
        ("dropped twice", format!("{ASK} (call $drop {HANDLE}) (call $drop {HANDLE})")),
        ("made up", "(call $next (i32.const 12345) (i32.const 1) (i32.const 5200))".to_owned()),
        (
            "made up beside one",
            format!(
                "{ASK} (call $next (i32.add {HANDLE} (i32.const 1)) (i32.const 1) (i32.const 5200))"
            ),
        ),
        ("none", "(call $drop (i32.const 0))".to_owned()),
        ("the last one", "(call $drop (i32.const -1))".to_owned()),
    ];
    for (what, code) in uses {
        let ended = step(&code).await;
        let detail = "it used a resource handle that it does not have".to_owned();
        assert_eq!(ended, Err(CallAbort::Contract { detail }), "{what}");
    }
    assert_eq!(step(&format!("{ASK} (call $drop {HANDLE})")).await, Ok(()));
}

#[tokio::test]
async fn case_22_handles_without_end_meet_a_limit() {
    const POLL: &str = "package wasi:io@0.2.0; interface poll { resource pollable {} }";
    const CLOCKS: &str = "package wasi:clocks@0.2.0;
        interface monotonic-clock {
            use wasi:io/poll@0.2.0.{pollable};
            subscribe-duration: func(when: u64) -> pollable;
        }";
    const WORLD: &str = "package test:leak;
        world leak { include taskrun:plugin/tool@0.1.0; import wasi:clocks/monotonic-clock@0.2.0; }";
    let imports = r#"(import "wasi:clocks/monotonic-clock@0.2.0" "subscribe-duration" (func $subscribe (param i64) (result i32)))"#;
    let code = "(loop $l (drop (call $subscribe (i64.const 1))) (br $l)) unreachable";
    let module = tool_module(imports, DESCRIBE, code);
    let bytes = component_of(&[POLL, CLOCKS, WORLD], "leak", &module, StringEncoding::UTF8);
    let limit = CallAbort::Limit { what: "resource handles".to_owned(), limit: 1_000 };
    assert_eq!(run(bytes, grants("")).await, Err(limit));
}
