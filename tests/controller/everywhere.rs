//! A host that dies at every single write of a whole scenario, on both sides of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::{Event, EventRecord, HostAnswer, ModelAnswer};
use taskrun_journal::media::MediaBytes;
use taskrun_journal::message::{Labels, Message, Role, Usage};
use taskrun_journal::question::Answer;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{Call, Handle, check_journal, count, named, task_tools, words_so_far};
use super::dying::{AT_ONCE, Point, WRITES_MAX, die_at_each, survive};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, Op, Planned, Side, World, answer, call_of, value,
};

/// Effects outside of the journal.
#[derive(Default)]
struct Effects {
    asked: AtomicU32,
    once: AtomicU32,
    again: AtomicU32,
    finalized: AtomicU32,
}

/// Counts its questions and answers with what it was asked.
struct Counting(Arc<Effects>);

#[async_trait]
impl Model for Counting {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let text = request.messages.last().map(Message::joined_text).unwrap_or_default();
        let chunks = [
            Chunk::Text(format!("about {text}")),
            Chunk::Usage(Usage {
                prompt_tokens: 10,
                completion_tokens: 1,
                total_tokens: 11,
                ..Usage::default()
            }),
            Chunk::Stop { reason: CompletionStop::EndTurn, model: "counting".to_owned() },
        ];
        Ok(futures::stream::iter(chunks.map(Ok)).boxed())
    }
}

/// The question that the first step asks: made of a random number and the time, so that it is
/// the same after a crash only if both are.
fn question(scope: &CallScope) -> CompletionRequest {
    let text = format!("{:?} at {}", scope.random(4), scope.now());
    CompletionRequest {
        model: None,
        messages: vec![Message::text(Role::User, text)],
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

const PARALLEL: [Call; 2] = [("c1", "again/f", "{}"), ("c2", "once/f", "{}")];

/// The agent of the scenario. What the model said is kept in the state of the run.
async fn plan(input: PlanInput, scope: Arc<CallScope>) -> Planned {
    match input.run.turn {
        1 => {
            let answer = scope.ask(question(&scope)).await;
            let text = answer.expect("the model answers").message.joined_text();
            scope.set_state("model".to_owned(), Some(text)).expect("it is short");
            call_of(&PARALLEL)
        }
        2 => call_of(&[("c3", "spawn/f", "\"child kid\"")]),
        3 => call_of(&[("c4", "await/f", "\"all - kid\"")]),
        4 => call_of(&[("c5", "ask/f", "\"which?\"")]),
        _ => {
            let model = scope.state("model").unwrap_or_default();
            answer(&format!("{} | {model}", words_so_far(&input)))
        }
    }
}

fn counting(
    effects: &Arc<Effects>,
    what: fn(&Effects) -> &AtomicU32,
    hints: ToolHints,
) -> ClosureTool {
    let effects = Arc::clone(effects);
    ClosureTool::new("f", hints, move |_, _| {
        what(&effects).fetch_add(1, Ordering::SeqCst);
        async { value("\"worked\"") }
    })
}

fn world() -> (World, Handle, Arc<Effects>) {
    let mut world = World::new();
    let effects = Arc::new(Effects::default());
    let handle = task_tools(&mut world);
    let idempotent = ToolHints { idempotent: true, ..ToolHints::default() };
    world.tool("again", InterruptionPolicy::Fail, counting(&effects, |e| &e.again, idempotent));
    world.tool(
        "once",
        InterruptionPolicy::Fail,
        counting(&effects, |e| &e.once, ToolHints::default()),
    );
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("child's play") }));
    let finalized = Arc::clone(&effects);
    let parent = ClosurePlanner::new(plan).finalizer(move |_, _| {
        finalized.finalized.fetch_add(1, Ordering::SeqCst);
        async { Ok(Ok(Labels::from([("finalizer".to_owned(), "heard".to_owned())]))) }
    });
    let model: Arc<dyn Model> = Arc::new(Counting(Arc::clone(&effects)));
    world.agent_asking("parent", parent, Some(model), |_| {});
    (world, handle, effects)
}

/// The course of the scenario.
struct Played {
    run: Run,
    journals: [Vec<EventRecord>; 2],
    effects: Arc<Effects>,
    /// Hosts that died.
    deaths: u32,
}

/// The world outside of the host: it asks for the run, answers, waits for the end.
async fn outside(door: &Native) -> Run {
    door.spawn(&named("1", "parent")).await;
    door.until("1", "asks", |run| run.state.awaits.iter().any(|one| !one.answered)).await;
    let text = Answer::Text("this".into());
    door.client().named("me").answer("1", None, text).await.expect("taken");
    door.end("1").await
}

async fn play(points: &[Point]) -> Played {
    let (mut world, handle, effects) = world();
    let door = world.door().await;
    let (run, deaths) = survive(&mut world, points, &handle, outside(&door)).await;
    let journals = [door.journal("1").await, door.journal("kid").await];
    Played { run, journals, effects, deaths }
}

/// Holds what happened to what may happen, given how it goes without a crash.
fn check(points: &[Point], played: &Played, whole: &str) {
    let Played { run, journals, effects, deaths } = played;
    let kinds: Vec<_> = journals[0].iter().map(|recorded| recorded.event.kind()).collect();
    let context = format!("crash at {points:?}: {kinds:?}");
    journals.iter().for_each(|journal| check_journal(journal));
    assert_eq!(run.status(), Status::Completed, "{context}");
    let result = run.state.reply.result().expect("an answer");
    let (words, model) = result.split_once(" | ").expect("two parts");
    assert_eq!(model, model_said(&journals[0]), "{context}");
    let once = effects.once.load(Ordering::SeqCst);
    if words == whole {
        assert_eq!(once, 1, "{context}");
    } else {
        // The one thing that may differ: whether the call took effect is not known.
        let (before, after) = words.split_once("interrupted: ").expect(&context);
        let (_, after) = after.split_once("; \"kid\"").expect(&context);
        assert_eq!(format!("{before}\"worked\"; \"kid\"{after}"), whole, "{context}");
        assert!(once <= 1, "{context}");
    }
    let (asked, again) =
        (effects.asked.load(Ordering::SeqCst), effects.again.load(Ordering::SeqCst));
    // Each death may cost the one that was under way.
    assert!((1..=1 + deaths).contains(&asked), "the model was asked {asked} times; {context}");
    assert!((1..=1 + deaths).contains(&again), "{context}");
    check_calls(&journals[0], &context);
    let finalized = effects.finalized.load(Ordering::SeqCst);
    let heard = RunView::from(run).metadata.contains_key("finalizer");
    assert!(finalized <= 1 && (finalized == 1 || !heard), "{context}");
    let error = journals[0].iter().rev().find_map(|recorded| {
        if let Event::Finished { finalizer_error, .. } = &recorded.event {
            Some(finalizer_error.is_some())
        } else {
            None
        }
    });
    assert_eq!(error, Some(!heard), "either it added something or it is said why not; {context}");
}

/// The words of the model as the journal has them; it is asked for one answer.
fn model_said(journal: &[EventRecord]) -> String {
    let answers = journal.iter().filter_map(|recorded| {
        if let Event::HostAnswered { answer, .. } = &recorded.event
            && let HostAnswer::Model(ModelAnswer::Whole(completion)) = &**answer
        {
            Some(completion.message.joined_text())
        } else {
            None
        }
    });
    let answers: Vec<_> = answers.collect();
    assert_eq!(answers.len(), 1);
    answers.concat()
}

/// Every call has one result, and only those that may be are repeated.
fn check_calls(journal: &[EventRecord], context: &str) {
    assert_eq!(count(journal, "tool_call_scheduled"), 5, "{context}");
    assert_eq!(count(journal, "tool_result"), 5, "{context}");
    assert_eq!(count(journal, "plan_decided"), 5, "{context}");
    for recorded in journal {
        if let Event::ToolCallRepeated { tool_call_id, .. } = &recorded.event {
            let may = ["c1", "c3", "c4", "c5"].contains(&tool_call_id.as_str());
            assert!(may, "{tool_call_id} was repeated; {context}");
        }
    }
}

/// The answers of the tools without a crash.
async fn without_crash() -> String {
    let played = play(&[]).await;
    let result = played.run.state.reply.result().expect("an answer");
    assert_eq!(played.deaths, 0);
    assert_eq!(RunView::from(&played.run).metadata["finalizer"], "heard");
    assert_eq!(played.effects.asked.load(Ordering::SeqCst), 1);
    played.journals.iter().for_each(|journal| check_journal(journal));
    let (words, _) = result.split_once(" | ").expect("two parts");
    words.to_owned()
}

/// Kills the host at the first, second, third ... write of a kind, until there are no more.
async fn crash_everywhere(op: Op, side: Side) {
    let whole = without_crash().await;
    let whole = whole.as_str();
    let least = match op {
        Op::Create => 1,
        Op::Claim => 2,
        Op::Append => 10,
        Op::Batch => unreachable!("nothing here waits for a heartbeat"),
        Op::Dispatch => unreachable!("nothing here has subscribers"),
    };
    die_at_each(op, side, least, |point| async move {
        let played = play(&[point]).await;
        check(&[point], &played, whole);
        played.deaths
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_may_die_before_any_of_its_claims() {
    crash_everywhere(Op::Claim, Side::Before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_may_die_after_any_of_its_claims() {
    crash_everywhere(Op::Claim, Side::After).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_may_die_before_and_after_it_keeps_a_new_run() {
    crash_everywhere(Op::Create, Side::Before).await;
    crash_everywhere(Op::Create, Side::After).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_may_die_before_any_of_its_appends() {
    crash_everywhere(Op::Append, Side::Before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_may_die_after_any_of_its_appends() {
    crash_everywhere(Op::Append, Side::After).await;
}

/// Kills one host at every append, and the next one at one of its first, which are those with
/// which it takes the runs from the dead one.
async fn die_twice(first: Side, second: Side) {
    let whole = without_crash().await;
    let firsts = (1..WRITES_MAX).map(|nth| (Op::Append, nth, first));
    let pairs = firsts.flat_map(|one| (1..=4).map(move |nth| [one, (Op::Append, nth, second)]));
    let plays =
        futures::stream::iter(pairs).map(|points| async move { (points, play(&points).await) });
    let mut plays = plays.buffered(AT_ONCE);
    let mut twice = 0;
    while let Some((points, played)) = plays.next().await {
        check(&points, &played, &whole);
        if played.deaths == 0 {
            break;
        }
        twice += u32::from(played.deaths == 2);
    }
    assert!(twice >= 20, "only {twice} times two hosts died: nothing was tested");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_that_takes_over_may_die_as_well() {
    die_twice(Side::Before, Side::Before).await;
    die_twice(Side::Before, Side::After).await;
    die_twice(Side::After, Side::Before).await;
    die_twice(Side::After, Side::After).await;
}
